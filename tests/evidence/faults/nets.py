"""The nets of the zoo. Their layers have names, so that alerts can name a site."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from tests.evidence.faults.data import VOCABULARY

Activation = Callable[[], nn.Module]


def mlp(
    widths: tuple[int, ...] = (64, 64, 64, 10), activation: Activation = nn.ReLU, init: Callable[[Tensor], Tensor] | None = None
) -> nn.Sequential:
    """Layers ``fc0, act0, fc1, act1, …, head``."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (fan_in, fan_out) in enumerate(pairwise(widths[:-1])):
        layers[f"fc{i}"] = nn.Linear(fan_in, fan_out)
        layers[f"act{i}"] = activation()
    layers["head"] = nn.Linear(widths[-2], widths[-1])
    net = nn.Sequential(layers)
    if init is not None:
        initialise(net, init)
    return net


def initialise(net: nn.Module, init: Callable[[Tensor], Tensor] = nn.init.kaiming_normal_) -> nn.Module:
    """Give every linear and convolution weight an initialisation, and its bias zeros."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            init(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


def cnn(norm: bool = True, width: int = 16) -> nn.Sequential:
    """Three convolutions, two linear layers: ``conv0, norm0, act0, …, pool, flat, fc, act3, head``."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = (1, width, width, width)
    for i in range(3):
        layers[f"conv{i}"] = nn.Conv2d(channels[i], channels[i + 1], 3, padding=1)
        if norm:
            layers[f"norm{i}"] = nn.BatchNorm2d(channels[i + 1])
        layers[f"act{i}"] = nn.ReLU()
    layers |= {"pool": nn.MaxPool2d(2), "flat": nn.Flatten(), "fc": nn.Linear(width * 16, 32), "act3": nn.ReLU()}
    layers["head"] = nn.Linear(32, 10)
    net = nn.Sequential(layers)
    return net if norm else initialise(net)  # type: ignore[return-value]


class ResidualBlock(nn.Module):
    """Two convolutions with an identity shortcut."""

    def __init__(self, channels: int, norm: bool = True) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1, bias=not norm)
        self.norm0 = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.act0 = nn.ReLU()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=not norm)
        self.norm1 = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.act1 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act1(x + self.norm1(self.conv1(self.act0(self.norm0(self.conv0(x))))))


class ResNet(nn.Module):
    """A stem, residual blocks, and a linear head: ``stem, norm, act, blocks.0, …, pool, head``."""

    def __init__(self, blocks: int = 3, channels: int = 16, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels) if norm else nn.Identity()
        self.act = nn.ReLU()
        self.blocks = nn.ModuleList(ResidualBlock(channels, norm) for _ in range(blocks))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(4 * channels, 10)
        self.detached_before: int | None = None  # the fault: the path is cut before this block

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(x)))
        for i, block in enumerate(self.blocks):
            x = block(x.detach() if i == self.detached_before else x)
        return self.head(self.pool(x).flatten(1))


class Recurrent(nn.Module):
    """A character model: ``embed, rnn, head``."""

    def __init__(self, cell: type[nn.RNNBase] = nn.LSTM, hidden: int = 48, tied: bool = False, **options: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, hidden)
        self.rnn = cell(hidden, hidden, batch_first=True, **options)  # type: ignore[call-arg]
        self.head = nn.Linear(hidden, VOCABULARY)
        if tied:
            nn.init.normal_(self.embed.weight, std=hidden**-0.5)
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0])


class Attention(nn.Module):
    """Causal self-attention, one module per operation: ``qkv, softmax, out``."""

    def __init__(self, width: int, heads: int, scaled: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(width // heads) if scaled else 1.0
        self.qkv = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(-1)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.reshape(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) * self.scale).masked_fill(torch.ones(t, t).triu(1).bool(), -1e9)
        return self.out((self.softmax(scores) @ v).transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    """A pre-norm transformer layer: ``norm0, attention, norm1, up, act, down``."""

    def __init__(self, width: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm0 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm0(x)))
        return x + self.drop(self.down(self.act(self.up(self.norm1(x)))))


class Transformer(nn.Module):
    """A character model: ``embed, position, blocks.0, …, norm, head``."""

    def __init__(
        self, layers: int = 2, width: int = 32, dropout: float = 0.0, length: int = 32, embed_norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0 if embed_norm else None)
        self.embed_norm = embed_norm or nn.Identity()
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed_norm(self.embed(x)) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class VAE(nn.Module):
    """A variational autoencoder of the digits: ``encoder, act, mean, log_variance, decoder.*``."""

    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, 64)
        self.act = nn.ReLU()
        self.mean = nn.Linear(64, latent)
        self.log_variance = nn.Linear(64, latent)
        self.decoder = nn.Sequential(OrderedDict(fc0=nn.Linear(latent, 64), act0=nn.ReLU(), out=nn.Linear(64, 64)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.act(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance
