"""On equals off, bit for bit, for every module of torch.nn, every reparametrisation, and modules whose reads have an effect."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_hooks import TrainingMonitor
from lightning_hooks.hooks import float_tensors
from tests.support.models import trainer
from tests.support.reference import same_state
from tests.support.torch_modules import CASES, module_classes, reads_draw


class Called(pl.LightningModule):
    """Calls each of its modules in each step; the loss is the sum of the means of what they return."""

    def __init__(self, modules: dict[str, nn.Module], arguments: dict[str, tuple[Any, ...] | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({f"{name}_": module for name, module in modules.items()})
        self.arguments = arguments
        self.scale = nn.Parameter(torch.ones(()))
        self.means: dict[str, list[Tensor]] = {name: [] for name in modules}

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.scale * batch.mean()
        for name, given in self.arguments.items():
            if given is not None:
                first = given[0] * self.scale if given[0].is_floating_point() else given[0]
                for found in float_tensors(self.parts[f"{name}_"](first, *given[1:])):
                    self.means[name].append(found.detach().mean())
                    loss = loss + found.mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fit(build: Callable[[], Called], on: bool, precision: Any = "32-true", **options: Any) -> tuple[Called, tuple[Any, ...]]:
    seed_everything(7, verbose=False)
    model = build()
    callbacks = [TrainingMonitor(every_n_steps=1, summary=False, **options)] if on else []
    trainer(callbacks, precision=precision).fit(model, DataLoader(torch.randn(3, 4), batch_size=None))
    return model, (torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state()))  # noqa: NPY002


def assert_unaltered(build: Callable[[], Called], precision: Any = "32-true", **options: Any) -> None:
    (without, state), (monitored, state_with) = fit(build, False, precision), fit(build, True, precision, **options)
    for name, means in without.means.items():
        assert torch.stack(means).isfinite().all() if means else without.arguments[name] is None, name
        assert list(map(float, monitored.means[name])) == list(map(float, means)), name
    assert same_state(monitored, without)
    assert state_with == state


def every_module(change: Callable[[nn.Module], nn.Module] = lambda module: module) -> Called:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of classes that torch keeps for old code
        modules = {name: change(case.build()) for name, case in CASES.items()}
    return Called(modules, {name: case.arguments for name, case in CASES.items()})


def test_no_class_is_forgotten() -> None:
    assert CASES.keys() == module_classes().keys()


def test_every_module() -> None:
    assert_unaltered(every_module)


def test_modules_whose_attributes_draw_when_they_are_read() -> None:
    assert_unaltered(lambda: every_module(reads_draw))


class Noise(nn.Module):
    """Weight noise, as of variational layers."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + 0.01 * torch.randn_like(weight)


class Factors(nn.Linear):
    """A linear layer without a weight: its matrix is a product."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        del self.weight
        self.left, self.right = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.randn(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.left @ self.right, self.bias)


class Drawn(nn.Linear):
    """A linear layer whose weight is a property that draws, and that draws for names that it does not know."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.mean = self._parameters.pop("weight")

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.mean + 0.1 * torch.randn(8, 8)

    def __getattr__(self, name: str) -> Any:
        torch.rand(1)
        return super().__getattr__(name)


class Hidden(nn.Module):
    """Keeps its layers in a list that draws when it is searched; two have no numbers."""

    class Lazy(list[nn.Module]):
        def __iter__(self) -> Any:
            torch.rand(1)
            return super().__iter__()

    def __init__(self) -> None:
        super().__init__()
        with FakeTensorMode():
            fake = linear()
        self.layers = self.Lazy([linear(), nn.Linear(8, 8, device="meta"), fake])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


@dataclass
class Answer:
    values: Tensor
    sampled: Tensor | None = None


class DrawnAnswer(Answer):
    """An output one field of which is drawn when it is read."""

    sampled = property(lambda answer: answer.values + torch.rand(1), lambda answer, value: None)


class Answers(nn.Linear):
    def forward(self, x: Tensor) -> Any:
        return DrawnAnswer(super().forward(x))


