"""The range of what every layer puts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.scalars import stat_scalars
from lightning_hooks.declare.window import Report
from lightning_hooks.hooks.listener import OutputTo
from lightning_hooks.quantization import ActivationRange, RangeTable
from lightning_hooks.statistics.tables import Tables

LOGGED = ("min", "max", "scale", "zero_point")


@dataclass(frozen=True, slots=True, repr=False)
class RangeReport(Report):
    """Activation ranges of one epoch, or of one calibration.

    Attributes:
        sites: Module name to the range of its output, in model order; only modules that were called.
        silent: Selected modules whose hook never ran in a sampled batch, on any rank, or put out no floating-point tensor.
        sampled_batches: Batches that were sampled, on this rank.
        batches: Batches of the epoch, on this rank.
    """

    sites: dict[str, ActivationRange]
    silent: tuple[str, ...] = ()
    sampled_batches: int = 0
    batches: int = 0


class RangeCollector(Collector[RangeReport]):
    """The range of every module's output, and the scale and zero point that quantise it.

    Args:
        context: Its part of the session.
        state: As for :class:`Collector`.
        new_table: Makes the table, of the names of the sites and the device.
        levels: ``dtype`` and ``scheme``, as for :class:`~lightning_hooks.ActivationRangeObserver`.
    """

    prefix: ClassVar[str] = "ranges"
    report_type: ClassVar[type[Report]] = RangeReport
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "sites": {stat.replace("_", " "): stat for stat in (*LOGGED, "smallest", "largest")},
    }

    def __init__(
        self,
        context: Context,
        state: Mapping[str, Any],
        *,
        new_table: Callable[[Sequence[str], torch.device], RangeTable],
        levels: tuple[str, str],
    ) -> None:
        super().__init__(context, state)
        sites = context.select()
        self._levels = levels
        self.table = new_table([name for name, _ in sites], context.host.setup.device)
        for index, (name, module) in enumerate(sites):
            context.listen(name, module, OutputTo(self.table.add, index))
        self.tables = Tables(context.host.setup.device, ranges=self.table)

    @override
    def silent_sites(self) -> list[str]:
        return [name for name, calls in zip(self.table.names, self.table.counters[:, 0].tolist(), strict=True) if not calls]

    @property
    @override
    def names(self) -> list[str]:
        return self.table.names

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> RangeReport:
        sites, silent = self.table.read(packed["ranges"], *self._levels)
        return RangeReport(epoch, step, sites, silent, self.context.sampled_batches, self.context.batches)

    @override
    def scalars(self, report: RangeReport) -> dict[str, float]:
        return stat_scalars(self.prefix, self.names, report.sites, LOGGED)
