"""Digits and tables: plain classification and regression, as courses and careful engineers set them up."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from sklearn import datasets
from torch import Tensor, nn
from torch.distributions import Normal
from torch.optim import LBFGS, SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CyclicLR
from torch.utils.checkpoint import checkpoint

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, mse
from .data import digits, feed, rng, scaled, table
from .nets import convnet, mlp, pretrain


@fault("softmax_before_cross_entropy", "The net ends in a softmax and so does cross_entropy.", "val_loss", 0.74, last=nn.Softmax(1))
@fault("loss_summed_not_averaged", "The loss is a sum over the batch, at the rate for a mean.", "val_acc", 1.04, reduction="sum")
@healthy
def course_mlp(last: nn.Module | None = None, reduction: str = "mean") -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], reduction=reduction)

    net = nn.Sequential(nn.Flatten(), mlp(64, 64, 32, 10), last or nn.Identity())
    return fit(net, loss, partial(SGD, lr=0.1), feed(*digits(), batch=32), 12, accuracy)


@fault("weights_start_at_zero", "All weights start at zero.", "val_acc", 1.06, start=nn.init.zeros_)
@fault("deep_sigmoids", "Eight hidden layers have sigmoids in place of ReLUs.", "val_acc", 0.59, act=nn.Sigmoid)
@healthy
def eight_hidden_layers(start: Any = nn.init.kaiming_normal_, act: Any = nn.ReLU) -> Training:
    net = nn.Sequential(nn.Flatten(), mlp(64, *[48] * 8, 10, act=act))
    for weight in (p for p in net.parameters() if p.ndim > 1):
        start(weight)
    return fit(net, cross_entropy, partial(Adam, lr=1e-3), feed(*digits(), batch=32), 12, accuracy)


@fault("targets_not_scaled", "The targets of a regression are left in hundreds.", "val_r2", 1.15, scale=torch.clone)
@healthy
def diabetes_regression(scale: Any = scaled) -> Training:
    def r2(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_r2": 1 - mse(net, batch) / batch[1].var()}

    x, y = table("diabetes")
    return fit(mlp(10, 32, 1), mse, partial(AdamW, lr=2e-3), feed(scaled(x), scale(y.float()[:, None]), batch=16), 20, r2)


@fault("regression_through_a_sigmoid", "A regression ends in a sigmoid, with targets around 0.", "val_loss", 0.5, last=nn.Sigmoid())
@healthy
def friedman_with_huber(last: nn.Module | None = None) -> Training:
    def huber(net: Any, batch: Any) -> Tensor:
        return F.huber_loss(net(batch[0]), batch[1])

    x, y = (torch.tensor(a, dtype=torch.float32) for a in datasets.make_friedman1(1500, noise=0.5, random_state=0))
    net = nn.Sequential(mlp(10, 64, 64, 1, act=nn.SiLU), last or nn.Identity())
    return fit(net, huber, partial(RMSprop, lr=2e-3), feed(scaled(x), scaled(y)[:, None]), 16)


@fault("stops_when_it_improves", "EarlyStopping takes a falling loss for one that gets worse.", "val_loss", 0.38, mode="max")
@healthy
def wine_with_early_stopping(mode: str = "min") -> Training:
    x, y = table("wine")
    fed, stop = feed(scaled(x), y, batch=8), EarlyStopping("val_loss", mode=mode, patience=3)
    return fit(mlp(13, 16, 3), cross_entropy, partial(Adam, lr=2e-3), fed, 40, accuracy, callbacks=[stop])


@fault("labels_one_and_two", "The hinge loss is given labels 1 and 2, not -1 and 1.", "val_loss", 0.99, labels=(1, 2))
@healthy
def linear_svm(labels: tuple[int, int] = (-1, 1)) -> Training:
    def hinge(net: Any, batch: Any) -> Tensor:
        return (1 - torch.tensor(labels if net.training else (-1, 1))[batch[1]] * net(batch[0])[:, 0]).clamp(min=0).mean()

    x, y = table("breast_cancer")
    return fit(nn.Linear(30, 1), hinge, partial(SGD, lr=0.02, weight_decay=1e-3), feed(scaled(x), y, batch=16), 12)


@fault("softmax_of_one_output", "cross_entropy is given a single output and is always 0.", "val_acc", 1.0, loss=F.cross_entropy)
@healthy
def circles(loss: Any = F.binary_cross_entropy_with_logits) -> Training:
    def right(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_acc": ((net(batch[0]) > 0) == (batch[1] > 0)).float().mean()}

    x, y = (torch.tensor(a, dtype=torch.float32) for a in datasets.make_circles(1000, noise=0.1, factor=0.4, random_state=0))
    fed = feed(scaled(x), y[:, None])
    return fit(mlp(2, 32, 32, 1), lambda net, b: loss(net(b[0]), b[1]), partial(Adam, lr=5e-3), fed, 20, right)


@fault("weights_in_bfloat16", "All is bfloat16, where small updates are rounded away.", "val_loss", 0.64, precision="bf16-true")
@healthy
def convnet_in_mixed_precision(precision: Any = "bf16-mixed") -> Training:
    return fit(convnet(), cross_entropy, partial(AdamW, lr=1e-4), feed(*digits(), batch=16), 10, accuracy, precision=precision)


@fault("batchnorm_of_two", "Batches of two go through BatchNorm.", "val_loss", 0.51, norm=nn.BatchNorm1d)
@healthy
def batches_of_two(norm: Any = nn.LayerNorm) -> Training:
    hidden = [layer for a in (64, 48) for layer in (nn.Linear(a, 48), norm(48), nn.ReLU())]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(48, 10))
    return fit(net, cross_entropy, partial(SGD, lr=0.01), feed(*digits(), batch=2), 3, accuracy)


@fault("accumulates_for_an_epoch", "Gradients of 359 batches are accumulated, not of 8.", "val_loss", 0.7, batches=359)
@healthy
def accumulated_gradients(batches: int = 8) -> Training:
    net = nn.Sequential(nn.Flatten(), mlp(64, 64, 10, act=nn.GELU))
    return fit(net, cross_entropy, partial(AdamW, lr=5e-3), feed(*digits(), batch=4), 5, accuracy, accumulate_grad_batches=batches)


@fault("divided_by_no_deviation", "Pixels that never change are divided by their deviation of 0.", "val_acc", 9.0, floor=0.0)
@healthy
def logistic_regression_with_lbfgs(floor: float = 0.1) -> Training:
    def ridge(net: Any, batch: Any) -> Tensor:
        return cross_entropy(net, batch) + 1e-3 * net.weight.square().sum()

    x = digits()[0].flatten(1)
    fed = feed((x - x.mean(0)) / (x.std(0) + floor), digits()[1], batch=1437, shuffle=False)
    return fit(nn.Linear(64, 10), ridge, partial(LBFGS, lr=0.5, max_iter=5), fed, 15, accuracy)


class Dropped(nn.Sequential):
    always = False

    def forward(self, x: Tensor) -> Tensor:
        *hidden, last = self
        for layer in hidden:
            x = F.dropout(layer(x).relu(), 0.5, self.always or self.training)
        return last(x)


@fault("drops_at_validation_too", "F.dropout does not get self.training, and always drops.", "val_loss", 0.36, always=True)
@healthy
def heavy_dropout_and_a_cyclic_rate(always: bool = False) -> Training:
    net = Dropped(nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 12), nn.Linear(12, 10))
    net.always = always
    cycles = partial(CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=44)
    x, y = digits()
    return fit(net, cross_entropy, partial(SGD, lr=0.1, momentum=0.9), feed(x.flatten(1), y, batch=32), 20, accuracy, cycles)


@fault("dice_of_plain_outputs", "The dice loss is given outputs without a sigmoid.", "val_iou", 1.67, squash=torch.clone)
@healthy
def dice_segmentation(squash: Any = torch.sigmoid) -> Training:
    def dice(net: Any, batch: Any) -> Tensor:
        p = squash(net(batch[0]))
        return 1 - (2 * (p * batch[1]).sum() + 1) / (p.sum() + batch[1].sum() + 1)

    def iou(net: Any, batch: Any) -> dict[str, Tensor]:
        found, y = net(batch[0]) > 0, batch[1] > 0
        return {"val_iou": (found & y).sum() / (found | y).sum()}

    x = digits(16)[0]
    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))
    noisy = x + torch.randn(x.shape, generator=rng())
    return fit(net, dice, partial(Adam, lr=3e-3), feed(noisy, (x > 0.5).float()), 8, iou)


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.trunk, self.head, self.reentrant = mlp(64, 48, 24, 6, act=nn.Tanh), nn.Linear(6, 10), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.trunk, x.flatten(1), use_reentrant=self.reentrant))


@fault("reentrant_checkpoint", "A reentrant checkpoint of plain inputs cuts off its layers.", "val_loss", 0.84, reentrant=True)
@healthy
def checkpointed_trunk(reentrant: bool = False) -> Training:
    return fit(Recomputed(reentrant), cross_entropy, partial(Adam, lr=5e-3), feed(*digits(), batch=32), 10, accuracy)


@fault("checkpoint_matched_nothing", "The frozen layers were not loaded: keys have a prefix.", "val_loss", 0.77, prefix="model.")
@healthy
def loaded_and_frozen_features(prefix: str = "") -> Training:
    net, old = (mlp(64, 64, 8, 10, act=nn.Tanh) for _ in range(2))
    fed = feed(digits()[0].flatten(1), digits()[1], batch=32)
    saved = pretrain(old, cross_entropy, list(fed["train_dataloaders"]) * 5)[:4].state_dict()
    net.load_state_dict({prefix + key: value for key, value in saved.items()}, strict=False)
    net[:4].requires_grad_(False)
    return fit(net, cross_entropy, partial(SGD, lr=0.1), fed, 10, accuracy)


class Mixture(nn.Module):
    def __init__(self, registered: bool) -> None:
        super().__init__()
        means = torch.randn(5, 2, requires_grad=True)
        self.means = nn.Parameter(means) if registered else means
        self.weights, self.spreads = nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        each = Normal(self.means, self.spreads.exp()[:, None]).log_prob(x[:, None]).sum(2)
        return (each + self.weights.log_softmax(0)).logsumexp(1)


@fault("tensor_for_a_parameter", "The means require a gradient but are no Parameter.", "val_loss", 0.73, registered=False)
@healthy
def mixture_by_gradient(registered: bool = True) -> Training:
    x = torch.tensor(datasets.make_blobs(1500, centers=5, cluster_std=0.4, random_state=3)[0], dtype=torch.float32)
    return fit(Mixture(registered), lambda net, b: -net(b[0]).mean(), partial(Adam, lr=2e-2), feed(scaled(x), batch=32), 10)
