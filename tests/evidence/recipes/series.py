"""More tables and series: densities, forecasts, memories, categories, rankings, graphs, counts, tags, sounds."""

from __future__ import annotations

from functools import partial
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule
from sklearn import datasets
from torch import Tensor, nn
from torch.distributions import Normal
from torch.optim import Adam, Adamax, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ReduceLROnPlateau
from transformers import ASTConfig, ASTForAudioClassification, PatchTSMixerConfig, PatchTSMixerForPrediction

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_accuracy, hf_loss, mse
from .data import feed, rng, scaled, waves
from .nets import mlp


@fault(
    "densities_before_the_log",
    "Densities are summed before the log and underflow far from the data.",
    "val_loss",
    1.0,
    stable=False,
)
@healthy
def mixture_density_of_an_inverse(stable: bool = True) -> Training:
    def nll(net: Any, batch: Any) -> Tensor:
        weight, mean, spread = net(batch[0]).chunk(3, 1)
        each = weight.log_softmax(1) + Normal(mean, spread.exp(), validate_args=False).log_prob(batch[1])
        return -(each.logsumexp(1) if stable else each.exp().sum(1).log()).mean()

    y = torch.rand(1200, 1, generator=rng())
    x = y + 0.3 * torch.sin(2 * pi * y) + 0.02 * torch.randn(1200, 1, generator=rng(1))
    return fit(mlp(1, 32, 32, 15, act=nn.Tanh), nll, partial(Adam, lr=1e-2), feed(scaled(x), 20 * y, batch=32), 8)


@fault("windows_of_a_shuffled_series", "The series was shuffled before it was cut into windows.", "val_loss", 0.93, mixed=True)
@healthy
def tsmixer_on_waves(mixed: bool = False) -> Training:
    shape = {"num_input_channels": 1, "context_length": 36, "prediction_length": 12, "patch_length": 6, "patch_stride": 6}
    config = PatchTSMixerConfig(**shape, d_model=16, num_layers=2, dropout=0.0, scaling=None)
    fed = feed(batch=32, past_values=waves()[:, :36, None], future_values=waves()[:, 36:, None])
    columns = fed["train_dataloaders"].dataset.columns
    whole = torch.cat(list(columns.values()), 1)
    whole = whole.gather(1, torch.rand(whole.shape, generator=rng()).argsort(1)) if mixed else whole
    columns.update(past_values=whole[:, :36], future_values=whole[:, 36:])
    restarts = partial(CosineAnnealingWarmRestarts, T_0=2)
    return fit(PatchTSMixerForPrediction(config), hf_loss, partial(AdamW, lr=5e-3), fed, 6, None, restarts, "epoch")


class TCN(nn.Module):
    def __init__(self, base: int) -> None:
        super().__init__()
        self.embedding, self.head, self.steps = nn.Embedding(9, 24), nn.Linear(24, 8), [base**i for i in range(5)]
        self.layers = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=step) for step in self.steps)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).mT
        for layer, step in zip(self.layers, self.steps, strict=True):
            x = x + F.relu(layer(F.pad(x, (2 * step, 0))))
        return self.head(x[..., -1])


@fault("no_dilation", "All layers have dilation 1, so that the net sees too few steps.", "val_acc", 0.95, base=1)
@healthy
def tcn_remembers_the_start(base: int = 2) -> Training:
    ids = torch.randint(1, 9, (1200, 32), generator=rng())
    ids[:, :8] = ids[:, :1]
    return fit(TCN(base), cross_entropy, partial(NAdam, lr=4e-3), feed(ids, ids[:, 0] - 1, batch=32), 5, accuracy)


class Stores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.store, self.day, self.rest = nn.Embedding(20, 4), nn.Embedding(7, 3), mlp(9, 32, 32, 1)

    def forward(self, rows: dict[str, Tensor]) -> Tensor:
        return self.rest(torch.cat([self.store(rows["store"]), self.day(rows["day"]), rows["numbers"]], 1))


