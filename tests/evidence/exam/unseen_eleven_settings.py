"""Faults of settings and wiring from users' questions: rates, gains, graphs, prompts, spreads, plateaus, units, sums, penalties.

A story names the kind of place where it is asked; what is in quotes there sums up such questions and is nobody's title.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.exam.cases import Built, Expected, fault
from tests.evidence.exam.pictures import digits
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import adam, mlp, sgd, table
from tests.evidence.exam.unseen_eight_wiring import ALIKE, BROKEN, RATE, STILL, UNHELD, Judged, convolutions, misses, split, tells
from tests.evidence.exam.unseen_nine_settings import right
from tests.evidence.exam.unseen_nine_transfer import taught

SETTING = ("settings", "optimizer_settings")
UNLIKE = ("validation_shift", "overfitting")


@fault("torch", "a forum on the linear scaling rule: the rate is 0.1 * batch_size, where a paper has 0.1 * batch_size / 256; SGD")
def digits_rate_by_batch_size(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.extend([nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)])
    rate = 0.1 * 32 if planted else 0.1 * 32 / 256
    expected = Expected((*RATE, *SETTING, *BROKEN, *ALIKE, "no_progress", "loss_plateau", "not_updated", "update_too_small"))
    return Built(Judged(net, tells, sgd(rate), right), split(32, *digits(16)), {"max_epochs": 5}, expected)


@fault(
    "torch", "an issue on PPO's details: orthogonal_(weight, 0.01), meant for the last layer of a policy, is applied to all; SGD"
)
def digits_gain_of_a_hundredth(planted: bool = True) -> Built:
    net = mlp(64, 64, 64, 64, 10, activation=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, 0.01 if planted or layer is net[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
    images, shown = digits(8)
    expected = Expected((*ALIKE, *STILL), ("net", "net.*"))
    data = split(32, images.flatten(1), shown)
    return Built(Judged(net, tells, sgd(0.02), right), data, {"max_epochs": 5}, expected)


class Bodied(nn.Module):
    """A body under no_grad(), as it was used for features, or not; and a head."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.body, self.head, self.planted = convolutions(), nn.Linear(64, 10), planted

    def forward(self, images: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.planted):
            found = self.body(images)
        return self.head(found)


@fault("torch", "Stack Overflow, 'fine-tuning gives the same score as a linear probe': encode() still has its @torch.no_grad()")
def digits_body_under_no_grad(planted: bool = True) -> Built:
    images, shown = digits(16)
    turned = images.rot90(1, (2, 3))
    net: Any = Bodied(planted)
    net.body.load_state_dict(taught(nn.Sequential(convolutions(), nn.Linear(64, 2)), images, shown % 2)[0].state_dict())  # type: ignore[index]
    expected = Expected((*UNHELD, "zero", "frozen_statistics", "no_progress", "loss_plateau"), ("net.body*",))
    return Built(Judged(net, tells, adam(1e-3), right), split(32, turned, shown), {"max_epochs": 5}, expected)


class Prompted(nn.Module):
    """A trained reader that stays; a few vectors before its inputs and a new head learn."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(128, 32), nn.GRU(32, 48, batch_first=True), nn.Linear(48, 2)
        self.prompt: Any = 0.5 * torch.randn(128, 32)
        if planted:
            self.prompt.requires_grad_()
        else:
            self.prompt = nn.Parameter(self.prompt)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids) + self.prompt[ids])[0].amax(1))


@fault(
    "torch",
    "a forum on prompt tuning: the vectors that learn are torch.randn(..., requires_grad=True), no nn.Parameter; rest frozen",
)
def lines_prompts_are_no_parameters(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    net = Prompted(planted)
    for part in (net.embedding, net.body):
        part.requires_grad_(False)

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam([weight for weight in module.parameters() if weight.requires_grad], 0.01)

    expected = Expected((*UNHELD, "no_progress", "loss_plateau"), ("net", "net.prompt", "*prompt*"))
    return Built(Judged(net, tells, optimizers, right), split(32, ids, source), {"max_epochs": 3}, expected)


@fault("torch", "Stack Overflow, 'NaN after some batches': each window of a sensor is standardised by itself, and some stand still")
def sensors_without_spread(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    kind, pace = torch.randint(0, 4, (3000,), generator=generator), torch.rand(3000, 1, generator=generator)
    times = torch.arange(48) * (0.15 + 0.15 * kind[:, None]) + 6 * pace
    windows = 20 + (1 + 4 * pace) * times.sin() + 0.3 * torch.randn(3000, 48, generator=generator)
    windows[::151] = 20.0
    middle, width = windows.mean(1, keepdim=True), windows.std(1, keepdim=True)
    windows = (windows - middle) / (width if planted else width + 1e-3)
    net = nn.Sequential(nn.Unflatten(1, (1, 48)), nn.Conv1d(1, 16, 7, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2), nn.ReLU())
    net.extend([nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4)])
    return Built(Judged(net, tells, adam(3e-3), right), split(32, windows, kind), {"max_epochs": 3}, Expected(BROKEN, batch=None))


class Waits(Judged):
    """ReduceLROnPlateau sees the loss of each batch; its mode is that of an accuracy, or of a loss."""

    planted = True

    def configure_optimizers(self) -> Any:
        chosen = torch.optim.Adam(self.parameters(), 2e-3)
        mode = "max" if self.planted else "min"
        self.waits = torch.optim.lr_scheduler.ReduceLROnPlateau(chosen, mode, 0.1, patience=15 if self.planted else 100)  # type: ignore[arg-type]
        return chosen

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.waits.step(float(outputs["loss"]))


class Gathers(nn.Module):
    """A GRU over letters; what it finds is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(128, 32), nn.GRU(32, 48, batch_first=True), nn.Linear(48, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids))[0].amax(1))


