"""Faults of settings from users' questions: decay, clipping, biases, frozen names, first weights, gamma, loops, units.

A story names the kind of place where it is asked; what is in quotes there sums up such questions and is nobody's title.
"""

from __future__ import annotations

from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, fault
from tests.evidence.exam.pictures import Changed, digits
from tests.evidence.exam.signals import crops, spectrograms
from tests.evidence.exam.unseen_eight_tables import adam, mlp, scaled, sgd
from tests.evidence.exam.unseen_eight_wiring import ALIKE, BROKEN, RATE, STILL, UNHELD, Judged, misses, split, tells
from tests.evidence.exam.unseen_nine_settings import right
from tests.evidence.exam.unseen_nine_transfer import taught
from tests.evidence.exam.unseen_ten_tables import Likes, liked, prefers

SETTING = ("settings", "optimizer_settings")


class NeverClears(Judged):
    """A loop by hand, from which the line that clears gradients was lost, or not."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        loss = self.loss_of_batch(self.net, batch)
        if not self.planted:
            chosen.zero_grad()
        self.manual_backward(loss)
        chosen.step()
        return {"loss": loss.detach()}


class GoesOnWith(nn.Module):
    """A GRU over a wave says how it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 8)

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.body(past[..., None])[0][:, -1])


@fault("torch", "Stack Overflow, 'loss falls, then stays high': a loop by hand has backward() and step(), and no zero_grad()")
def waves_gradients_kept(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    pace, shift = 0.2 + 0.4 * torch.rand(2000, 1, generator=generator), 6 * torch.rand(2000, 1, generator=generator)
    waves = (pace * torch.arange(32) + shift).sin() + 0.05 * torch.randn(2000, 32, generator=generator)
    module = NeverClears(GoesOnWith(), misses, adam(5e-3), lambda net, batch: -misses(net, batch))
    module.planted = planted
    expected = Expected(("not_zeroed", "saturated", "activation_outliers", "no_progress", "loss_plateau", *RATE))
    return Built(module, split(32, waves[:, :24], waves[:, 24:]), {"max_epochs": 5}, expected)


@fault("torch", "a forum thread, 'my autoencoder makes one grey square': Adam's weight_decay is 1, where a paper has 1e-4")
def pieces_decay_of_one(planted: bool = True) -> Built:
    pieces = crops(8, 1)["train_dataloaders"].dataset.tensors[0].flatten(1)
    net = mlp(192, 96, 24, 96, 192)
    module = Judged(net, lambda net, batch: F.mse_loss(net(batch[0]), batch[0]), None, None)
    module.optimizers_of = adam(2e-3, weight_decay=1.0 if planted else 1e-4)
    module.score = lambda net, batch: -F.mse_loss(net(batch[0]), batch[0])
    expected = Expected((*SETTING, "no_progress", "loss_plateau", "part_not_learning", "step_too_short", *ALIKE))
    return Built(module, split(32, pieces), {"max_epochs": 12}, expected)


@fault("torch", "a forum on exploding gradients: gradient_clip_val is 1e-6, 'to be safe', under SGD at the rate of a tutorial")
def notes_clipped_at_a_millionth(planted: bool = True) -> Built:
    frames, played = spectrograms(1)["train_dataloaders"].dataset.tensors
    net = nn.Sequential(nn.Conv1d(frames.shape[1], 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU())
    net.extend([nn.AdaptiveMaxPool1d(3), nn.Flatten(), nn.Linear(96, 33), nn.Unflatten(1, (3, 11))])

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    kinds = ("always_clipped", "clip_ineffective", *SETTING, *STILL)
    options = {"max_epochs": 8, "gradient_clip_val": 1e-6 if planted else 1.0}
    return Built(Judged(net, loss, sgd(0.05), right), split(32, frames, played), options, Expected(kinds))


@fault("torch", "an issue on RetinaNet by hand: the bias for rare objects, -log(99), is set in every layer, not only the last one")
def digits_prior_in_every_bias(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.extend([nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)])
    for i in (0, 2, 5, 7) if planted else (7,):
        nn.init.constant_(net[i].bias, -4.6)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), F.one_hot(batch[1], 10).float(), reduction="sum") / len(batch[0])

    kinds = (*ALIKE, *STILL)
    expected = Expected(kinds, ("net", "net.*"))
    return Built(Judged(net, loss, adam(1e-3), right), split(32, *digits(16)), {"max_epochs": 4}, expected)


