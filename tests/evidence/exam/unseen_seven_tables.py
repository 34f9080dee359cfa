"""Healthy trainings on tables and small numbers: likelihoods, trees, splines, doubt."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adamw, scheduled
from tests.evidence.exam.texts import batches
from tests.evidence.exam.unseen_seven_parts import Scored, adam, friedman, halves, mlp, sgd, table


class TableBlock(nn.Module):
    """A residual block of the ResNet for tables."""

    def __init__(self, width: int) -> None:
        super().__init__()
        parts = (nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * width, width))
        self.branch = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


@healthy("torch", "a ResNet for tables tells benign from malign, the rarer class weighs more, AdamW")
def tumours_by_table_resnet() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        rarer = torch.tensor(1.7)
        return F.binary_cross_entropy_with_logits(net(batch[0])[:, 0], 1 - batch[1].float(), pos_weight=rarer)

    net = nn.Sequential(nn.Linear(30, 48), TableBlock(48), TableBlock(48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 1))
    return Built(Scored(net, loss, adamw(1e-3, 1e-5)), halves(32, *table("breast_cancer")), {"max_epochs": 15}, Expected())


class WideAndDeep(nn.Module):
    """A linear model of crossed columns beside an MLP over embeddings of each column."""

    def __init__(self, columns: int = 8, levels: int = 10) -> None:
        super().__init__()
        self.levels = levels
        self.wide = nn.Embedding((columns - 1) * levels**2, 1)
        self.deep = nn.Embedding(columns * levels, 8)
        self.layers = mlp(8 * columns, 64, 32, 1)
        nn.init.zeros_(self.wide.weight)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        crossed = ids[:, :-1] * self.levels + ids[:, 1:] + places[:-1] * self.levels**2
        wide = self.wide(crossed).sum((1, 2))
        return wide + self.layers(self.deep(ids + places * self.levels).flatten(1))[:, 0]


class TwoOptimizers(Recipe):
    """The wide part and the deep part have an optimizer each."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of_batch(self.net, batch)
        both: Any = self.optimizers()
        for one in both:
            one.zero_grad()
        self.manual_backward(loss)
        for one in both:
            one.step()
        return {"loss": loss.detach()}


@healthy("torch", "wide and deep: crossed columns under SGD beside embeddings under Adagrad, which clicks follow")
def clicks_wide_and_deep() -> Built:
    x, y = make_classification(6000, 8, n_informative=5, n_redundant=1, class_sep=1.2, random_state=0)
    ids = (torch.tensor(x).argsort(0).argsort(0) * 10 // len(x)).long()

    def optimizers(module: Any) -> Any:
        deep = [*module.net.deep.parameters(), *module.net.layers.parameters()]
        return [torch.optim.SGD(module.net.wide.parameters(), 0.5), torch.optim.Adagrad(deep, 0.03)]

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1].float())

    return Built(TwoOptimizers(WideAndDeep(), loss, optimizers), batches(64, ids, torch.tensor(y)), {"max_epochs": 3}, Expected())


@healthy(
    "torch", "how often drivers have accidents: a Poisson likelihood with the time insured as offset, a rate that decays an epoch"
)
def claims_by_exposure() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 6, generator=generator)
    exposure = 0.1 + 0.9 * torch.rand(4000, generator=generator)
    counts = torch.poisson(exposure * (0.8 * x[:, 0] - 0.6 * x[:, 1] * x[:, 2].sign() - 0.5).exp(), generator=generator)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.poisson_nll_loss(net(batch[0])[:, 0] + batch[1].log(), batch[2])

    optimizers = scheduled(adam(5e-3), lambda chosen: torch.optim.lr_scheduler.ExponentialLR(chosen, 0.8), "epoch")
    return Built(
        Scored(mlp(6, 32, 32, 1, act=nn.Softplus), loss, optimizers), halves(64, x, exposure, counts), {"max_epochs": 5}, Expected()
    )


