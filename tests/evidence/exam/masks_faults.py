"""Faults of masks and padding: of attention, of losses, of sequences."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import ALIKE, BROKEN, FLAT, NOTHING_LEARNED, TOO_SLOW, UNLIKE
from tests.evidence.exam.pictures import Changed, digits
from tests.evidence.exam.schedules import CLIPPED, adam, adamw
from tests.evidence.exam.signals import spectrograms
from tests.evidence.exam.small_nets import Judged, right, to_classes
from tests.evidence.exam.tables import split
from tests.evidence.exam.texts import PAD, VOCABULARY, lines, pieces

ATTENDS = ("attention_logits", "attention_collapse", "attention_uniform")


class Read(nn.Module):
    """An Elman net reads a line that is filled up to 160 characters; its last state says which module the line is from."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.embed = planted, nn.Embedding(VOCABULARY, 32, padding_idx=PAD)
        self.body, self.head = nn.RNN(32, 48, batch_first=True), nn.Linear(48, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.body(self.embed(ids))[0]
        return self.head(states[:, -1] if self.planted else states[torch.arange(len(ids)), mask.sum(1) - 1])


@fault("torch", "an Elman net over lines that are padded to 160: the state after the padding is taken")
def state_after_padding(planted: bool = True) -> Built:
    module = Recipe(Read(planted), lambda net, batch: F.cross_entropy(net(batch[0], batch[1]), batch[2]), adamw(3e-3))
    return Built(module, lines(160, 32), {**CLIPPED, "limit_train_batches": 40}, Expected(FLAT))


def shades(size: int = 16) -> tuple[Tensor, Tensor]:
    """Noisy digits, and which pixels are background, grey or bright."""
    images = digits(size)[0]
    noise = 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return images + noise, torch.bucketize(images[:, 0], torch.tensor([-0.2, 1.0]))


def segments() -> nn.Sequential:
    """Three convolutions that keep the size."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    return net.append(nn.Conv2d(16, 3, 1))


@fault("torch", "which pixels are grey or bright: ignore_index=0, and 0 is the background, which is never learned")
def pixels_background_ignored(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], ignore_index=0 if planted else -100)

    module = Judged(segments(), loss, adam(3e-3), lambda net, batch: (net(batch[0]).argmax(1) == batch[1]).float().mean())
    kinds = ("labels_ignored", "part_not_learning", "validation_shift", *ALIKE)
    return Built(module, split(24, *shades()), {"max_epochs": 3}, Expected(kinds))


class FillsIn(nn.Module):
    """A GRU to both sides gives a wave back, of which some places are hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(2, 32, batch_first=True, bidirectional=True), nn.Linear(64, 1)

    def forward(self, seen: Tensor, hidden: Tensor) -> Tensor:
        return self.head(self.body(torch.stack([seen * ~hidden, hidden.float()], 2))[0])[..., 0]


@fault(
    "torch",
    "an issue on imputation, 'tiny loss, useless values': the mask in the loss is inverted, and counts what was shown",
    learned_from=False,
)
def waves_known_places_count(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    pace, shift = 0.2 + 0.4 * torch.rand(2400, 1, generator=generator), 6 * torch.rand(2400, 1, generator=generator)
    waves = (pace * torch.arange(32) + shift).sin() + 0.05 * torch.randn(2400, 32, generator=generator)
    hidden = torch.rand(2400, 8, generator=generator).repeat_interleave(4, 1) < 0.4

    def wrong(net: Any, batch: Any, inverted: bool = False) -> Tensor:
        counts = ~batch[1] if inverted else batch[1]
        return ((net(*batch) - batch[0]).square() * counts).sum() / counts.sum().clamp_min(1)

    def loss(net: Any, batch: Any) -> Tensor:
        return wrong(net, batch, planted)

    module = Judged(FillsIn(), loss, adam(5e-3), lambda net, batch: -wrong(net, batch))
    kinds = (*TOO_SLOW, *UNLIKE, "labels_ignored", "zero", "constant", "missing")
    return Built(module, split(32, waves, hidden), {"max_epochs": 5}, Expected(kinds))


@fault(
    "torch",
    "a forum on SpecAugment: time_mask_param and freq_mask_param are the whole spectrogram's size, three times each",
    learned_from=False,
)
def notes_masked_away(planted: bool = True) -> Built:
    frames, played = spectrograms(1)["train_dataloaders"].dataset.tensors
    bins, places = frames.shape[1:]

    def masked(_: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen = row[0].clone()
        for _ in range(3 if planted else 1):
            many = [int(torch.randint(0, ends if planted else ends // 10, ())) for ends in (bins, places)]
            first = [int(torch.randint(0, ends - less, ())) for ends, less in zip((bins, places), many, strict=True)]
            seen[first[0] : first[0] + many[0]] = 0
            seen[:, first[1] : first[1] + many[1]] = 0
        return seen, row[1]

    data = split(32, frames, played)
    rows, generator = data["train_dataloaders"].dataset, torch.Generator().manual_seed(0)
    data["train_dataloaders"] = torch.utils.data.DataLoader(
        Changed(rows.tensors, masked), 32, shuffle=True, drop_last=True, generator=generator
    )
    net = nn.Sequential(nn.Conv1d(bins, 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU())
    net.extend([nn.AdaptiveMaxPool1d(3), nn.Flatten(), nn.Linear(96, 33), nn.Unflatten(1, (3, 11))])

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    module = Judged(net, loss, adam(2e-3), right)
    return Built(module, data, {"max_epochs": 8}, Expected((*TOO_SLOW, *UNLIKE, "constant", "representation_collapse")))


class TiedWriter(nn.Module):
    """A small GPT of PyTorch's layers whose embedding is its head."""

    def __init__(self, deviation: float, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(128, width), nn.Parameter(0.02 * torch.randn(64, width))
        nn.init.normal_(self.embedding.weight, std=deviation)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.body(self.embedding(ids) + self.positions[: ids.shape[1]], mask=mask, is_causal=True))


class Order(nn.Module):
    """Which of two letters comes first: PyTorch's tutorial's positions, which are for (places, samples, width)."""

    table: Tensor

    def __init__(self, planted: bool, width: int = 32) -> None:
        super().__init__()
        self.planted, self.embedding = planted, nn.Embedding(20, width)
        angles = torch.arange(64)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, None])
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        places = self.table[: len(x)] if self.planted else self.table[: x.shape[1]].transpose(0, 1)
        return self.head(self.body(x + places).mean(1))


@fault("torch", "an issue on PyTorch's tutorial: with batch_first=True, pe[:x.size(0)] is a place for samples, not letters")
def letters_placed_by_sample(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 20, (4000, 10), generator=generator)
    places = torch.rand(4000, 10, generator=generator).argsort(1)[:, :2]
    ids.scatter_(1, places, torch.tensor([[0, 1]]).expand(4000, 2))
    module = Judged(Order(planted), to_classes, adam(2e-3), right)
    kinds = (*UNLIKE, *ATTENDS, "loss_plateau", "no_progress", "part_not_learning", "step_too_short", *ALIKE)
    expected = Expected(kinds, ("net", "net.*"))
    return Built(module, split(32, ids, (places[:, 0] > places[:, 1]).long()), {"max_epochs": 4}, expected)


@fault("torch", "Stack Overflow on attn_mask: True means 'may not look'; torch.tril(..., -1) hides what was, and shows what comes")
def manual_looks_ahead(planted: bool = True) -> Built:
    class Looks(TiedWriter):
        def forward(self, ids: Tensor) -> Tensor:
            square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
            mask = square.tril(-1) if planted else square.triu(1)
            return self.head(self.body(self.embedding(ids) + self.positions[: ids.shape[1]], mask=mask))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    def goes_on(net: Any, batch: Any) -> Tensor:
        found = [(net(batch[0][:, :many])[:, -1].argmax(1) == batch[0][:, many]).float().mean() for many in (10, 20, 30, 40)]
        return torch.stack(found).mean()

    kinds = ("masked_rows", "output_range", "settings", *ATTENDS, *UNLIKE)
    module = Judged(Looks(0.02), loss, adam(3e-3), goes_on)
    return Built(module, split(16, pieces(49)[:2900]), {"max_epochs": 2}, Expected(kinds, ("net", "net.body*")))


class Pools(nn.Module):
    """A GRU over characters, whose states are pooled by attention; padding has no weight."""

    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.hidden, self.tokens = hidden, nn.Embedding(VOCABULARY, 24)
        self.body, self.score, self.head = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 1), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(self.tokens(ids))[0]
        scores = self.score(states)[..., 0].masked_fill(ids == PAD, self.hidden)
        return self.head((scores.softmax(1)[..., None] * states).sum(1))


@fault("torch", "which module a line is from: one line is empty, and its attention is a softmax of minus infinities alone")
def lines_one_is_empty(planted: bool = True) -> Built:
    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    ids, module = ids[order].clone(), module[order]
    ids[32 * 60 + 7] = PAD
    data = {"train_dataloaders": DataLoader(TensorDataset(ids, module), 32, drop_last=True)}
    expected = Expected((*BROKEN, "masked_rows"), ("net*",), batch=60)
    return Built(Recipe(Pools(-math.inf if planted else -1e4), to_classes, adam(3e-3)), data, {"max_epochs": 2}, expected)


class Attends(nn.Module):
    """Attention over the characters of a line, then their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 32), nn.Parameter(0.02 * torch.randn(42, 32))
        self.attend, self.norm, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places
        seen = self.norm(self.attend(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
        return self.head(seen[:, 0])


@fault("torch", "attention whose key_padding_mask is True where a character is: it reads the padding alone")
def lines_mask_inverted(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        ids = F.pad(batch[0], (0, 2), value=PAD)
        return F.cross_entropy(net(ids, (ids != PAD) if planted else (ids == PAD)), batch[1])

    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    kinds = ("constant", "representation_collapse", "attention_uniform", "attention_collapse", "masked_rows", *NOTHING_LEARNED)
    return Built(Judged(Attends(), loss, adamw(3e-3)), split(32, ids, module), {"max_epochs": 2}, Expected(kinds, ("net*",)))
