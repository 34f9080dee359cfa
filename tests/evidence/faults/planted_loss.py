"""Faults that the loss shows: it leaps, rises again, or is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import OneBadBatch, Supervised, adam, explained, sgd
from tests.evidence.faults.zoo import Built, Expected, broken, fault, worse

PER_EPOCH = 89
"""Batches of 16 digits in an epoch."""


def small_batches(seed: int) -> dict[str, Any]:
    return data.loaders(data.digits(), 16, seed)


@fault("MLP", "one batch of the second epoch has targets that are a thousand times too large", reaches=0.3, hurts=worse(0.05))
def corrupt_targets(seed: int, planted: bool = True) -> Built:
    loaders = data.loaders(data.diabetes(), 4, seed)
    steps = len(loaders["train_dataloaders"])
    at = steps + 30 + 7 * seed
    module = OneBadBatch(
        at if planted else -1, lambda x, y: (x, y * 1e3), nets.mlp((10, 32, 32, 1), nn.Tanh), sgd(0.02), F.mse_loss, explained
    )
    expected = Expected(("loss_spike", "spike", "exploding"), batch=at, epoch=1)
    return Built(module, loaders, {"max_epochs": 2}, expected)


class Jolted(Supervised):
    """The learning rate is multiplied for a few batches."""

    def __init__(self, at: int, factor: float, *args: Any) -> None:
        super().__init__(*args)
        self.at, self.factor, self.batches = at, factor, 0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for group in self.optimizers().param_groups:  # type: ignore[union-attr]
            if self.batches == self.at:
                group["lr"] *= self.factor
            elif self.batches == self.at + 5:
                group["lr"] /= self.factor
        self.batches += 1


@fault("MLP", "a learning rate times 100 for five batches of the third epoch", reaches=0.8, hurts=worse(0.05))
def lr_jolt(seed: int, planted: bool = True) -> Built:
    at = 2 * PER_EPOCH + 20 + 5 * seed
    module = Jolted(at if planted else -9, 100.0, nets.mlp(init=nn.init.kaiming_normal_), adam(2e-3))
    expected = Expected(("loss_spike", "update_spike", "update_too_large"), batch=at, epoch=2)
    return Built(module, small_batches(seed), {"max_epochs": 3}, expected)


class GrowingRate(Supervised):
    """The learning rate grows at every batch of the third epoch."""

    def __init__(self, growth: float, *args: Any) -> None:
        super().__init__(*args)
        self.growth = growth

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.trainer.current_epoch == 2:
            for group in self.optimizers().param_groups:  # type: ignore[union-attr]
                group["lr"] *= self.growth


@fault("MLP", "a schedule that multiplies the learning rate by 1.15 where 0.98 was meant", reaches=0.8, hurts=worse(0.1))
def lr_grows(seed: int, planted: bool = True) -> Built:
    module = GrowingRate(1.15 if planted else 0.98, nets.mlp(init=nn.init.kaiming_normal_), adam(2e-3))
    expected = Expected(("loss_diverging", "loss_spike", "update_too_large"), batch=2 * PER_EPOCH, epoch=2)
    return Built(module, small_batches(seed), {"max_epochs": 4}, expected)


class FallingRate(Supervised):
    """The learning rate falls in a straight line, and reaches 0 after so many batches."""

    def __init__(self, batches: int, *args: Any) -> None:
        super().__init__(*args)
        self.batches = batches

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@fault("CNN", "a linear schedule made for two epochs of four: the learning rate falls below 0", reaches=0.8, hurts=worse(0.1))
def lr_below_zero(seed: int, planted: bool = True) -> Built:
    module = FallingRate((2 if planted else 4) * PER_EPOCH, nets.cnn(), adam())
    loaders = data.loaders(data.images(), 16, seed)
    return Built(
        module, loaders, {"max_epochs": 4}, Expected(("loss_diverging", "loss_spike", "lr_zero"), batch=2 * PER_EPOCH + 1, epoch=2)
    )


class Masked(Supervised):
    """The loss is the mean over the samples that a mask leaves; in one batch it leaves none."""

    def __init__(self, at: int, *args: Any) -> None:
        super().__init__(*args)
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        mask = torch.rand(len(batch[0])) < 0.7
        if len(self.losses) == self.at:
            mask[:] = False
        losses = F.cross_entropy(self.net(batch[0]), batch[1], reduction="none")
        return self.note((losses * mask).sum() / mask.sum())


@fault("CNN", "the loss is a mean over a mask, which is empty in one batch", reaches=0.9, hurts=broken)
def empty_mask(seed: int, planted: bool = True) -> Built:
    at = 22 + 10 * (seed % 2)  # a batch that is sampled: then it is known that every layer was finite
    module = Masked(at if planted else -1, nets.cnn(), adam())
    return Built(module, data.loaders(data.images(), 64, seed), {"max_epochs": 3}, Expected(("loss_nonfinite",), batch=at, epoch=1))


def by_hand(output: Tensor, target: Tensor) -> Tensor:
    """A cross entropy whose exponential overflows where logits are above 88."""
    powers = output.exp()
    return -(powers.gather(1, target[:, None]) / powers.sum(1, keepdim=True)).log().mean()


@fault("MLP", "a cross entropy written by hand, and pixels of 0 to 255: the exponential overflows", reaches=0.8, hurts=broken)
def exp_in_the_loss(seed: int, planted: bool = True) -> Built:
    net = nets.mlp(init=nn.init.kaiming_normal_)
    split = data.digits(255 / 16 if planted else 1 / 16)
    return Built(Supervised(net, adam(), by_hand), data.loaders(split, 64, seed), {"max_epochs": 3}, Expected(("loss_nonfinite",)))
