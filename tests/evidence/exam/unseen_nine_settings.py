"""Faults of settings and wiring from users' questions: optimizers, schedules, first weights, units, angles.

A story names the kind of place where it is asked; what is in quotes there sums up such questions and is nobody's title.
"""

from __future__ import annotations

import math
from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.signals import spectrograms
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import adam, mlp, scaled
from tests.evidence.exam.unseen_eight_wiring import ALIKE, BROKEN, RATE, STILL, UNHELD, Judged, misses, split, tells
from tests.evidence.exam.unseen_nine_pictures import Across, Paints, regions
from tests.evidence.exam.unseen_nine_sequences import pieces
from tests.evidence.exam.unseen_nine_signals import QUANTILES, Forecasts, demand

ATTENDS = ("attention_logits", "attention_collapse", "attention_uniform")


def right(net: Any, batch: Any) -> Tensor:
    """How many are told right."""
    return (net(batch[0]).argmax(-1) == batch[1]).float().mean()


class Rows(nn.Module):
    """A GRU reads a picture row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(8, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images[:, 0])[0][:, -1])


class ClearsByHand(Judged):
    """A loop by hand, in which gradients are cleared before backward(), or between backward() and step()."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        if not self.planted:
            chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        if self.planted:
            chosen.zero_grad()
        chosen.step()
        return {"loss": loss.detach()}


@fault("torch", "Stack Overflow, 'loss does not change at all': zero_grad() is called between backward() and step(), by hand")
def rows_cleared_before_the_step(planted: bool = True) -> Built:
    module = ClearsByHand(Rows(), tells, adam(5e-3), right)
    module.planted = planted
    expected = Expected(("not_zeroed", "missing", "zero", "vanishing", "not_optimized", *STILL), ("net", "net.*"))
    return Built(module, split(32, *digits(8)), {"max_epochs": 4}, expected)


class Letters(nn.Module):
    """A GRU that writes."""

    def __init__(self, kinds: int = 100) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(kinds, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, kinds)

    def enlarge(self, kinds: int = 128) -> None:
        """More letters: the first ones keep what they have."""
        embedding, head = nn.Embedding(kinds, 32), nn.Linear(64, kinds)
        embedding.weight.data[: self.embedding.num_embeddings] = self.embedding.weight.data
        head.weight.data[: self.head.out_features] = self.head.weight.data
        self.embedding, self.head = embedding, head

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids))[0])


def foretells(net: Any, batch: Any) -> Tensor:
    """The next letter, at each letter."""
    return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


class EnlargedLate(Judged):
    """Its optimizer is made when it is; letters are added before that, or after it."""

    def __init__(self, planted: bool) -> None:
        net = Letters()
        if not planted:
            net.enlarge()
        self.chosen: Any = torch.optim.Adam(net.parameters(), 3e-3)
        if planted:
            net.enlarge()
        super().__init__(net, foretells, lambda module: module.chosen, lambda net, batch: -foretells(net, batch))


@fault(
    "torch",
    "a forum, 'loss stays high after adding tokens': embedding and head are enlarged after the optimizer is made",
)
def manual_enlarged_after_the_optimizer(planted: bool = True) -> Built:
    sites = ("net.embedding*", "net.head*")
    expected = Expected((*UNHELD, "settings", "optimizer_settings"), sites)
    return Built(EnlargedLate(planted), split(16, pieces(49)[:3500]), {"max_epochs": 1}, expected)


class Reads(nn.Module):
    """PyTorch's own transformer, with learned positions, over what a first layer makes of its input; their mean is read."""

    def __init__(self, first: nn.Module, length: int, outputs: int, width: int = 32, norm_first: bool = False) -> None:
        super().__init__()
        self.first, self.positions = first, nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=norm_first)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.first(x) + self.positions).mean(1))


@fault("torch", "Stack Overflow, 'my transformer predicts one class': Adam at 0.1, the rate that the same script had for SGD")
def lines_adam_at_a_tenth(planted: bool = True) -> Built:
    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    net = Reads(nn.Embedding(128, 32), 40, 2)
    expected = Expected((*RATE, *ALIKE, *ATTENDS, "loss_plateau", "no_progress", "activation_outliers"))
    return Built(Judged(net, tells, adam(0.1 if planted else 1e-3), right), split(32, ids, module), {"max_epochs": 3}, expected)


