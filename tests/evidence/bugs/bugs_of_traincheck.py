"""The bugs that TrainCheck (OSDI 2025) collected and that can live in a Lightning training, each with its twin."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.evidence.bugs.cases import Built, Expected, Recipe, bug
from tests.evidence.bugs.parts import EPOCHS, ByHand, Cnn, Digits, Encoder, adam, digits, mlp
from tests.evidence.faults import data

# Nothing trains, or not all.


@bug(
    "discuss.pytorch.org/t/obtaining-abnormal-changes-in-loss-and-accuracy/84911",
    "all but the batch norms is frozen, then the head too, and the optimizer holds only the head",
)
def frozen_head_in_the_optimizer(planted: bool = True) -> Built:
    net = Cnn()
    for module in net.body:
        module.requires_grad_(isinstance(module, nn.BatchNorm2d))
    net.head.requires_grad_(not planted)

    def optimizers(module: Any) -> Any:
        held = net.head.parameters() if planted else [p for p in net.parameters() if p.requires_grad]
        return torch.optim.Adam(held, lr=2e-3)

    return Built(
        Digits(net, optimizers), digits(image=True), EPOCHS, Expected(("not_optimized", "not_updated", "update_too_small"))
    )


class NotZeroed(ByHand):
    """Does not call ``zero_grad``, or does."""

    def __init__(self, net: nn.Module, zeroes: bool) -> None:
        super().__init__(net)
        self.zeroes = zeroes

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        if self.zeroes:
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


@bug("stackoverflow.com/q/60335387", "a loop without zero_grad")
def zero_grad_forgotten(planted: bool = True) -> Built:
    return Built(NotZeroed(mlp(), not planted), digits(), EPOCHS, Expected(("not_zeroed",)))


class StopsStepping(torch.optim.Adam):
    """From some step on it updates what was captured when it was compiled, a copy that nobody uses."""

    captured_at: int | None = None
    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if self.captured_at is None or self.steps <= self.captured_at:
            return super().step(closure)
        groups = self.param_groups
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        loss = super().step(closure)
        with torch.no_grad():
            for group, kept in zip(groups, before, strict=True):
                for parameter, value in zip(group["params"], kept, strict=True):
                    parameter.copy_(value)
        return loss


@bug("pytorch/pytorch#115607", "a compiled optimizer step that updates nothing from some step on")
def compiled_step_updates_nothing(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        optimizer = StopsStepping(module.parameters(), lr=2e-3)
        optimizer.captured_at = 29 if planted else None
        return optimizer

    expected = Expected(("not_updated", "update_too_small"), None, batch=29, epoch=1)
    return Built(Digits(mlp(), optimizers), digits(), {"max_epochs": 3}, expected)


class SkipsStrided(torch.optim.Adam):
    """Writes the new values into a contiguous copy of each weight, as a fused kernel on MPS did."""

    def step(self, closure: Any = None) -> Any:
        strided = [p for group in self.param_groups for p in group["params"] if not p.is_contiguous()]
        before = [p.detach().clone() for p in strided]
        loss = super().step(closure)
        with torch.no_grad():
            for parameter, value in zip(strided, before, strict=True):
                parameter.copy_(value)
        return loss


@bug(
    "elanapearl.github.io/blog/2025/the-bug-that-taught-me-pytorch",
    "an optimizer that never updates weights that are not contiguous",
)
def strided_weight_not_updated(planted: bool = True) -> Built:
    encoder, decoder = nn.Linear(64, 32), nn.Linear(32, 64)
    encoder.weight.data = decoder.weight.data.T.clone()  # keeps the strides of the transpose
    net = nn.Sequential(encoder, nn.ReLU(), decoder)
    kind = SkipsStrided if planted else torch.optim.Adam
    module = Recipe(net, lambda net, batch: F.mse_loss(net(batch[0]), batch[0]), lambda m: kind(m.parameters(), lr=2e-3))
    loaders = {"train_dataloaders": digits()["train_dataloaders"]}
    return Built(module, loaders, EPOCHS, Expected(("not_updated",), ("net.0*",)))


# Modes and precision.


@bug("pytorch/pytorch#51800", "a net with spectral norm in eval mode from the start: its power iteration never runs")
def spectral_norm_in_eval_mode(planted: bool = True) -> Built:
    layers = [nn.utils.spectral_norm(nn.Linear(64, 64)), nn.ReLU(), nn.utils.spectral_norm(nn.Linear(64, 64)), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(64, 10))
    net.train(not planted)
    return Built(Digits(net), digits(), EPOCHS, Expected(("eval_mode",), ("net", "net.*")))


class Stages(nn.Module):
    """A body of stages, the first of which are frozen by ``train``."""

    def __init__(self, frozen_stages: int) -> None:
        super().__init__()
        self.frozen_stages = frozen_stages
        widths = (1, 16, 16, 16)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairwise(widths)
        )

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        for stage in self.stages[: self.frozen_stages]:
            stage.eval()
            stage.requires_grad_(False)
        return self


@bug(
    "open-mmlab/mmpretrain#702",
    "stages that only train() freezes, and nobody calls it",
    missed="frozen_stages is an attribute of one family of libraries",
)
def frozen_stages_train(planted: bool = True) -> Built:
    body = Stages(2)
    net = nn.Sequential(body, nn.Linear(16, 10))
    if not planted:
        net.train()
    return Built(Digits(net), digits(image=True), EPOCHS, Expected(("settings",), ("net.0*",)))


@bug("huggingface/transformers#33844", "attention whose dropout does not look at self.training")
def attention_drops_in_evaluation(planted: bool = True) -> Built:
    net = Encoder(always=planted)
    return Built(Digits(net, adam(1e-3)), digits(), EPOCHS, Expected(("dropout_in_eval",), ("net.blocks*",)))


class WithoutAutocast(nn.Module):
    """Runs a module out of autocast, as operations that a compiler took over did."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.module(x.float())