class Named(nn.Module):
    """Names as in timm's nets: the last layer is called ``conv_head``, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.conv_body, self.norm = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.conv_head = nn.Conv2d(16, 5, 2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv_body(self.conv_stem(images).relu())).relu()
        return self.conv_head(hidden).flatten(1)


@fault("torch", "Stack Overflow on transfer: all parameters with 'conv' in their names are frozen, and the new head is 'conv_head'")
def digits_frozen_by_a_word(planted: bool = True) -> Built:
    images, shown = digits(8)
    small = shown < 5
    net: Any = taught(Named(), images[small], shown[small])
    net.conv_head = nn.Conv2d(16, 5, 2)
    for name, weight in net.named_parameters():
        if "conv" in name and (planted or "head" not in name):
            weight.requires_grad_(False)

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam([weight for weight in module.parameters() if weight.requires_grad], 3e-3)

    expected = Expected((*UNHELD, *STILL, "poor_init"), ("net.conv*",))
    data = split(32, images[~small], shown[~small] - 5)
    return Built(Judged(net, tells, optimizers, right), data, {"max_epochs": 8}, expected)


@fault("torch", "Stack Overflow, 'accuracy stays near 20 %': nn.init.constant_(weight, 0.05) in all layers, 'to be reproducible'")
def digits_all_weights_alike(planted: bool = True) -> Built:
    net = mlp(64, 48, 48, 10)
    if planted:
        for weight in net.parameters():
            nn.init.constant_(weight, 0.05 if weight.dim() == 2 else 0.0)
    images, shown = digits(8)
    expected = Expected(("representation_collapse", *STILL, *ALIKE), ("net", "net.*"))
    return Built(Judged(net, tells, adam(2e-3), right), split(32, images.flatten(1), shown), {"max_epochs": 4}, expected)


@fault("torch", "an issue on torchvision's adjust_gamma, 'NaN from the first batch': gamma comes after Normalize, x is below zero")
def pieces_gamma_of_negatives(planted: bool = True) -> Built:
    pieces = crops(8, 1)["train_dataloaders"].dataset.tensors[0].flatten(1)
    low, high = pieces.min(), pieces.max()

    def brighter(_: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        gamma = 0.7 + 0.6 * torch.rand(())
        if planted:
            return (row[0] ** gamma,)
        return (((row[0] - low) / (high - low)).clamp(0, 1) ** gamma * (high - low) + low,)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[0])

    data = split(32, pieces)
    generator, rows = torch.Generator().manual_seed(0), data["train_dataloaders"].dataset
    data["train_dataloaders"] = torch.utils.data.DataLoader(
        Changed(rows.tensors, brighter), 32, shuffle=True, drop_last=True, generator=generator
    )
    module = Judged(mlp(192, 96, 24, 96, 192), loss, adam(2e-3), lambda net, batch: -loss(net, batch))
    return Built(module, data, {"max_epochs": 12}, Expected(BROKEN))


@fault("torch", "Stack Overflow, 'only the last layer learns': in a loop over layers the optimizer is made anew for each")
def friedman_optimizer_of_the_last(planted: bool = True) -> Built:
    x, y = sklearn.datasets.make_friedman1(2500, noise=0.3, random_state=3)
    net = nn.Sequential(*mlp(10, 24, 24, 24, 1), nn.Flatten(0))

    def optimizers(module: Any) -> Any:
        if not planted:
            return torch.optim.Adam(module.net.parameters(), 3e-3)
        chosen = None
        for layer in module.net:
            if isinstance(layer, nn.Linear):
                chosen = torch.optim.Adam(layer.parameters(), 3e-3)
        return chosen

    data = split(32, torch.tensor(x, dtype=torch.float32), scaled(torch.tensor(y, dtype=torch.float32)))
    expected = Expected((*UNHELD, *SETTING), ("net.0*", "net.2*", "net.4*"))
    return Built(Judged(net, misses, optimizers, lambda net, batch: -misses(net, batch)), data, {"max_epochs": 5}, expected)


@fault("torch", "a forum thread, 'loss stays at 2.30': ToTensor() has divided by 255, and the data set divides by 255 again; SGD")
def digits_by_255_twice(planted: bool = True) -> Built:
    images, shown = digits(16)
    images = (images - images.min()) / (images.max() - images.min())
    images = images / 255 if planted else images
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.extend([nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)])
    kinds = ("feature_scale", *SETTING, *STILL, *ALIKE)
    return Built(Judged(net, tells, sgd(0.05), right), split(32, images, shown), {"max_epochs": 5}, Expected(kinds))


@fault("torch", "Stack Overflow on Adagrad's lr_decay: 0.95 is taken for a factor; the rate falls as 1 / (1 + 0.95 n)")
def films_rate_by_adagrad(planted: bool = True) -> Built:
    who, film = liked()

    def optimizers(module: Any) -> Any:
        return torch.optim.Adagrad(module.parameters(), 0.05, lr_decay=0.95 if planted else 0.0)

    def before(net: Any, batch: Any) -> Tensor:
        others = net.users(batch[0]) @ net.films.weight.T + net.bias.weight[:, 0]
        return (net(*batch)[:, None] > others).float().mean()

    expected = Expected(("lr_zero", "second_moment_stale", *SETTING, *STILL))
    return Built(Judged(Likes(), prefers, optimizers, before), split(100, who, film), {"max_epochs": 2}, expected)
