"""Whether ranks hold the same parameters, as far as the training loop says that they are to."""

from __future__ import annotations

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.gradients.measured_step import MeasuredStep
from lightning_hooks.diagnostics.ranks.table import ReplicaTable


class ReplicaWatch:
    """Fills a :class:`~lightning_hooks.diagnostics.ranks.table.ReplicaTable`.

    Args:
        context: Of the collector.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.table = ReplicaTable(len(context.steps.names), context.host.setup.device)
        self.window_end = context.guard(self._take_weights, "weights (whether they are the same on every rank)")

    def taken(self, step: Step, measured: MeasuredStep) -> None:
        """A measured step was taken: its gradients were those after the reduction over ranks, and before clipping."""
        if measured.weights is not None and self._context.host.setup.world_size > 1:
            self.table.add_gradients(measured.indices, measured.read[0], step.global_step)

    def _take_weights(self) -> None:
        """The window ends: record the weights of the parameters that every rank is to hold alike."""
        places = [(self._context.steps.index_of(parameter), parameter) for parameter in self._context.host.replicated_parameters()]
        known = [(place, parameter) for place, parameter in places if place is not None]
        self.table.add_weights([place for place, _ in known], [parameter for _, parameter in known])
