"""Healthy trainings that look like faults: what is shared, skipped, left unzeroed, heavy-tailed or tiny on purpose."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Manual, Supervised, adam, adamw, cross_entropy, explained, regression, sgd
from tests.evidence.faults.zoo import Built, Expected, healthy

EPOCHS = {"max_epochs": 3}
WELL = Expected()


class OneBlockOften(nn.Module):
    """The same residual block three times, as ALBERT and deep equilibrium models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.block = nn.Sequential(OrderedDict(fc0=nn.Linear(64, 64), act=nn.ReLU(), fc1=nn.Linear(64, 64)))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for _ in range(3):
            x = x + self.block(self.norm(x))
        return self.head(x)


@healthy("MLP", "one block used three times, on purpose", reaches=0.85)
def shared_on_purpose(seed: int) -> Built:
    return Built(Supervised(OneBlockOften(), adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class StochasticDepth(nets.ResNet):
    """Leaves out each block in a quarter of the batches (Huang et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(x)))
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.75:
                x = block(x)
        return self.head(self.pool(x).flatten(1))


@healthy("ResNet", "stochastic depth: blocks are left out at random", reaches=0.75)
def stochastic_depth(seed: int) -> Built:
    return Built(Supervised(StochasticDepth(), adam()), data.loaders(data.images(), 64, seed), {"max_epochs": 4}, WELL)


class ManualAccumulation(Manual):
    """A step every fourth batch; gradients add up in between."""

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        self.manual_backward(self.note(self.loss(self.net(batch[0]), batch[1])) / 4)
        if batch_idx % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@healthy("MLP", "a manual loop that accumulates four batches and zeroes after the step", reaches=0.8)
def manual_accumulation(seed: int) -> Built:
    module = ManualAccumulation(nets.mlp(init=nn.init.kaiming_normal_), sgd(0.2, 0.9))
    return Built(module, data.loaders(data.digits(), 16, seed), EPOCHS, WELL)


class TwoLosses(Manual):
    """Two backward passes, of two losses, before a step, and clipping between."""

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        logits = self.net(batch[0])
        self.manual_backward(self.note(self.loss(logits, batch[1])), retain_graph=True)
        self.manual_backward(1e-3 * logits.square().mean())
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        optimizer.step()


@healthy("MLP", "two losses, each with its own backward, clipped by hand in a manual loop", reaches=0.8)
def two_losses(seed: int) -> Built:
    module = TwoLosses(nets.mlp(init=nn.init.kaiming_normal_), sgd(0.2))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class OwnClipping(Supervised):
    """Clips in the hook that Lightning has for it, by its own hand."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)


@healthy("LSTM", "clip_grad_norm_ in configure_gradient_clipping", reaches=0.25)
def own_clipping(seed: int) -> Built:
    return Built(OwnClipping(nets.Recurrent(), adam(1e-2)), data.loaders(data.text(), 32, seed), EPOCHS, WELL)


@healthy("MLP", "regression of a target with heavy tails: some batches have ten times the gradient", reaches=0.1)
def heavy_tails(seed: int) -> Built:
    x, y, v, w = data.diabetes()
    noise = torch.distributions.StudentT(2.0).sample(y.shape) * 0.3
    return Built(
        regression(nets.mlp((10, 32, 32, 1)), sgd(0.01, 0.5)), data.loaders((x, y + noise, v, w), 16, seed), {"max_epochs": 5}, WELL
    )


class Cosine(Supervised):
    """The learning rate falls to zero over the training."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4 * 22)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@healthy("CNN", "a cosine schedule down to zero", reaches=0.9)
def cosine_to_zero(seed: int) -> Built:
    return Built(Cosine(nets.cnn(), adam()), data.loaders(data.images(), 64, seed), {"max_epochs": 4}, WELL)


@healthy("CNN", "batch norm over batches of four: noisy in training, smooth in validation", reaches=0.8)
def tiny_batchnorm(seed: int) -> Built:
    x, y, v, w = data.images()
    return Built(Supervised(nets.cnn(), sgd(0.02)), data.loaders((x[:400], y[:400], v, w), 4, seed), {"max_epochs": 2}, WELL)


class Augmented(Supervised):
    """Training images are shifted, dimmed and noised; validation images are not."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.roll(int(torch.randint(-1, 2, ())), -1) * (0.5 + torch.rand(len(x), 1, 1, 1)) + 0.2 * torch.randn_like(x)
        return self.note(self.loss(self.net(x), y))


@healthy("CNN", "augmented in training, not in validation", reaches=0.85)
def augmentation(seed: int) -> Built:
    return Built(Augmented(nets.cnn(), adam()), data.loaders(data.images(), 64, seed), EPOCHS, WELL)


def likelihood(probability: Tensor, target: Tensor) -> Tensor:
    """The negative log-likelihood of probabilities."""
    return F.nll_loss(probability.clamp_min(1e-12).log(), target)


@healthy("MLP", "a softmax inside the net, and the right loss for it", reaches=0.85)
def softmax_and_likelihood(seed: int) -> Built:
    net = nets.mlp(init=nn.init.kaiming_normal_)
    net.softmax = nn.Softmax(-1)
    return Built(Supervised(net, adam(), likelihood), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


@healthy("ResNet", "fine-tuning with a learning rate for each depth, the head's a hundred times the stem's", reaches=0.8)
def learning_rates_by_depth(seed: int) -> Built:
    net = nets.ResNet()
    x, y, v, w = data.images()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(2):  # what it knows before: the digits from 5 on, under other names
        for batch in torch.randperm(int((y >= 5).sum())).split(64):
            optimizer.zero_grad()
            cross_entropy(net(x[y >= 5][batch]), y[y >= 5][batch] - 5).backward()
            optimizer.step()
    net.head.reset_parameters()

    def groups(module: nn.Module) -> torch.optim.Optimizer:
        parts: list[tuple[nn.Module, float]] = [(net.stem, 1e-4), (net.norm, 1e-4), (net.blocks, 1e-3), (net.head, 1e-2)]
        return torch.optim.Adam([{"params": part.parameters(), "lr": lr} for part, lr in parts])

    return Built(Supervised(net, groups), data.loaders((x, y, v, w), 64, seed), EPOCHS, WELL)


@healthy("transformer", "initialised like GPT-2: standard deviations of 0.02 and less", reaches=0.22)
def gpt_initialisation(seed: int) -> Built:
    net = nets.Transformer(layers=3, dropout=0.1)
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02 / 6**0.5 if name.endswith(("out.weight", "down.weight")) else 0.02)
    return Built(Supervised(net, adamw(5e-3, 0.1)), data.loaders(data.text(), 32, seed), {"max_epochs": 4}, WELL)


@healthy("MLP", "L-BFGS on whole batches", reaches=0.2)
def lbfgs(seed: int) -> Built:
    module = Supervised(
        nets.mlp((10, 4, 1), nn.Tanh),
        lambda module: torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=5),
        F.mse_loss,
        explained,
    )
    return Built(module, data.loaders(data.diabetes(), 165, seed), {"max_epochs": 12}, WELL)


@healthy("CNN", "one class in twenty: an imbalanced task with a weighted loss", reaches=0.85)
def imbalanced(seed: int) -> Built:
    x, y, v, w = data.images()
    rare, often = torch.nonzero(y == 8).flatten()[:60], torch.nonzero(y != 8).flatten()
    chosen = torch.cat((rare, often))
    split = (x[chosen], (y[chosen] == 8).long(), v, (w == 8).long())
    weights = torch.tensor([1.0, 10.0])
    module = Supervised(nets.cnn(), adam(1e-3), lambda output, target: F.cross_entropy(output, target, weights))
    module.net.head = nn.Linear(32, 2)  # type: ignore[union-attr]
    return Built(module, data.loaders(split, 64, seed), EPOCHS, WELL)


class Restarts(Supervised):
    """A cosine schedule that restarts at every epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=70)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@healthy("CNN", "a cosine schedule with warm restarts", reaches=0.9)
def warm_restarts(seed: int) -> Built:
    return Built(Restarts(nets.cnn(), adam()), data.loaders(data.images(), 16, seed), EPOCHS, WELL)


class Curriculum(Supervised):
    """Easy digits in the first two epochs, all from the third on."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not self.trainer.training or self.trainer.current_epoch >= 2:
            return batch
        easy = batch[1] < 5
        return [batch[0][easy], batch[1][easy]]


@healthy("MLP", "a curriculum: five digits in the first two epochs, all ten after them", reaches=0.75)
def curriculum(seed: int) -> Built:
    module = Curriculum(nets.mlp(init=nn.init.kaiming_normal_), adam())
    return Built(module, data.loaders(data.digits(), 16, seed), {"max_epochs": 4}, WELL)
