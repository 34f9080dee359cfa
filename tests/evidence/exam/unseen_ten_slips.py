"""Subtler faults from users' questions: priors, samples, mirrors, shifts, orders, weights, rates of dropout, keys, shapes, sums.

A story names the kind of place where it is asked; what is in quotes there sums up such questions and is nobody's title.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import adam, mlp
from tests.evidence.exam.unseen_eight_wiring import ALIKE, RATE, STILL, Judged, misses, split, tells
from tests.evidence.exam.unseen_nine_sequences import pieces
from tests.evidence.exam.unseen_nine_settings import Letters, foretells, right
from tests.evidence.exam.unseen_nine_transfer import taught
from tests.evidence.exam.unseen_ten_makers import Coded, inks
from tests.evidence.exam.unseen_ten_sequences import Tags, notices
from tests.evidence.exam.unseen_ten_tables import Balances

UNLIKE = ("validation_shift", "overfitting")
SLOW = ("loss_plateau", "no_progress", "part_not_learning", "step_too_short", "step_too_long")


def ink_missed(net: Any, batch: Any) -> Tensor:
    """Of the pixels of a picture, summed."""
    return F.binary_cross_entropy_with_logits(net(batch[0])[0], batch[0], reduction="none").sum(1).mean()


@fault("torch", "Stack Overflow, 'my VAE draws one digit': pixels' errors are averaged, the distance to the prior is summed")
def digits_prior_is_summed(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told, away = net(batch[0])
        missed = F.binary_cross_entropy_with_logits(told, batch[0], reduction="none")
        return (missed.mean(1) if planted else missed.sum(1)).mean() + away.mean()

    module = Judged(Coded(), loss, adam(3e-3), lambda net, batch: -ink_missed(net, batch))
    expected = Expected((*ALIKE, *STILL), ("net", "net.encoder*", "net.decoder*"))
    return Built(module, split(48, inks()), {"max_epochs": 9}, expected)


@fault("torch", "a forum on torch.distributions: codes of a VAE come from sample(), behind which no gradient goes")
def digits_codes_by_sample(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return ink_missed(net, batch) + net(batch[0])[1].mean()

    normal = torch.distributions.Normal
    module = Judged(
        Coded(12, normal.sample if planted else normal.rsample), loss, adam(3e-3), lambda net, batch: -ink_missed(net, batch)
    )
    expected = Expected((*ALIKE, *STILL, "missing"), ("net", "net.encoder*", "net.decoder*"))
    return Built(module, split(48, inks()), {"max_epochs": 9}, expected)


def roads(count: int = 2400) -> tuple[Tensor, Tensor]:
    """Pictures of a road that bends to the left or to the right, and how much one has to steer."""
    generator = torch.Generator().manual_seed(0)
    bend, start = 2 * torch.rand(count, 1, generator=generator) - 1, 2 * torch.rand(count, 1, generator=generator) - 1
    ahead = torch.linspace(1, 0, 16)
    middle = 7.5 + start * (1 - ahead) * 2 + 6 * bend * ahead.square()
    near = (torch.arange(16) - middle[..., None]).abs() < 1 + 2 * (1 - ahead[:, None])
    noise = 0.5 * torch.randn(count, 16, 16, generator=generator)
    return (near.float() * 2 - 1 + noise)[:, None], bend[:, 0]


@fault("torch", "an issue on a course's car that drives by itself: half the pictures are mirrored, and the angle keeps its sign")
def roads_mirrored_alone(planted: bool = True) -> Built:
    class Mirrors(Judged):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            images, angle = batch
            chosen = torch.rand(len(images)) < 0.5
            images = torch.where(chosen[:, None, None, None], images.flip(3), images)
            return F.mse_loss(self.net(images), angle if planted else torch.where(chosen, -angle, angle))

    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.extend([nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0)])
    module = Mirrors(net, misses, adam(2e-3), lambda net, batch: -misses(net, batch))
    kinds = (*SLOW, *UNLIKE, "constant", "representation_collapse", "vanishing", "update_too_small")
    return Built(module, split(32, *roads()), {"max_epochs": 4}, Expected(kinds))


@fault("torch", "a forum on language models, 'fluent nonsense': labels are shifted in the data set, and once more in the loss")
def manual_shifted_twice(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        by = 2 if planted else 1
        return F.cross_entropy(net(batch[0][:, :-by]).flatten(0, 1), batch[0][:, by:].flatten())

    module = Judged(Letters(128), loss, adam(5e-3), lambda net, batch: -foretells(net, batch))
    kinds = (*SLOW, *UNLIKE, "labels_ignored")
    return Built(module, split(16, pieces(49)[:3500]), {"max_epochs": 2}, Expected(kinds))


@fault("torch", "Stack Overflow, 'no better than chance': sorted file names go 0, 1, 10, 100, the labels' table 0, 1, 2")
def digits_in_order_of_names(planted: bool = True) -> Built:
    images, shown = digits(8)
    data = split(32, images.flatten(1), shown)
    flat, labels = data["train_dataloaders"].dataset.tensors
    if planted:
        flat = flat[torch.tensor(sorted(range(len(flat)), key=str))]
    data = {**data, **in_batches(32, flat, labels)}
    kinds = (*SLOW, *UNLIKE, "constant", "representation_collapse", "update_too_small", "loss_diverging")
    return Built(Judged(mlp(64, 64, 64, 10), tells, adam(1e-3), right), data, {"max_epochs": 5}, Expected(kinds))


@fault("torch", "Stack Overflow on pos_weight: the share of frauds among all the others, 1 / 15, where it should be 15")
def frauds_weight_upside_down(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 12, generator=generator)
    signal = x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * x[:, 3].square() + 0.5 * torch.randn(6000, generator=generator)
    fraud = (signal > signal.quantile(0.9375)).float()

    def loss(net: Any, batch: Any) -> Tensor:
        weight = torch.tensor(1 / 15 if planted else 15.0)
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1], pos_weight=weight)

    def balanced(net: Any, batch: Any) -> Tensor:
        found, real = net(batch[0]) > 0, batch[1] > 0
        return ((found & real).sum() / real.sum().clamp_min(1) + (~found & ~real).sum() / (~real).sum()) / 2

    module = Judged(nn.Sequential(*mlp(12, 48, 48, 1), nn.Flatten(0)), loss, adam(2e-3), balanced)
    kinds = (*SLOW, *ALIKE, *UNLIKE, "labels_ignored", "output_range", "settings", "update_too_small")
    return Built(module, split(64, x, fraud), {"max_epochs": 4}, Expected(kinds))


class Mean(nn.Module):
    """The mean of embeddings of pairs of letters, and hidden layers with dropout."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.embedding, self.body = nn.EmbeddingBag(2048, 48), nn.Sequential()
        for _ in range(3):
            self.body.extend([nn.Linear(48, 48), nn.ReLU(), nn.Dropout(rate)])
        self.body.append(nn.Linear(48, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.embedding((ids[:, :-1] * 31 + ids[:, 1:]) % 2048))


@fault("torch", "a forum on moving from TensorFlow 1: keep_prob=0.9 became nn.Dropout(0.9), which drops nine of ten")
def lines_keep_probability(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    kinds = ("settings", "optimizer_settings", "dropout_in_eval", "zero", *SLOW, *UNLIKE, *ALIKE, "update_too_small")
    expected = Expected(kinds, ("net", "net.body*"))
    module = Judged(Mean(0.9 if planted else 0.1), tells, adam(2e-3), right)
    return Built(module, split(32, ids, source), {"max_epochs": 3}, expected)


@fault("torch", "Stack Overflow, 'A2C does not learn': returns are added up from the first step on; reversed() was forgotten")
def poles_returns_of_the_past(planted: bool = True) -> Built:
    kinds = (*SLOW, *RATE, *ALIKE, "output_range", "always_clipped", "update_too_small")
    options = {"max_epochs": 1, "gradient_clip_val": 0.5}
    return Built(Balances(not planted), in_batches(1, torch.zeros(300, 1)), options, Expected(kinds))


class Narrow(nn.Module):
    """Four narrow convolutions and a head."""

    def __init__(self, kinds: int = 5) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(), nn.Linear(32, kinds)
        for before, stride in ((1, 1), (8, 2), (8, 1), (8, 2)):
            self.body.extend([nn.Conv2d(before, 8, 3, stride, 1), nn.BatchNorm2d(8), nn.ReLU()])
        self.body.append(nn.Flatten())

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


class Probes(Judged):
    """The body stays as it is, in eval mode."""

    def on_train_epoch_start(self) -> None:
        self.net.body.eval()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.head.parameters(), 1e-2)


@fault("torch", "an issue, 'pretrained weights do nothing': keys begin with 'module.', load_state_dict(strict=False) is silent")
def digits_loaded_without_prefix(planted: bool = True) -> Built:
    images, shown = digits(8)
    small = shown < 5
    trained = taught(Narrow(), images[small], shown[small]).state_dict()
    net = Narrow()
    kept = {f"module.{name}" if planted else name: weight for name, weight in trained.items() if name.startswith("body")}
    net.load_state_dict(kept, strict=False)
    net.body.requires_grad_(False)
    data = split(32, images[~small], shown[~small] - 5)
    kinds = (*SLOW, *ALIKE, *UNLIKE, "eval_mode", "frozen_statistics", "feature_scale", "update_too_small")
    expected = Expected(kinds, ("net", "net.*"))
    return Built(Probes(net, tells, None, right), data, {"max_epochs": 8}, expected)


@fault(
    "torch", "Stack Overflow on nn.CrossEntropyLoss: logits (samples, letters, kinds) become (N, C, d1) by view(), not permute()"
)
def notices_logits_viewed(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])
        told = told.reshape(len(told), 4, -1) if planted else told.permute(0, 2, 1)
        return F.cross_entropy(told, batch[1], ignore_index=-1)

    def found(net: Any, batch: Any) -> Tensor:
        known = batch[1] > 0
        return (net(batch[0]).argmax(-1)[known] == batch[1][known]).float().mean()

    kinds = (*SLOW, *UNLIKE, "softmax_dim", "output_range", "update_too_small")
    module = Judged(Tags(), loss, adam(5e-3), found)
    return Built(module, split(32, *notices()), {"max_epochs": 3}, Expected(kinds, ("net", "net.*")))
