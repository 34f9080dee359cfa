"""Faults of what a model puts out: samples that become the same, and what a loss is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Adversarial, Supervised, Task, adam
from tests.evidence.faults.zoo import Built, Expected, broken, fault, healthy, worse

EPOCHS = {"max_epochs": 3}
SIX_EPOCHS = {"max_epochs": 6}
WELL = Expected()


class TwoViews(Task):
    """Learns that two noisy views of an image belong together; its score is the accuracy of the nearest class mean.

    Directions are compared, as SimCLR does (Chen et al. 2020): with the other images of the batch as negatives, or without any.
    """

    def __init__(self, net: nn.Module, negatives: bool) -> None:
        super().__init__(net, adam(1e-2))
        self.negatives = negatives

    def embed(self, x: Tensor) -> Tensor:
        """Directions of the images."""
        return F.normalize(self.net(x), dim=1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0]
        one, two = (self.embed(x + 0.1 * torch.randn_like(x)) for _ in range(2))
        if self.negatives:
            return self.note(F.cross_entropy(one @ two.T / 0.2, torch.arange(len(x))))
        return self.note(1 - (one * two).sum(1).mean())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        z = self.embed(x)
        means = torch.stack([z[y == digit].mean(0) for digit in range(10)])
        self.note_score((torch.cdist(z, means).argmin(1) == y).float().mean())


@fault("MLP", "two views of an image are drawn together and nothing keeps images apart", reaches=0.6, hurts=worse(0.05))
def views_collapse(seed: int, planted: bool = True) -> Built:
    net = nets.mlp((64, 64, 64, 64, 64, 32), init=nn.init.kaiming_normal_)
    expected = Expected(("representation_collapse",), batch=44, epoch=2)
    return Built(TwoViews(net, not planted), data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


class Triplets(TwoViews):
    """The images of the same class, and those of other ones."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        z = self.embed(x)
        distance, alike = torch.cdist(z, z), (y[:, None] == y).float()
        positive = (distance * alike).sum(1) / alike.sum(1)
        negative = (distance * (1 - alike)).sum(1) / (1 - alike).sum(1)
        return self.note(F.relu(positive - self.negatives * negative + 0.5).mean())


@fault("MLP", "distances within classes are made small and those between them do not count", reaches=0.8, hurts=worse(0.05))
def triplets_collapse(seed: int, planted: bool = True) -> Built:
    net = nets.mlp((64, 64, 64, 32), nn.Tanh, init=nn.init.xavier_normal_)
    expected = Expected(("representation_collapse", "saturated"))
    return Built(Triplets(net, not planted), data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


class FastGenerator(Adversarial):
    """Its generator takes large steps against a discriminator that hardly moves."""

    def configure_optimizers(self) -> Any:
        generator, discriminator = super().configure_optimizers()
        generator.param_groups[0] |= {"lr": 5e-2, "betas": (0.9, 0.999)}
        discriminator.param_groups[0]["lr"] = 1e-3
        return generator, discriminator


@fault("GAN", "a generator that is much faster than its discriminator: one image for every noise", reaches=0.35, hurts=worse(0.3))
def generator_collapse(seed: int, planted: bool = True) -> Built:
    expected = Expected(("representation_collapse", "saturated", "dead"), ("net.generator.*",))
    return Built(FastGenerator() if planted else Adversarial(), data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


class Logits(nn.Module):
    """A classifier of the digits with something behind its last layer."""

    def __init__(self, last: Any) -> None:
        super().__init__()
        self.body, self.last = nets.mlp(init=nn.init.kaiming_normal_), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))  # type: ignore[no-any-return]


def same(x: Tensor) -> Tensor:
    """Nothing behind the last layer."""
    return x


@fault("MLP", "a ReLU before the cross entropy", reaches=0.85, hurts=None)
def rectified_logits(seed: int, planted: bool = True) -> Built:
    module = Supervised(Logits(F.relu if planted else same), adam())
    expected = Expected(("output_range", "dead"))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "a tanh before the cross entropy", reaches=0.85, hurts=None)
def bounded_logits(seed: int, planted: bool = True) -> Built:
    module = Supervised(Logits(torch.tanh if planted else same), adam())
    expected = Expected(("output_range", "saturated"))
    return Built(module, data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


@fault("MLP", "probabilities, averaged over three heads, given to the cross entropy", reaches=0.85, hurts=None)
def averaged_probabilities(seed: int, planted: bool = True) -> Built:
    module = Supervised(ThreeHeads(planted), adam())
    expected = Expected(("output_range",))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


class ThreeHeads(nn.Module):
    """Averages the logits of three heads, or their probabilities."""

    def __init__(self, probabilities: bool) -> None:
        super().__init__()
        self.body = nets.mlp((64, 64, 64, 32), init=nn.init.kaiming_normal_)
        self.heads = nn.ModuleList([nn.Linear(32, 10) for _ in range(3)])
        self.probabilities = probabilities

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x).relu()
        outputs = [head(hidden) for head in self.heads]
        return sum(output.softmax(-1) if self.probabilities else output for output in outputs) / 3  # type: ignore[return-value]


