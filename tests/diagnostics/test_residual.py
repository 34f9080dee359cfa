"""The residual stream's lines: channels, what a block adds, merging."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.residual_stream.table import ResidualStats, ResidualTable
from lightning_hooks.hooks.selection import repeated_blocks
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows
from lightning_hooks.statistics.rows import Clock
from tests.support.stacks import Block, ConvStack, Stack, assert_stream, reference

pytestmark = pytest.mark.usefixtures("each_path")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


on_host = True


@pytest.fixture(params=["host", "device"], autouse=True)
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is for accelerators runs on the CPU too."""
    monkeypatch.setattr(sys.modules[__name__], "on_host", request.param == "host")


def table_of(*blocks: nn.Module) -> ResidualTable:
    table = ResidualTable([(f"blocks.{number}", block) for number, block in enumerate(blocks)], "cpu", Clock())
    assert table.on_host
    table.on_host = on_host
    return table


def read(table: ResidualTable, packed: Tensor | None = None) -> dict[str, ResidualStats]:
    return table.read(table.pack() if packed is None else packed)["residual"]


def calls_of(shape: tuple[int, ...], n: int, dtype: torch.dtype, dim: int = -1) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    made = []
    for number in range(n):
        entered = torch.randn(shape, dtype=torch.float64) + 0.3
        out = entered + 0.5 * torch.randn(shape, dtype=torch.float64)
        out.select(dim, 2 + number % 2).mul_(20 + number)
        made.append((entered.to(dtype), out.to(dtype)))
    return made


def as_numpy(calls: list[tuple[Tensor, Tensor]]) -> Any:
    return [(entered.double().numpy(), out.double().numpy()) for entered, out in calls]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 7), (2, 9, 40), (3, 50, 1100), (2, 3, 4, 6)])
def test_values_are_those_of_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    table, calls = table_of(Block(4)), calls_of(shape, 3, dtype)
    for entered, out in calls:
        table.add(0, (entered,), out)
    assert_stream(read(table)["blocks.0"], reference(as_numpy(calls)))
    assert read(table)["blocks.0"].limit == torch.finfo(dtype).max


def test_ranks_and_windows_merge_to_the_whole() -> None:
    calls, parts = calls_of((4, 3, 8), 6, torch.float32), []
    for some in (calls[:1], calls[1:4], [], calls[4:]):
        parts.append(table_of(Block(4), Block(4)))
        for entered, out in some:
            parts[-1].add(1, (entered,), out)
    expected = reference(as_numpy(calls))
    ranks = merge_ranks(parts[0].spans, [part.pack() for part in parts])
    assert list(read(parts[0], ranks)) == ["blocks.1"]
    assert_stream(read(parts[0], ranks)["blocks.1"], expected)
    windows = parts[0].pack()
    for part in parts[1:]:
        windows = merge_windows(part.spans, windows, part.pack())
    assert_stream(read(parts[0], windows)["blocks.1"], expected)
    parts[2].unpack(windows)
    assert torch.equal(parts[2].pack(), windows)
    parts[2].reset()
    assert read(parts[2]) == {}


class Expert(Block):
    """One of several inside a block."""


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert(4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return sum(expert(x) for expert in self.experts)  # type: ignore[return-value]


class Pair(nn.Module):
    """Two stacks of one class, as T5 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Stack(), Stack()


def test_which_blocks_a_model_is_a_stack_of() -> None:
    """Siblings of one class with parts; neither leaves, nor containers, nor what is inside such a block."""

    def names(model: nn.Module) -> list[str]:
        return [name for name, _ in repeated_blocks(model)]

    assert names(Stack()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert names(ConvStack()) == ["one.0", "one.1", "two.0", "two.1"]
    assert names(nn.Sequential(Mixture(), nn.ReLU(), Mixture())) == ["0", "2"]
    assert names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == []
    assert names(nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))) == []
    assert names(nn.TransformerDecoderLayer(8, 2)) == []  # two attentions, each one layer
    assert names(Pair()) == [f"{part}.blocks.{number}" for part in ("encoder", "decoder") for number in range(3)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2, enable_nested_tensor=False)
    assert names(encoder) == ["layers.0", "layers.1"]
