"""What made a step bad: the step run again, its first operation that failed, and the rows of the batch that make it fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.trace import Trace
from lightning_hooks.declare.plain import to_plain
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep, Failure
from lightning_hooks.diagnostics.nonfinite.operations import state
from lightning_hooks.hooks.generators import Generators
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import has_values
from lightning_hooks.replay.rerun import Outcome, StepRerun, shallow
from lightning_hooks.replay.rows import BatchRows, samples_of
from lightning_hooks.replay.state import same_bits, set_values
from lightning_hooks.replay.trace import NonfiniteTrace, nonfinite_inputs, tensors_of

MOST_RUNS = 64  # how often the step is run on parts of the batch at most


@dataclass(frozen=True, slots=True)
class Blame:
    """What running a bad step again has found."""

    failure: Failure | None = None  # the operation; None where the step does not reproduce, or nothing says what it was
    rows: tuple[int, ...] = ()  # the rows of the batch that cause it; empty where no part of the batch does it alone
    all_rows: bool = False  # whether every row of the batch causes it
    samples: tuple[int | str, ...] = ()  # of these rows, as an alert names them; of the whole batch where no row causes it alone
    loss: bool = False  # whether the loss was not finite
    reproduced: bool = False  # whether the step was bad again
    exact: bool | None = None  # whether its loss was the same, bit for bit; None where it is not known
    eager: bool = False  # whether compiled parts ran without torch.compile
    why_not: str = ""  # why the step was not run again; empty where it was
    trace: Trace | None = None  # the calls of the modules
    seen: str = ""  # what its batch and weights say of it then

    def record(self) -> dict[str, Any]:
        """The blame in plain types, without the trace."""
        fields = ("rows", "all_rows", "samples", "reproduced", "exact", "eager", "why_not")
        plain: dict[str, Any] = to_plain({"failure": self.failure} | {name: getattr(self, name) for name in fields})
        if self.failure is not None:
            plain["failure"]["place"]["inputs"] = self.failure.place.inputs
        return plain

    @property
    def module(self) -> str:
        """The module in which the operation is; empty for ``training_step`` itself, and where it is not known."""
        return "" if self.failure is None else self.failure.place.module

    @property
    def step(self) -> BadStep | None:
        """What alerts state; None where it is not known."""
        return None if self.failure is None else BadStep(self.failure, self.samples, self.loss, self.notes)

    @property
    def text(self) -> str:
        """What was found, in sentences."""
        if self.why_not:
            return f"{self.seen} The step was not run again: {self.why_not}.".strip()
        if not self.reproduced:
            return (
                "The step was run again with the same batch, weights and random numbers, and was finite: an operation that is not "
                "deterministic, or the hardware, made the difference."
            )
        step, rows = self.step, "Every row of the batch causes it." if self.all_rows else ""
        if self.rows:
            several = len(self.rows) > 1
            rows = f"Row{'s' * several} {_listed(self.rows)} of the batch cause{'s' * (not several)} it."
        found = "Run again, the step was bad, and no operation gave a value that was not finite."
        return " ".join(filter(None, [*((found,) if step is None else state(step)[1:]), rows, *self.notes]))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of how the step was run again."""
        notes = {
            "Its loss was not the same to the bit when it was run again.": self.exact is False,
            "Compiled parts ran without torch.compile for this.": self.eager,
        }
        return tuple(text for text, holds in notes.items() if holds)


def _listed(rows: Sequence[int], most: int = 8) -> str:
    texts = [str(row) for row in rows]
    shown, last = (texts[:most], f"{len(rows) - most} more") if len(rows) > most else (texts[:-1], texts[-1])
    return f"{', '.join(shown)} and {last}" if shown else last


def blame(
    model: nn.Module,
    again: Callable[[], StepRerun],
    batch: Any,
    rows: BatchRows | None,
    *,
    generators: Generators | None = None,
    buffers: Iterable[tuple[Tensor, Tensor]] = (),
    scale: float = 1.0,
    loss: Tensor | None = None,
    crashed: bool = False,
    eager: bool = False,
) -> Blame:
    """Run a bad step again, and find what made it bad.

    ``batch`` is that of the step, or its guilty micro-batch, and ``rows`` its samples. It starts from ``generators`` and
    ``buffers``, as they were at the forward pass. The loop multiplied ``loss``, where it is known, by ``scale``, and raised if it
    ``crashed``. With ``eager`` compiled parts run without ``torch.compile``.

    Raises:
        NotRestoredError: If the model was not as before, or cannot be put back.
    """
    buffers = list(buffers)
    size = batch_size(batch, rows)
    tracer = NonfiniteTrace(model, batch, size)
    as_given = [(tensor, tensor.detach().clone()) for tensor in tensors_of(batch).values() if has_values(tensor)]
    with again() as rerun:

        def run(part: Any, **options: Any) -> Outcome:
            outcome = rerun.run(shallow(part), generators, backward=not crashed, scale=scale, buffers=buffers, **options)
            for tensor, values in as_given:  # a step may write into its batch
                if not same_bits(tensor, values):
                    set_values(tensor, values)
            return outcome

        outcome = run(batch, within=tracer.within)
        if outcome.error is not None and not crashed:
            return Blame(why_not=f"it raised {type(outcome.error).__name__}: {outcome.error}", eager=eager)
        if outcome.finite:
            return Blame(exact=_same(loss, outcome.loss), eager=eager, samples=samples_of(rows))
        failure = tracer.failure(outcome.loss, list((outcome.gradients or {}).values()), outcome.error)

        def is_bad(places: Sequence[int]) -> bool | None:
            """Whether these rows alone are bad; None where that is not known."""
            part = run(select(batch, places, size))
            if crashed:
                return type(part.error) is type(outcome.error)
            return None if part.error is not None else not part.finite

        found = _rows(failure, size, is_bad)
    every = bool(found) and len(found) == size
    return Blame(
        failure=failure,
        rows=() if every else found,
        all_rows=every,
        samples=samples_of(rows, found if rows is None or len(rows) in (0, size) else ()),
        loss=outcome.loss is not None and not bool(torch.isfinite(outcome.loss).all()),
        reproduced=True,
        exact=_same(loss, outcome.loss),
        eager=eager,
        trace=tracer.trace,
    )