@healthy("MLP", "logarithms of averaged probabilities under the cross entropy: computed twice, and right", reaches=0.85)
def logarithms_of_probabilities(seed: int) -> Built:
    module = Supervised(nn.Sequential(ThreeHeads(True), Logarithm()), adam())
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class Logarithm(nn.Module):
    """The logarithm."""

    def forward(self, x: Tensor) -> Tensor:
        return x.log()


def over_batch(output: Tensor, target: Tensor, dim: int) -> Tensor:
    """The negative log-likelihood under a softmax along a dimension."""
    return F.nll_loss(F.softmax(output, dim=dim).clamp_min(1e-9).log(), target)


@fault("MLP", "a softmax over the batch instead of the classes", reaches=0.8, hurts=None)
def softmax_over_batch(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.mlp(init=nn.init.kaiming_normal_), adam(), partial(over_batch, dim=0 if planted else 1))
    expected = Expected(("softmax_dim",))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


class CausalAttention(nn.Module):
    """Attention written out, with a mask of what comes later, and a softmax over the keys or the queries."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.qkv, self.out, self.dim = nn.Linear(width, 3 * width), nn.Linear(width, width), dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = F.softmax(scores.masked_fill(later, -torch.inf), dim=self.dim)
        return self.out(weights @ v)  # type: ignore[no-any-return]


def with_attention(dim: int) -> nn.Module:
    """The zoo's transformer with this attention."""
    net = nets.Transformer()
    for block in net.blocks:
        block.attention = CausalAttention(block.attention.out.in_features, dim)  # type: ignore[union-attr]
    return net


@fault("transformer", "attention with a softmax over the queries", reaches=0.2, hurts=None)
def softmax_over_queries(seed: int, planted: bool = True) -> Built:
    module = Supervised(with_attention(-2 if planted else -1), adam())
    expected = Expected(("softmax_dim",))
    return Built(module, data.loaders(data.text(), 32, seed), EPOCHS, expected)


class FixedDropout(nn.Module):
    """A dropout by function that knows the mode, or not."""

    def __init__(self, knows: bool) -> None:
        super().__init__()
        self.fc0, self.fc1, self.head, self.knows = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10), knows

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.fc0, self.fc1):
            x = F.dropout(F.relu(layer(x)), 0.5, **({"training": self.training} if self.knows else {}))
        return self.head(x)  # type: ignore[no-any-return]


@fault("MLP", "F.dropout without training=self.training: validation drops half", reaches=0.75, hurts=None)
def dropout_everywhere(seed: int, planted: bool = True) -> Built:
    expected = Expected(("dropout_in_eval",))
    return Built(Supervised(FixedDropout(not planted), adam()), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


class WithoutAutocast(nn.Module):
    """A net inside of autocast(enabled=False), or as it is."""

    def __init__(self, net: nn.Module, disabled: bool) -> None:
        super().__init__()
        self.net, self.disabled = net, disabled

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=not self.disabled):
            return self.net(x.float())  # type: ignore[no-any-return]


@fault("MLP", "bf16-mixed, and a model that switches autocast off", reaches=0.75, hurts=None)
def autocast_off(seed: int, planted: bool = True) -> Built:
    module = Supervised(WithoutAutocast(nets.mlp(init=nn.init.kaiming_normal_), planted), adam())
    expected = Expected(("precision_not_applied",))
    return Built(module, data.loaders(data.digits(), 64, seed), {**EPOCHS, "precision": "bf16-mixed"}, expected)


@fault("transformer", "labels that training_step masks as a whole", reaches=0.15, hurts=broken)
def labels_masked_in_step(seed: int, planted: bool = True) -> Built:
    module = MasksItself(nets.Transformer(), 32 if planted else 16)
    return Built(module, data.loaders(data.text(), 32, seed), EPOCHS, Expected(("labels_ignored", "nonfinite")))


class MasksItself(Supervised):
    """The first characters of a piece are no targets: with the prompt, they were given."""

    def __init__(self, net: nn.Module, masked: int) -> None:
        super().__init__(net, adam())
        self.masked = masked

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        y = y.clone()
        y[:, : self.masked] = -100
        return self.note(self.loss(self.net(x), y))
