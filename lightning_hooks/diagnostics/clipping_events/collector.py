"""What clipping really did to the gradients, also where a clipper clips each parameter's gradient during backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.clipping.policies import norm_factor
from lightning_hooks.clipping.stats import N_CLIP_COLUMNS, ClipColumn, ClipLedger, clip_stats
from lightning_hooks.clipping.watch import N_EVENT_COLUMNS, EventColumn, step_events
from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import EarlierOptimizers, Step, loss_scale
from lightning_hooks.declare.warn import loading_state, warn
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.clipping_events.report import ClipReport, clip_history
from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.tensors import as_real, plain_values
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Merge, Merging, Span, Spans, TableIndex, by_columns, largest, of_largest
from lightning_hooks.statistics.tables import Tables

LOGGED = (
    *("steps", "clipped_steps", "rate", "norm_before", "norm_before_max", "norm_after", "norm_after_max", "coefficient"),
    *("nonfinite_steps", "skipped_steps"),
)
# Counts of an optimizer: steps with gradients not zeroed, or changed in vain, and batches whose gradients were never used.
N_STEP_COUNTS = 3
TALLY_START = N_EVENT_COLUMNS + N_STEP_COUNTS


class ClipCollector(Collector[ClipReport]):
    """The events of gradient clipping, at every optimizer step."""

    prefix: ClassVar[str] = "gradient_clip"
    report_type: ClassVar[type[Report]] = ClipReport
    monitor: ClassVar[str] = "GradientClipMonitor"
    report_name: ClassVar[str] = "clipping"
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "optimizers": {
            "steps": "steps", "clipped": "clipped_steps", "skipped": "skipped_steps", "NaN, inf": "nonfinite_steps",
            "norm before": "norm_before", "after": "norm_after", "left": "coefficient",
        },
    }  # fmt: skip
    every_step: ClassVar[bool] = True
    watches_steps: ClassVar[bool] = True
    reads_norms: ClassVar[bool] = True

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        self._steps = context.steps
        self._optimizer_names, self._device = self._steps.optimizer_names, context.host.setup.device
        self.ledgers = [self._new_ledger() for _ in self._optimizer_names]
        self._counts = [[0] * N_STEP_COUNTS for _ in self.ledgers]
        self.limit = context.host.setup.clip_norm
        with loading_state(context.name):
            for name, ledger in zip(self._optimizer_names, self.ledgers, strict=True):
                if name in state.get("past", {}):
                    ledger.watch.load(state["past"][name])
        self.tables = Tables(self._device, steps=self)

    def _new_ledger(self) -> ClipLedger:
        return ClipLedger(len(self._steps.names), self._device, row_dtype(self._device))

    @override
    def on_changed(self, kept: EarlierOptimizers) -> None:
        lost = [name for place, name in enumerate(self._optimizer_names) if place not in kept]
        self._optimizer_names = self._steps.optimizer_names
        for ledger in self.ledgers:
            ledger.grow(len(self._steps.names))
        self.ledgers = [self._new_ledger() if old is None else self.ledgers[old] for old in kept]
        self._counts = [[0] * N_STEP_COUNTS if old is None else self._counts[old] for old in kept]
        if lost and self.context.batches:
            warn(
                f"{self.context.name}: optimizers were exchanged within an epoch. The steps that {', '.join(lost)} took in it "
                "are not in its report; those of the new ones are counted from here on. Exchange optimizers between epochs."
            )

    @override
    def on_taken(self, step: Step, taken: bool = True) -> None:
        before = step.after if step.before is None else step.before
        after = before if step.after is None else step.after
        if before is None or after is None or not step.indices:
            return
        self.ledgers[step.optimizer].write(before, after, taken, step.skips_nonfinite, self.context.batch)
        if step.unzeroed or step.wasted or step.discarded:
            counts = self._counts[step.optimizer], (step.unzeroed, step.wasted, step.discarded)
            self._counts[step.optimizer] = [before + new for before, new in zip(*counts, strict=True)]

    @override
    def on_skipped(self, step: Step) -> None:
        self.on_taken(step, taken=False)

    # The window's table: for each optimizer its events, its counts, and its tally.

    @property
    def spans(self) -> Spans:
        """How packed tables merge."""
        width = self._width
        return (Span(width * len(self.ledgers), by_columns(OVER_RANKS, width), by_columns(OVER_WINDOWS, width)),)

    @property
    def _width(self) -> int:
        return TALLY_START + N_CLIP_COLUMNS + len(self._steps.names)

    def pack(self) -> Tensor:
        """Return the window's numbers as one vector."""
        counts = torch.tensor(self._counts, dtype=row_dtype(self._device)).to(self._device, non_blocking=True)
        for ledger in self.ledgers:
            ledger.close_page()
        rows = [torch.cat((one.watch.events, known, one.total)) for one, known in zip(self.ledgers, counts, strict=True)]
        return torch.cat(rows) if rows else torch.empty(0, device=self._device)

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        for place, (ledger, row) in enumerate(zip(self.ledgers, packed.view(-1, self._width), strict=True)):
            ledger.watch.events = row[:N_EVENT_COLUMNS].to(ledger.watch.events)
            self._counts[place] = [int(count) for count in row[N_EVENT_COLUMNS:TALLY_START]]
            ledger.total = row[TALLY_START:].to(ledger.total, copy=True)

    @property
    @override
    def names(self) -> list[str]:
        return [*self._optimizer_names, *self._steps.names]

    @property
    @override
    def n_modules(self) -> int:
        return len({name.rpartition(".")[0] for name in self._steps.names})

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> ClipReport:
        rows = dict(zip(self._optimizer_names, packed["steps"].view(-1, self._width).tolist(), strict=True))
        names, counts = self._steps.names, slice(N_EVENT_COLUMNS, TALLY_START)
        optimizers = {name: clip_stats(row[TALLY_START:], names, self.limit) for name, row in rows.items()}
        events = {name: step_events(row[:N_EVENT_COLUMNS], names, *map(int, row[counts])) for name, row in rows.items()}
        return ClipReport(epoch, step, optimizers, events=events)

    @override
    def reset(self) -> None:
        for ledger in self.ledgers:
            ledger.reset()
        self._counts = [[0] * N_STEP_COUNTS for _ in self.ledgers]

    @override
    def state_dict(self) -> dict[str, Any]:
        for ledger in self.ledgers:
            ledger.close_page()
        histories = [ledger.watch.state().to("cpu", copy=True) for ledger in self.ledgers]
        return {"past": dict(zip(self._optimizer_names, histories, strict=True))}  # each one's steps before, for those to come

    @override
    def scalars(self, report: ClipReport) -> dict[str, float]:
        several = len(report.optimizers) > 1
        return {
            f"{self.prefix}/{name}/{stat}" if several else f"{self.prefix}/{stat}": float(getattr(stats, stat))
            for name, stats in report.optimizers.items()
            for stat in LOGGED
        }

    @classmethod
    @override
    def picture(cls, reports: Sequence[ClipReport], stat: str | None) -> Callable[[], Figure] | None:
        return None if stat else partial(clip_history, reports)

    @override
    def figures(self, reports: Sequence[ClipReport], written: LoggedStatistics, last: bool) -> Figures:
        return {"clip history": partial(clip_history, reports)}


