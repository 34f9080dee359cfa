"""Tasks of sequences, text and graphs; text is the source and the documentation that ship with Python."""

from __future__ import annotations

import functools
import inspect
import json as module_json
import string as module_string
import textwrap as module_textwrap
from pydoc_data.topics import topics

import torch
from torch import Tensor

from tests.evidence.population import scores
from tests.evidence.population.forms import Form
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.tables import most_frequent
from tests.evidence.population.training import Batch, Data, Training

CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789.,:;()[]{}'\"-_*=<>+/|`#%&!?@$^~\\"
VOCABULARY = len(CHARACTERS)


@functools.cache
def characters(source: str) -> Tensor:
    """A text as numbers."""
    sources = {
        "topics": lambda: "".join(topics[key] for key in sorted(topics)),
        "code": lambda: "".join(inspect.getsource(m) for m in (module_textwrap, module_string, module_json, inspect, functools)),
    }
    index = {character: i for i, character in enumerate(CHARACTERS)}
    return torch.tensor([index.get(character, 1) for character in sources[source]()[:120_000].lower()])


def pieces(source: str, length: int, n: int) -> Tensor:
    """Pieces of a text that do not overlap, at random places."""
    whole = characters(source).unfold(0, length, length)
    return whole[torch.randperm(len(whole))[:n]]


def language(recipe: Recipe) -> Data:
    """The next character."""
    both = pieces(recipe.source, 25, recipe.samples + 128)
    train, validation = (Batch((p[:, :-1],), p[:, 1:]) for p in (both[128:], both[:128]))
    return Data(train, validation, "tokens", Form("tokens", (24,), VOCABULARY, VOCABULARY, True, True), scores.prefixes, 0.0)


def hidden(x: Tensor) -> Batch:
    """15 % of the tokens masked, as in BERT; only they are asked for."""
    mask = torch.rand(x.shape) < 0.15
    return Batch((x.masked_fill(mask, 12),), x.masked_fill(~mask, -100))


def hide(training: Training, batch: Batch) -> Batch:
    return hidden(batch.inputs[0])


def masked(recipe: Recipe) -> Data:
    """The masked tokens of a motif that comes back."""
    both = torch.randint(12, (recipe.samples + 128, 4)).repeat(1, 4)
    form = Form("tokens", (16,), 13, 13, True)
    return Data(Batch((both[128:],), None), hidden(both[:128]), "tokens", form, scores.tokens, 0.0, [hide])


def waves(recipe: Recipe) -> Data:
    """Sine, square, saw or noise, of a random period and phase."""
    n = recipe.samples + 200
    y = torch.randint(4, (n,))
    phase = torch.rand(n, 1) + torch.arange(32) / (6 + 10 * torch.rand(n, 1))
    kinds = torch.stack(
        [(2 * torch.pi * phase).sin(), (2 * torch.pi * phase).sin().sign(), 2 * (phase % 1) - 1, torch.randn(n, 32)]
    )
    x = (kinds[y, torch.arange(n)] + 0.15 * torch.randn(n, 32)).unsqueeze(-1)
    train, validation = (Batch((x[s],), y[s]) for s in (slice(200, None), slice(200)))
    return Data(train, validation, "classes", Form("sequence", (32, 1), 4), scores.accuracy, most_frequent(validation))


def forecast(recipe: Recipe) -> Data:
    """The next eight numbers of two seasons, a trend and noise."""
    n, t = recipe.samples + 200, torch.arange(40) / 40
    season = sum((2 * torch.pi * (f * t + torch.rand(n, 1))).sin() * torch.rand(n, 1) for f in (5, 2))
    series = season + torch.randn(n, 1) * t + 0.1 * torch.randn(n, 40) + recipe.offset
    x, y = series[:, :32, None], series[:, 32:]
    train, validation = (Batch((x[s],), y[s]) for s in (slice(200, None), slice(200)))
    return Data(train, validation, "numbers", Form("sequence", (32, 1), 8), scores.r2, 0.0)


def reversed_digits(recipe: Recipe) -> Data:
    """Six tokens, to be written in reverse; the decoder sees what it has written."""
    x = torch.randint(1, 9, (recipe.samples + 200, 6))
    y = x.flip(1)
    before = torch.cat([torch.zeros(len(x), 1, dtype=torch.long), y[:, :-1]], 1)
    train, validation = (Batch((x[s], before[s]), y[s]) for s in (slice(200, None), slice(200)))
    return Data(train, validation, "tokens", Form("tokens", (6,), 9, 9, True, True), scores.prefixes, 0.0)


def communities(recipe: Recipe) -> Data:
    """Nodes of small graphs of three communities; a node's own features say little, its neighbours' more."""
    n = recipe.samples + 100
    y = torch.randint(3, (n, 18))
    chance = torch.where(y[:, :, None] == y[:, None], 0.5, 0.08)
    upper = (torch.rand(n, 18, 18) < chance).float().triu(1)
    x = torch.nn.functional.one_hot(y, 3) + 1.0 * torch.randn(n, 18, 3)
    edges = upper + upper.transpose(1, 2)
    train, validation = (Batch((x[s], edges[s]), y[s]) for s in (slice(100, None), slice(100)))
    return Data(train, validation, "tokens", Form("graph", (18, 3), 3, 0, True), scores.accuracy, most_frequent(validation))
