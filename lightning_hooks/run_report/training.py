"""What a run's file says about training itself, and its cards: loss, learning rates, set-up, layers, the most unusual batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from lightning_hooks.declare.alert import MOST_SAMPLES
from lightning_hooks.run_report.blocks import DASH, MOST_LINES, Block, Card, chart, fold, line, table
from lightning_hooks.run_report.recorded import Run, number_of
from lightning_hooks.trackers.console import some

T = TypeVar("T")

MOST_EPOCHS = 300  # epochs in a chart

SETTINGS = (
    ("optimizers", "optimizers"),
    ("precision", "precision"),
    ("devices", "processes"),
    ("accelerator", "accelerator"),
    ("parameters", "elements of parameters"),
    ("max_epochs", "epochs planned"),
    ("lightning", "lightning"),
    ("torch", "torch"),
    ("package", "lightning_hooks"),
)
MEAN_LOSS = "mean loss of the training batches"
MOST_CHARTS = 12  # of the user's metrics
_PHASE = re.compile(r"(?<![^_\-./ ])(train(ing)?|val(id(ation)?)?|eval(uation)?|test)(?![^_\-./ ])", re.IGNORECASE)
Curves = dict[str, list[float]]  # name to a number for each epoch


def loss_and_metrics(run: Run) -> dict[str, Curves]:
    """The curves of each chart by its title: the loss, then the user's metrics, together those that differ by the phase."""
    epochs, losses = loss_by_epoch(run)
    found: dict[str, Curves] = {"Loss": {MEAN_LOSS: losses}}
    for name in run.metrics:
        title = _PHASE.sub("", name).strip("_-./ ") or name  # train_acc and val_acc are acc
        found.setdefault("Loss" if title == "loss" else title, {})[name] = [run.metric(name, epoch) for epoch in epochs]
    known = {title: {n: values for n, values in curves.items() if np.isfinite(values).any()} for title, curves in found.items()}
    return dict(islice(((title, curves) for title, curves in known.items() if curves), MOST_CHARTS))


def loss_by_epoch(run: Run) -> tuple[Sequence[int], list[float]]:
    """Epochs, and the mean loss of each; NaN where it is not known."""
    epochs = thinned(sorted(run.timing), MOST_EPOCHS)
    return epochs, [run.loss(epoch) for epoch in epochs]


def rates_by_group(run: Run) -> dict[str, list[float]]:
    """Parameter group to its learning rate at each epoch's end; NaN where it is not known."""
    known: list[Mapping[str, Any]] = [run.timing[epoch].get("lr", {}) for epoch in thinned(sorted(run.timing), MOST_EPOCHS)]
    groups = (group for rates in known for group in rates)
    return {group: [number_of(rates.get(group)) for rates in known] for group in dict.fromkeys(groups)}


def thinned(values: Sequence[T], most: int) -> Sequence[T]:
    """All values, or of too many every so many, with the last."""
    return values[::-1][:: max(1, -(-len(values) // most))][::-1]


def layers(run: Run) -> Sequence[tuple[str, str, str, int]]:
    """(name, type, shape, elements) of the model's leaves, as the fit event has them."""
    columns = run.fit.get("layers", {})
    return list(zip(*(columns.get(key, ()) for key in ("name", "type", "detail", "parameters")), strict=False))


def training(run: Run) -> Iterator[Card]:
    """The curves of the loss, the metrics, the learning rates, and of what was learned."""
    epochs, _ = loss_by_epoch(run)
    rates = rates_by_group(run)
    drawn = {**loss_and_metrics(run), "Learning rate": rates}
    charts = [
        chart(title, epochs, run.unit, [line(*curve) for curve in islice(curves.items(), MOST_LINES)])
        for title, curves in drawn.items()
        if curves
    ]
    left = len(rates) - MOST_LINES
    yield [*charts, *[{"text": f"{left} more parameter groups are in reports.jsonl."}] * (left > 0), *learning_charts(run)]


def learning_charts(run: Run) -> Iterator[Block]:
    """The shares by layer; what was not measured is left out."""
    for record in run.of("gradient_flow"):
        series = record.series("learning", "share")
        inner = {name.rpartition(".")[0] for name in series.names}  # modules that hold others
        known = [
            (f"{name}: share", values)
            for name, values in zip(series.names, series.values, strict=True)
            if name not in inner and np.isfinite(values).any()
        ]
        largest = sorted(known, key=lambda curve: -float(np.nanmean(np.abs(curve[1]))))[:MOST_LINES]
        if largest:
            lines = [line(*curve) for curve in largest]
            yield chart("Which layers the loss falls by", list(record.columns), record.unit, lines, kind="linear")


def unusual(run: Run) -> Iterator[Card]:
    """The batches with the largest losses."""
    lead = (
        "The five batches of the run with the largest loss; in a healthy run they are often the first ones. A sample that is in "
        "several of them is worth a look."
    )
    losses = [one for record in run.monitors for one in record.fields.get("largest_losses") or ()]
    heads = ("value", "epoch", "batch", "step")
    cells = [(*map(one.get, heads), some([*map(str, one["samples"])], MOST_SAMPLES) or DASH) for one in losses]
    if cells:
        yield [{"text": lead}, {"title": "Largest losses"}, table(("loss", *heads[1:], "samples"), cells)]


def model(run: Run, most: int) -> Iterator[Card]:
    """The set-up and the layers."""
    found, known = [(what, run.fit[key]) for key, what in SETTINGS if run.fit.get(key) not in (None, "", -1)], layers(run)
    left, cells = len(known) - most, table(("layer", "type", "shape", "parameters"), known[:most])
    more = [{"text": f"{left} more are in reports.jsonl."}] * (left > 0)
    yield [
        *[{"facts": [[what, str(value)] for what, value in found]}] * bool(found),
        *[fold(f"The {len(known)} layers", [cells, *more])] * bool(known),
    ]
