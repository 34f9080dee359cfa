"""Healthy trainings on sequences: hidden letters, states that decay, filters, frequencies, a rule that corrects, dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import WELL
from tests.evidence.exam.unseen_eight_wiring import tells
from tests.evidence.exam.unseen_nine_pictures import Averaged, warmed
from tests.evidence.exam.unseen_nine_sequences import pieces
from tests.evidence.exam.unseen_nine_settings import foretells
from tests.evidence.exam.unseen_ten_sequences import notices


class Reads(nn.Module):
    """A transformer that sees letters before and behind."""

    def __init__(self, length: int, width: int = 64, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(128, width), nn.Parameter(0.1 * torch.randn(length, width))
        nn.init.normal_(self.embedding.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 128)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids) + self.positions))


@healthy(
    "torch", "a masked diffusion of text (MDLM): a share of letters by chance is hidden, weights of one over it; AdamW, an average"
)
def notices_unmasked() -> Built:
    ids = notices()[0]

    def loss(net: Any, batch: Any) -> Tensor:
        share = (torch.rand(1) + torch.arange(len(batch[0])) / len(batch[0])) % 1 * 0.95 + 0.05
        hidden = torch.rand(batch[0].shape) < share[:, None]
        told = net(torch.where(hidden, 1, batch[0]))
        missed = F.cross_entropy(told.flatten(0, 1), batch[0].flatten(), reduction="none").view_as(hidden) * hidden
        return (missed.mean(1) / share).mean()

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.net.parameters(), 4e-3, betas=(0.9, 0.98), weight_decay=0.01)

    module = Averaged(Reads(32), loss, warmed(optimizers, 375, 30))
    return Built(module, in_batches(32, ids), {"max_epochs": 3, "gradient_clip_val": 1.0}, WELL)


class Retains(nn.Module):
    """RetNet's layer in parallel: products of queries and keys that decay with the distance, a rate for each head; a gate."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm, self.second = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.parts, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.groups = nn.GroupNorm(heads, width, affine=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        _samples, length, width = x.shape
        query, key, value, gate = self.parts(self.norm(x)).chunk(4, -1)
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        away = torch.arange(length)[:, None] - torch.arange(length)
        keep = 1 - 2.0 ** -torch.linspace(1, 5, self.heads)
        decay = (keep[:, None, None] ** away.clamp_min(0)).masked_fill(away < 0, 0.0)
        seen = (query @ key.transpose(2, 3) * (width // self.heads) ** -0.5 * decay) @ value
        seen = self.groups(seen.transpose(1, 2).reshape(-1, width)).view_as(x)
        x = x + self.out(F.silu(gate) * seen)
        first, second = self.wide(self.second(x)).chunk(2, -1)
        return x + self.narrow(F.silu(first) * second)


@healthy("torch", "a RetNet writes a manual: states that decay, gated, RMSNorm, tied head; bf16-mixed, two batches a step, AdamW")
def manual_by_decays() -> Built:
    embedding, head = nn.Embedding(128, 64), nn.Linear(64, 128, bias=False)
    head.weight = embedding.weight
    nn.init.normal_(embedding.weight, std=0.02)
    net = nn.Sequential(embedding, Retains(64), Retains(64), nn.RMSNorm(64), head)

    def optimizers(module: Any) -> Any:
        many = [weight for weight in module.parameters() if weight.dim() > 1]
        few = [weight for weight in module.parameters() if weight.dim() < 2]
        groups = [{"params": many, "weight_decay": 0.1}, {"params": few, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, 5e-3, betas=(0.9, 0.95))

    options = {"max_epochs": 1, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "precision": "bf16-mixed"}
    return Built(Recipe(net, foretells, warmed(optimizers, 200)), in_batches(16, pieces(49)[: 16 * 380]), options, WELL)


class Filters(nn.Module):
    """Kim's net: a table that stays and one that learns, filters of three widths, the largest value of each, dropout."""

    def __init__(self, kinds: int = 2048, width: int = 24) -> None:
        super().__init__()
        self.still, self.learns = nn.Embedding(kinds, width), nn.Embedding(kinds, width)
        self.still.requires_grad_(False)
        for table in (self.still, self.learns):
            nn.init.uniform_(table.weight, -0.25, 0.25)
        self.filters = nn.ModuleList(nn.Conv1d(2 * width, 24, size) for size in (2, 3, 4))
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(72, 2)

    def forward(self, ids: Tensor) -> Tensor:
        pairs = (ids[:, :-1] * 31 + ids[:, 1:]) % 2048
        x = torch.cat([self.still(pairs), self.learns(pairs)], 2).transpose(1, 2)
        return self.head(self.dropout(torch.cat([each(x).relu().amax(2) for each in self.filters], 1)))


class Bounded(Recipe):
    """No row of the head is longer than three, after each step."""

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            self.net.head.weight.copy_(self.net.head.weight.renorm(2, 0, 3.0))


@healthy("torch", "Kim's convolutions for sentences: one table stays, one learns; dropout of a half, a bound on the head; Adadelta")
def lines_by_filters() -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    module = Bounded(Filters(), tells, lambda module: torch.optim.Adadelta(module.parameters(), 1.0, rho=0.95, eps=1e-6))
    return Built(module, in_batches(50, ids, source), {"max_epochs": 4}, WELL)


class ByFrequencies(nn.Module):
    """FITS: each series is centred and scaled by itself; a complex linear layer lengthens its lower frequencies."""

    def __init__(self, past: int = 96, future: int = 32, low: int = 24) -> None:
        super().__init__()
        self.past, self.total, self.low = past, past + future, low
        self.longer = nn.Linear(low, low * (past + future) // past, dtype=torch.cfloat)

    def forward(self, past: Tensor) -> Tensor:
        middle, width = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        known = torch.fft.rfft((past - middle) / width)[:, : self.low]
        longer = F.pad(self.longer(known), (0, self.total // 2 + 1 - self.longer.out_features))
        return torch.fft.irfft(longer, self.total) * (self.total / self.past) * width + middle


@healthy("torch", "FITS forecasts loads of the day and the week: complex weights between frequencies, each series scaled; Adam")
def loads_by_frequencies() -> Built:
    generator = torch.Generator().manual_seed(0)
    start, level, trend = (torch.rand(6400, 1, generator=generator) for _ in range(3))
    times = torch.arange(128) + 500 * start
    waves = (2 * math.pi * times / 24).sin() + 0.6 * (2 * math.pi * times / 12 + 4 * level).cos() + (0.5 - trend) * times / 100
    loads = (10 + 20 * level) * (3 + waves + 0.1 * torch.randn(waves.shape, generator=generator))

    def loss(net: Any, batch: Any) -> Tensor:
        size = batch[0].std(1, keepdim=True)
        return F.mse_loss(net(batch[0][:, :96]) / size, batch[0] / size)

    module = Recipe(ByFrequencies(), loss, warmed(lambda module: torch.optim.Adam(module.parameters(), 2e-3), 400))
    return Built(module, in_batches(64, loads), {"max_epochs": 4}, WELL)


class Corrects(nn.Module):
    """DeltaNet: a matrix is a memory; what it says of a key is corrected by a share, key by key."""

    def __init__(self, kinds: int, width: int = 32) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(kinds, width), nn.Embedding(kinds, width)
        self.key, self.value, self.share = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, kinds)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        known, kept = F.normalize(F.silu(self.key(self.keys(keys))), dim=-1), self.value(self.values(values))
        shares, memory = self.share(self.keys(keys)).sigmoid(), keys.new_zeros(len(keys), 32, 32, dtype=torch.float32)
        for key, value, share in zip(known.unbind(1), kept.unbind(1), shares.unbind(1), strict=True):
            missed = value - (memory @ key[..., None])[..., 0]
            memory = memory + share[..., None] * missed[..., None] * key[:, None]
        query = F.normalize(F.silu(self.key(self.keys(asked))), dim=-1)
        return self.head(self.norm((memory @ query[..., None])[..., 0]))


@healthy("torch", "DeltaNet recalls which value came last with a key: a fast memory that corrects itself; AdamW, warm-up, cosine")
def values_recalled() -> Built:
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randint(0, 12, (16000, 10), generator=generator) for _ in range(2))
    place = torch.randint(0, 10, (16000, 1), generator=generator)
    asked = keys.gather(1, place)[:, 0]
    last = ((keys == asked[:, None]) * torch.arange(1, 11)).argmax(1)
    wanted = values.gather(1, last[:, None])[:, 0]

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(*batch[:3]), batch[3])

    module = Recipe(Corrects(12), loss, warmed(lambda module: torch.optim.AdamW(module.parameters(), 0.01), 320))
    return Built(module, in_batches(50, keys, values, asked, wanted), {"max_epochs": 1, "gradient_clip_val": 1.0}, WELL)


@healthy("torch", "SimCSE: a line read twice, each time with other dropped units, is near itself and far from others; AdamW")
def lines_read_twice() -> Built:
    rows = pieces(33)

    def loss(net: Any, batch: Any) -> Tensor:
        def code() -> Tensor:
            return F.normalize(net.head(net.body(net.embedding(batch[0]) + net.positions).mean(1)), dim=1)

        return F.cross_entropy(code() @ code().T / 0.1, torch.arange(len(batch[0])))

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.parameters(), 5e-4, weight_decay=0.01)

    module = Recipe(Reads(33, 48, 1, 0.2), loss, warmed(optimizers, 190))
    return Built(module, in_batches(32, rows[: 32 * 180]), {"max_epochs": 1, "gradient_clip_val": 1.0}, WELL)