def linear() -> nn.Linear:
    return nn.Linear(8, 8)


def noisy(module: nn.Module, name: str) -> nn.Module:
    parametrize.register_parametrization(module, name, Noise())
    return module


def globally_pruned() -> nn.Module:
    layer = linear()
    prune.global_unstructured([(layer, "weight"), (layer, "bias")], prune.L1Unstructured, amount=0.3)
    return layer


REPARAMETRISED: dict[str, Callable[[], nn.Module]] = {
    "spectral_norm": lambda: parametrizations.spectral_norm(linear()),
    "weight_norm": lambda: parametrizations.weight_norm(linear()),
    "orthogonal": lambda: parametrizations.orthogonal(linear()),
    **{
        f"orthogonal_{kind}": partial(lambda kind: parametrizations.orthogonal(linear(), orthogonal_map=kind), kind)
        for kind in ("matrix_exp", "cayley", "householder")
    },
    "orthogonal_without_base": lambda: parametrizations.orthogonal(linear(), use_trivialization=False),
    "spectral_norm of a convolution": lambda: parametrizations.spectral_norm(nn.Conv1d(4, 4, 3)),
    "old spectral_norm": lambda: torch.nn.utils.spectral_norm(linear()),
    "old weight_norm": lambda: torch.nn.utils.weight_norm(linear()),
    "noise": lambda: noisy(linear(), "weight"),
    "noise on a bias": lambda: noisy(linear(), "bias"),
    "noise twice": lambda: noisy(noisy(linear(), "weight"), "weight"),
    "noise after spectral_norm": lambda: noisy(parametrizations.spectral_norm(linear()), "weight"),
    "noise on a norm": lambda: noisy(nn.LayerNorm(8), "weight"),
    "noise on a slope": lambda: noisy(nn.PReLU(), "weight"),
    "noise on running means": lambda: noisy(nn.BatchNorm1d(8), "running_mean"),
    "noise on an embedding": lambda: noisy(nn.Embedding(8, 4), "weight"),
    "noise on attention": lambda: noisy(nn.MultiheadAttention(8, 2), "in_proj_weight"),
    "random_unstructured": lambda: prune.random_unstructured(linear(), "weight", 0.3),
    "l1_unstructured": lambda: prune.l1_unstructured(linear(), "weight", 0.3),
    "random_structured": lambda: prune.random_structured(linear(), "weight", 0.3, 0),
    "ln_structured": lambda: prune.ln_structured(linear(), "weight", 0.3, 2, 0),
    "custom_from_mask": lambda: prune.custom_from_mask(linear(), "bias", torch.tensor([1.0, 0.0] * 4)),
    "identity": lambda: prune.identity(linear(), "weight"),
    "global_unstructured": globally_pruned,
    "no weight": Factors,
    "a weight that is drawn": Drawn,
    "a list that draws": Hidden,
    "an output that draws": lambda: Answers(8, 8),
    "lazy": lambda: nn.LazyLinear(8),
}


def test_no_parametrization_is_forgotten() -> None:
    functions = {name for name, one in vars(prune).items() if getattr(one, "__module__", "") == prune.__name__ and name.islower()}
    functions = {name for name in functions if not name.startswith("_")} - {"is_pruned", "remove"}
    assert {*parametrizations.__all__, *functions} <= REPARAMETRISED.keys()


class Cached(Called):
    """Computes parametrised weights once a step."""

    @override
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        with parametrize.cached():
            return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", [Called, Cached])
def test_every_parametrization(kind: type[Called], precision: str) -> None:
    def build() -> Called:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch.nn.utils.weight_norm
            modules = {name: made() for name, made in REPARAMETRISED.items()}
        x = torch.randn(4, 8)
        arguments: dict[str, Any] = dict.fromkeys(modules, (x,))
        others = {"noise on an embedding": (torch.arange(4),), "noise on attention": (x, x, x)}
        return kind(modules, arguments | others)

    assert_unaltered(build, precision=precision)
