"""How a model uses its torchmetrics metrics, as their states show: nothing of them is computed, updated or reset."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.declare.context import Context
from lightning_hooks.hooks.attributes import contents, stored, stored_count
from lightning_hooks.hooks.parameters import unregistered_modules
from lightning_hooks.hooks.selection import clean_name, is_metric
from lightning_hooks.hooks.tensors import has_values

# Metrics of a model; batches of training, and of validation, whose values are compared with what is logged.
MOST_METRICS, BATCHES = 64, 16
CLOSE = 1e-3  # how much two numbers may differ that are the same


@dataclass(frozen=True, slots=True)
class MetricUse:
    """How a metric was used in this run so far; numbers are the largest, of any rank.

    Attributes:
        epochs: Epochs whose updates it held at once; 0 for one number that ranks join by a maximum, minimum or sum, and where
            nobody computes or resets it.
        shared: Whether it held updates of training and of validation at once, and somebody computes or resets it.
        empty: Whether it is logged as an object, or computed, without an update.
        averaged: The name under which its values of batches are averaged, where that for the epoch is another; else empty.
        megabytes: Size of its list states, about.
        unregistered: Whether it is in a plain list or dictionary, and no part of the model.
    """

    epochs: int = 0
    shared: bool = False
    empty: bool = False
    averaged: str = ""
    megabytes: float = 0.0
    unregistered: bool = False


def metrics_of(model: nn.Module) -> dict[str, _Metric]:
    """The metrics of a model by name, also in plain lists and dictionaries, without those that wrap others, and without these."""
    hidden = [
        (f"{name}.{place}", one) for name, held in unregistered_modules(model, is_metric).items() for place, one in enumerate(held)
    ]
    modules = {clean_name(name): (module, False) for name, module in model.named_modules()}
    modules |= {f"{outer}.{name}".strip("."): (module, True) for outer, one in hidden for name, module in one.named_modules()}
    found = {name: one for name, one in modules.items() if is_metric(one[0]) and contents(one[0]).get("_defaults")}
    wrapped = {one for name in found for other in found if name.startswith(f"{other}.") for one in (name, other)}
    return {name: _Metric(*one) for name, one in islice(found.items(), MOST_METRICS) if name not in wrapped}


class _Metric:
    def __init__(self, metric: nn.Module, unregistered: bool) -> None:
        own = contents(metric)
        self.metric, self.lists = metric, {name: isinstance(default, list) for name, default in own["_defaults"].items()}
        (state, joined), *others = ((own.get(name), own.get("_reductions", {}).get(name)) for name in self.lists)
        of_one = not others and isinstance(state, Tensor) and state.numel() == 1 and isinstance(joined, FunctionType)
        self.runs_on = of_one and joined.__name__.endswith(("_max", "_min", "_sum"))  # a record or a total of the training
        self.use = dict.fromkeys(("epochs", "shared", "empty", "averaged", "megabytes"), 0.0) | {
            "unregistered": float(unregistered)
        }
        self.updates = self.before = stored_count(metric, "_update_count")
        self.held, self.mixed = set[tuple[str, int]](), False  # phase and epoch of the updates that it holds; whether of two phases
        self.read = False  # whether somebody computes or resets it, and not its values of batches alone are used

    def observe(self, phase: str, epoch: int) -> None:
        """Note the updates since it was observed last, and in which phase they were made, where that is known."""
        now = stored_count(self.metric, "_update_count")
        self.read |= now < self.updates or stored(self.metric, "_computed") is not None
        if now < self.updates:
            self.held, self.updates = set(), 0
        if phase and now > self.updates:
            self.held.add((phase, epoch))
        self.updates = now
        lists = [state for name in self.lists if type(state := stored(self.metric, name)) is list and state]
        sizes = [len(one) * one[-1].nbytes for one in lists if isinstance(one[-1], Tensor) and has_values(one[-1])]
        phases, epochs = ({pair[place] for pair in self.held} for place in (0, 1))
        self.mixed |= len(phases) > 1
        kept = len(epochs) * (self.read and not self.runs_on)
        seen = {"shared": self.mixed and self.read, "epochs": kept, "megabytes": sum(sizes) / 1e6}
        self.use |= {name: max(float(value), self.use[name]) for name, value in seen.items()}

    def numbers(self, before: bool) -> Tensor | None:
        """Its last value, and the sum of each state, of a list of its last entry; before a batch 0 for what does not add up.

        None where they are not known, and after a batch that did not update it.
        """
        if not before and self.updates <= self.before:
            return None
        found = [stored(self.metric, name) for name in ("_forward_cache", *self.lists)]
        found = [one[-1] if type(one) is list and one else one for one in found]
        if before:
            self.before = self.updates
            found = [torch.zeros(()) if whole else one for one, whole in zip(found, (True, *self.lists.values()), strict=True)]
        known = [one.detach().sum().float() for one in found if isinstance(one, Tensor) and has_values(one)]
        return torch.stack([one.to(known[-1].device) for one in known]) if len(known) == len(found) else None


class MetricsWatch:
    """Follows the metrics of a model.

    Attributes:
        of: The metrics by name.
    """

    def __init__(self, context: Context) -> None:
        self._context, self.of = context, metrics_of(context.host.model)
        self._phase = ""  # in which they were observed last
        self._before: dict[str, Tensor] = {}
        self._new = deque[tuple[str, dict[str, Tensor]]](maxlen=2 * BATCHES)  # a phase, and what a batch added
        self._rows = {each: deque[dict[str, list[float]]](maxlen=BATCHES) for each in ("training", "validation")}  # on the host
        self._means = [""]  # what is logged as a mean, by ``=name``
        self.batch, self.end = (context.guard(call, "the metrics") for call in (self._batch, self._end))

    def _batch(self, phase: str, ends: bool, starts: bool) -> None:
        """A batch starts or ends, of which the values are compared; in validation one ends where the next starts."""
        self._observe(phase if ends or phase == self._phase else "")
        self._phase = phase
        if ends and (now := self._moment(before=False)).keys() & self.of:
            self._new.append((phase, {name: row - self._before.get(name, 0) for name, row in now.items()}))
        if starts:
            self._before = self._moment(before=True)

    def _end(self) -> None:
        """A validation or a window ends: compare what is logged with what the metrics have."""
        if not self.of:
            return
        self._observe("validation" if self._phase == "validation" else "")
        self._phase, logged = "", {id(value) for value in self._context.host.metrics.in_epoch().values()}
        for metric in self.of.values():
            if id(metric.metric) in logged or stored(metric.metric, "_computed") is not None:
                metric.use["empty"] = float(not metric.updates)
        flat = [row.to(self._context.host.setup.device) for _, rows in self._new for row in rows.values()]
        numbers = iter(torch.cat(flat).tolist() if flat else ())  # the one copy to the host
        for phase, rows in self._new:
            self._rows[phase].append({name: [*islice(numbers, len(row))] for name, row in rows.items()})
        self._new.clear()
        for place, mean in enumerate(self._means):
            known = {name: another_number([*chain(*self._rows.values())], mean, name) for name in self.of}
            same = [name for name, another in known.items() if another is not None]
            if same and all(known[name] for name in same):
                self.of[same[0]].use["averaged"] = float(place)

    def numbers(self) -> list[float]:
        """What ranks merge."""
        return [number for metric in self.of.values() for number in metric.use.values()]

    def read(self, numbers: Iterable[float]) -> dict[str, MetricUse]:
        """How each metric is used, of the numbers of all ranks."""
        left, found, means = iter(numbers), dict[str, MetricUse](), dict(enumerate(self._means))
        for name, metric in self.of.items():
            epochs, shared, empty, mean, size, unregistered = islice(left, len(metric.use))
            logged = means.get(int(mean), "=another name")[1:]
            found[name] = MetricUse(int(epochs), bool(shared), bool(empty), logged, size, bool(unregistered))
        return found

    def _observe(self, phase: str) -> None:
        for metric in self.of.values():
            metric.observe(phase, self._context.host.position.epoch)

    def _moment(self, before: bool) -> dict[str, Tensor]:
        """The sum and the weight of each mean that is logged, by ``=name``, and the numbers of each metric, by its name."""
        logged = self._context.host.metrics.in_epoch()
        found = {f"={name}": torch.stack(pair).detach().float() for name, pair in logged.items() if isinstance(pair, tuple)}
        self._means = [*dict.fromkeys([*self._means, *found])]
        known = ((name, metric.numbers(before)) for name, metric in self.of.items())
        return found | {name: numbers for name, numbers in known if numbers is not None}


def another_number(rows: Iterable[Mapping[str, Sequence[float]]], mean: str, metric: str) -> bool | None:
    """Whether a mean over batches is of a metric's values, and not its value for all of them; None where it is of something else.

    A value, or that times the weight of its batch, adds up if it is a linear function of what the batch adds to the states.
    """
    pairs = [(*row[mean], *row[metric]) for row in rows if mean in row and metric in row]
    if not pairs or not math.isclose(pairs[-1][0], pairs[-1][1] * pairs[-1][2], rel_tol=CLOSE, abs_tol=CLOSE):  # most are not
        return None
    both = np.array([pair for pair in pairs if np.isfinite(pair).all()])
    if len(both) < len(pairs[0]) or (both[:, 1] <= 0).any():  # three batches more than states
        return None
    total, weight, value, states = both[:, 0], both[:, 1], both[:, 2], both[:, 3:]
    if not np.allclose(total / weight, value, CLOSE, CLOSE * np.abs(value).max()) or np.ptp(value) <= CLOSE * np.abs(value).max():
        return None  # others may have the same constant
    states, sums = states / np.maximum(np.linalg.norm(states, axis=0), 1e-30), both[:, [0, 2]]
    rest = sums - states @ np.linalg.lstsq(states, sums, rcond=None)[0]
    return bool((np.linalg.norm(rest, axis=0) > CLOSE * np.linalg.norm(sums, axis=0)).all())
