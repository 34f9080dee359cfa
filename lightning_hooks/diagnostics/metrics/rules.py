"""Mistakes with torchmetrics metrics: what is logged is not what the metric's name says, or its states grow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from lightning_hooks.declare.cause import PossibleCause
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule
from lightning_hooks.diagnostics.causes.code import fact
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.trackers import some

# Field of a use to the message, the advice, and the cause with its remedy; of several the first counts.
_MISTAKES: dict[str, tuple[str, str, Callable[..., PossibleCause]]] = {
    "unregistered": ("it is in a plain list or dictionary: the model does not know it",
        "Put it in an nn.ModuleDict, nn.ModuleList or MetricCollection",
        partial(fact, "metric_unregistered", "a metric is not part of the model", "replace", "the list or dictionary of {site}",
            "an nn.ModuleList or nn.ModuleDict")),
    "shared": ("it is updated in training and in validation without a reset in between: what it computes in either mixes both",
        "Use a metric object for each phase",
        partial(fact, "metric_shared", "one metric is updated in training and in validation", "replace", "{site}",
            "one for training and one for validation", "self.val_metric = {code}.clone()")),
    "averaged": ("its values of batches are logged as {use.averaged} and averaged, which is not its value for the epoch",
        "Log the metric object, not the value that it returns",
        partial(fact, "metric_averaged", "values of batches are averaged where the epoch has another value", "replace",
            "the value of {site} that is logged", "the metric object", "self.log(name, {code})")),
    "epochs": ("it holds the updates of {use.epochs} epochs: what it computes is the value over all of them, not over the last",
        "Log the metric object, or call its reset() at the end of each epoch",
        partial(fact, "metric_never_reset", "a metric is never reset", "call", "{site}.reset", code="{code}.reset()")),
    "empty": ("it is logged or computed, and was not updated since its last reset",
        "Call its update() in each step of the phase that logs it",
        partial(fact, "metric_empty", "a metric is computed without an update", "call", "{site}.update",
            code="{code}.update(preds, target)")),
    "megabytes": ("its list states hold {use.megabytes:.3g} MB (limit {rule.megabytes:g} MB), and keep all until it is reset",
        "Use its binned version (thresholds=100), or compute_on_cpu=True",
        partial(fact, "metric_list_state", "a metric keeps its inputs", "set", "{site}.thresholds", "100", "thresholds=100")),
}  # fmt: skip


class MetricMisused(Rule, kind="metric_misused"):
    """Metrics of torchmetrics whose values are not what their names say, or whose states grow. Nothing of them is computed.

    One number that is joined by a maximum, minimum or sum is a record or a total of the whole training, and is never reset on
    purpose. Metrics that wrap others are not judged.
    """

    epochs: ClassVar[int] = 1  # epochs whose updates a metric may hold at once
    megabytes: ClassVar[float] = 100.0  # size that its list states may have

    def __call__(self, report: GradientFlowReport) -> Alerts:
        made: dict[str, list[str]] = {}
        for site, use in report.metrics.items():
            values = ((field, getattr(use, field), getattr(self, field, 0)) for field in _MISTAKES)
            large = [field for field, value, limit in values if value and (field == "averaged" or value > limit)]
            for field in large[:1]:
                made.setdefault(field, []).append(site)
        for field, (site, *others) in made.items():
            (message, advice, _), use = _MISTAKES[field], report.metrics[site]
            more = f" (also {some(others, 3)})" * bool(others)
            value, limit = float({"epochs": use.epochs, "megabytes": use.megabytes}.get(field, 1)), getattr(self, field, 0.0)
            yield self.finding(report, site, value, limit, f"{message.format(use=use, rule=self)}{more}.", advice=(advice,))


__all__ = ["MetricMisused"]

KINDS = (
    Kind(
        "metric_misused", "A metric that is used in a wrong way", group="Set-up", states="fact", measures="nothing",
        causes=tuple(cause(advice=advice) for _, advice, cause in _MISTAKES.values()),
        meaning="A torchmetrics metric of the model computes something other than its name says: one object takes the batches of "
        "training and validation, values of batches are averaged where that for the epoch is another number, nobody resets or "
        "updates it. Or it keeps large lists, or is in a plain list or dictionary, where the model does not know it.",
        formula="alert if it is in a list, tuple, set or dict and not in model.modules()\n"
        "or if it holds updates of training and of validation at once, and is computed or reset\n"
        "or if the mean of its values of batches is logged, and value times weight is not linear in what a batch adds to states\n"
        "or if it holds those of over {MetricMisused.epochs} epoch and is computed, but for one number joined by max, min or sum\n"
        "or if it is logged as an object, or computed, without an update\n"
        "or if its list states hold more than {MetricMisused.megabytes} MB",
        advice=("Use a metric object for each phase, and log the object",
            "Where it is on purpose, mute this with rules=['-metric_misused']"),
    ),
)  # fmt: skip
