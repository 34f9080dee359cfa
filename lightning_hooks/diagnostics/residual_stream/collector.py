"""The residual stream of a model that is a stack of blocks, as a part of the feature statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from lightning_hooks.declare.context import Context
from lightning_hooks.diagnostics.residual_stream.table import ResidualTable
from lightning_hooks.hooks import OutputRecorder
from lightning_hooks.hooks.selection import clean_name, outwards, repeated_blocks
from lightning_hooks.statistics.rows import Clock


def blocks_around(model: nn.Module, sites: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The blocks that a model is a stack of, as far as one of the sites is in them.

    Args:
        model: The model.
        sites: (name, module) of what is observed.
    """
    around = {outer for name, _ in sites for outer in outwards(clean_name(name))}
    return [(name, block) for name, block in repeated_blocks(model) if name in around]


class ResidualStream(ResidualTable):
    """The table of ``FeatureReport.residual``.

    Args:
        context: The collector's.
        blocks: (name, module) of each block.
        clock: Of the training batch.
    """

    def __init__(self, context: Context, blocks: Sequence[tuple[str, nn.Module]], clock: Clock) -> None:
        super().__init__(blocks, context.host.setup.device, clock)
        for index, (name, block) in enumerate(blocks):
            context.listen(name, block, _BlockRecorder(self, index))


class _BlockRecorder(OutputRecorder):
    """Forward hook of one block."""

    reads_input = True

    def __init__(self, table: ResidualTable, index: int) -> None:
        self.table, self.index = table, index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.table.add(self.index, args, output)
