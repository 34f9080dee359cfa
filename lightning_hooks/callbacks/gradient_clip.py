"""GradientClipMonitor: what clipping really did."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_hooks.alerts import ClipReport
from lightning_hooks.callbacks.alerting import OnAlert, Rules
from lightning_hooks.callbacks.closing import Summary
from lightning_hooks.callbacks.run_folder import ReportDir
from lightning_hooks.callbacks.step import Kept, Step
from lightning_hooks.callbacks.step_monitor import StepMonitor
from lightning_hooks.callbacks.who_clips import configured_norm
from lightning_hooks.clipping import ClipLedger, clip_stats, merge_ranks, step_events
from lightning_hooks.clipping.stats import N_CLIP_COLUMNS
from lightning_hooks.clipping.watch import N_EVENT_COLUMNS, merge_events
from lightning_hooks.reports.alert import CLIP_KINDS
from lightning_hooks.reports.windows import Report
from lightning_hooks.statistics.rows import row_dtype
from lightning_hooks.trackers import Table
from lightning_hooks.trackers.layout import Chart, Layout, Lines

if TYPE_CHECKING:
    from lightning_hooks.callbacks.publishing import Figures

LOGGED = (
    "steps",
    "clipped_steps",
    "rate",
    "norm_before",
    "norm_before_max",
    "norm_after",
    "norm_after_max",
    "coefficient",
    "nonfinite_steps",
    "skipped_steps",
)


class GradientClipMonitor(StepMonitor[ClipReport]):
    """Logs the events of gradient clipping, whoever clips: Lightning, a ``configure_gradient_clipping`` of the user's, a callback.

    At every optimizer step it compares the gradients' norms before clipping with those the step is taken with. It tells
    clipped, skipped (by a loss scaler) and non-finite steps apart, and names the parameters that caused the clips.

    Logged each epoch: ``gradient_clip/<stat>`` (``gradient_clip/<optimizer>/<stat>`` where there are several optimizers)
    with stat one of steps, clipped_steps, rate, norm_before, norm_before_max, norm_after, norm_after_max, coefficient,
    nonfinite_steps, skipped_steps; and ``gradient_clip/alerts/<kind>``.

    Args:
        on_alert: ``log``, ``warn``, ``stop``, ``raise``, or a function of an Alert.
        rules: Rules to change, mute or add; see :class:`~lightning_hooks.alerts.RuleBook`.
        summary: What is printed at the end of training: True for three lines of all monitors together, ``full`` for tables before
            them, False for nothing.
        report_dir: As for :class:`FeatureStatsMonitor`.
        figures: Log pictures: True after epochs 0, 1, 2, 4, 8, …, n after every nth, and at the end; needs matplotlib.
        progress_bar: Whether the progress bar shows the number of alerts and the share of clipped steps.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.alerts.ClipReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientClipMonitor
        >>> trainer = Trainer(callbacks=[GradientClipMonitor()], gradient_clip_val=1.0, logger=False)
    """

    prefix: ClassVar[str] = "gradient_clip"
    report_type: ClassVar[type[Report] | None] = ClipReport
    kinds: ClassVar[tuple[str, ...]] = CLIP_KINDS
    thins: ClassVar[bool] = False  # a clip is counted at every step
    fit_only: ClassVar[tuple[str, ...]] = ("_probe", "_ledgers")
    _ledgers: list[ClipLedger]

    def __init__(
        self,
        *,
        on_alert: OnAlert = "log",
        rules: Rules = (),
        summary: Summary = True,
        report_dir: ReportDir = "auto",
        figures: bool | int = False,
        progress_bar: bool = False,
    ) -> None:
        super().__init__(
            every_n_steps=1,
            on_alert=on_alert,
            rules=rules,
            summary=summary,
            report_dir=report_dir,
            figures=figures,
            progress_bar=progress_bar,
        )
        self._optimizer_names: list[str] = []
        self._ledgers = []
        self._loaded_past: dict[str, Tensor] = {}

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        probe = self.watch_steps(trainer, pl_module)
        self._names, self._optimizer_names = probe.names, probe.optimizer_names
        self._device = pl_module.device
        self._ledgers = [self._new_ledger() for _ in probe.optimizer_names]
        for name, ledger in zip(probe.optimizer_names, self._ledgers, strict=True):
            if name in self._loaded_past:
                with self.reading_state():
                    ledger.watch.load(self._loaded_past[name])
        self._loaded_past = {}
        self._careless = [[0, 0] for _ in self._ledgers]  # steps with gradients not zeroed, or changed in vain
        self._before: dict[int, Tensor] = {}
        self._after: dict[int, Tensor] = {}
        self._limit = configured_norm(trainer, pl_module)

    def _new_ledger(self) -> ClipLedger:
        return ClipLedger(len(self._names), self._device, row_dtype(self._device))

    @override
    def on_changed(self, kept: Kept) -> None:
        assert self._probe is not None
        lost = [name for place, name in enumerate(self._optimizer_names) if place not in kept]
        self._names, self._optimizer_names = self._probe.names, self._probe.optimizer_names
        for ledger in self._ledgers:
            ledger.grow(len(self._names))
        self._ledgers = [self._new_ledger() if old is None else self._ledgers[old] for old in kept]
        self._careless = [[0, 0] if old is None else self._careless[old] for old in kept]
        for norms in (self._before, self._after):
            found = {now: norms[old] for now, old in enumerate(kept) if old in norms}
            norms.clear()
            norms.update(found)
        if lost and self.batches:
            rank_zero_warn(
                f"{type(self).__name__}: optimizers were exchanged within an epoch. The steps that {', '.join(lost)} took in it "
                "are not in its report; those of the new ones are counted from here on. Exchange optimizers between epochs."
            )

    @override
    def on_gradients(self, step: Step) -> None:
        if not (step.again and step.optimizer in self._before):
            self._before[step.optimizer] = step.norms()

    @override
    def on_clipped(self, step: Step) -> None:
        if not (step.again and step.optimizer in self._after):
            self._after[step.optimizer] = step.norms()

    @override
    def on_taken(self, step: Step) -> None:
        self._enter(step, taken=True)

    @override
    def on_skipped(self, step: Step) -> None:
        self._enter(step, taken=False)

    def _enter(self, step: Step, taken: bool) -> None:
        after = self._after.pop(step.optimizer, None)
        before = self._before.pop(step.optimizer, after)
        if before is not None and step.indices:
            ledger = self._ledgers[step.optimizer]
            ledger.write(before, before if after is None else after, taken, step.skips_nonfinite, self.batches - 1)
            self._careless[step.optimizer][0] += step.unzeroed
            self._careless[step.optimizer][1] += step.wasted

    @override
    def pack(self) -> Tensor:
        dtype = row_dtype(self._device)
        if not self._ledgers:
            return torch.zeros((0, N_EVENT_COLUMNS + 2 + N_CLIP_COLUMNS + len(self._names)), device=self._device, dtype=dtype)
        careless = torch.tensor(self._careless, dtype=dtype)
        rows = zip(self._ledgers, careless.to(self._device, non_blocking=True), strict=True)
        return torch.stack([torch.cat((ledger.events, known, ledger.total)) for ledger, known in rows])

    @override
    def unpack(self, packed: Tensor) -> None:
        for place, (ledger, row) in enumerate(zip(self._ledgers, packed, strict=True)):
            ledger.watch.events = row[:N_EVENT_COLUMNS].to(ledger.watch.events)
            self._careless[place] = [int(count) for count in row[N_EVENT_COLUMNS : N_EVENT_COLUMNS + 2]]
            ledger.load(row[N_EVENT_COLUMNS + 2 :])

    @property
    @override
    def places(self) -> list[str]:
        return [*self._optimizer_names, *self._names]

    @override
    def merge_packed(self, packed: Tensor) -> Tensor:
        if not packed.numel():  # no optimizer
            return packed[0]
        counts = N_EVENT_COLUMNS + 2
        events, careless, totals = packed[..., :N_EVENT_COLUMNS], packed[..., N_EVENT_COLUMNS:counts], packed[..., counts:]
        return torch.cat((merge_events(events), careless.amax(0), merge_ranks(totals)), -1)

    @override
    def read(self, packed: Tensor, epoch: int, step: int) -> ClipReport:
        optimizers, events = {}, {}
        for name, row in zip(self._optimizer_names, packed.tolist(), strict=True):
            head, careless, total = row[:N_EVENT_COLUMNS], row[N_EVENT_COLUMNS:][:2], row[N_EVENT_COLUMNS + 2 :]
            optimizers[name] = clip_stats(total, self._names, self._limit)
            events[name] = step_events(head, self._names, *map(int, careless))
        return ClipReport(epoch, step, optimizers, events=events)

    @override
    def reset(self) -> None:
        for ledger in self._ledgers:
            ledger.reset()
        self._careless = [[0, 0] for _ in self._ledgers]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "past": dict(self._past())}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        with self.reading_state():
            self._loaded_past = dict(state_dict.get("past", {}))

    def _past(self) -> Iterator[tuple[str, Tensor]]:
        """Each optimizer's steps before, for those to come."""
        for name, ledger in zip(self._optimizer_names, self._ledgers or (), strict=False):  # a copy has no ledgers
            _ = ledger.events  # what is still on an open page
            yield name, ledger.watch.state().to("cpu", copy=True)

    @override
    def scalars(self, report: ClipReport) -> dict[str, float]:
        several = len(report.optimizers) > 1
        return {
            f"{self.prefix}/{name}/{stat}" if several else f"{self.prefix}/{stat}": float(getattr(stats, stat))
            for name, stats in report.optimizers.items()
            for stat in LOGGED
        }

    @override
    def charts(self) -> Layout:
        several = [f"{self.prefix}/{name}" for name in self._optimizer_names] if len(self._optimizer_names) > 1 else [self.prefix]
        shown: dict[str, Chart] = {
            tags.partition("/")[2] or "rate and norms": Lines((f"{re.escape(tags)}/(rate|norm_before|norm_after)$",))
            for tags in several
        }
        return {"Clipping": shown, **super().charts()}

    @override
    def figures(self, reports: Sequence[ClipReport], last: bool) -> Figures:
        from lightning_hooks.plots import clip_history

        return {"clip history": partial(clip_history, reports)}

    @override
    def summary_lines(self, report: ClipReport) -> list[str]:
        header = ("optimizer", "steps", "clipped", "skipped", "NaN, inf", "norm before", "after", "left")
        rows = [
            (
                name,
                s.steps,
                s.clipped_steps,
                s.skipped_steps,
                s.nonfinite_steps,
                s.norm_before,
                s.norm_after,
                s.coefficient,
            )
            for name, s in report.optimizers.items()
        ]
        lines = [f"Gradient clipping, epoch {report.epoch}:", Table(header, rows)]
        for name, stats in report.optimizers.items():
            if stats.top_parameters:
                causes = ", ".join(f"{parameter} {share:.0%}" for parameter, share in stats.top_parameters[:3])
                lines.append(f"  Clips of {name} caused by: {causes}")
        return lines