class Ranks(nn.Module):
    """CORAL: one score and four thresholds."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(mlp(10, 32, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))
        self.thresholds = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.thresholds


@healthy("torch", "CORAL: five ranks of a patient's progress by one score and four thresholds, AMSGrad")
def progress_in_ranks() -> Built:
    x, y = table("diabetes")
    ranks = torch.bucketize(y, y.quantile(torch.tensor([0.2, 0.4, 0.6, 0.8])))

    def loss(net: Any, batch: Any) -> Tensor:
        above = (batch[1][:, None] > torch.arange(4)).float()
        return F.binary_cross_entropy_with_logits(net(batch[0]), above)

    return Built(Scored(Ranks(), loss, adam(3e-3, amsgrad=True)), halves(16, x, ranks), {"max_epochs": 10}, Expected())


class Evidence(Recipe):
    """A Dirichlet distribution over classes, whose misleading evidence is penalised more and more."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        alpha = F.softplus(self.net(batch[0])) + 1
        total, truth = alpha.sum(1, keepdim=True), F.one_hot(batch[1], 10)
        chance = alpha / total
        fit = ((truth - chance) ** 2 + chance * (1 - chance) / (total + 1)).sum(1)
        wrong = truth + (1 - truth) * alpha
        of_wrong = torch.distributions.Dirichlet(wrong)
        excess = torch.distributions.kl_divergence(of_wrong, torch.distributions.Dirichlet(torch.ones_like(wrong)))
        return (fit + min(1.0, self.global_step / 300) * 0.1 * excess).mean()


@healthy("torch", "evidential digits: squared error under a Dirichlet, a divergence that grows over 300 steps, Adam with L2")
def digits_with_evidence() -> Built:
    x, y = digits(8)
    module = Evidence(mlp(64, 96, 10), None, adam(2e-3, weight_decay=1e-4))
    return Built(module, in_batches(32, x.flatten(1), y), {"max_epochs": 4}, Expected())


@healthy("torch", "a number and how sure: Gaussian likelihood with a weight of variance to the half (beta-NLL), dropout stays on")
def friedman_with_width() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        mean, width = net(batch[0]).unbind(-1)
        variance = F.softplus(width) + 1e-4
        return (variance.detach() ** 0.5 * F.gaussian_nll_loss(mean, batch[1], variance, reduction="none")).mean()

    net = nn.Sequential(
        nn.Linear(10, 64), nn.SiLU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.SiLU(), nn.Dropout(0.05), nn.Linear(64, 2)
    )
    return Built(Scored(net, loss, adam(3e-3)), halves(64, *friedman()), {"max_epochs": 12}, Expected())


class Doubtful(nn.Module):
    """A linear layer whose weights are drawn anew for each batch."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(after, before) / math.sqrt(before))
        self.width = nn.Parameter(torch.full((after, before), -4.0))
        self.bias = nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mean + F.softplus(self.width) * torch.randn_like(self.mean), self.bias)

    def excess(self) -> Tensor:
        """The divergence from a Gaussian of deviation 0.3."""
        deviation = F.softplus(self.width)
        return (math.log(0.3) - deviation.log() + (deviation**2 + self.mean**2) / 0.18 - 0.5).sum()


@healthy("torch", "kinds of wine by Bayes by backprop: weights have means and widths, their divergence is a share of the loss")
def wine_bayes_by_backprop() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1]) + 1e-3 * (net[0].excess() + net[2].excess())

    net = nn.Sequential(Doubtful(13, 24), nn.ReLU(), Doubtful(24, 3))
    return Built(Recipe(net, loss, adam(5e-3)), batches(16, *table("wine")), {"max_epochs": 25}, Expected())


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold net: a curve of hats for each pair of an input and an output, beside a SiLU."""

    def __init__(self, before: int, after: int, reach: float = 2.0, knots: int = 9) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-reach, reach, knots))
        self.reach = 2 * reach / (knots - 1)
        self.curves = nn.Parameter(0.1 * torch.randn(after, before * knots) / math.sqrt(before))
        self.base = nn.Linear(before, after)

    def forward(self, x: Tensor) -> Tensor:
        hats = F.relu(1 - (x[..., None] - self.knots).abs() / self.reach)
        return F.linear(hats.flatten(1), self.curves) + self.base(F.silu(x))


