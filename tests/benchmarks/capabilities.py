"""The capabilities that are priced one by one: what each takes, and what is saved without it.

A capability is turned off here, by putting a function that does nothing in the place of its own; the package has no options for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_hooks import monitors
from lightning_hooks.diagnostics import calls
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.batches import hashes
from lightning_hooks.diagnostics.features.outputs import FunctionalFeatures
from lightning_hooks.diagnostics.gradients import sampled_steps as measured_step
from lightning_hooks.diagnostics.loss_inputs import leaks, predictions, targets
from lightning_hooks.diagnostics.loss_inputs import targets as labels
from lightning_hooks.diagnostics.optimizer import watch as optimizer_watch
from lightning_hooks.diagnostics.representations import RepresentationTable
from lightning_hooks.diagnostics.residual_stream.table import ResidualTable
from lightning_hooks.diagnostics.setup import checks as setup_checks
from lightning_hooks.diagnostics.setup.initial import FirstWeights
from lightning_hooks.diagnostics.setup.module_modes import ModuleModes
from lightning_hooks.statistics.histograms import HistogramTable
from tests.benchmarks.fits import fit
from tests.benchmarks.own_time import Stopwatch, measured, own_time
from tests.benchmarks.workloads import Workload

Point = tuple[Any, str]
"""A class or module, and the name of a function of it."""


class NoWeights:
    """In the place of the copies of weights that are compared with those after the update."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._nothing = torch.full((3, len(parameters)), torch.nan, dtype=torch.float64)

    def updates(self, parameters: Sequence[Tensor]) -> Tensor:
        return self._nothing


@dataclass(frozen=True)
class Capability:
    """One thing that is measured.

    Attributes:
        label: What tables call it.
        points: Where its code is entered.
        off: What stands in the place of which function without it; by default one that does nothing for each of the points.
        options: Arguments of the monitors with which it is measured; without them it is off.
        once: Whether it is done once, when training starts.
    """

    label: str
    points: Sequence[Point] = ()
    off: Sequence[tuple[Any, str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False

    @contextlib.contextmanager
    def turned_off(self) -> Iterator[None]:
        off = () if self.options else self.off or [(*point, _nothing) for point in self.points]
        with ExitStack() as stack:
            for owner, name, replacement in off:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


CAPABILITIES: dict[str, Capability] = {
    "attention": Capability("attention", [(AttentionCollector, "_record")]),
    "functions": Capability("outputs of functions", [(FunctionalFeatures, "_record")]),
    "loss-inputs": Capability(
        "loss inputs",
        [
            (predictions.LossInputs, "_record"),
            (targets.LossTargets, "_record"),
            *((leaks.TargetCopyTable, name) for name in ("given", "_record")),
        ],
    ),
    "checked-calls": Capability("calls of softmax, dropout", [(calls.CheckedCalls, name) for name in ("_softmax", "_dropout")]),
    "representations": Capability("representations", [(RepresentationTable, name) for name in ("take", "finish")]),
    "residual": Capability("residual stream", [(ResidualTable, "add")]),
    "batch-hashes": Capability("batch hashes", [(hashes.BatchHashes, "add")]),
    "modes": Capability("module modes", [(ModuleModes, name) for name in ("batch_start", "before_backward")]),
    "labels": Capability("labels", [(labels.LabelTable, "add")]),
    "second-moments": Capability("second moments", [(optimizer_watch, "second_moments")]),
    "updates": Capability(
        "values compared for update ratios",
        [(measured_step.WeightSample, name) for name in ("__init__", "updates")],
        [(measured_step, "WeightSample", NoWeights)],
    ),
    "histograms": Capability("histograms", [(HistogramTable, "add")], options={"histograms": True}),
    "first-weights": Capability(
        "first weights (once)",
        [(setup_checks, "first_weights")],
        [(setup_checks, "first_weights", lambda model: FirstWeights({}))],
        once=True,
    ),
}


def prices(chosen: Sequence[str], workload: Workload, first: int, steps: int, off: bool = True) -> dict[str, dict[str, float]]:
    """Microseconds of a sampled step that each capability takes; of the fit's start where it is done once.

    Args:
        chosen: Which.
        workload: What is trained.
        first: Steps at the start of a fit that do not count.
        steps: Steps that count.
        off: Whether each is turned off too; otherwise only those that have no functions of their own to be measured by.

    Returns:
        ``inside`` its own functions (NaN where it has none), and ``saved`` where it is off (NaN where it was not turned off): the
        difference of two fits, as noisy as these are.
    """
    watches = {key: Stopwatch() for key in chosen}
    taken: list[list[float]] = []

    def note() -> float:
        taken.append([watch.seconds for watch in watches.values()])
        return 0.0

    options: dict[str, Any] = {}
    for key in chosen:
        options |= CAPABILITIES[key].options
    with ExitStack() as stack:
        for key, watch in watches.items():
            stack.enter_context(measured(watch, CAPABILITIES[key].points))
        fit(workload, lambda: monitors(every_n_steps=1, **options), first + steps, note)
    start, begin, end = (dict(zip(chosen, taken[place], strict=True)) for place in (1, 1 + first, 1 + first + steps))
    found = {}
    for key in chosen:
        capability, saved = CAPABILITIES[key], float("nan")
        if off or not capability.points:
            with capability.turned_off():
                without = own_time(workload, lambda: monitors(every_n_steps=1), first + steps)
            whole = own_time(workload, partial(monitors, every_n_steps=1, **capability.options), first + steps)
            of_steps = (sum(whole.steps[first:]) - sum(without.steps[first:])) / steps
            saved = whole.start - without.start if capability.once else of_steps
        inside = start[key] if capability.once else (end[key] - begin[key]) / steps
        found[key] = {"inside": 1e6 * inside if capability.points else float("nan"), "saved": 1e6 * saved}
    return found
