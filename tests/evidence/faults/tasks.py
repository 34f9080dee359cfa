"""The LightningModules of the zoo: a net, its loss, its optimizers. Plain Lightning, no monitor in sight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data

Optimizers = Callable[[nn.Module], Any]


def sgd(lr: float = 0.1, momentum: float = 0.0) -> Optimizers:
    """Stochastic gradient descent on all parameters of a module."""
    return lambda module: torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)


def adam(lr: float = 3e-3) -> Optimizers:
    """Adam on all parameters of a module."""
    return lambda module: torch.optim.Adam(module.parameters(), lr=lr)


def adamw(lr: float = 3e-3, weight_decay: float = 0.01) -> Optimizers:
    """AdamW on all parameters of a module."""
    return lambda module: torch.optim.AdamW(module.parameters(), lr=lr, weight_decay=weight_decay)


def cross_entropy(output: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Over classes in the last dimension, of images or of every character."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten(), label_smoothing=label_smoothing)


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """The share of right answers."""
    return (output.argmax(-1) == target).float().mean()


def explained(output: Tensor, target: Tensor) -> Tensor:
    """The share of the target's variance that the output explains."""
    return 1 - (output - target).square().mean() / target.var(unbiased=False)


class Task(LightningModule):
    """Keeps the losses, and logs ``val_score``."""

    def __init__(self, net: nn.Module, optimizers: Optimizers) -> None:
        super().__init__()
        self.net = net
        self.optimizers_of = optimizers
        self.losses: list[Tensor] = []

    def note(self, loss: Tensor) -> Tensor:
        """Keep a loss for the outcome, and for those peers' rules that want it."""
        self.losses.append(loss.detach().clone())
        return loss

    def note_score(self, score: Tensor) -> None:
        """Log a validation score."""
        self.log("val_score", score)

    def configure_optimizers(self) -> Any:
        return self.optimizers_of(self)


class Supervised(Task):
    """A net that learns targets."""

    def __init__(
        self,
        net: nn.Module,
        optimizers: Optimizers,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        score: Callable[[Tensor, Tensor], Tensor] = accuracy,
    ) -> None:
        super().__init__(net, optimizers)
        self.loss, self.score = loss, score

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.note(self.loss(self.net(batch[0]), batch[1]))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note_score(self.score(self.net(batch[0]), batch[1]))


def regression(net: nn.Module, optimizers: Optimizers) -> Supervised:
    """A net that learns numbers under the mean squared error."""
    return Supervised(net, optimizers, F.mse_loss, explained)


class OneBadBatch(Supervised):
    """One batch of the whole training goes through ``spoil`` on its way in."""

    def __init__(self, at: int, spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at, self.spoil = at, spoil

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer.training and len(self.losses) == self.at:
            return self.spoil(*(part.clone() for part in batch))
        return batch


class Manual(Supervised):
    """The same by manual optimisation."""

    def __init__(self, net: nn.Module, optimizers: Optimizers, zero_grad: bool = True) -> None:
        super().__init__(net, optimizers)
        self.automatic_optimization = False
        self.zero_grad_called = zero_grad

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        if self.zero_grad_called:
            optimizer.zero_grad()  # type: ignore[union-attr]
        self.manual_backward(self.note(self.loss(self.net(batch[0]), batch[1])))
        optimizer.step()  # type: ignore[union-attr]


class Variational(Task):
    """A VAE under the evidence lower bound; its score is the explained variance of the pixels."""

    def __init__(self, net: nn.Module, optimizers: Optimizers, beta: float = 0.05) -> None:
        super().__init__(net, optimizers)
        self.beta = beta

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0]
        output, mean, log_variance = self.net(x)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return self.note((output - x).square().sum(1).mean() + self.beta * divergence)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        self.note_score(1 - (self.net(x)[0] - x).square().sum() / (x - x.mean(0)).square().sum())


class Adversarial(Task):
    """A GAN of digits, two optimizers; ``generator`` and ``discriminator``.

    Its score says how like the data the samples are: 1 minus the distance of the pixels' means, over the pixels' spread.
    """

    def __init__(self, discriminator_lr: float = 5e-3, loss: str = "stable", detach: bool = False) -> None:
        generator = OrderedDict(
            fc0=nn.Linear(16, 64),
            act0=nn.ReLU(),
            fc1=nn.Linear(64, 64),
            act1=nn.ReLU(),
            out=nn.Linear(64, 64),
            sigmoid=nn.Sigmoid(),
        )
        discriminator = OrderedDict(
            fc0=nn.Linear(64, 64), act0=nn.LeakyReLU(0.2), fc1=nn.Linear(64, 32), act1=nn.LeakyReLU(0.2), head=nn.Linear(32, 1)
        )
        super().__init__(
            nn.ModuleDict({"generator": nn.Sequential(generator), "discriminator": nn.Sequential(discriminator)}),
            partial(_two, self),
        )
        self.automatic_optimization = False
        self.discriminator_lr, self.kind_of_loss, self.detach = discriminator_lr, loss, detach

    def judge(self, images: Tensor, real: bool) -> Tensor:
        """The loss of taking images for real ones, or for false ones."""
        logits = self.net["discriminator"](images)
        if self.kind_of_loss == "stable":
            return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))
        probability = logits.sigmoid()  # as the paper has it, and as it breaks
        return -(probability if real else 1 - probability).log().mean()

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        images = batch[0]
        optimizer_g, optimizer_d = self.optimizers()  # type: ignore[misc]
        fake = self.net["generator"](torch.randn(len(images), 16))

        loss_d = self.judge(images, True) + self.judge(fake.detach(), False)
        optimizer_d.zero_grad()
        self.manual_backward(self.note(loss_d))
        optimizer_d.step()

        loss_g = self.judge(fake.detach() if self.detach else fake, True)
        optimizer_g.zero_grad()
        self.manual_backward(loss_g)
        optimizer_g.step()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        samples = self.net["generator"](torch.randn(512, 16, generator=torch.Generator().manual_seed(0)))
        images = batch[0]
        self.note_score(1 - (samples.mean(0) - images.mean(0)).abs().mean() / images.std(0).mean())


def _two(task: Adversarial, module: nn.Module) -> list[torch.optim.Optimizer]:
    net = task.net
    return [
        torch.optim.Adam(net["generator"].parameters(), lr=5e-3, betas=(0.5, 0.999)),  # type: ignore[index]
        torch.optim.Adam(net["discriminator"].parameters(), lr=task.discriminator_lr, betas=(0.5, 0.999)),  # type: ignore[index]
    ]


def pretrained(net: nn.Module) -> nn.Module:
    """The net after some training on the digits 0 to 4."""
    x, y, _, _ = data.images()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    low = x[y < 5], y[y < 5]
    for _ in range(3):
        for batch in torch.randperm(len(low[0])).split(64):
            optimizer.zero_grad()
            cross_entropy(net(low[0][batch]), low[1][batch]).backward()
            optimizer.step()
    return net
