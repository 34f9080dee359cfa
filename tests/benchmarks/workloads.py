"""What is trained in the benchmark: real architectures, random data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class DigitsCNN(nn.Sequential):
    """About 2.5 ms a step on two cores at batch 64."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(inplace=True), nn.Linear(64, 10)),
        )


class BasicBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.bn2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.short = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.short = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.short(x)
        return self.relu(y)


class ResNet18(nn.Sequential):
    """He et al. (2016), for 32x32 pictures."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        n_in = 64
        for n_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(n_in, n_out, stride), BasicBlock(n_out, n_out, 1)]
            n_in = n_out
        stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Transformer(nn.Module):
    """Six layers, width 256, 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(ids)).mean(1))


class SdpaBlock(nn.Module):
    """Attention as own code writes it: the function, called by the module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class SdpaTransformer(nn.Module):
    """As :class:`Transformer`, but with functional attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 256)
        self.blocks = nn.Sequential(*(SdpaBlock(256, 4) for _ in range(6)))
        self.head = nn.Linear(256, 10)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(ids)).mean(1))


class Task(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class ManyLayers(nn.Sequential):
    """A thousand tiny layers: what a tensor costs, apart from its size."""

    def __init__(self, layers: int = 1000, width: int = 32) -> None:
        super().__init__(*(nn.Linear(width, width) for _ in range(layers)), nn.Linear(width, 10))


class Bottleneck(nn.Module):
    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out)),
        )
        self.short = nn.Identity()
        if stride != 1 or n_in != n_out:
            self.short = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.short(x)
        return self.relu(y)


class ResNet50(nn.Sequential):
    """He et al. (2016), for 224x224 pictures."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        n_in = 64
        for width, stride, repeat in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
            for index in range(repeat):
                blocks.append(Bottleneck(n_in, width, stride if index == 0 else 1))
                n_in = 4 * width
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))


class GPT2(nn.Module):
    """GPT-2 with 124 M parameters, random weights; the class of the first of 10 tokens is asked for."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.body = GPT2LMHeadModel(GPT2Config())

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(ids, use_cache=False).logits[:, -1, :10]


class Whole(nn.Module):
    """Around a net that is to be compiled: of a bare ``nn.Sequential`` torch compiles every layer's forward by itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def _compiled(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def compiled() -> nn.Module:
        net = Whole(build())
        net.compile()  # in place: the hooks go in before the first call
        return net

    return compiled


@dataclass(frozen=True)
class Workload:
    """A net and its data, and how long its fits are.

    Attributes:
        build: Makes the net.
        batch: Makes one batch of its input.
        batch_size: Samples in it.
        steady: Steps of a fit that are measured, after the first ones.
        pairs: How often a fit with and one without a row's callbacks are compared.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    batch_size: int
    steady: int
    pairs: int
    cuda: bool = False
    precision: Any = "32-true"
    compiled: bool = False


def _pictures() -> Tensor:
    return torch.randn(128, 3, 224, 224).to(memory_format=torch.channels_last)


def _resnet50() -> nn.Module:
    return ResNet50().to(memory_format=torch.channels_last)


def _tokens() -> Tensor:
    return torch.randint(0, 50_000, (8, 1024))


WORKLOADS: dict[str, Workload] = {
    "digits": Workload(DigitsCNN, lambda: torch.randn(64, 1, 8, 8), 64, 80, 5),
    "resnet": Workload(ResNet18, lambda: torch.randn(32, 3, 32, 32), 32, 16, 2),
    "transformer": Workload(Transformer, lambda: torch.randint(0, 100, (16, 64)), 16, 16, 3),
    "sdpa": Workload(SdpaTransformer, lambda: torch.randint(0, 100, (16, 64)), 16, 16, 3),
    "tiny": Workload(ManyLayers, lambda: torch.randn(4, 32), 4, 16, 3),
    "resnet50-cuda": Workload(_resnet50, _pictures, 128, 80, 5, True, "bf16-mixed"),
    "gpt2-cuda": Workload(GPT2, _tokens, 8, 80, 5, True, "bf16-mixed"),
    "resnet18-cuda": Workload(ResNet18, lambda: torch.randn(256, 3, 32, 32), 256, 80, 5, True),
    "transformer-cuda": Workload(Transformer, lambda: torch.randint(0, 100, (256, 64)), 256, 80, 5, True),
    "resnet50-compiled": Workload(_compiled(_resnet50), _pictures, 128, 80, 5, True, "bf16-mixed", True),
    "gpt2-compiled": Workload(_compiled(GPT2), _tokens, 8, 80, 5, True, "bf16-mixed", True),
}
NAMES = {
    "digits": "small CNN",
    "resnet": "ResNet-18, 32x32",
    "transformer": "transformer, 6 layers",
    "sdpa": "transformer with sdpa",
    "tiny": "1 000 tiny layers",
}
"""What tables call them; the others by their keys."""

DIFFERENT_BATCHES = 8


def batches(make: Callable[[], Tensor], batch_size: int, steps: int) -> DataLoader[Any]:
    """Batches that are made before: the loader must cost nothing."""
    made = [(make(), torch.randint(0, 10, (batch_size,))) for _ in range(min(steps, DIFFERENT_BATCHES))]
    return DataLoader([made[step % len(made)] for step in range(steps)], batch_size=None)
