"""Small models that are stacks of blocks, and the slow reference of what their residual streams hold."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks.diagnostics.residual_stream.table import ResidualStats


class Block(nn.Module):
    """A pre-norm block without attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class ConvBlock(nn.Module):
    """A residual block of convolutions; the first of a stage changes the shape."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels // stride, channels, 3, stride, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(channels // stride, channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.norm(self.conv(x)))


class Stack(nn.Module):
    """Blocks between an embedding and a head.

    Args:
        width: Of the stream.
        depth: How many blocks.
        recompute: Whether blocks run under activation checkpointing: ``""``, ``"reentrant"`` or ``"plain"``.
        keyword: Whether blocks get their input by keyword.
    """

    def __init__(self, width: int = 8, depth: int = 3, recompute: str = "", keyword: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)
        self.recompute, self.keyword = recompute, keyword

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
            else:
                x = block(x=x) if self.keyword else block(x)
        return self.head(x.mean(1))


class ConvStack(nn.Module):
    """Two stages of convolution blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.one = nn.Sequential(ConvBlock(4), ConvBlock(4))
        self.two = nn.Sequential(ConvBlock(8, 2), ConvBlock(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(self.stem(x))).mean((2, 3)))


class Streams(Callback):
    """Keeps what goes into each named module and what comes out, in the training batches' forward."""

    def __init__(self, names: list[str], every: int = 1) -> None:
        self.names, self.every, self.on = names, every, False
        self.calls: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)

    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        for name in self.names:
            pl_module.get_submodule(name).register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            if self.on:
                entered = args[0] if args else torch.full_like(output, torch.nan)
                self.calls[name].append((entered.detach().double().numpy().copy(), output.detach().double().numpy().copy()))

        return keep

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.on = batch_idx % self.every == 0

    def on_before_backward(self, *args: Any) -> None:
        self.on = False  # what is recomputed is no call


def reference(calls: list[tuple[np.ndarray, np.ndarray]], dim: int = -1) -> dict[str, float]:
    """The numbers of :class:`ResidualStats`, in float64 on all values."""
    out = np.concatenate([after.ravel() for _, after in calls])
    before = np.concatenate([entered.ravel() for entered, _ in calls])
    channels = [(np.moveaxis(after, dim, 0).reshape(after.shape[dim], -1) ** 2).mean(1) for _, after in calls]
    medians = [np.sort(each)[(len(each) - 1) // 2] for each in channels]
    return {
        "calls": len(calls),
        "rms": np.sqrt((out**2).mean()),
        "largest": np.abs(out).max(),
        "nonfinite_fraction": 0.0,
        "channel_rms": np.sqrt(np.mean([each.max() for each in channels])),
        "median_channel_rms": np.sqrt(np.mean(medians)),
        "channel": max(channels, key=np.max).argmax(),
        "write_ratio": np.sqrt(((out - before) ** 2).mean() / (before**2).mean()),
        "carried": (out * before).sum() / (before**2).sum(),
    }


def assert_stream(found: ResidualStats, expected: dict[str, float], rel: float = 1e-5) -> None:
    """Compare statistics with the reference."""
    for name, value in expected.items():
        assert abs(getattr(found, name) - value) <= rel * abs(value), (name, getattr(found, name), value)