@fault(
    "torch",
    "Stack Overflow, 'stops learning early': ReduceLROnPlateau(mode='max') is stepped with a loss, and takes its fall for harm",
)
def lines_plateau_upside_down(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    module = Waits(Gathers(), tells, None, right)
    module.planted = planted
    expected = Expected(("lr_zero", *SETTING, *STILL))
    return Built(module, split(32, ids, source), {"max_epochs": 3}, expected)


class OneUnit(nn.Module):
    """An LSTM foretells degrees by its state, which lies between -1 and 1, or by a linear layer behind it."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.body = nn.LSTM(1, 24, batch_first=True, proj_size=0)
        self.last = nn.LSTM(24, 1, batch_first=True) if planted else nn.Linear(24, 1)

    def forward(self, past: Tensor) -> Tensor:
        told = self.last(self.body(past[..., None] / 10)[0])
        told = told[0] if isinstance(told, tuple) else told
        return told[:, -1, 0]


@fault("torch", "Stack Overflow, 'my LSTM predicts a flat line': the state of a last LSTM(hidden_size=1) is taken for the forecast")
def degrees_by_one_unit(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    start, warm = 300 * torch.rand(4000, 1, generator=generator), 4 * torch.randn(4000, 1, generator=generator)
    times = start + torch.arange(25)
    degrees = 12 * (2 * torch.pi * times / 24).sin() + warm + 0.5 * torch.randn(times.shape, generator=generator)
    module = Judged(OneUnit(planted), misses, adam(6e-3), lambda net, batch: -misses(net, batch))
    expected = Expected((*ALIKE, *STILL, "output_range", "step_too_long"), ("net", "net.*"))
    return Built(module, split(32, degrees[:, :24], degrees[:, 24]), {"max_epochs": 4}, expected)


class Bags(nn.Module):
    """Bags of pictures: each picture's share in what is known of its bag, by a softmax over pictures, or over bags."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.each, self.score, self.head = mlp(64, 48, 32), mlp(32, 32, 1, activation=nn.Tanh), nn.Linear(32, 10)
        self.softmax = nn.Softmax(dim=0 if planted else 1)

    def forward(self, bags: Tensor) -> Tensor:
        found = self.each(bags).relu()
        return self.head((self.softmax(self.score(found)) * found).sum(1))


@fault("torch", "an issue on attention pooling: nn.Softmax(dim=0), which was right for one bag, is over the bags of a batch")
def bags_pooled_over_the_batch(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    images, shown = digits(8)
    chosen = torch.randint(0, len(images), (3000, 6), generator=generator)
    marked = images.flatten(1)[chosen].clone()
    place = torch.randint(0, 6, (3000,), generator=generator)
    marked[torch.arange(3000), place, 0] += 6.0
    kinds = ("softmax_dim", "loss_plateau", "no_progress", "part_not_learning", *UNLIKE)
    module = Judged(Bags(planted), tells, adam(2e-3), right)
    return Built(
        module, split(32, marked, shown[chosen[torch.arange(3000), place]]), {"max_epochs": 5}, Expected(kinds, ("net", "net.*"))
    )


@fault("torch", "a forum on transfer, 'pretrained is worse than from scratch': all of a trained net goes on under Adam at 0.1")
def digits_body_forgets(planted: bool = True) -> Built:
    images, shown = digits(16)
    small = shown < 5
    body = convolutions()
    taught(nn.Sequential(body, nn.Linear(64, 5)), images[small], shown[small])
    net = body.append(nn.Linear(64, 5))
    module = Judged(net, tells, adam(0.1 if planted else 5e-4), right)
    data = split(8, images[~small], shown[~small] - 5, share=0.2)
    expected = Expected((*RATE, *ALIKE, *UNLIKE, *SETTING, "no_progress", "loss_plateau"), None)
    return Built(module, data, {"max_epochs": 8}, expected)


@fault("torch", "Stack Overflow on an L1 penalty: 0.1 times the sum of all weights' sizes is added, where 1e-4 would do")
def tumours_lasso_of_all(planted: bool = True) -> Built:
    x, y = table("breast_cancer")
    net = mlp(30, 32, 32, 2)

    def loss(net: Any, batch: Any) -> Tensor:
        size = torch.stack([weight.abs().sum() for weight in net.parameters()]).sum()
        return tells(net, batch) + (0.1 if planted else 1e-4) * size

    kinds = (*ALIKE, *STILL, "step_too_long", "settings")
    return Built(Judged(net, loss, adam(2e-3), right), split(16, x, y), {"max_epochs": 10}, Expected(kinds))
