"""Parameters and buffers with whose values torch does not compute: they are left out, and training is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, TrainingMonitor
from tests.support.models import Classifier, trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse|The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:torch.quantize|.*quantized|ComplexHalf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Wrapping(Tensor):
    """A subclass around another tensor that has no operator but ``detach``, as those of quantised weights have few."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self, **_: Any) -> str:
        return "Wrapping()"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        raise NotImplementedError(f"no {function}")


_OF_A_TRAINER = (
    *("__get__", "__set__", "detach", "requires_grad_", "to", "cpu", "numel", "is_floating_point", "is_complex"),
    "_has_compatible_shallow_copy_type",
)


class Closed(Tensor):
    """A subclass whose functions raise, but for what a Trainer calls."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in _OF_A_TRAINER:
            return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        raise ValueError(f"no {name}")


def _stored(name: str) -> Tensor:
    dtype: torch.dtype = getattr(torch, name)
    try:
        return torch.ones(4, 4).to(dtype)
    except (RuntimeError, NotImplementedError):
        return torch.zeros(4, 16, dtype=torch.uint8).view(dtype)


def _freed() -> Tensor:
    values = torch.ones(4, 4)
    values.untyped_storage().resize_(0)
    return values


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(4, 4)


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4, 4)


_NAMES = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
    *("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "complex32", "uint16", "uint32", "uint64"),
    *(f"{kind}{size}" for kind in ("int", "uint") for size in range(1, 8)),
)
STORED: dict[str, Callable[[], Tensor]] = {
    name: lambda name=name: _stored(name)  # type: ignore[misc]
    for name in _NAMES
    if hasattr(torch, name)
}
FORMS: dict[str, Callable[[], Tensor]] = {
    "sparse_coo": lambda: torch.eye(4).to_sparse(),
    "sparse_csr": lambda: torch.eye(4).to_sparse_csr(),
    "sparse_csc": lambda: torch.eye(4).to_sparse_csc(),
    "sparse_bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "sparse_bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "Wrapping": lambda: Wrapping(torch.ones(4, 4)),
    "Closed": lambda: torch.ones(4, 4).as_subclass(Closed),
    "qint8": lambda: torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8),
    "FakeTensor": _fake,
}
COMPUTED: dict[str, Callable[[], Tensor]] = {
    "complex64": lambda: torch.ones(4, 4, dtype=torch.complex64),
    "int64": lambda: torch.ones(4, 4, dtype=torch.int64),
    "bool": lambda: torch.ones(4, 4, dtype=torch.bool),
    "inference": _inference,
    "conjugate": lambda: torch.ones(4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(4, dtype=torch.complex64).conj().imag,
    "expanded": lambda: torch.ones(1).expand(4, 4),
    "empty": lambda: torch.empty(0),
    "freed": _freed,
}
MONITORS: dict[str, Callable[[], Any]] = {
    "all": lambda: TrainingMonitor(every_n_steps=1, summary=False),
    "features": lambda: FeatureStatsMonitor(every_n_steps=1, summary=False),
    "gradients": lambda: GradientFlowMonitor(every_n_steps=1, summary=False),
    "clipping": lambda: GradientClipMonitor(summary=False),
}


class Odd(nn.Module):
    """Holds tensors and computes nothing with them, so that training is that of a model without them."""

    def __init__(self, **values: Tensor) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


class Holder(Classifier):
    """A classifier with a module of odd tensors before its last layer, that are not in the optimizer."""

    def __init__(self, odd: Odd, nan_at: int = -1) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(8, 8), odd, nn.ReLU(), nn.Linear(8, 3)))
        self.nan_at = nan_at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * (batch[0].sum() * math.inf) if batch_idx == self.nan_at else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([*self.net[0].parameters(), *self.net[3].parameters()], lr=0.01)


def weights(model: Holder) -> list[Tensor]:
    return [p.detach().clone() for layer in (model.net[0], model.net[3]) for p in layer.parameters()]


def batches() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(TensorDataset(torch.randn(24, 8, generator=generator), torch.arange(24) % 3), batch_size=8)


@pytest.fixture(scope="module")
def alone() -> list[Tensor]:
    """The weights of a training without monitors, and without odd tensors."""
    model = Holder(Odd())
    trainer().fit(model, batches())
    return weights(model)


def _held(make: Callable[[], Tensor]) -> Odd:
    odd = Odd()
    if make is not _fake:  # torch refers to them weakly, so that a Trainer cannot move one that is a parameter
        odd = Odd(scale=make())
    odd.register_buffer("state", make())
    return odd


@pytest.mark.parametrize(
    "name", [*(name for name in ("float8_e5m2", "bits8", "uint16", "int4") if name in STORED), *FORMS, *COMPUTED]
)
def test_training_with_them_is_the_same(name: str, alone: list[Tensor]) -> None:
    """Warnings are errors here, so that none of ours is given."""
    model, monitor = Holder(_held({**STORED, **FORMS, **COMPUTED}[name])), MONITORS["all"]()
    trainer([monitor]).fit(model, batches())
    assert all(map(torch.equal, weights(model), alone))
    assert monitor.features.sites["net.3"].count == 24 * 3
    assert {"net.0.weight", "net.3.weight"} <= set(monitor.gradients.parameters)


@pytest.mark.parametrize("kind", MONITORS)
def test_each_monitor_leaves_all_of_them_out(kind: str, alone: list[Tensor]) -> None:
    odd = Odd(**{name: make() for name, make in STORED.items() if name.startswith("float")}, sparse_coo=FORMS["sparse_coo"]())
    for name, make in (STORED | FORMS | COMPUTED).items():
        odd.register_buffer(f"buffer_{name}", make())
    model = Holder(odd)
    trainer([MONITORS[kind]()]).fit(model, batches())
    assert all(map(torch.equal, weights(model), alone))


def test_a_step_is_run_again_where_they_are_held() -> None:
    odd = _held(STORED["float8_e4m3fn"])
    for name, make in (STORED | FORMS | COMPUTED).items():
        odd.register_buffer(f"buffer_{name}", make())
    found: list[Any] = []
    model = Holder(odd, nan_at=1)
    before = odd.state.view(torch.uint8).clone()
    trainer([TrainingMonitor(every_n_steps=1, summary=False, on_alert=found.append)]).fit(model, batches())
    alert = next(alert for alert in found if alert.severity == "critical")
    assert alert.title == "Mul of inf", [str(a) for a in found]
    assert torch.equal(odd.state.view(torch.uint8), before)


def test_steps_are_measured_where_they_are_held(alone: list[Tensor]) -> None:
    model, monitor = Holder(_held(STORED["float8_e5m2"])), TrainingMonitor(every_n_steps=1, summary=False, learning=True)
    trainer([monitor]).fit(model, batches())
    assert all(map(torch.equal, weights(model), alone))
    assert monitor.learning.gain is not None


class Counting(Odd):
    """Counts its calls in a buffer with whose values torch does not compute."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.state.view(torch.uint8).add_(1)
        return super().forward(x)


@pytest.mark.parametrize("name", ["float8_e5m2", "uint4", "bits8"])
def test_what_a_step_changes_in_them_is_put_back(name: str) -> None:
    if name not in STORED:
        pytest.skip(f"this torch has no {name}")
    states = []
    for learning in ("auto", True):
        odd = Counting()
        odd.register_buffer("state", torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name)))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("lightning_hooks.replay.measure.copy.deepcopy", lambda pair: pair)  # torch copies no uint4
            trainer([TrainingMonitor(every_n_steps=1, summary=False, learning=learning)]).fit(Holder(odd), batches())
        states.append(odd.state.view(torch.uint8).tolist())
    assert states == [[3] * 4] * 2
