"""Outputs of every shape, modules of every kind."""

from __future__ import annotations

import dataclasses
import math
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_hooks import monitors
from tests.support.architectures import ARCHITECTURES, ArchitectureModule, batches_of
from tests.support.models import Classifier, hook_counts, loader, trainer
from tests.support.reference import assert_stats, reference_stats

Pair = namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Record:
    a: Tensor
    note: str
    b: Tensor


class Wrapped(Tensor):
    """A tensor subclass."""


def model_output(a: Tensor, b: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=a, hidden_states=(a, b))


PACKERS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda a, b: (a, b), lambda o: o[0] + o[1]),
    "list": (lambda a, b: [a, b], lambda o: o[0] + o[1]),
    "dict": (lambda a, b: {"a": a, "b": b, "n": 3}, lambda o: o["a"] + o["b"]),
    "namedtuple": (Pair, lambda o: o.a + o.b),
    "dataclass": (lambda a, b: Record(a, "x", b), lambda o: o.a + o.b),
    "model output": (model_output, lambda o: o.last_hidden_state + o.hidden_states[1]),
    "nested": (lambda a, b: {"x": [(a,), {"y": b}], "z": None}, lambda o: o["x"][0][0] + o["x"][1]["y"]),
    "integers next to": (lambda a, b: (a, b, torch.arange(5), torch.ones(3) > 0), lambda o: o[0] + o[1]),
    "complex next to": (lambda a, b: (a, b, torch.complex(a, b)), lambda o: o[0] + o[1]),
    "subclass": (lambda a, b: (a.as_subclass(Wrapped), b), lambda o: (o[0] + o[1]).as_subclass(Tensor)),
}


class Packing(nn.Module):
    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.one, self.two, self.pack = nn.Linear(8, 4), nn.Linear(8, 4), pack

    def forward(self, x: Tensor) -> Any:
        return self.pack(self.one(x), self.two(x))


class WithPacking(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        pack, self.unpack = PACKERS[kind]
        self.packing, self.head = Packing(pack), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.unpack(self.packing(x)))


def fit(net: nn.Module, modules: Any = None, shape: tuple[int, ...] = (8,), optimizer: Any = torch.optim.SGD) -> list[Any]:
    torch.manual_seed(0)
    ours = monitors(modules=modules, every_n_steps=1, summary=False)
    trainer(ours, gradient_clip_val=0.5).fit(Classifier(net, optimizer=optimizer), loader(shape))
    assert not any(callback.faults.errors for callback in ours[:3])
    return [callback.report for callback in ours[:3]]


@pytest.mark.parametrize("kind", PACKERS)
def test_every_container_pools_the_floats_in_it(kind: str) -> None:
    torch.manual_seed(1)
    features, flow, _ = fit(WithPacking(kind), ["net.packing", "net.packing.*"])
    both = features.sites["net.packing"]
    one, two = features.sites["net.packing.one"], features.sites["net.packing.two"]
    assert (both.calls, both.count) == (7, one.count + two.count)
    assert_stats(both, {"mean": (one.mean + two.mean) / 2, "rms": math.sqrt((one.rms**2 + two.rms**2) / 2)})
    assert both.min == min(one.min, two.min)
    whole = flow.modules["net.packing"]
    assert whole.count == flow.modules["net.packing.one"].count * 2
    assert whole.rms == pytest.approx(flow.modules["net.packing.one"].rms, rel=1e-5)


class Gives(nn.Module):
    """Passes its input on, and calls a module whose output is odd."""

    def __init__(self, make: Any) -> None:
        super().__init__()

        class Odd(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return make(x)

        self.odd, self.head = Odd(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.odd(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: None, 0),
        (lambda x: "text", 0),
        (lambda x: x > 0, 0),
        (lambda x: torch.arange(4), 0),
        (lambda x: torch.complex(x, x), 0),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), 0),
        (lambda x: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse(), 2 * 7),
        (lambda x: torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse_csr(), 2 * 7),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged), 16 * 7),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]]), 16 * 7),
    ],
    ids=["None", "text", "bool", "int", "complex", "quantised", "sparse", "csr", "jagged", "nested"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:.*quantiz.*", "ignore:.*nested.*")
def test_statistics_where_there_are_floats_and_quiet_elsewhere(make: Any, expected: int) -> None:
    features, _, _ = fit(Gives(make))
    if expected:
        assert features.sites["net.odd"].count == expected
    else:
        assert features.silent == ("net.odd",)
    assert not [alert for alert in features.alerts if alert.severity != "info"]


def test_keyword_inputs_lazy_and_parametrised_layers_and_odd_names() -> None:
    class Keyword(nn.Module):
        def forward(self, *, x: Tensor) -> Tensor:
            return x * 2.0

    class Everything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keyword, self.lazy = Keyword(), nn.LazyLinear(8)
            self.weighted = parametrizations.weight_norm(nn.Linear(8, 8))
            self.spectral = parametrizations.spectral_norm(nn.Linear(8, 8))
            self.add_module("a/b <c> é", nn.Linear(8, 3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.spectral(self.weighted(self.lazy(self.keyword(x=x))))
            return getattr(self, "a/b <c> é")(x)

    class Once(Classifier):
        def configure_optimizers(self) -> Any:
            self.net(torch.zeros(2, 8))  # lazy layers want one call before the optimizer
            return super().configure_optimizers()

    ours = monitors(every_n_steps=1, summary=False)
    run = trainer(ours)
    run.fit(Once(Everything()), loader())
    expected = ["net.keyword", "net.lazy", "net.weighted", "net.spectral", "net.a/b <c> é"]
    assert list(ours[0].report.sites) == expected
    assert {stats.calls for stats in ours[0].report.sites.values()} == {7}
    assert "features/net.a/b <c> é/mean" in run.callback_metrics
    assert "net.weighted.parametrizations.weight.original0" in ours[1].report.parameters


# Real models


class KeepAll:
    """Plain hooks that keep what every site put out."""

    def __init__(self, net: nn.Module, names: list[str]) -> None:
        self.kept: dict[str, list[Any]] = {name: [] for name in names}
        modules = dict(net.named_modules())
        self.handles = [modules[n].register_forward_hook(self._keep(n)) for n in names]

    def _keep(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            first = output if isinstance(output, Tensor) else None
            if first is not None and first.is_floating_point():
                self.kept[name].append(first.detach().double().numpy().copy())

        return keep


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*fast path.*")
@pytest.mark.parametrize("name", ["BERT", "T5", "Mamba", "CLIP", "UNet"])
def test_real_models(name: str) -> None:
    model = ArchitectureModule(ARCHITECTURES[name])
    ours = monitors(every_n_steps=1, summary=False)
    names = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.LayerNorm | nn.GroupNorm)]
    keep = KeepAll(model, names)
    trainer(ours).fit(model, batches_of(ARCHITECTURES[name], 3))
    assert not any(callback.faults.errors for callback in ours[:3])
    recorded = [n for n in names if n in ours[0].report.sites]
    assert len(recorded) >= 6
    for site in recorded:
        assert_stats(ours[0].report.sites[site], reference_stats(keep.kept[site]), rel=2e-6, context=site)


def test_a_module_that_returns_its_parameter_gathers_no_hooks() -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(8))

        def forward(self) -> Tensor:
            return self.p

    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.head = Prompt(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.prompt())

    model = Classifier(Prompted())
    before = hook_counts(model)
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours).fit(model, loader())
    assert hook_counts(model) == before
    assert ours[1].report.silent == ("net.prompt",)
    assert ours[1].report.parameters["net.prompt.p"].steps == 7
