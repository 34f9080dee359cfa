"""The parts of a health report about training itself: loss, learning rates, set-up, layers, and the most unusual batches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from lightning_hooks.declare.alert import MOST_SAMPLES
from lightning_hooks.declare.plain import to_plain
from lightning_hooks.diagnostics.unusual import UnusualBatch
from lightning_hooks.plots.canvas import within
from lightning_hooks.run_report.charts import Chart, Line, chart, numbered
from lightning_hooks.run_report.recorded import MonitorRecord, number_of
from lightning_hooks.run_report.run import MOST_EPOCHS, Run
from lightning_hooks.run_report.text import DASH

T = TypeVar("T")

COLORS = ("var(--blue)", "var(--amber)", "var(--green)", "var(--red)", "var(--sky)")
SETTINGS = (
    ("optimizers", "optimizers"),
    ("precision", "precision"),
    ("devices", "processes"),
    ("accelerator", "accelerator"),
    ("parameters", "elements of parameters"),
    ("max_epochs", "epochs planned"),
)
MEAN_LOSS = "mean loss of the training batches"
MOST_CHARTS, MOST_COLUMNS = 12, 8
"""Of the user's metrics."""
_PHASE = re.compile(r"(?<![^_\-./ ])(train(ing)?|val(id(ation)?)?|eval(uation)?|test)(?![^_\-./ ])", re.IGNORECASE)
Curves = dict[str, list[float]]
"""Name to a number for each epoch."""
WIDE_RANGE = 20.0
"""A loss that spans more than this factor is drawn on a logarithmic scale."""


@dataclass(frozen=True, slots=True)
class Training:
    """The loss and the learning rates over the epochs."""

    charts: list[tuple[str, Chart]]  # a title and curves of each that is known: loss, metrics, rates, what of it learns
    groups_left: int  # how many parameter groups are not drawn
    columns: list[str]  # of the table, behind the epoch
    table: list[list[float]]  # an epoch, its loss, rates and metrics, of ten epochs or fewer


def training(run: Run) -> Training:
    """The loss and the learning rates over the epochs."""
    epochs, losses = loss_by_epoch(run)
    rates, drawn = rates_by_group(run), loss_and_metrics(run)
    charts = [(title, curves_chart(curves, epochs, run.unit)) for title, curves in drawn.items()]
    shown = list(rates.items())[: len(COLORS)]
    if shown:
        log = all(rate > 0 for _, values in shown for rate in values if math.isfinite(rate))
        charts.append(("Learning rate", curves_chart(dict(shown), epochs, run.unit, 110, log)))
    charts += learning_charts(run)
    columns = {"loss": losses, **{f"learning rate of {group}": values for group, values in rates.items()}}
    of_metrics = {name: values for curves in drawn.values() for name, values in curves.items() if name != MEAN_LOSS}
    columns |= dict(islice(of_metrics.items(), MOST_COLUMNS))
    table = [[epochs[place], *(column[place] for column in columns.values())] for place in numbered(len(epochs), 10)]
    return Training(charts, len(rates) - len(shown), list(columns), table)


def loss_and_metrics(run: Run) -> dict[str, Curves]:
    """The curves of each chart by its title: the loss, then the user's metrics, together those that differ by the phase."""
    epochs, losses = loss_by_epoch(run)
    found: dict[str, Curves] = {"Loss": {MEAN_LOSS: losses}}
    for name in run.metrics:
        title = _PHASE.sub("", name).strip("_-./ ") or name  # train_acc and val_acc are acc
        found.setdefault("Loss" if title == "loss" else title, {})[name] = [run.metric(name, epoch) for epoch in epochs]
    known = {title: {n: values for n, values in curves.items() if np.isfinite(values).any()} for title, curves in found.items()}
    return dict(islice(((title, curves) for title, curves in known.items() if curves), MOST_CHARTS))


def curves_chart(curves: Curves, epochs: Sequence[int], unit: str, height: int = 170, log: bool | None = None) -> Chart:
    """A chart of curves; None for a logarithmic scale where they span much, as their names say then."""
    finite = [value for values in curves.values() for value in values if math.isfinite(value)]
    wide = log is None and min(finite) > 0 and max(finite) > WIDE_RANGE * min(finite)
    lines = [
        Line(name + ", log scale" * wide, values, color) for (name, values), color in zip(curves.items(), COLORS, strict=False)
    ]
    return chart(lines, epochs, height, kind="log" if log or wide else "linear", unit=unit)


def loss_by_epoch(run: Run) -> tuple[Sequence[int], list[float]]:
    """Epochs, and the mean loss of each; NaN where it is not known."""
    epochs = thinned(sorted(run.timing), MOST_EPOCHS)
    return epochs, [run.loss(epoch) for epoch in epochs]