@fault("missing_is_minus_999", "Missing values are written as -999 and taken for numbers.", "val_loss", 0.35, missing=-999.0)
@healthy
def sales_with_entity_embeddings(missing: float = 0.0) -> Training:
    def error(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch)[:, 0], batch["sales"])

    store, day, numbers = (
        torch.randint(0, 20, (1600,), generator=rng()),
        torch.arange(1600) % 7,
        torch.randn(1600, 2, generator=rng(1)),
    )
    effects = torch.randn(27, generator=rng(2))
    sales = effects[store] + effects[20 + day] * (1 + numbers[:, 0].tanh()) + 0.5 * numbers[:, 1]
    numbers = torch.where(torch.rand(1600, 2, generator=rng(3)) < 0.1, missing, numbers)
    return fit(Stores(), error, partial(Adamax, lr=1e-2), feed(store=store, day=day, numbers=numbers, sales=scaled(sales)), 6)


@fault(
    "penalty_summed_over_the_batch", "The penalty of the factors is a sum over the batch, not a mean.", "val_auc", 1.11, mean=False
)
@healthy
def bpr_ranks_items(mean: bool = True) -> Training:
    def bpr(net: Any, batch: Any) -> Tensor:
        user, good, bad = net["user"](batch[0]), net["item"](batch[1]), net["item"](torch.randint(0, 60, batch[1].shape))
        penalty = (user**2 + good**2 + bad**2).sum(1)
        return -F.logsigmoid((user * (good - bad)).sum(1)).mean() + 0.01 * (penalty.mean() if mean else penalty.sum())

    def auc(net: Any, batch: Any) -> dict[str, Tensor]:
        scores = net["user"](batch[0]) @ net["item"].weight.T
        return {"val_auc": (scores.gather(1, batch[1][:, None]) > scores).float().mean()}

    tastes, kinds = torch.randn(80, 3, generator=rng()), torch.randn(60, 3, generator=rng(1))
    user, item = (tastes @ kinds.T > 1.0).nonzero(as_tuple=True)
    net = nn.ModuleDict({"user": nn.Embedding(80, 8), "item": nn.Embedding(60, 8)})
    for part in net.values():
        nn.init.normal_(part.weight, std=0.1)
    return fit(net, bpr, partial(RMSprop, lr=2e-2), feed(user, item, batch=32), 6, auc)


class GCN(nn.Module):
    def __init__(self, edges: Tensor, x: Tensor, depth: int) -> None:
        super().__init__()
        degree = edges.sum(1).rsqrt()
        self.spread, self.x = degree[:, None] * edges * degree, x
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(depth - 1)] + [nn.Linear(16, 4)])

    def forward(self, nodes: Tensor) -> Tensor:
        x = self.x
        for layer in self.layers[:-1]:
            x = F.relu(layer(self.spread @ x))
        return self.layers[-1](self.spread @ x)[nodes]


@fault("too_many_rounds_of_averaging", "The net has 16 layers, not 2, and all nodes become alike.", "val_acc", 1.0, depth=16)
@healthy
def gcn_on_a_block_graph(depth: int = 2) -> Training:
    group = torch.arange(400) % 4
    edges = (torch.rand(400, 400, generator=rng()) < torch.where(group[:, None] == group, 0.08, 0.02)).float().triu(1)
    x = F.one_hot(group, 16) + torch.randn(400, 16, generator=rng(1))
    net = GCN(edges + edges.T + torch.eye(400), x, depth)
    return fit(net, cross_entropy, partial(Adam, lr=1e-2, weight_decay=5e-4), feed(torch.arange(400), group, batch=16), 6, accuracy)