@bug("Lightning-AI/lightning-thunder#725", "autocast that reaches a part of the operations only")
def autocast_in_part(planted: bool = True) -> Built:
    net = mlp(width=96)
    if planted:
        net[2] = WithoutAutocast(net[2])
    kwargs = {**EPOCHS, "precision": "bf16-mixed"}
    return Built(Digits(net), digits(), kwargs, Expected(("precision_not_applied",)))


# Data and initialisation.


class DrawnPatches(Dataset[Any]):
    """Each item is drawn at random, by NumPy."""

    def __init__(self) -> None:
        self.x, self.y, _, _ = data.digits()

    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> Any:
        chosen = np.random.randint(len(self.x))  # noqa: NPY002
        noise = np.random.randn(64)  # noqa: NPY002
        return self.x[chosen] + 0.05 * torch.from_numpy(noise).float(), self.y[chosen]


def same_seed(worker: int) -> None:
    """For ``worker_init_fn``: what PyTorch did before 1.9 for NumPy."""
    np.random.seed(0)  # noqa: NPY002


@bug("stackoverflow.com/q/67180955", "loader workers with the same NumPy seed: each draws the same samples", processes=1)
def workers_draw_the_same_samples(planted: bool = True) -> Built:
    train = DataLoader(DrawnPatches(), 32, num_workers=3, worker_init_fn=same_seed if planted else None)
    return Built(Digits(mlp()), {"train_dataloaders": train}, EPOCHS, Expected(("batch_repeated",)))


class Noised(Dataset[Any]):
    """An image, noise that is drawn for it, and how much of it there is."""

    def __init__(self) -> None:
        self.x = data.digits()[0]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        noise, level = np.random.randn(64), np.random.rand(1)  # noqa: NPY002
        return self.x[index], torch.from_numpy(noise).float(), torch.from_numpy(level).float()


def predict_noise(net: Any, batch: Any) -> Tensor:
    """The loss of a denoiser."""
    image, noise, level = batch
    return F.mse_loss(net(torch.cat(((1 - level) * image + level * noise, level), 1)), noise)


@bug("pytorch/pytorch#5059", "loader workers with the same NumPy seed: different images, the same noise", processes=1)
def workers_draw_the_same_noise(planted: bool = True) -> Built:
    train = DataLoader(Noised(), 32, shuffle=True, drop_last=True, num_workers=2, worker_init_fn=same_seed if planted else None)
    module = Recipe(mlp(64, 65), predict_noise, adam())
    return Built(module, {"train_dataloaders": train}, EPOCHS, Expected(("batch_repeated",)))


class Scan(nn.Module):
    """A simple selective state space: each head's state decays by a step size that its input and a bias set."""

    def __init__(self, heads: int = 8, width: int = 4, ones: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(heads * width, heads * width + heads)
        step = torch.exp(torch.empty(heads).uniform_(-6.9, -2.3))
        self.dt_bias = nn.Parameter(torch.ones(heads) if ones else step + torch.log(-torch.expm1(-step)))
        self.a_log = nn.Parameter(torch.log(torch.arange(1.0, heads + 1)))
        self.out = nn.Linear(heads * width, heads * width)

    def forward(self, x: Tensor) -> Tensor:
        values, step = self.inputs(x).split((x.shape[-1], self.heads), -1)
        step = F.softplus(step + self.dt_bias)
        decay = torch.exp(-step * self.a_log.exp())
        state, outputs = torch.zeros_like(values[:, 0].unflatten(-1, (self.heads, -1))), []
        for t in range(x.shape[1]):
            state = decay[:, t, :, None] * state + step[:, t, :, None] * values[:, t].unflatten(-1, (self.heads, -1))
            outputs.append(state.flatten(1))
        return x + self.out(torch.stack(outputs, 1))


class StateSpace(nn.Module):
    """Two such layers over the rows of a digit."""

    def __init__(self, ones: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.layers = nn.ModuleList(Scan(ones=ones) for _ in range(2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.view(-1, 8, 8))
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, -1])


@bug(
    "fla-org/flash-linear-attention#739",
    "Mamba-2's time-step bias initialised with ones",
    missed="one bias of one layer, known by its name alone",
)
def time_step_bias_of_ones(planted: bool = True) -> Built:
    return Built(Digits(StateSpace(planted)), digits(), EPOCHS, Expected(("poor_init",), ("net.layers.*",)))