@healthy("torch", "Friedman's function by a Kolmogorov-Arnold net of hats, an absolute penalty on its curves, AdamW")
def friedman_by_splines() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        penalty = net[0].curves.abs().mean() + net[1].curves.abs().mean()
        return F.mse_loss(net(batch[0])[:, 0], batch[1]) + 0.01 * penalty

    net = nn.Sequential(Splines(10, 12, 1.0), Splines(12, 1))
    return Built(Scored(net, loss, adamw(1e-2, 1e-4)), halves(64, *friedman()), {"max_epochs": 10}, Expected())


class DeepKernel(nn.Module):
    """A Gaussian process over what an MLP makes of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.features = mlp(10, 32, 2, act=nn.Tanh)
        self.scale, self.noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.scale.exp() * torch.exp(-torch.cdist(self.features(x), self.features(x)).square() / 0.5)
        return kernel + (self.noise.exp() + 1e-4) * torch.eye(len(x))


@healthy("torch", "deep kernel learning: the marginal likelihood of a Gaussian process over an MLP, two rates, double precision")
def friedman_deep_kernel() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        process = torch.distributions.MultivariateNormal(torch.zeros_like(batch[1]), net(batch[0]))
        return -process.log_prob(batch[1]) / len(batch[1])

    def optimizers(module: Any) -> Any:
        others = [module.net.scale, module.net.noise]
        return torch.optim.Adam([{"params": module.net.features.parameters(), "lr": 1e-3}, {"params": others, "lr": 1e-2}])

    x, y = friedman()
    return Built(
        Recipe(DeepKernel(), loss, optimizers),
        batches(100, x.double(), y.double()),
        {"max_epochs": 10, "precision": "64-true"},
        Expected(),
    )


class SoftTree(nn.Module):
    """A tree of depth four: each fork is a sigmoid, each leaf a distribution over classes."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.depth, self.forks = depth, nn.Linear(64, 2**depth - 1)
        self.leaves = nn.Parameter(0.1 * torch.randn(2**depth, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.sigmoid(self.forks(x))
        reached, balance = torch.ones(len(x), 1), torch.zeros(())
        for level in range(self.depth):
            here = right[:, 2**level - 1 : 2 ** (level + 1) - 1]
            share = (here * reached).sum(0) / reached.sum(0)
            balance = balance - 0.5 * 2.0**-level * (share.log() + (1 - share).log()).sum()
            reached = torch.stack((reached * (1 - here), reached * here), -1).flatten(1)
        return reached, balance


@healthy("torch", "a soft decision tree of sixteen leaves for digits, with a penalty that keeps its forks even, Adam")
def digits_soft_tree() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        reached, balance = net(batch[0])
        return -(reached * F.log_softmax(net.leaves, -1)[:, batch[1]].T).sum(1).mean() + 0.1 * balance

    x, y = digits(8)
    return Built(Recipe(SoftTree(), loss, adam(1e-2)), in_batches(64, x.flatten(1), y), {"max_epochs": 12}, Expected())


@healthy("torch", "softmax regression of digits, one linear layer that starts at 0, SGD without momentum")
def digits_softmax_regression() -> Built:
    x, y = digits(8)
    net = nn.Linear(64, 10)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1]) + 1e-4 * net.weight.square().sum()

    return Built(Scored(net, loss, sgd(0.05, 0.0)), halves(32, x.flatten(1), y), {"max_epochs": 5}, Expected())
