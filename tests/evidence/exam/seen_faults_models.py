"""Faults in nets that no other family trains: how their parts are joined, shared, frozen, and in which mode."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_timm import cross_entropy
from tests.evidence.exam.language_models import language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import SHORT, adamw
from tests.evidence.exam.signals import series
from tests.evidence.exam.texts import VOCABULARY, characters

BATCHES: dict[str, Any] = {"max_epochs": 2, "limit_train_batches": 40}


def on_digits(net: nn.Module, rates: Any, *kinds: str, sites: tuple[str, ...] | None = None, width: int = 8) -> Built:
    """Trained on pictures of digits."""
    return Built(Recipe(net, cross_entropy, rates), in_batches(32, *digits(width)), BATCHES, Expected(kinds, sites))


def sgd(rate: float, **options: Any) -> Any:
    return lambda module: torch.optim.SGD(module.parameters(), rate, **options)


def next_character(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


class Writer(nn.Module):
    """A GRU reads a text, another writes it again."""

    def __init__(self, watched: Any) -> None:
        super().__init__()
        self.watched, self.embed = watched, nn.Embedding(VOCABULARY, 32)
        self.reads, self.writes = nn.GRU(32, 96, batch_first=True), nn.GRU(32, 96, batch_first=True)
        self.head = nn.Linear(96, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embed(ids)
        with self.watched():
            state = self.reads(embedded)[1]
        return self.head(self.writes(F.pad(embedded[:, :-1], (0, 0, 1, 0)), state)[0])


@fault("torch", "a GRU that writes: the one that reads runs under no_grad, as in the script for inference")
def writer_reads_without_gradient(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[0].flatten())

    net = Writer(torch.no_grad if planted else nullcontext)
    return Built(Recipe(net, loss, adamw(5e-3)), characters(8, 32), SHORT, Expected(("missing",), ("net.reads*",)))


class Branches(nn.Module):
    """Convolutions of three sizes beside each other, as in Inception."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        branches = [nn.Conv2d(1, 16, size, padding=size // 2) for size in (1, 3, 5)]
        self.branches: Any = branches if planted else nn.ModuleList(branches)
        self.head = nn.Sequential(nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([branch(x) for branch in self.branches], 1))


@fault("torch", "the branches of an Inception block are in a Python list")
def inception_list(planted: bool = True) -> Built:
    return on_digits(Branches(planted), adam(5e-3), "unregistered")


@fault("torch", "group norm with a group for each channel, after pooling: it normalises single numbers")
def group_norm_of_one(planted: bool = True) -> Built:
    convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*convolutions, nn.GroupNorm(32 if planted else 4, 32), nn.Linear(32, 10))
    kinds = ("constant", "zero", "representation_collapse", "missing", "settings", "loss_plateau")
    return on_digits(net, adam(5e-3), *kinds, sites=("net.[0-7]*",))