@fault(
    "seconds_since_1970",
    "Times are seconds since 1970 in single precision, which is 128 seconds wide.",
    "val_loss",
    0.35,
    zero=1_700_000_100,
)
@fault("rate_taken_for_its_log", "poisson_nll_loss takes the predicted rate for its logarithm.", "val_loss", 0.76, log_input=True)
@healthy
def counts_over_five_minutes(log_input: bool = False, zero: int = 0) -> Training:
    def nll(net: Any, batch: Any) -> Tensor:
        return F.poisson_nll_loss(net(batch[0]), batch[1], log_input and net.training)

    seconds, x = torch.randint(0, 86_400, (1600, 1), generator=rng()), torch.randn(1600, 2, generator=rng(1))
    phase = 2 * pi / 300 * (zero + seconds).float()
    rate = torch.exp(0.5 + 1.5 * torch.sin(2 * pi / 300 * seconds) + 0.5 * x[:, :1])
    fed = feed(torch.cat([phase.sin(), phase.cos(), x], 1), torch.poisson(rate, generator=rng(2)), batch=32)
    return fit(nn.Sequential(mlp(4, 32, 32, 1), nn.Softplus()), nll, partial(Adam, lr=3e-3), fed, 5)


@fault("weights_upside_down", "The weight of positives is their odds, not the inverse.", "val_f1", 0.32, power=1)
@healthy
def multilabel_tags(power: int = -1) -> Training:
    def bce(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1], pos_weight=odds**power)

    def f1(net: Any, batch: Any) -> dict[str, Tensor]:
        found = net(batch[0]) > 0
        return {"val_f1": 2 * (found * batch[1]).sum() / (found.sum() + batch[1].sum())}

    x, y = datasets.make_multilabel_classification(1600, n_classes=6, n_labels=1, random_state=0)
    odds = torch.tensor(y.mean(0) / (1 - y.mean(0)))
    fed = feed(scaled(torch.tensor(x, dtype=torch.float32)), torch.tensor(y, dtype=torch.float32), batch=32)
    return fit(mlp(20, 64, 6), bce, partial(Adam, lr=5e-3), fed, 5, f1)


@fault("log_of_silence", "The logarithm of the spectrogram is taken without a floor.", "val_acc", 1.16, floor=0.0)
@healthy
def audio_transformer_on_tones(floor: float = 1e-3) -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    shape: dict[str, Any] = {"num_mel_bins": 16, "max_length": 24, "patch_size": 4, "frequency_stride": 4, "time_stride": 4}
    net = ASTForAudioClassification(ASTConfig(**shape, **size, num_labels=3, initializer_range=0.1))
    kind, low = torch.arange(960) % 3, 4 + 8 * torch.rand(960, 1, generator=rng())
    pitch = low + (kind[:, None] - 1) * torch.linspace(-3, 3, 24)
    power = torch.exp(-((torch.arange(16) - pitch[..., None]) ** 2)) * torch.rand(960, 24, 16, generator=rng(1))
    power[:, 20:] = 0
    fed = feed(input_values=(power + floor).log() / 4 + 1, labels=kind, batch=32)
    return fit(net, hf_loss, partial(AdamW, lr=3e-3), fed, 4, hf_accuracy)


class Plateau(LightningModule):
    """A regression whose rate falls when the validation loss no longer does."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.net, self.mode = mlp(2, 64, 64, 1, act=nn.SiLU), mode

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        loss = mse(self.net, batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", mse(self.net, batch))

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = Adam(self.parameters(), lr=3e-3)
        schedule = ReduceLROnPlateau(optimizer, self.mode, factor=0.1, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


@fault("plateau_of_a_rising_loss", "ReduceLROnPlateau waits for a higher validation loss.", "val_loss", 0.85, mode="max")
@healthy
def surface_with_a_plateau(mode: str = "min") -> Training:
    x = 4 * torch.rand(1200, 2, generator=rng()) - 2
    y = torch.sin(2 * x[:, :1]) * x[:, 1:] + 0.05 * torch.randn(1200, 1, generator=rng(1))
    return Training(Plateau(mode), feed(x, scaled(y), batch=64), {"max_epochs": 16})
