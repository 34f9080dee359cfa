"""Mistakes with torchmetrics metrics, each with its repaired twin, and uses that look like one and are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryF1Score,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
)

from lightning_hooks import GradientFlowMonitor
from lightning_hooks.alerts import Alert
from tests.support.models import Classifier, loader, mlp, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:The ``compute`` method of metric:UserWarning"),  # torchmetrics sees some of the faults too
    pytest.mark.filterwarnings("ignore:No (posi|nega)tive samples in targets:UserWarning"),
]
Step = Callable[["Own", str, Tensor, Tensor], None]


def accuracy() -> Metric:
    return MulticlassAccuracy(3, average="micro")


class Own(Classifier):
    """A model that does with its metrics what a test says, in each step of a phase and at the end of the phase's epoch."""

    def __init__(self, step: Step, end: Callable[[Own, str], None] | None = None, /, **held: Any) -> None:
        super().__init__(mlp())
        self.step, self.end = step, end
        for name, value in held.items():
            setattr(self, name, value)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        self.step(self, "train", logits, y)
        return nn.functional.cross_entropy(logits, y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.step(self, "val", self.net(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        if self.end is not None:
            self.end(self, "train")

    def on_validation_epoch_end(self) -> None:
        if self.end is not None and not self.trainer.sanity_checking:
            self.end(self, "val")


def found(model: Own, epochs: int = 3, every: int = 5, batches: int = 20, **kwargs: Any) -> list[Alert]:
    torch.manual_seed(0)
    monitor = GradientFlowMonitor(every_n_steps=every, summary=False)
    data = loader(n=8 * batches)
    trainer([monitor], max_epochs=epochs, num_sanity_val_steps=0, **kwargs).fit(model, data, data)
    assert monitor.faults.unreported == []
    return [alert for report in monitor.history for alert in report.alerts if alert.kind == "metric_misused"]


def causes(alerts: list[Alert]) -> set[tuple[str, str, str]]:
    return {(alert.site, alert.severity, alert.causes[0].name) for alert in alerts if alert.causes}


def log_object(name: str, metric: str) -> Step:
    def step(model: Own, phase: str, logits: Tensor, y: Tensor) -> None:
        of_phase = metric.format(phase=phase)
        if hasattr(model, of_phase):
            getattr(model, of_phase)(logits, y)
            model.log(name.format(phase=phase), getattr(model, of_phase), on_step=False, on_epoch=True)

    return step


def test_one_object_for_training_and_validation() -> None:
    alerts = found(Own(log_object("{phase}_acc", "acc"), acc=accuracy()))
    assert causes(alerts) == {("acc", "warning", "metric_shared")}
    assert alerts[0].message == (
        "it is updated in training and in validation without a reset in between: what it computes in either mixes both."
    )
    assert alerts[0].advice == ("Use a metric object for each phase",)
    assert alerts[0].causes[0].remedies[0].text == (
        "Replace acc by one for training and one for validation: self.val_metric = self.acc.clone()"
    )
    assert alerts[0].epoch == 0


def test_an_object_for_each_phase() -> None:
    model = Own(log_object("{phase}_acc", "{phase}_acc"), train_acc=accuracy(), val_acc=accuracy())
    assert found(model) == []
    assert found(model, val_check_interval=0.3) == []


def averaged(metric: Metric) -> list[Alert]:
    def step(model: Any, phase: str, logits: Tensor, y: Tensor) -> None:
        if phase == "val":
            logits, y = (-logits[:, 0], (y > 0).long()) if "Binary" in type(metric).__name__ else (logits.softmax(-1), y)
            model.log("val_metric", model.metric(logits, y))
            model.log("val_loss", logits.sum())

    def end(model: Any, phase: str) -> None:
        if phase == "val":
            model.metric.reset()

    return found(Own(step, end, metric=metric))


@pytest.mark.parametrize(
    "metric", [BinaryF1Score(), MulticlassF1Score(3), MulticlassAccuracy(3, average="macro"), BinaryAUROC(), MulticlassAUROC(3)]
)
def test_values_of_batches_that_are_averaged(metric: Metric) -> None:
    alerts = averaged(metric)
    assert causes(alerts) == {("metric", "warning", "metric_averaged")}
    assert alerts[0].message == (
        "its values of batches are logged as val_metric and averaged, which is not its value for the epoch."
    )
    remedy = alerts[0].causes[0].remedies[0]
    assert remedy.text == "Replace the value of metric that is logged by the metric object: self.log(name, self.metric)"


@pytest.mark.parametrize("metric", [MulticlassAccuracy(3, average="micro"), MulticlassF1Score(3, average="micro")])
def test_values_of_batches_whose_mean_is_that_of_the_epoch(metric: Metric) -> None:
    assert averaged(metric) == []


def computed(name: str, reset: bool) -> Own:
    def step(model: Any, phase: str, logits: Tensor, y: Tensor) -> None:
        if phase == name:
            model.metric.update(logits, y)

    def end(model: Any, phase: str) -> None:
        if phase == name:
            model.log("metric", model.metric.compute())
            if reset:
                model.metric.reset()

    return Own(step, end, metric=accuracy())


@pytest.mark.parametrize("phase", ["train", "val"])
def test_a_metric_that_is_never_reset(phase: str) -> None:
    alerts = found(computed(phase, reset=False))
    assert causes(alerts) == {("metric", "warning", "metric_never_reset")}
    assert (alerts[0].epoch, alerts[0].value, alerts[0].threshold) == (1, 2.0, 1)
    assert (
        alerts[0].message == "it holds the updates of 2 epochs: what it computes is the value over all of them, not over the last."
    )
    assert alerts[0].causes[0].remedies[0].text == "Call metric.reset: self.metric.reset()"
    assert found(computed(phase, reset=True)) == []


def test_a_metric_that_is_logged_and_never_updated() -> None:
    def step(model: Any, phase: str, logits: Tensor, y: Tensor) -> None:
        if phase == "val":
            if updated:
                model.acc.update(logits, y)
            model.log("val_acc", model.acc)

    updated = False
    alerts = found(Own(step, acc=accuracy()))
    assert causes(alerts) == {("acc", "warning", "metric_empty")}
    assert alerts[0].message == "it is logged or computed, and was not updated since its last reset."
    assert alerts[0].causes[0].remedies[0].text == "Call acc.update: self.acc.update(preds, target)"
    updated = True
    assert found(Own(step, acc=accuracy())) == []


@pytest.mark.parametrize("held", [[accuracy()], {"val": accuracy()}, {"val": [accuracy()]}])
def test_metrics_that_are_no_part_of_the_model(held: Any) -> None:
    def metric(model: Any) -> Metric:
        inner = next(iter(model.held.values())) if isinstance(model.held, dict | nn.ModuleDict) else model.held[0]
        return inner[0] if isinstance(inner, list) else inner

    def step(model: Any, phase: str, logits: Tensor, y: Tensor) -> None:
        if phase == "val":
            metric(model).update(logits, y)

    def end(model: Any, phase: str) -> None:
        if phase == "val":
            model.log("val", metric(model).compute())
            if reset:
                metric(model).reset()

    reset = True
    alerts = found(Own(step, end, held=held))
    assert causes(alerts) == {("held.0", "warning", "metric_unregistered")}
    assert alerts[0].message == "it is in a plain list or dictionary: the model does not know it."
    assert alerts[0].causes[0].remedies[0].text == "Replace the list or dictionary of held.0 by an nn.ModuleList or nn.ModuleDict"
    assert found(Own(step, end, held=nn.ModuleDict({"val": accuracy()}))) == []
    assert found(Own(step, end, held=nn.ModuleList([accuracy()]))) == []
    reset = False
    assert causes(found(Own(step, end, held=held))) == {("held.0", "warning", "metric_unregistered")}  # why nobody resets it


class Hostile(Metric):
    """Each attribute of it that is no state raises when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), "sum")

    @property
    def update_called(self) -> bool:
        raise AssertionError("read")

    update_count = metric_state = update_called

    def update(self, value: Tensor) -> None:
        self.total += value

    def compute(self) -> Tensor:
        raise AssertionError("computed")


def test_no_attribute_of_a_metric_that_runs_code_is_read() -> None:
    def step(model: Any, phase: str, logits: Tensor, y: Tensor) -> None:
        model.metric.update(logits.detach().sum())

    assert found(Own(step, metric=Hostile())) == []