@fault("torch", "a forum on the annotated transformer: Noam's schedule multiplies a rate of 1e-4, and is meant for one of 1")
def notes_noam_times_a_rate(planted: bool = True) -> Built:
    def noam(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 1e-4 if planted else 0.5, betas=(0.9, 0.98), eps=1e-9)

        def rate(step: int) -> float:
            return 32**-0.5 * min((step + 1) ** -0.5, (step + 1) * 60**-1.5)

        schedule = torch.optim.lr_scheduler.LambdaLR(chosen, rate)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).unflatten(1, (3, 11)).flatten(0, 1), batch[1].flatten())

    def found(net: Any, batch: Any) -> Tensor:
        return (net(batch[0]).unflatten(1, (3, 11)).argmax(-1) == batch[1]).float().mean()

    frames, played = spectrograms(1)["train_dataloaders"].dataset.tensors
    net = Reads(nn.Linear(40, 32), frames.shape[2], 33, norm_first=True)
    expected = Expected(("lr_zero", "settings", "optimizer_settings", *STILL))
    data = split(32, frames.transpose(1, 2).contiguous(), played)
    return Built(Judged(net, loss, noam, found), data, {"max_epochs": 8}, expected)


@fault("torch", "Stack Overflow, 'huge loss at the start': init.normal_(weight) for all layers of a regression, of deviation 1")
def friedman_weights_of_one(planted: bool = True) -> Built:
    x, y = sklearn.datasets.make_friedman1(2000, noise=0.5, random_state=2)
    net = nn.Sequential(*mlp(10, 64, 64, 64, 64, 1), nn.Flatten(0))
    if planted:
        for weight in net.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight)
    data = split(32, torch.tensor(x, dtype=torch.float32), scaled(torch.tensor(y, dtype=torch.float32)))
    kinds = ("poor_init", "activation_outliers", "output_range", "dead", "always_clipped", "step_too_short", *RATE, *STILL)
    expected = Expected(kinds, ("net", "net.*"))
    return Built(Judged(net, misses, adam(1e-3), lambda net, batch: -misses(net, batch)), data, {"max_epochs": 5}, expected)


@fault("torch", "a forum thread on noisy training curves: SGD's momentum of 0.999 'for smoother steps', at the rate for 0.9")
def demand_momentum_of_999(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        over = batch[1][..., None] - net(batch[0])
        return torch.maximum(QUANTILES * over, (QUANTILES - 1) * over).mean()

    def optimizers(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), 0.1, 0.999 if planted else 0.9)

    module = Judged(Forecasts(), loss, optimizers, lambda net, batch: -loss(net, batch))
    kinds = ("settings", "optimizer_settings", "saturated", "no_progress", "loss_plateau", "activation_outliers", *RATE)
    return Built(module, split(32, *demand()), {"max_epochs": 6}, Expected(kinds))


@fault("torch", "an issue, 'acos gives NaN gradients': angles between pairs' embeddings, and some pairs are one picture")
def pairs_by_angle(planted: bool = True) -> Built:
    images, shown = digits(8)
    flat = images.flatten(1)
    generator = torch.Generator().manual_seed(0)
    others = torch.randint(0, len(flat), (len(flat),), generator=generator)
    same_kind = torch.tensor([int((shown == kind).nonzero()[i % 100, 0]) for i, kind in enumerate(shown)])
    others = torch.where(torch.rand(len(flat), generator=generator) < 0.5, same_kind, others)
    others = torch.where(torch.rand(len(flat), generator=generator) < 0.05, torch.arange(len(flat)), others)

    def angles(net: Any, batch: Any) -> Tensor:
        likeness = F.cosine_similarity(net(batch[0]), net(batch[1]))
        return torch.acos(likeness if planted else likeness.clamp(-1 + 1e-4, 1 - 1e-4))

    def loss(net: Any, batch: Any) -> Tensor:
        alike, far = batch[2], angles(net, batch)
        return (alike * far.square() + (1 - alike) * F.relu(1.2 - far).square()).mean()

    def parted(net: Any, batch: Any) -> Tensor:
        return ((angles(net, batch) < 0.6) == batch[2].bool()).float().mean()

    data = split(32, flat, flat[others], (shown == shown[others]).float())
    module = Judged(mlp(64, 64, 16), loss, adam(2e-3), parted)
    return Built(module, data, {"max_epochs": 4}, Expected((*BROKEN, *RATE), ("net", "net.*")))


