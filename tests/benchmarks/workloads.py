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

    def __init__(self, layers: int = 1000) -> None:
        super().__init__(*(nn.Linear(4, 4) for _ in range(layers)), nn.Linear(4, 10))


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
    """A net, what makes one batch of its input, the batch's size, and how many steps in a row are measured."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    batch_size: int
    block: int
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
    "digits CNN": Workload(DigitsCNN, lambda: torch.randn(64, 1, 8, 8), 64, 30),
    "ResNet-18, 32x32": Workload(ResNet18, lambda: torch.randn(32, 3, 32, 32), 32, 5),
    "transformer, 6 layers": Workload(Transformer, lambda: torch.randint(0, 100, (16, 64)), 16, 8),
    "1000 tiny layers": Workload(ManyLayers, lambda: torch.randn(4, 4), 4, 10),
    "ResNet-50, bf16": Workload(_resnet50, _pictures, 128, 40, True, "bf16-mixed"),
    "GPT-2, bf16": Workload(GPT2, _tokens, 8, 40, True, "bf16-mixed"),
    "ResNet-50, bf16, compiled": Workload(_compiled(_resnet50), _pictures, 128, 40, True, "bf16-mixed", True),
    "GPT-2, bf16, compiled": Workload(_compiled(GPT2), _tokens, 8, 40, True, "bf16-mixed", True),
}


def batches(make: Any, batch_size: int, steps: int) -> DataLoader[Any]:
    """The same batch again and again: the loader must cost nothing."""
    batch = (make(), torch.randint(0, 10, (batch_size,)))
    return DataLoader([batch] * steps, batch_size=None)
