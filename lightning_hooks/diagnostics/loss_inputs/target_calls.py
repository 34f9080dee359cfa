"""What losses with numbers for targets, such as ``mse_loss`` and ``kl_div``, are given."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import Functional, FunctionalCall
from lightning_hooks.diagnostics.loss_inputs.lines import MOST_LOSSES, LossLines
from lightning_hooks.diagnostics.loss_inputs.targets import BINARY_CROSS_ENTROPY, KL_DIVERGENCE, TargetTable, target_stats
from lightning_hooks.hooks.functions import BINARY, DIVERGENCE, REGRESSION
from lightning_hooks.hooks.graph import made_by
from lightning_hooks.hooks.tensors import in_memory

TARGETED = (*BINARY, DIVERGENCE, *REGRESSION)
"""The losses with numbers for targets."""

_BOUNDED = {**dict.fromkeys(BINARY, BINARY_CROSS_ENTROPY), DIVERGENCE: KL_DIVERGENCE}


class LossTargets(TargetTable):
    """What each loss with numbers for targets is given.

    Args:
        functional: The calls of the run.
        context: Of the collector.
    """

    def __init__(self, functional: Functional, context: Context) -> None:
        super().__init__(MOST_LOSSES, context.host.setup.device)
        self._lines = LossLines(functional, TARGETED)
        context.on_call(TARGETED, self._record)

    def _record(self, call: FunctionalCall) -> None:
        line = self._lines.of(call.site)
        given, target = call.arguments.get("input"), call.arguments.get("target")
        if line is not None and in_memory(given) and in_memory(target):
            if call.function in REGRESSION and target.requires_grad and not given.requires_grad:
                given, target = target, given  # the order does not matter to these losses, and is often the other one
            each = call.arguments.get("reduction") == "none" or call.arguments.get("reduce") is False
            bound = _BOUNDED.get(call.function) or made_by(given)
            self.add(line, given.detach(), target.detach(), not each, bound)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        return {"targets": {name: target_stats(row) for name, row in self._lines.named(self.lines(packed)) if row[0]}}

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self._lines.renumbered()
        self._before.clear()
        self.reset()