def _of_first(own: Tensor, among: TableIndex) -> Merging:
    """Events, of the table whose first number, a batch, is the smallest; the first of several that have it."""
    turn = own[..., 0] * among.count + among.number
    first = yield -turn
    found = yield torch.where((turn == -first)[..., None] & torch.isfinite(own), own, 0)
    yield own.new_empty(0)
    return torch.cat((torch.where(torch.isinf(first), torch.inf, found[..., 0])[..., None], found[..., 1:]), -1)


# How step events merge: the jump and the growth are those where they are largest, the nonfinite step the first one.
MERGED_EVENTS: Sequence[tuple[Merge, Sequence[int]]] = (
    (of_largest, range(EventColumn.JUMP, EventColumn.GROWTH)),
    (of_largest, range(EventColumn.GROWTH, EventColumn.BAD_BATCH)),
    (_of_first, range(EventColumn.BAD_BATCH, N_EVENT_COLUMNS)),
)
_MAXIMA = [TALLY_START + column for column in (ClipColumn.BEFORE_MAX, ClipColumn.AFTER_MAX)]
_STEPS = [TALLY_START + column for column in (ClipColumn.STEPS, ClipColumn.CLIPPED, ClipColumn.NONFINITE, ClipColumn.SKIPPED)]
OVER_WINDOWS = (*MERGED_EVENTS, (largest, _MAXIMA))  # how the rows of other steps merge
# How the rows that ranks have of the same steps merge. Ranks step together, so counts are not summed: the largest of any rank
# is taken. Norms, coefficients and shares are sums over the steps of all ranks, and maxima the largest of any.
OVER_RANKS = (*MERGED_EVENTS, (largest, [*range(N_EVENT_COLUMNS, TALLY_START), *_MAXIMA, *_STEPS]))


