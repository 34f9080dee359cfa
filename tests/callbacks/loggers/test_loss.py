"""The loss in the report, against the losses that ``training_step`` kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch import Tensor
from torch.nn import functional as F

from lightning_hooks import GradientFlowMonitor
from lightning_hooks.alerts import Alert, LossReport
from lightning_hooks.diagnostics.loss.table import validation_loss
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.trainings import amp


def fit(model: Classifier, epochs: int = 1, **kwargs: Any) -> LossReport:
    monitor = GradientFlowMonitor(every_n_steps=3, summary=False)
    trainer([monitor], max_epochs=epochs, **kwargs).fit(model, loader(n=600))  # 75 batches: more than are kept at a time
    assert monitor.report is not None
    assert monitor.report.loss is not None
    return monitor.report.loss


@pytest.mark.parametrize("case", ["plain", "accumulated", "scaled"])
def test_the_loss_of_every_batch_is_recorded_as_training_step_gave_it(case: str) -> None:
    torch.manual_seed(0)
    kwargs: dict[str, Any] = {"plain": {}, "accumulated": {"accumulate_grad_batches": 4}, "scaled": {"plugins": amp(1024.0)}}[case]
    model = Classifier(mlp())
    stats = fit(model, epochs=2, **kwargs)
    losses, rel = np.asarray(model.losses), 1e-2 if case == "scaled" else 1e-5
    assert (stats.count, stats.nonfinite_steps, stats.first_nonfinite_batch) == (75, 0, None)
    expected = (losses[75:].mean(), losses[75:].std(), losses[75:].min(), losses[75:].max(), losses[-1])
    assert (stats.mean, stats.std, stats.min, stats.max, stats.last) == pytest.approx(expected, rel=rel)
    assert stats.recent == pytest.approx(tuple(losses), rel=rel)  # those of the first epoch too


class SometimesNan(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (math.nan if batch_idx == 20 else 1.0)


def test_a_loss_that_is_not_finite_is_counted() -> None:
    model = SometimesNan(mlp(), lr=0.0)
    stats = fit(model)
    assert (stats.count, stats.nonfinite_steps) == (20, 55)  # the weights are lost from there on
    assert (stats.first_nonfinite_batch, stats.first_nonfinite_step) == (20, 20)
    assert stats.mean == pytest.approx(np.mean(model.losses[:20]), rel=1e-5)


class ByHand(Classifier):
    """Two backward passes in each batch; what is returned is neither of them."""

    def __init__(self, returns: str) -> None:
        super().__init__(mlp())
        self.automatic_optimization = False
        self.returns = returns

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        passes = []
        for x, y in ((part[0], part[1]) for part in zip(batch[0].chunk(2), batch[1].chunk(2), strict=True)):
            passes.append(F.cross_entropy(self.net(x), y))
            self.manual_backward(passes[-1])
        optimizer.step()
        self.losses.append(sum(loss.item() for loss in passes) / 2)
        return {"nothing": None, "tensor": 3 * passes[0], "mapping": {"loss": 3 * passes[0]}}[self.returns]


@pytest.mark.parametrize("returns", ["nothing", "tensor", "mapping"])
def test_under_manual_optimisation_it_is_what_training_step_returns_else_the_mean_of_the_backward_passes(returns: str) -> None:
    model = ByHand(returns)
    kept: list[float] = []
    if returns != "nothing":
        step = model.training_step

        def note(batch: Any, batch_idx: int) -> Any:
            outputs = step(batch, batch_idx)
            kept.append((outputs["loss"] if isinstance(outputs, dict) else outputs).item())
            return outputs

        model.training_step = note  # type: ignore[method-assign]
    stats = fit(model)
    assert stats.recent == pytest.approx(tuple(kept or model.losses), rel=1e-5)


class Validated(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log_dict({"val_loss": loss, "val_loss_of_a_part": 2 * loss, "interval_loss": 3 * loss})


@pytest.mark.parametrize("interval", [1.0, 0.2])
def test_the_loss_of_every_validation_is_kept(interval: float) -> None:
    model, monitor = Validated(mlp()), GradientFlowMonitor(summary=False)
    fit = trainer([monitor], max_epochs=2, limit_val_batches=1, val_check_interval=interval, num_sanity_val_steps=0)
    seen: list[float] = []
    model.on_validation_end = lambda: seen.append(fit.callback_metrics["val_loss"].item())  # type: ignore[method-assign]
    fit.fit(model, loader(n=600), loader())
    assert monitor.report is not None
    assert monitor.report.loss is not None
    found = monitor.report.loss.validations
    assert [one.loss for one in found] == pytest.approx(seen[-8:])
    assert len(seen) == 2 / interval
    assert found[-1].training == pytest.approx(np.mean(model.losses), rel=1e-5)
    assert found[-2].training == pytest.approx(np.mean(model.losses[: -int(75 * interval)]), rel=1e-5)


class Scored(Classifier):
    """Its validation loss falls and its score rises; the rate is lowered where the score, or nothing, does not get better."""

    plateau: tuple[str, str] | None = None

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"val_loss": 2.0 - 0.1 * self.current_epoch, "val_score": 0.1 * self.current_epoch})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Nothing."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        if self.plateau is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=self.plateau[1])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": self.plateau[0]}}


class Odd(Callback):
    """A callback of the user's with attributes of the same names, which nobody is to call."""

    def __init__(self) -> None:
        self.monitor, self.mode = "val_score", self

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = Callback.__hash__


@pytest.mark.parametrize(
    ("watchers", "plateau", "expected"),
    [
        ([EarlyStopping("val_score", patience=3)], None, ["val_score"]),
        ([EarlyStopping("val_score", patience=3, mode="max")], None, []),
        ([EarlyStopping("val_loss", patience=3), ModelCheckpoint(monitor="val_score")], None, ["val_score"]),
        ([EarlyStopping("val_loss", patience=3), ModelCheckpoint(monitor="val_score", mode="max")], None, []),
        ([EarlyStopping("val_loss", patience=3, mode="max")], None, ["val_loss"]),
        ([EarlyStopping("val_score", patience=3), ModelCheckpoint(monitor="val_score", mode="max")], None, ["val_score"]),
        ([Odd(), EarlyStopping("val_score", patience=3)], None, ["val_score"]),
        ([], ("val_score", "min"), ["val_score"]),
        ([], ("val_loss", "min"), []),
    ],
)
def test_who_watches_a_metric_the_wrong_way(watchers: list[Any], plateau: Any, expected: list[str], tmp_path: Path) -> None:
    found: list[Alert] = []
    model = Scored(mlp())
    model.plateau = plateau
    kwargs = {"default_root_dir": tmp_path, "num_sanity_val_steps": 0, "enable_checkpointing": True}
    monitor = GradientFlowMonitor(summary=False, on_alert=found.append)
    trainer([*watchers, monitor], max_epochs=5, **kwargs).fit(model, loader(n=64), loader(n=64))
    assert [alert.site for alert in found if alert.kind == "settings"] == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["val_loss", "val_acc", "train_loss"], "val_loss"),
        (["loss/val", "val_loss_of_a_part"], "loss/val"),
        (["ValLoss"], None),
        (["validation/loss_epoch", "test_loss"], "validation/loss_epoch"),
        (["eval_loss", "interval_loss"], "eval_loss"),
        (["interval_loss", "loss/mean", "value_loss"], None),
    ],
)
def test_which_metric_is_the_loss_of_a_validation(names: list[str], expected: str | None) -> None:
    assert validation_loss(names) == expected
