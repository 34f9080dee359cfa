"""The residual stream of a model that is a stack of blocks, as a part of the feature statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from lightning_hooks.collectors.collector import Context
from lightning_hooks.hooks import OutputRecorder
from lightning_hooks.hooks.selection import clean_name, outwards, repeated_blocks
from lightning_hooks.statistics.reduction import Stretches
from lightning_hooks.statistics.residual import ResidualTable
from lightning_hooks.statistics.rows import Clock


def blocks_around(model: nn.Module, sites: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The blocks that a model is a stack of, as far as one of the sites is in them.

    Args:
        model: The model.
        sites: (name, module) of what is observed.
    """
    around = {outer for name, _ in sites for outer in outwards(clean_name(name))}
    return [(name, block) for name, block in repeated_blocks(model) if name in around]


class ResidualStream:
    """A :class:`~lightning_hooks.collectors.feature_parts.FeaturePart`: ``FeatureReport.residual``.

    Args:
        context: The collector's.
        blocks: (name, module) of each block.
        clock: Of the training batch.
    """

    def __init__(self, context: Context, blocks: Sequence[tuple[str, nn.Module]], clock: Clock) -> None:
        self._table = ResidualTable(blocks, context.host.device, clock)
        self._streams = [name.rpartition(".")[0] for name, _ in blocks]
        for index, (name, block) in enumerate(blocks):
            context.listen(name, block, _BlockRecorder(self._table, index))

    @property
    def stretches(self) -> Stretches:
        """How the packed numbers of ranks and of windows merge."""
        return self._table.stretches

    def pack(self) -> Tensor:
        """Return the window's numbers."""
        return self._table.pack()

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        self._table.unpack(packed)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return the field ``residual`` of the report."""
        return {"residual": self._table.read(packed, self._streams)}

    def reset(self) -> None:
        """Start a new window."""
        self._table.reset()


class _BlockRecorder(OutputRecorder):
    """Forward hook of one block."""

    reads_input = True

    def __init__(self, table: ResidualTable, index: int) -> None:
        self.table, self.index = table, index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.table.add(self.index, args, output)
