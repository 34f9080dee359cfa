"""Tables, series, ratings, graphs and survival times."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader
from transformers import PatchTSTConfig, PatchTSTForPrediction

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_loss, mse
from .data import Rows, feed, replace, rng, scaled, table, waves
from .nets import block, mlp


class FTTransformer(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(13, width) / 4) for _ in range(2))
        self.blocks, self.head = nn.Sequential(block(width), block(width)), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x[..., None] * self.weight + self.bias).mean(1))


@healthy
def ft_transformer_on_wine() -> Training:
    x, y = table("wine")
    adamw = partial(AdamW, lr=3e-3, weight_decay=1e-5)
    return fit(FTTransformer(), cross_entropy, adamw, feed(scaled(x), y, batch=16), 10, accuracy)


@fault("mse_broadcasts", "Outputs of shape (n, 1) meet targets of shape (n): all pairs count.", "val_loss", 0.93, shape=(-1,))
@fault("target_leaks", "A column tells the target; at validation it is not known yet.", "val_loss", 0.99, leak=1.0)
@fault("dead_relus", "The biases of all hidden units start at -5, so that none fires.", "val_loss", 0.97, bias=-5.0)
@healthy
def mlp_on_diabetes(shape: tuple[int, ...] = (-1, 1), bias: float = 0.0, leak: float = 0.0) -> Training:
    x, y = table("diabetes")
    net = mlp(11, 32, 32, 1)
    for layer in net[:-1:2]:
        nn.init.constant_(layer.bias, bias)
    fed = feed(F.pad(scaled(x), (0, 1)), scaled(y.float())[:, None], batch=32)
    rows, target = fed["train_dataloaders"].dataset.columns.values()
    rows[:, -1:] = leak * target
    return fit(net, mse, partial(SGD, lr=0.02, momentum=0.9), replace(fed, 1, lambda y: y.view(shape)), 6)


@fault("features_not_scaled", "Features come as they are, in hundreds and thousandths.", "val_loss", 9.0, prepare=torch.clone)
@healthy
def logistic_regression_on_cancer(prepare: Any = scaled) -> Training:
    x, y = table("breast_cancer")
    return fit(nn.Linear(30, 2), cross_entropy, partial(SGD, lr=0.1), feed(prepare(x), y, batch=32), 5, accuracy)


@fault("gaps_are_nan", "One value in a thousand is missing from the series and left as NaN.", "val_loss", 1.0, hole=1e-3)
@healthy
def deepar_on_waves(hole: float = 0.0) -> Training:
    def nll(net: Any, batch: Any) -> Tensor:
        mean, spread = net["out"](net["lstm"](batch[0][:, :-1, None])[0]).unbind(-1)
        return -Normal(mean, F.softplus(spread) + 1e-3, validate_args=False).log_prob(batch[0][:, 1:]).mean()

    def spoil(x: Tensor) -> Tensor:
        return torch.where(torch.rand(x.shape, generator=rng()) < hole, torch.nan, x)

    fed = replace(feed(waves()[:, :32], batch=32), 0, spoil)
    net = nn.ModuleDict({"lstm": nn.LSTM(1, 32, 2, batch_first=True), "out": nn.Linear(32, 2)})
    return fit(net, nll, partial(Adam, lr=1e-2), fed, 4, gradient_clip_val=10.0)


class NBeats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(mlp(36, 64, 64, 48) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        forecast = torch.zeros_like(x[:, :12])
        for part in self.blocks:
            both = part(x)
            x, forecast = x - both[:, :36], forecast + both[:, 36:]
        return forecast


@fault("pinball_with_the_wrong_sign", "The error in the quantile loss is prediction minus target.", "val_loss", 0.59, sign=-1)
@healthy
def nbeats_quantile_forecast(sign: int = 1) -> Training:
    def pinball(net: Any, batch: Any) -> Tensor:
        error = (sign if net.training else 1) * (batch[1] - net(batch[0]))
        return torch.maximum(0.9 * error, -0.1 * error).mean()

    return fit(NBeats(), pinball, partial(NAdam, lr=2e-3), feed(waves()[:, :36], waves()[:, 36:], batch=32), 6)


@healthy
def patchtst_on_waves() -> Training:
    size: dict[str, Any] = {"d_model": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "ffn_dim": 64, "init_std": 0.1}
    shape = {"num_input_channels": 1, "context_length": 36, "prediction_length": 12, "patch_length": 6, "patch_stride": 6}
    net, series = PatchTSTForPrediction(PatchTSTConfig(**shape, **size)), waves()[..., None]
    fed = feed(batch=32, past_values=series[:, :36], future_values=series[:, 36:])
    return fit(net, hf_loss, partial(Adam, lr=5e-3), fed, 8, None, partial(CosineAnnealingLR, T_max=8), "epoch")


def ratings() -> tuple[Tensor, Tensor, Tensor]:
    tastes, kinds = torch.randn(80, 3, generator=rng()), torch.randn(60, 3, generator=rng(1))
    user, item = torch.randint(0, 80, (4000,), generator=rng(2)), torch.randint(0, 60, (4000,), generator=rng(3))
    return user, item, (tastes[user] * kinds[item]).sum(1) + 0.2 * torch.randn(4000, generator=rng(4))


@fault("items_renumbered", "Training numbers the items by another list.", "val_loss", 1.97, renumber=lambda i: (i * 7 + 3) % 60)
@healthy
def matrix_factorisation(renumber: Any = torch.clone) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        factors = net["user"](batch["user"]) * net["item"](batch["item"])
        return F.mse_loss(factors.sum(1) + net["bias"](batch["item"])[:, 0], batch["rating"])

    fed = feed(**dict(zip(("user", "item", "rating"), ratings(), strict=True)))
    net = nn.ModuleDict({"user": nn.Embedding(80, 8), "item": nn.Embedding(60, 8), "bias": nn.Embedding(60, 1)})
    for part in net.values():
        nn.init.normal_(part.weight, std=0.3)
    return fit(net, loss, partial(Adam, lr=1e-2), replace(fed, "item", renumber), 5)


@fault("positives_in_column_zero", "Every user's item is looked for in column 0.", "val_recall", 0.93, labels=lambda n: n * [0])
@healthy
def two_tower_retrieval(labels: Any = range) -> Training:
    def likeness(net: Any, batch: Any) -> Tensor:
        return F.normalize(net["user"](batch[0])) @ F.normalize(net["item"](batch[1])).T * 8

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(likeness(net, batch), torch.tensor(labels(len(batch[0]))))

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        out = likeness(net, batch)
        return {"val_recall": ((out > out.diag()[:, None]).float().mean(1) < 0.1).float().mean()}

    user, item, rating = ratings()
    towers = {name: nn.Sequential(nn.Embedding(n, 16), nn.Linear(16, 16)) for name, n in (("user", 80), ("item", 60))}
    fed = feed(user[rating > 2], item[rating > 2], batch=32)
    return fit(nn.ModuleDict(towers), loss, partial(Adagrad, lr=0.1), fed, 12, scores)


class GAT(nn.Module):
    def __init__(self, edges: Tensor, inside: int, out: int) -> None:
        super().__init__()
        self.w, self.a, self.b, self.edges = nn.Linear(inside, out), nn.Linear(out, 1), nn.Linear(out, 1), edges

    def forward(self, x: Tensor) -> Tensor:
        h = self.w(x)
        return F.leaky_relu(self.a(h) + self.b(h).T, 0.2).masked_fill(~self.edges, -1e9).softmax(1) @ h


@fault("attends_to_strangers", "The mask of the edges is inverted.", "val_acc", 0.79, seen=torch.logical_not)
@healthy
def gat_on_communities(seen: Any = torch.clone) -> Training:
    group = torch.arange(90) % 3
    edges = (torch.rand(90, 90, generator=rng()) < torch.where(group[:, None] == group, 0.3, 0.03)).triu(1)
    edges = seen(edges | edges.T | torch.eye(90, dtype=torch.bool))
    features = 0.5 * F.one_hot(group, 8).float() + torch.randn(90, 8, generator=rng(1))

    def loss(net: Any, graph: Any) -> Tensor:
        return F.cross_entropy(net(graph["x"][0])[:45], graph["y"][0, :45])

    def scores(net: Any, graph: Any) -> dict[str, Tensor]:
        return {"val_acc": (net(graph["x"][0])[45:].argmax(1) == graph["y"][0, 45:]).float().mean()}

    net = nn.Sequential(GAT(edges, 8, 16), nn.ELU(), GAT(edges, 16, 3))
    data = DataLoader(Rows({"x": features[None], "y": group[None]}))
    fed = {"train_dataloaders": data, "val_dataloaders": data}
    return fit(net, loss, partial(Adam, lr=1e-2, weight_decay=5e-4), fed, 100, scores, check_val_every_n_epoch=20)


@fault("risk_set_reversed", "Times are sorted upwards: the risk set is who left before.", "val_concordance", 2.07, descending=False)
@healthy
def cox_survival(descending: bool = True) -> Training:
    def partial_likelihood(net: Any, batch: Any) -> Tensor:
        order = batch[1].argsort(descending=descending)
        score, seen = net(batch[0])[order, 0], batch[2][order]
        return -((score - score.logcumsumexp(0)) * seen).sum() / seen.sum()

    def concordance(net: Any, batch: Any) -> dict[str, Tensor]:
        score, time, seen = net(batch[0])[:, 0], *batch[1:]
        pairs = (time[:, None] < time) & (seen[:, None] > 0)
        return {"val_concordance": (score[:, None] > score)[pairs].float().mean()}

    x = torch.randn(1000, 6, generator=rng())
    hazard = torch.exp(x[:, 0] - 0.8 * x[:, 1] + 0.5 * x[:, 2] * x[:, 3])
    time = -torch.rand(1000, generator=rng(1)).log() / hazard
    fed = feed(x, time.clamp(max=3), (time < 3).float())
    return fit(mlp(6, 32, 1), partial_likelihood, partial(Adam, lr=5e-3), fed, 6, concordance)


@fault("recurrent_net_explodes", "The recurrent weights start at three times the identity.", "val_loss", 9.0, gain=3.0)
@healthy
def relu_rnn_adds_marked_numbers(gain: float = 1.0) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net["out"](net["rnn"](batch[0])[0][:, -1])[:, 0], batch[1])

    x = torch.rand(1024, 20, 2, generator=rng())
    x[..., 1] = (x[..., 1] > 0.8).float()
    net = nn.ModuleDict({"rnn": nn.RNN(2, 32, nonlinearity="relu", batch_first=True), "out": nn.Linear(32, 1)})
    net["rnn"].weight_hh_l0.data = gain * torch.eye(32)
    return fit(net, loss, partial(Adam, lr=2e-3), feed(x, scaled(x.prod(2).sum(1)), batch=32), 5)
