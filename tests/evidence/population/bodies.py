"""Bodies: from an input to features, ``(batch, width)``, or ``(batch, length, width)`` for each position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.evidence.population.forms import Form
from tests.evidence.population.layers import Positions, Residual, activation, block, dense, dropouts, norms, token_norm
from tests.evidence.population.recipe import Recipe


def mlp(recipe: Recipe, form: Form) -> nn.Module:
    size = torch.Size(form.shape).numel()
    layers = [layer for i in range(recipe.depth) for layer in dense(recipe, recipe.width if i else size, recipe.width)]
    return nn.Sequential(*([nn.Flatten()] if form.kind != "vector" else []), *layers)


def residual_mlp(recipe: Recipe, form: Form) -> nn.Module:
    """ResNet for tables (Gorishniy et al. 2021)."""
    w = recipe.width
    blocks = [
        Residual(nn.Sequential(nn.Linear(w, 2 * w), activation(recipe), *dropouts(recipe), nn.Linear(2 * w, w)), norm)
        for norm in ((*norms(recipe, w), None)[0] for _ in range(recipe.depth))
    ]
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(form.shape).numel(), w), *blocks, *norms(recipe, w), activation(recipe))


class Pool(nn.Module):
    """The mean, the first or the last of all positions."""

    def __init__(self, which: str = "mean") -> None:
        super().__init__()
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1) if self.which == "mean" else x[:, 0] if self.which == "first" else x[:, -1]


def convolution(recipe: Recipe, inputs: int, outputs: int, dims: int = 2, stride: int = 1) -> list[nn.Module]:
    """Convolution, norm, activation."""
    norm, k = norms(recipe, outputs, dims), recipe.kernel
    kind = nn.Conv2d if dims == 2 else nn.Conv1d
    return [kind(inputs, outputs, k, stride, k // 2, bias=recipe.bias or not norm), *norm, activation(recipe)]


def cnn(recipe: Recipe, form: Form) -> nn.Module:
    """Convolutions, a pooling after each second one, at the end flat or averaged."""
    layers: list[nn.Module] = []
    channels, side = form.shape[0], form.shape[-1]
    for i in range(recipe.depth):
        width = recipe.width // 4 * (1 + i // 2)
        layers += convolution(recipe, channels, width)
        channels = width
        if i % 2 and side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    if recipe.depth % 2:
        return nn.Sequential(*layers, nn.Flatten(), *dense(recipe, channels * side * side, recipe.width))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dropouts(recipe), nn.Linear(channels, recipe.width), activation(recipe)
    )


def resnet(recipe: Recipe, form: Form) -> nn.Module:
    w = recipe.width // 2
    stem = convolution(recipe, form.shape[0], w)
    blocks = []
    for _ in range(recipe.depth):
        inner = [*convolution(recipe, w, w), nn.Conv2d(w, w, recipe.kernel, 1, recipe.kernel // 2), *norms(recipe, w, 2)]
        blocks += [Residual(nn.Sequential(*inner)), activation(recipe)]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dropouts(recipe), nn.Linear(w, recipe.width), activation(recipe)
    )


class Patches(nn.Module):
    """An image as a row of patches."""

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(channels, width, size, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x).flatten(2).transpose(1, 2)


def vit(recipe: Recipe, form: Form) -> nn.Module:
    w, patch = recipe.width, max(2, form.shape[-1] // 4)
    blocks = [block(recipe, w, False) for _ in range(recipe.depth)]
    position = Positions(recipe.position, (form.shape[-1] // patch) ** 2, w)
    return nn.Sequential(Patches(form.shape[0], patch, w), position, *dropouts(recipe), *blocks, token_norm(recipe, w), Pool())


def embedded(recipe: Recipe, form: Form) -> nn.Module:
    """The first layer of a sequence."""
    return nn.Embedding(form.vocabulary, recipe.width) if form.kind == "tokens" else nn.Linear(form.shape[-1], recipe.width)


class Recurrent(nn.Module):
    """RNN, GRU or LSTM over ``(batch, length, width)``."""

    def __init__(self, recipe: Recipe, each: bool) -> None:
        super().__init__()
        kind = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[recipe.model]
        drop = recipe.dropout if recipe.depth > 1 else 0.0
        self.cells, self.each = kind(recipe.width, recipe.width, recipe.depth, batch_first=True, dropout=drop), each

    def forward(self, x: Tensor) -> Tensor:
        out = self.cells(x)[0]
        return out if self.each else out[:, -1]


def recurrent(recipe: Recipe, form: Form) -> nn.Module:
    return nn.Sequential(embedded(recipe, form), *dropouts(recipe), Recurrent(recipe, form.each))


def transformer(recipe: Recipe, form: Form) -> nn.Module:
    w = recipe.width
    blocks = [block(recipe, w, form.causal) for _ in range(recipe.depth)]
    last = [] if form.each else [Pool("last" if form.causal else "mean")]
    position = Positions(recipe.position, form.shape[0], w)
    return nn.Sequential(embedded(recipe, form), position, *dropouts(recipe), *blocks, token_norm(recipe, w), *last)


class GraphConvolution(nn.Module):
    """Features of neighbours, averaged, beside one's own (GraphSAGE)."""

    def __init__(self, recipe: Recipe, inputs: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(inputs, recipe.width), nn.Linear(inputs, recipe.width, bias=False)
        self.activation, self.drop = activation(recipe), nn.Dropout(recipe.dropout)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        mean = edges @ x / edges.sum(-1, keepdim=True).clamp(min=1)
        return self.drop(self.activation(self.own(x) + self.others(mean)))


class Gnn(nn.Module):
    """Message passing over dense edges, then the mean of all nodes."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphConvolution(recipe, recipe.width if i else form.shape[-1]) for i in range(recipe.depth))
        self.each = form.each

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        return x if self.each else x.mean(1)


BODIES: dict[str, Callable[[Recipe, Form], nn.Module]] = {
    "mlp": mlp, "residual_mlp": residual_mlp, "cnn": cnn, "resnet": resnet, "vit": vit, "gnn": Gnn,
    "rnn": recurrent, "gru": recurrent, "lstm": recurrent, "transformer": transformer, "moe_transformer": transformer,
}  # fmt: skip


class Net(nn.Module):
    """A body and a linear head."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        self.body = BODIES[recipe.model](recipe, form)
        self.head = nn.Linear(recipe.width, form.answers)
        if recipe.tied and form.kind == "tokens" and form.answers == form.vocabulary:
            self.head.weight = self.body[0].weight
            nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.head(self.body(*inputs))
