"""The LightningModule that trains a :class:`~tests.evidence.population.training.Training`, and its fit."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import math
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.faults.training import QUIET
from tests.evidence.population.scores import first
from tests.evidence.population.training import Batch, Loop, Training


def smoothed(training: Training, batch: Batch) -> Batch:
    """Augmentation of inputs by noise."""
    x = batch.inputs[0]
    return batch._replace(inputs=(x + 0.1 * x.std() * torch.randn_like(x), *batch.inputs[1:]))


def build_loop(training: Training) -> None:
    r = training.recipe
    prepare = [*training.data.prepare, *([smoothed] if r.augment else [])]
    turns = 2 if r.model == "gan" else 1
    training.loop = Loop(
        r.steps, r.batch_size, r.shuffle, r.drop_last, prepare, r.clip or None, r.clip_by, accumulation=r.accumulation,
        precision=r.precision, manual=r.manual, turns=turns, interval=r.interval, ema=r.ema or None, logged=r.logged,
        validate=r.validate, watched=dict(r.watched),
    )  # fmt: skip
    if hasattr(training.model, "follow"):
        training.loop.after_step.append(lambda t, i: t.model.follow())


class Module(LightningModule):
    """As a user writes it: a model, a loss, one or more optimizers."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training_of = [training]  # in a list: it is no part of the module
        self.model = training.model
        self.automatic_optimization = not training.loop.manual
        if training.loop.ema:
            average = AveragedModel(training.model, multi_avg_fn=get_ema_multi_avg_fn(training.loop.ema), use_buffers=True)
            self.average = average.requires_grad_(False)

    @property
    def t(self) -> Training:
        return self.training_of[0]

    def batch(self, rows: list[Tensor]) -> Batch:
        """Of the loader's rows."""
        return Batch(tuple(rows), None) if self.t.data.train.targets is None else Batch(tuple(rows[:-1]), rows[-1])

    def prepared(self, rows: list[Tensor]) -> Batch:
        batch = self.batch(rows)
        for change in self.t.loop.prepare:
            batch = change(self.t, batch)
        return batch

    def on_train_epoch_start(self) -> None:
        self.model.train(self.t.loop.train_mode)

    def training_step(self, rows: list[Tensor], batch_idx: int) -> Tensor | None:
        batch = self.prepared(rows)
        if not self.automatic_optimization:
            self.step_by_hand(batch, batch_idx)
            return None
        outputs = self.model(*batch.inputs)
        loss = self.t.loss(outputs, batch)
        self.note(loss, outputs, batch)
        return loss

    def step_by_hand(self, batch: Batch, batch_idx: int) -> None:
        """A loss and a step for each turn; several optimizers of one loss step together."""
        loop, optimizers = self.t.loop, self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        steps = (batch_idx + 1) % loop.accumulation == 0
        for turn in range(loop.turns):
            own = optimizers if loop.turns == 1 else [optimizers[turn]]
            if loop.turns > 1:
                self.toggle_optimizer(own[0])
            outputs = self.model(*batch.inputs) if loop.turns == 1 else self.model(*batch.inputs, turn=turn)
            loss = self.t.loss(outputs, batch)
            self.manual_backward(loss / loop.accumulation if loop.divide else loss)
            if steps:
                self.before(batch_idx)
                for optimizer in own:
                    if loop.clip and loop.clip_at == "before_step":
                        self.clip_gradients(optimizer, gradient_clip_val=loop.clip, gradient_clip_algorithm=loop.clip_by)
                    optimizer.step()
                    if loop.zero_grad:
                        optimizer.zero_grad()
            if loop.turns > 1:
                self.untoggle_optimizer(own[0])
        self.note(loss, outputs, batch)
        if steps and loop.interval == "step":
            for scheduler in self.t.schedulers:
                scheduler.step()

    def note(self, loss: Tensor, outputs: Any, batch: Batch) -> None:
        """What is logged."""
        logged, many = self.t.loop.logged, len(batch.inputs[0])
        if "loss" in logged:
            self.log("train_loss", loss.detach(), prog_bar="progress" in logged, batch_size=many)
        if "epoch_loss" in logged:
            self.log("train_loss_epoch", loss.detach(), on_step=False, on_epoch=True, batch_size=many)
        if "accuracy" in logged and self.t.data.kind == "classes" and batch.targets.ndim == 1:
            right = (first(outputs).argmax(-1) == batch.targets).float().mean()
            self.log("train_acc", right, on_step=False, on_epoch=True, batch_size=many)

    def on_validation_model_eval(self) -> None:
        if self.t.loop.eval_mode:
            super().on_validation_model_eval()

    def validation_step(self, rows: list[Tensor], batch_idx: int) -> None:
        batch = self.batch(rows)
        if batch.targets is not None and self.t.data.kind not in ("actions", "pairs"):
            self.log("val_loss", self.t.loss(self.model(*batch.inputs), batch), prog_bar="progress" in self.t.loop.logged)

    def before(self, batch_idx: int) -> None:
        for call in self.t.loop.before_step:
            call(self.t, batch_idx)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if self.automatic_optimization:
            self.before(self.trainer.fit_loop.batch_idx)

    def on_before_backward(self, loss: Tensor) -> None:
        if self.t.loop.clip_at == "before_backward":
            self.clip()

    def clip(self) -> None:
        """By hand, at another time."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        if self.t.loop.clip and parameters:
            torch.nn.utils.clip_grad_norm_(parameters, self.t.loop.clip)

    def optimizer_zero_grad(self, *arguments: Any) -> None:
        if self.t.loop.zero_grad:
            super().optimizer_zero_grad(*arguments)

    def on_train_batch_end(self, outputs: Any, rows: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % self.t.loop.accumulation == 0:
            if self.t.loop.clip_at == "after_step":
                self.clip()
            for call in self.t.loop.after_step:
                call(self.t, batch_idx)
            if self.t.loop.ema:
                self.average.update_parameters(self.model)

    def on_train_epoch_end(self) -> None:
        if self.t.loop.manual and self.t.loop.interval == "epoch":
            for scheduler in self.t.schedulers:
                scheduler.step()

    def configure_optimizers(self) -> Any:
        t = self.t
        if t.loop.manual or not t.schedulers:
            return t.optimizers[0] if len(t.optimizers) == 1 else t.optimizers
        watched = {"monitor": "train_loss_epoch"} if t.recipe.schedule == "plateau" else {}
        return {
            "optimizer": t.optimizers[0],
            "lr_scheduler": {"scheduler": t.schedulers[0], "interval": t.loop.interval, **watched},
        }


def loader(data: Batch, batch_size: int, **options: Any) -> DataLoader[Any]:
    rows = TensorDataset(*data.inputs, *([] if data.targets is None else [data.targets]))
    return DataLoader(rows, batch_size, **options)


def fit(training: Training, callbacks: Any = ()) -> float:
    """Train with these callbacks, and return the validation score (NaN where it is not finite)."""
    loop, model = training.loop, training.model
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatch(name, pattern) for pattern in loop.frozen):
            parameter.requires_grad_(False)
    module = Module(training)
    order = torch.Generator().manual_seed(training.recipe.seed)
    train = loader(training.data.train, loop.batch_size, shuffle=loop.shuffle, drop_last=loop.drop_last, generator=order)
    held = training.data.validation
    validation = loader(held, len(held.inputs[0])) if loop.validate else None
    limits: dict[str, Any] = {"max_steps": loop.steps * (len(training.optimizers) if loop.manual else 1), "max_epochs": -1}
    if not loop.manual:
        limits["accumulate_grad_batches"] = loop.accumulation
        if loop.clip and loop.clip_at == "before_step":
            limits |= {"gradient_clip_val": loop.clip, "gradient_clip_algorithm": loop.clip_by}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(**QUIET, precision=loop.precision, callbacks=list(callbacks), log_every_n_steps=10, **limits)
        trainer.fit(module, train, validation)
    judged = module.average.module if loop.ema else model
    judged.train(not loop.eval_mode)
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        score = training.data.score(judged, training.data.validation)
        return score if math.isfinite(score) else math.nan
    return math.nan
