"""What losses with numbers for targets, such as ``mse_loss``, are given."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_hooks.collectors.collector import Context
from lightning_hooks.collectors.functional import Functional, FunctionalCall, FunctionalSite
from lightning_hooks.hooks.functional import BINARY, REGRESSION
from lightning_hooks.hooks.graph import made_by
from lightning_hooks.hooks.tensors import in_memory
from lightning_hooks.statistics.targets import BINARY_CROSS_ENTROPY, WIDTH, TargetTable, target_stats

MOST_LOSSES = 16
"""Such losses of a model, at most."""
TARGETED = (*BINARY, *REGRESSION)
"""The functions that they are."""


class LossTargets(TargetTable):
    """What each loss with numbers for targets is given.

    Args:
        functional: The calls of the run.
        context: Of the collector.
    """

    def __init__(self, functional: Functional, context: Context) -> None:
        super().__init__(MOST_LOSSES, context.host.device)
        self._functional = functional
        self._lines: dict[int, int] = {}
        context.on_call(TARGETED, self._record)

    def _record(self, call: FunctionalCall) -> None:
        line = self._lines.get(call.site.index)
        if line is None:
            line = self._lines[call.site.index] = [site.index for site in self._losses].index(call.site.index)
        given, target = call.arguments.get("input"), call.arguments.get("target")
        if line < MOST_LOSSES and in_memory(given) and in_memory(target):
            each = call.arguments.get("reduction") == "none" or call.arguments.get("reduce") is False
            maker = BINARY_CROSS_ENTROPY if call.function in BINARY else made_by(given)
            self.add(line, given.detach(), target.detach(), not each, maker)

    @property
    def _losses(self) -> list[FunctionalSite]:
        """In an order that is the same on every rank, as the sites' numbers are."""
        return [site for site in self._functional.sites if site.function in TARGETED]

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        rows = packed.view(-1, WIDTH).tolist()
        return {"targets": {site.name: target_stats(row) for site, row in zip(self._losses, rows, strict=False) if row[0]}}

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self._lines.clear()
        self._before.clear()
        self.reset()