def _rows(failure: Failure | None, size: int, is_bad: Callable[[tuple[int, ...]], bool | None]) -> tuple[int, ...]:
    """The rows that cause it: those where the operation failed, if the batch is good without them; else found by halving."""
    everything = tuple(range(size))
    if failure is None or failure.source == "weights":
        return ()
    first, half, is_bad = failure.rows, size // 2, cache(is_bad)
    if size < 2 or (first and len(first) < size and is_bad(tuple(row for row in everything if row not in set(first))) is False):
        return first or everything
    if first and len(first) == size and is_bad(everything[:half]) and is_bad(everything[half:]):
        return everything
    runs = 0

    def in_halves(part: tuple[int, ...]) -> tuple[int, ...]:
        nonlocal runs
        found: tuple[int, ...] = ()
        for half in (part[: len(part) // 2], part[len(part) // 2 :]):
            runs += 1
            if runs <= MOST_RUNS and is_bad(half if len(half) > 1 else half * 2):
                found += (in_halves(half) if len(half) > 1 else ()) or half
        return found

    found = in_halves(everything)
    return () if runs > MOST_RUNS else found


def batch_size(batch: Any, rows: BatchRows | None) -> int:
    """How many rows a batch has: the samples that were drawn if its tensors are as long, else their most frequent length."""
    lengths = [tensor.shape[0] for tensor in tensors_of(batch).values() if tensor.dim()]
    known = 0 if rows is None else len(rows)
    return known if (known and known in lengths) or not lengths else max(lengths, key=lengths.count)


def select(batch: Any, rows: Sequence[int], size: int) -> Any:
    """A batch of some of a batch's rows: of each tensor and list that is as long as the batch."""
    if isinstance(batch, Tensor):
        return batch[torch.as_tensor(list(rows), device=batch.device)] if batch.dim() and batch.shape[0] == size else batch
    if isinstance(batch, Mapping):
        entries = {key: select(value, rows, size) for key, value in batch.items()}
        try:
            return type(batch)(entries)  # type: ignore[call-arg]  # a mapping of the user's
        except Exception:  # noqa: BLE001  one that is made otherwise
            return entries
    if isinstance(batch, tuple):
        parts = [select(value, rows, size) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if isinstance(batch, list):
        plain = len(batch) == size and not any(isinstance(value, Tensor) for value in batch)
        return [batch[row] for row in rows] if plain else [select(value, rows, size) for value in batch]
    return batch


def _same(before: Tensor | None, after: Tensor | None) -> bool | None:
    if before is None or after is None:
        return None
    return torch.allclose(before, after.to(before), rtol=0.0, atol=0.0, equal_nan=True)


def describe_inputs(model: nn.Module, batch: Any) -> tuple[str, tuple[int, ...]]:
    """Describe what is not finite before a step: the batch first, then parameters, then NaN in buffers.

    Returns:
        A sentence, and the rows of the batch that are not finite, where samples lie along the first dimension.
    """
    for source, name, tensor in nonfinite_inputs(model, batch):
        buffer = source == "weights" and not isinstance(tensor, nn.Parameter)
        places = (tensor.isnan() if buffer else ~tensor.isfinite()).nonzero()  # a buffer may hold a mask of minus infinity
        if not len(places) or (source == "data" and not tensor.dim()):
            continue
        value, first = tensor[tuple(places[0])].item(), places[0].tolist()
        if source == "weights":
            return f"{clean_name(name)} has {value} in it, first at {first}: no step makes it finite again.", ()
        return f"The batch itself has {value} in it (batch{name}), first at {first}.", tuple(dict.fromkeys(places[:, 0].tolist()))
    return "The batch and the weights were finite: an operation of the step was the first.", ()