@fault("torch", "Stack Overflow, 'predict whole numbers': the forecast is rounded in forward() before the mean squared error")
def counts_rounded_in_forward(planted: bool = True) -> Built:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(8, 48, 48, 1)

        def forward(self, x: Tensor) -> Tensor:
            told = self.net(x)[:, 0]
            return told.round() if planted else told

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 8, generator=generator)
    counts = torch.poisson((0.5 * x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 1).exp().clamp_max(20), generator=generator)
    expected = Expected(("zero", "missing", "vanishing", *STILL), ("net", "net.*"))
    module = Judged(Counts(), misses, adam(3e-3), lambda net, batch: -misses(lambda x: net(x).round(), batch))
    return Built(module, split(32, x, counts), {"max_epochs": 5}, expected)


@fault("torch", "Stack Overflow, 'U-Net marks everything': forward() ends in a sigmoid, under a loss with logits")
def strokes_sigmoid_twice(planted: bool = True) -> Built:
    net = nn.Sequential(Across(1))
    if planted:
        net.append(nn.Sigmoid())
    images, kinds = regions()

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0])[:, 0], batch[1])

    def overlap(net: Any, batch: Any) -> Tensor:
        found, inside = net(batch[0])[:, 0].sigmoid() > 0.5, batch[1] > 0
        return (found & inside).sum() / (found | inside).sum()

    expected = Expected(("double_softmax", "output_range", "saturated", "loss_plateau", "vanishing"), ("net", "net.1", "net.*"))
    module = Judged(net, loss, adam(3e-3), overlap)
    return Built(module, split(24, images, (kinds == 1).float(), share=0.85), {"max_epochs": 2}, expected)


@fault(
    "torch", "Stack Overflow, 'regression predicts the mean': one column is the time in seconds since 1970, the others are scaled"
)
def rentals_by_unix_time(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    hours = torch.randint(0, 17520, (2500,), generator=generator).float()
    weather = torch.randn(2500, 5, generator=generator)
    hired = 0.8 * torch.sin(2 * math.pi * hours / 24) + 0.5 * weather[:, 0] - 0.4 * weather[:, 1].relu() + hours / 17520
    seconds = 1.6e9 + 3600 * hours
    daytime = torch.stack([torch.sin(2 * math.pi * hours / 24), torch.cos(2 * math.pi * hours / 24)], 1)
    column = seconds if planted else (seconds - seconds.mean()) / seconds.std()
    columns = torch.cat([column[:, None], daytime, weather], 1)
    net = nn.Sequential(mlp(8, 48, 48, 1), nn.Flatten(0))
    kinds = ("feature_scale", "activation_outliers", "settings", "output_range", "dead", "constant", *RATE, *STILL)
    module = Judged(net, misses, adam(2e-3), lambda net, batch: -misses(net, batch))
    return Built(module, split(32, columns, scaled(hired[:, None])[:, 0]), {"max_epochs": 5}, Expected(kinds))


class PaintsUntrained(Paints):
    """The second optimizer is a copy of the line for the first, parameters and all."""

    planted = True

    def configure_optimizers(self) -> Any:
        of = self.net["critic" if self.planted else "painter"].parameters()
        painter = torch.optim.Adam(of, 5e-4, betas=(0.0, 0.9))
        return [painter, torch.optim.Adam(self.net["critic"].parameters(), 2e-3, betas=(0.0, 0.9))]


@fault("torch", "a forum thread, 'my generator only makes noise': both optimizers of a GAN were made of the critic's parameters")
def digits_painter_left_out(planted: bool = True) -> Built:
    module = PaintsUntrained()
    module.planted = planted
    expected = Expected((*UNHELD, "settings", "optimizer_settings", "update_too_small"), ("net.painter*",))
    return Built(module, in_batches(64, digits(8)[0].flatten(1)), {"max_epochs": 10}, expected)


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


@fault("torch", "an issue of a small GPT, 'the loss begins at 60': nn.Embedding's deviation of 1 is that of the tied head, too")
def manual_tied_to_wide_embedding(planted: bool = True) -> Built:
    net = TiedWriter(1.0 if planted else 0.02)
    kinds = ("poor_init", "output_range", "activation_outliers", "exploding", "step_too_short", "update_too_small", "no_progress")
    module = Judged(net, foretells, adam(1e-3), lambda net, batch: -foretells(net, batch))
    return Built(module, split(16, pieces(49)[:3000]), {"max_epochs": 1}, Expected(kinds, ("net", "net.embedding*", "net.head*")))