class TensorClipCollector(ClipCollector):
    """Clip events whose norms are those that the hooks of the parameters saw.

    Attributes:
        clips: Index of a parameter to its hook.
    """

    reads_norms: ClassVar[bool] = False

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        self.clips: dict[int, TensorClip] = {}
        self._norms: dict[int, tuple[Tensor, Tensor]] = {}  # of each optimizer, before and after

    @override
    def on_update(self, step: Step) -> None:
        after = step.norms().clone()
        before = after.clone()
        for index in step.indices:
            if index in self.clips:
                before[index], after[index] = self.clips[index].take()
        if not (step.again and step.optimizer in self._norms):
            self._norms[step.optimizer] = before, after

    @override
    def on_taken(self, step: Step, taken: bool = True) -> None:
        before, after = self._norms.pop(step.optimizer, (None, None))
        super().on_taken(dataclasses.replace(step, before=before, after=after), taken)

    @override
    def on_skipped(self, step: Step) -> None:
        self.on_update(step)
        super().on_skipped(step)

    @override
    def on_changed(self, kept: EarlierOptimizers) -> None:
        super().on_changed(kept)
        self._norms = {now: self._norms[old] for now, old in enumerate(kept) if old in self._norms}


class TensorClip(Listener):
    """Tensor hook of one parameter: scales its gradient to a norm, and keeps the norms before and after."""

    def __init__(self, max_norm: float, scaler: Any) -> None:
        self.max_norm, self.scaler = max_norm, scaler
        self.squares: Tensor | None = None  # of the norms before and after, summed over a step's micro-batches

    def __call__(self, gradient: Tensor) -> Tensor:
        """Clip the gradient."""
        scale = loss_scale(self.scaler)
        norm = torch.linalg.vector_norm(as_real(plain_values(gradient)), dtype=torch.float32)
        norm = norm if scale is None else norm / scale
        factor = norm_factor(norm, self.max_norm)
        squares = torch.stack((norm, norm * factor)).double() ** 2
        self.squares = squares if self.squares is None else self.squares + squares
        if gradient.layout == torch.sparse_coo:
            gradient = gradient.coalesce()
            values = gradient.values() * factor.to(gradient.dtype)
            return torch.sparse_coo_tensor(gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False)
        return gradient * factor.to(gradient.dtype)

    def take(self) -> Tensor:
        """Return the norms before and after of the step, shape ``(2,)``, and start again."""
        squares, self.squares = self.squares, None
        return torch.zeros(2, dtype=torch.float64) if squares is None else squares.sqrt()