def rates_by_group(run: Run) -> dict[str, list[float]]:
    """Parameter group to its learning rate at each epoch's end; NaN where it is not known."""
    epochs = thinned(sorted(run.timing), MOST_EPOCHS)
    known: list[Mapping[str, Any]] = [run.timing[epoch].get("lr", {}) for epoch in epochs]
    groups = dict.fromkeys(group for rates in known for group in rates)
    return {group: [number_of(rates.get(group)) for rates in known] for group in groups}


def thinned(values: Sequence[T], most: int) -> Sequence[T]:
    """All values, or of too many every so many, with the last."""
    return values[::-1][:: max(1, -(-len(values) // most))][::-1]


def settings(run: Run) -> list[tuple[str, Any]]:
    """(what, value) of how training was set up."""
    return [(what, run.fit[key]) for key, what in SETTINGS if run.fit.get(key) not in (None, "", -1)]


def layers(run: Run) -> Sequence[tuple[str, str, str, int]]:
    """(name, type, shape, elements) of the model's leaves, as the fit event has them."""
    columns = run.fit.get("layers", {})
    return list(zip(*(columns.get(key, ()) for key in ("name", "type", "detail", "parameters")), strict=False))


THRESHOLDS = (
    ("harmful below", 0.0, "var(--red)"),
    ("too long below", 0.1, "var(--amber)"),
    ("best length", 0.5, "var(--green)"),
    ("short", 1.0, "var(--soft)"),
)
"""What a step ratio means: in words, from which ratio, its colour."""
BOUNDS = (-1.0, 1.5)
"""Ratios beyond are drawn at these."""


def learning_charts(run: Run) -> list[tuple[str, Chart]]:
    """A title and curves of the shares by layer, and of the step ratio; what was not measured is left out."""
    found = []
    for record in run.of("gradient_flow"):
        shares, ratios = _shares(record), record.values("steps", "step_ratio", "model")
        epochs = list(record.columns)
        if shares:
            found.append(("Which layers the loss falls by", chart(shares, epochs, kind="linear", unit=record.unit)))
        if np.isfinite(ratios).any():
            lines = [Line(text, [at] * len(epochs), color, dashed=True) for text, at, color in THRESHOLDS]
            lines.append(
                Line("gain of a step over its predicted gain", within(np.asarray(ratios), *BOUNDS).tolist(), "var(--blue)")
            )
            found.append(("Step ratio", chart(lines, epochs, 130, kind="linear", unit=record.unit)))
    return found


def _shares(record: MonitorRecord) -> list[Line]:
    """The layers with the largest shares: modules that hold no others."""
    series = record.series("learning", "share")
    inner = {name.rpartition(".")[0] for name in series.names}
    rows = [(name, values) for name, values in zip(series.names, series.values, strict=True) if name not in inner]
    known = [(name, values) for name, values in rows if np.isfinite(values).any()]
    largest = sorted(known, key=lambda row: -float(np.nanmean(np.abs(row[1]))))[: len(COLORS)]
    return [Line(f"{name}: share", values.tolist(), color) for (name, values), color in zip(largest, COLORS, strict=False)]


@dataclass(frozen=True, slots=True)
class UnusualBatches:
    """The batches with the largest of a number, the largest first."""

    measure: str  # "loss", or "gradient_norm"
    optimizer: str  # whose gradients; empty for the loss
    batches: tuple[UnusualBatch, ...]

    @property
    def title(self) -> str:
        """What they are, for a heading."""
        return f"Largest gradient norms before clipping, {self.optimizer}" if self.optimizer else "Largest losses"

    @property
    def rows(self) -> list[tuple[UnusualBatch, str]]:
        """Each with its samples in a few words."""
        return [(one, listed_samples(one)) for one in self.batches]


def unusual_batches(reports: Iterable[Any]) -> list[UnusualBatches]:
    """The losses, then the gradient norms of each optimizer, in the last report of each monitor, as far as they are known."""
    known = [report for report in reports if report is not None]
    losses = [UnusualBatches("loss", "", getattr(report, "largest_losses", ())) for report in known]
    norms = [
        UnusualBatches("gradient_norm", optimizer, batches)
        for report in known
        for optimizer, batches in getattr(report, "largest_norms", {}).items()
    ]
    found = {(one.measure, one.optimizer): one for one in (*losses, *norms) if one.batches}
    return list(found.values())


def plain_batches(reports: Iterable[Any]) -> list[dict[str, Any]]:
    """The same in plain JSON types, a batch each."""
    return [
        {"measure": found.measure, "optimizer": found.optimizer or None, **to_plain(one)}
        for found in unusual_batches(reports)
        for one in found.batches
    ]


def listed_samples(one: UnusualBatch) -> str:
    """The samples of a batch in a few words; a dash where they are not known."""
    shown = ", ".join(map(str, one.samples[:MOST_SAMPLES]))
    more = len(one.samples) - MOST_SAMPLES
    return f"{shown} and {more} more" if more > 0 else shown or DASH