class Forecaster(nn.Module):
    """A GRU that foretells the next day."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.body, self.head, self.last = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1), last

    def forward(self, past: Tensor) -> Tensor:
        return self.last(self.head(self.body(past[..., None])[0][:, -1]))


def next_day(net: Any, batch: Any) -> Tensor:
    level = batch[0].mean(1, keepdim=True)
    return F.mse_loss(net(batch[0] / level - 1), batch[1][:, :1] / level - 1)


@fault("torch", "a forecast ends in a layer norm of its single number")
def layer_norm_of_one(planted: bool = True) -> Built:
    net = Forecaster(nn.LayerNorm(1) if planted else nn.Identity())
    kinds = ("constant", "zero", "representation_collapse", "missing", "settings", "loss_plateau", "vanishing")
    return Built(Recipe(net, next_day, adam(1e-2)), series(32, 28, 7), {"max_epochs": 3}, Expected(kinds, ("net.*",)))


class LateHead(nn.Module):
    """Makes its head when it sees how wide the features are."""

    def __init__(self, planted: bool, anew: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 3, 2), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten())
        self.anew, self.middle = planted and anew, None if planted else nn.Linear(216, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        if self.middle is None:
            made = nn.Linear(features.shape[1], 64)
            if self.anew:
                return self.head(made(features).relu())
            self.middle = made
        return self.head(self.middle(features).relu())


@fault("torch", "a layer that is made in the first forward, after the optimizer")
def layer_made_late(planted: bool = True) -> Built:
    return on_digits(LateHead(planted, False), sgd(0.02), "not_optimized", "unregistered", sites=("net.middle*",))


@fault("torch", "a layer that is made anew in each forward")
def layer_made_anew(planted: bool = True) -> Built:
    return on_digits(LateHead(planted, True), sgd(0.02), "unregistered", "loss_plateau")


class Forgers(Recipe):
    """A net that makes pictures and one that tells them from true ones, by hand."""

    def __init__(self, detached: bool, forgets: bool = False) -> None:
        super().__init__(nn.Module(), lambda *_: None, self.both)
        self.makes = nn.Sequential(nn.Linear(16, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 64))
        self.tells = nn.Sequential(nn.Linear(64, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
        self.detached, self.forgets, self.automatic_optimization = detached, forgets, False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.Adam(part.parameters(), 1e-3, (0.5, 0.999)) for part in (module.makes, module.tells)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_maker, of_judge = self.optimizers()
        true, made = batch[0].flatten(1), self.makes(torch.randn(len(batch[0]), 16))
        wrong = F.softplus(-self.tells(true)).mean() + F.softplus(self.tells(made.detach())).mean()
        if not self.forgets:
            of_judge.zero_grad()
        self.manual_backward(wrong)
        of_judge.step()
        of_maker.zero_grad()
        fooled = F.softplus(-self.tells(made.detach() if self.detached else made)).mean()
        self.manual_backward(fooled)
        of_maker.step()
        return {"loss": fooled.detach()}


@fault("torch", "a GAN whose generator is judged by a detached picture")
def gan_detached(planted: bool = True) -> Built:
    expected = Expected(("missing", "not_updated", "not_zeroed"), ("makes*",))
    return Built(Forgers(planted), in_batches(32, *digits(8)), BATCHES, expected)


class LeftInEval(Recipe):
    """Is put in eval mode after twenty batches, for a look at its outputs."""

    planted = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step == 20 and self.planted:
            self.net.eval()
        return super().training_step(batch, batch_idx)


@fault("torch", "a net with batch norm and dropout: eval mode for a look at its outputs, and no train() after it")
def left_in_eval(planted: bool = True) -> Built:
    blocks = [(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((1, 16), (16, 32), (32, 32))]
    body = [layer for block in blocks for layer in block]
    net = nn.Sequential(*body, nn.AvgPool2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10))
    module = LeftInEval(net, cross_entropy, adam(3e-3, 0.0))
    module.planted = planted
    return Built(module, in_batches(32, *digits(8)), BATCHES, Expected(("eval_mode",), ("net*",), batch=20))


class Text(nn.Module):
    """A causal transformer of PyTorch's own layers."""

    def __init__(self, same: bool = False, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 48)
        made = [nn.TransformerEncoderLayer(48, 4, 96, 0.0, batch_first=True, norm_first=True) for _ in range(depth)]
        self.layers, self.head = nn.ModuleList([made[0]] * depth if same else made), nn.Linear(48, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        hidden = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            x = layer(x, hidden, is_causal=True)
        return self.head(x)


@fault("torch", "a transformer of PyTorch's layers, made as [layer] * 4")
def encoder_layer_again(planted: bool = True) -> Built:
    module = Recipe(Text(planted, 4), next_character, adamw(2e-3))
    return Built(module, characters(32, 8), SHORT, Expected(("shared",), ("net.layers*",)))


@fault("transformers", "GPT-BigCode: the group of parameters without decay, biases and norms, was left out")
def bigcode_group_left_out(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        decayed = [parameter for parameter in module.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in module.parameters() if parameter.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups[:1] if planted else groups, 3e-3)

    expected = Expected(("not_optimized",), ("net*.ln_*", "net*.bias", "net.transformer*"))
    return Built(Recipe(bigcode_net(), language_model, rates), characters(48, 8), SHORT, expected)


def bigcode_net(**options: Any) -> Any:
    """GPT-BigCode: one key for all heads."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4}
    return GPTBigCodeForCausalLM(GPTBigCodeConfig(**{**sizes, "bos_token_id": 2, "eos_token_id": 3, **options}))


class Nodes(nn.Module):
    """A layer for each node, then TAG convolutions."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        from torch_geometric.nn import TAGConv

        self.first, self.body, self.last = nn.Linear(64, 12), TAGConv(12, 32, 2), TAGConv(32, 10, 2)
        self.planted = planted

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        return self.last(self.body(hidden.data if self.planted else hidden, edges).relu(), edges)


@fault("torch_geometric", "TAG: the features of its first layer are taken as .data")
def tag_data(planted: bool = True) -> Built:
    return expecting(on_nodes(Recipe(Nodes(planted), of_nodes, adam(1e-2))), "missing", sites=("net.first*",))
