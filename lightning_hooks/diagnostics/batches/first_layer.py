"""What the first layer is given, in training and in validation: a training step may scale its batch, or add noise to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.declare.context import Context
from lightning_hooks.diagnostics.batches.inputs import PARTS, by_part
from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.functions import FUSED
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.columns import RowTable
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.reduction import largest
from lightning_hooks.statistics.rows import Clock, Column
from lightning_hooks.statistics.tables import HostNumbers, Tables


class FirstLayerTable(Tables):
    """A row for the input of the first layer in training, one for that in validation.

    It is the first module whose forward is over and that was given numbers without a gradient: data, and what is made of them. In
    training it is looked at in batches in which costly statistics are taken, in validation in the first one.

    Attributes:
        waits: Whether the batch under way is to be looked at, and was not yet.
    """

    def __init__(self, context: Context, sites: Sequence[tuple[str, nn.Module]], clock: Clock) -> None:
        device = context.host.setup.device
        self._values = RowTable(len(PARTS), device, Column)
        place = HostNumbers(lambda: [-1.0 if self._first is None else float(self._first)], largest, load=self._restore)
        super().__init__(device, place=place, values=self._values)
        self._sites, self._clock, self._kernels = sites, clock, kernels_for(self._values.rows.device.type)
        # A layer that has hooks does not take its fused path: results would differ in the last digits.
        outer = [module for module in context.host.model.modules() if isinstance(module, FUSED)]
        self._fused = {id(module) for each in outer for module in each.modules()}
        self._first: int | None = None
        self._validation = _Given(context.guard(self._validated, "the first layer in validation"))
        self._handle: RemovableHandle | None = None
        self.waits = False

    def given(self, site: int, value: Tensor) -> None:
        """Record the first argument of a module, which requires no gradient, if it is the first layer; no host sync."""
        data = value.is_floating_point() and value.dim() > 1
        if self._first is None and data and id(self._sites[site][1]) not in self._fused:
            self._first = site
        if site == self._first and data:
            self.waits = False
            self._kernels.record(self._values.rows, 0, value if self._kernels.proves else plain_values(value), self._clock)

    def _validated(self, value: Any) -> None:
        if issubclass(type(value), Tensor) and value.is_floating_point() and value.dim() > 1:
            self._kernels.record(self._values.rows, 1, plain_values(value.detach()), self._clock)

    def _restore(self, place: list[float]) -> None:
        self._first = int(place[0]) if place[0] >= 0 else None

    def validation_batch(self, index: int) -> None:
        """A validation batch starts: the layer has a hook in the first one."""
        self.stop()
        if not index and self._first is not None:
            self._handle = self._sites[self._first][1].register_forward_pre_hook(self._validation)

    def stop(self) -> None:
        """The batch is over. Harmless when it was over before."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        parts = self.split(packed)
        place = int(parts["place"])
        return {
            "layer_inputs": by_part(self._values.lines(parts["values"])),
            "first_layer": self._sites[place][0] if place >= 0 else "",
        }


class _Given(Listener):
    """Forward pre-hook that hands on the first argument."""

    def __init__(self, record: Callable[[Any], None]) -> None:
        self._record = record

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args:
            self._record(args[0])
