"""Bugs of issue threads in what is set outside of the step: averages, copies, what is frozen, what is loaded."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor

from tests.evidence.bugs.cases import Built, Expected, bug
from tests.evidence.bugs.parts import Cnn, Digits, adam, classify, digits, mlp
from tests.evidence.faults.training import QUIET

SHORT = 96
"""Samples of a batch: epochs of 15 batches."""


class Averaged(Digits):
    """Validates an average of its weights, which it keeps beside itself.

    Args:
        updates: Whether the average is updated after each step.
        returns: Whether the weights are put back after validation.
    """

    def __init__(self, updates: bool = True, returns: bool = True) -> None:
        super().__init__(mlp())
        self.updates, self.returns = updates, returns
        self.average = [p.detach().clone() for p in self.net.parameters()]
        self.kept: list[Tensor] = []

    def write(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.net.parameters(), values, strict=True):
            parameter.data.copy_(value)

    def on_train_batch_end(self, *args: Any) -> None:
        for mean, parameter in zip(self.average, self.net.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.01 if self.updates else 0.0)

    def on_validation_start(self) -> None:
        self.kept = [p.detach().clone() for p in self.net.parameters()]
        self.write(self.average)

    def on_validation_end(self) -> None:
        if self.returns:
            self.write(self.kept)


class Restored(Averaged):
    """An epoch's end loads the average again."""

    def on_train_epoch_end(self) -> None:
        if not self.updates:
            self.write(self.average)


@bug("MultimediaTechLab/YOLO#97", "weights are restored at each epoch's end by an average that is never updated")
def average_never_updated(planted: bool = True) -> Built:
    return Built(Restored(updates=not planted), digits(batch_size=SHORT), {"max_epochs": 4}, Expected(("set_outside",), ("net",)))


@bug("PKU-YuanGroup/Open-Sora-Plan#186", "an average of the weights is copied in for validation and not put back")
def average_not_put_back(planted: bool = True) -> Built:
    return Built(Averaged(returns=not planted), digits(batch_size=SHORT), {"max_epochs": 4}, Expected(("set_outside",), ("net",)))


class Thaws(BaseFinetuning):
    """Unfreezes the body at the second epoch, and, if repaired, where training goes on after that."""

    def __init__(self, repaired: bool) -> None:
        super().__init__()
        self.repaired = repaired

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.net.body, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net.body, optimizer, lr=1e-3)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_fit_start(trainer, pl_module)
        if self.repaired and trainer.ckpt_path:
            pl_module.net.body.requires_grad_(True)


class Finetuned(Digits):
    """A trained body, and a head that an optimizer gets first."""

    def __init__(self, repaired: bool) -> None:
        super().__init__(trained(), lambda module: torch.optim.Adam(module.net.head.parameters(), lr=2e-3))
        self.repaired = repaired

    def configure_callbacks(self) -> list[Callback]:
        return [Thaws(self.repaired)]


@bug("Lightning-AI/pytorch-lightning#21901", "BaseFinetuning freezes again where training goes on, behind the epoch that unfreezes")
def frozen_again_on_resume(planted: bool = True) -> Built:
    loaders, path = digits(image=True, batch_size=SHORT), Path(tempfile.mkdtemp()) / "last.ckpt"
    first = Trainer(**{**QUIET, "max_epochs": 3})
    first.fit(Finetuned(repaired=True), **loaders)
    first.save_checkpoint(path)
    module = Finetuned(repaired=not planted)
    return Built(module, {**loaders, "ckpt_path": path}, {"max_epochs": 5}, Expected(("not_optimized",)))


class Followed(Digits):
    """A net with a copy that is to follow it as a moving average."""

    def __init__(self, sign: float = 1.0, overwritten: bool = False) -> None:
        net = mlp()
        super().__init__(net, lambda module: torch.optim.Adam(module.net.parameters(), lr=2e-3))
        self.ema = copy.deepcopy(net).requires_grad_(False)
        self.sign, self.overwritten, self.decay, self.count = sign, overwritten, 0.999, 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.count += 1
        part = 1 - min(self.decay, (1 + self.count) / (10 + self.count))
        if self.overwritten:
            self.decay = part
        for mean, parameter in zip(self.ema.parameters(), self.net.parameters(), strict=True):
            mean.data.sub_(part * self.sign * (mean.data - parameter.data))


@bug("ostris/ai-toolkit#1034", "a moving average of the weights that is updated with the wrong sign")
def average_with_the_wrong_sign(planted: bool = True) -> Built:
    module = Followed(sign=-1.0 if planted else 1.0)
    return Built(module, digits(batch_size=SHORT), {"max_epochs": 3}, Expected(("module_copy",), ("ema",)))


@bug("huggingface/diffusers#1864", "the decay of a moving average is overwritten at each step: the average is the last few steps")
def decay_overwritten(planted: bool = True) -> Built:
    module = Followed(overwritten=planted)
    return Built(module, digits(batch_size=SHORT), {"max_epochs": 3}, Expected(("module_copy",), ("ema",)))


def trained() -> Cnn:
    """A net that has learned the digits for an epoch or two."""
    net, batches = Cnn(), digits(image=True)["train_dataloaders"]
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for batch in islice(_again(batches), 60):
        optimizer.zero_grad()
        classify(net, batch).backward()
        optimizer.step()
    return net


def _again(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


@bug("torchgeo/torchgeo#4036", "load_state_dict(strict=False) of weights none of whose names fit, before a frozen body")
def no_key_fits(planted: bool = True) -> Built:
    kept = {f"model.{name}" if planted else name: value for name, value in trained().state_dict().items()}
    net: Any = Cnn()
    net.load_state_dict({name: value for name, value in kept.items() if "head" not in name}, strict=False)
    net.body.requires_grad_(False)
    module = Digits(net, adam())
    return Built(module, digits(image=True, batch_size=SHORT), {"max_epochs": 3}, Expected(("not_loaded",), ("net.body*",)))
