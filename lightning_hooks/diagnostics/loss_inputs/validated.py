"""Targets and predictions in validation: whether classes have other numbers there, and whether the two agree at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls
from lightning_hooks.diagnostics.loss_inputs.predictions import CLASSIFICATION, sampled_rows
from lightning_hooks.hooks.functions import BINARY, REGRESSION
from lightning_hooks.hooks.tensors import in_memory, plain_values
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns

LOSSES, PAIRS = 2, 128  # losses of a model that are compared, at most; rows of each, evenly spaced
MOST_CLASSES = 1 << 12  # losses with more classes are not: a pair is one whole number that float32 holds
FEWEST = 3  # rows of a class that must be called by the name of another one


@dataclass(frozen=True, slots=True)
class ClassPairs:
    """Labels and predictions of one cross entropy in validation: of evenly spaced rows of its first batch, 128 at most.

    A class is *renumbered* where more than half of its rows, three at least, are predicted as one other class, and more than half
    of the rows that are predicted as that one are its own.

    Attributes:
        rows: Rows whose label counts, of a window's last validation.
        right: Those of them whose prediction is the label.
        renumbered: Each renumbered class, by its label, to what it is predicted as.
        moved: Rows of these classes that are predicted so.
        sigmas: Standard deviations by which more predictions are right than by chance, if each is made as often; infinite where
            chance gives all or none.
    """

    rows: int
    right: int
    renumbered: dict[int, int]
    moved: int
    sigmas: float = math.inf

    @property
    def own(self) -> float:
        """Share of the predictions that are right by the numbers of the labels."""
        return self.right / self.rows

    @property
    def other(self) -> float:
        """Share of the predictions that are right by other numbers of the classes."""
        return self.moved / self.rows


class ClassPairColumn(Columns):
    """A label and a prediction in one number, from 1; 0 for none."""

    PAIR = MAXIMUM


class ValidatedClasses(CallTable):
    """The last pairs of labels and predictions of each cross entropy in validation. No host sync."""

    columns = ClassPairColumn
    functions: ClassVar[tuple[str, ...]] = CLASSIFICATION

    def __init__(self, functional: FunctionalCalls, context: Context) -> None:
        super().__init__(functional, LOSSES * PAIRS, context.host.setup.device)
        context.on_call(CLASSIFICATION, self._record, in_validation=True)

    def _record(self, call: FunctionalCall) -> None:
        place, given, target = self._sites.place(call.site), call.arguments.get("input"), call.arguments.get("target")
        if place < LOSSES and in_memory(given) and in_memory(target) and not target.is_floating_point() and given.numel():
            self.add(place, plain_values(given), plain_values(target), call.arguments.get("ignore_index", -100))

    def add(self, place: int, logits: Tensor, target: Tensor, ignored: int) -> None:
        """Record a call of the loss at a place, with labels for targets. No host sync."""
        taken, labels = sampled_rows(logits, target)
        if taken.shape[1] > MOST_CLASSES:
            return
        high, guess = taken.max(-1)
        counts = high.isfinite() & (labels != ignored) & (labels >= 0)
        pairs = torch.where(counts, labels.long() * MOST_CLASSES + guess + 1, 0)[:: -(-len(labels) // PAIRS)]
        rows = self.rows[place * PAIRS : (place + 1) * PAIRS, 0].zero_()
        rows[: len(pairs)] = pairs.to(rows)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        of_losses = packed.view(LOSSES, PAIRS).tolist()
        found = {name: class_pairs(pairs) for name, pairs in zip(self._sites.names, of_losses, strict=False) if any(pairs)}
        return {"validated": found}


def class_pairs(numbers: Iterable[float]) -> ClassPairs:
    """Count the pairs of a loss."""
    pairs = Counter(divmod(int(number) - 1, MOST_CLASSES) for number in numbers if number)
    labels, guesses = Counter[int](), Counter[int]()
    for (label, guess), count in pairs.items():
        labels[label] += count
        guesses[guess] += count
    renumbered = {
        label: guess
        for (label, guess), count in sorted(pairs.items())
        if label != guess and count >= FEWEST and 2 * count > labels[label] and 2 * count > guesses[guess]
    }
    right = sum(count for (label, guess), count in pairs.items() if label == guess)
    rows = labels.total()
    chance = sum(count * guesses[label] for label, count in labels.items()) / rows**2
    sigmas = (right / rows - chance) / math.sqrt(chance * (1 - chance) / rows) if 0 < chance < 1 else math.inf
    return ClassPairs(rows, right, renumbered, sum(map(pairs.__getitem__, renumbered.items())), sigmas)


class AgreementColumn(Columns):
    """What each number of a row holds."""

    CALLS = SUM
    SIGMAS = SUM


class ValidatedNumbers(CallTable):
    """How far predictions of numbers follow their targets in validation: the correlation times the root of the samples.

    Both are centred column by column, and all columns count together. Without a relation it is some standard normal number.
    """

    columns = AgreementColumn
    functions: ClassVar[tuple[str, ...]] = (*REGRESSION, *BINARY)

    def __init__(self, functional: FunctionalCalls, context: Context) -> None:
        super().__init__(functional, LOSSES, context.host.setup.device)
        context.on_call(self.functions, self._record, in_validation=True)

    def _record(self, call: FunctionalCall) -> None:
        index, given, target = self.index_of(call), call.arguments.get("input"), call.arguments.get("target")
        if index is not None and in_memory(given) and in_memory(target) and given.shape == target.shape and given.dim():
            self.add(index, plain_values(given), plain_values(target))

    def add(self, index: int, given: Tensor, target: Tensor) -> None:
        """Record a call. No host sync."""
        one, other = (values.reshape(len(values), -1).to(self.rows) for values in (given, target))
        one, other = one - one.mean(0), other - other.mean(0)
        size = (one.square().sum() * other.square().sum()).sqrt()
        sigmas = torch.where(size > 0, (one * other).sum() / size, math.inf) * math.sqrt(len(one))
        self.rows[index] += torch.stack((torch.ones_like(sigmas), sigmas))

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        found = {name: sigmas / calls for name, (calls, sigmas) in self.named_lines(packed) if calls}
        return {"agreement": {name: sigmas for name, sigmas in found.items() if math.isfinite(sigmas)}}
