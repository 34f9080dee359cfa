"""Tensors of every kind, and what each kernel reads of them; run as a program, since a wrong read ends the process."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

VALUES = [[1.0, -2.0, 0.0, 4.0], [0.5, 3.0, -1.0, 2.0]]
UNREADABLE = "unreadable"
FREED = "freed"


def _values(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(VALUES, dtype=dtype)


class Tagged(Tensor):
    """A subclass with memory of its own."""


class Dispatching(Tensor):
    """A subclass with memory of its own, whose operations are the class's."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


class Wrapping(Tensor):
    """A subclass without memory of its own, around another tensor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        self = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(function(*(arg.inner if isinstance(arg, cls) else arg for arg in args), **(kwargs or {})))


def _freed(values: Tensor) -> Tensor:
    (values if values._base is None else values._base).untyped_storage().resize_(0)
    return values


def _inference() -> Tensor:
    with torch.inference_mode():
        return _values()


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(2, 4)


def _negative() -> Tensor:
    return torch.complex(torch.zeros(2, 4), -_values()).conj().imag


KINDS: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "float32": (_values, VALUES),
    "float64": (lambda: _values(torch.float64), VALUES),
    "bfloat16": (lambda: _values(torch.bfloat16), VALUES),
    "float16": (lambda: _values(torch.float16), VALUES),
    "parameter": (lambda: nn.Parameter(_values()), VALUES),
    "computed": (lambda: nn.Parameter(_values()) * 1, VALUES),
    "transposed": (lambda: _values().t().contiguous().t(), VALUES),
    "with gaps": (lambda: torch.cat((_values(), _values()), 1)[:, :4], VALUES),
    "offset": (lambda: torch.cat((_values(), _values()))[2:], VALUES),
    "expanded": (lambda: _values()[:1].expand(2, 4), VALUES[:1] * 2),
    "inference": (_inference, VALUES),
    "zeros": (lambda: torch._efficientzerotensor((2, 4)), [[0.0] * 4] * 2),  # type: ignore[attr-defined]
    "negative": (_negative, VALUES),
    "empty": (lambda: torch.empty(0, 4), FREED),
    "freed": (lambda: _freed(_values()), FREED),
    "view of freed": (lambda: _freed(torch.cat((_values(), _values()))[2:]), FREED),
    "subclass": (lambda: _values().as_subclass(Tagged), VALUES),
    "dispatching subclass": (lambda: _values().as_subclass(Dispatching), VALUES),
    "wrapping subclass": (lambda: Wrapping(_values()), UNREADABLE),
    "fake": (_fake, UNREADABLE),
    "meta": (lambda: torch.empty(2, 4, device="meta"), UNREADABLE),
    "sparse": (lambda: _values().to_sparse(), [value for row in VALUES for value in row if value]),
    "compressed": (lambda: _values().to_sparse_csr(), [value for row in VALUES for value in row if value]),
    "nested": (lambda: torch.nested.nested_tensor([_values()[:1], _values()[1:]]), VALUES),
    "ragged": (lambda: torch.nested.nested_tensor([_values()[0, :3], _values()[1]]), VALUES[0][:3] + VALUES[1]),
    "jagged": (lambda: torch.nested.nested_tensor([_values()[:1], _values()[1:]], layout=torch.jagged), VALUES),
    "mkldnn": (lambda: _values().to_mkldnn(), VALUES),
}
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda y: f(y).sum()))(x),
}


def entries(tensor: Tensor) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Each way a tensor gets to a kernel, with what is read there."""
    from lightning_hooks.diagnostics.features.table import FeatureTable
    from lightning_hooks.diagnostics.gradients.tables import GradientArrival, GradientTable
    from lightning_hooks.diagnostics.residual_stream.table import ResidualTable
    from lightning_hooks.hooks.tensors import plain_values
    from lightning_hooks.statistics.histograms import HistogramTable
    from lightning_hooks.statistics.kernels import kernels_for
    from lightning_hooks.statistics.kernels.host import HostKernels
    from lightning_hooks.statistics.kernels.plain import Kernels
    from lightning_hooks.statistics.rows import Clock, Column

    def of_row(row: Tensor) -> dict[str, float]:
        return {name: float(row[Column[name.upper()]]) for name in ("count", "mean", "min", "max", "norm")}

    def feature(module: nn.Module) -> dict[str, float]:
        net = nn.Sequential(nn.Linear(4, 4), module)
        table = FeatureTable([("0", net[0]), ("1", module)], net)
        table.histograms = HistogramTable([0, 1], ["0", "1"])
        table.add(1, (tensor,), tensor)
        counted = {"counted": float(table.histograms.counts.sum())} if table.rows[1, Column.COUNT] else {}
        return of_row(table.rows[1]) | counted

    def gradient() -> dict[str, float]:
        table = GradientTable(["0"])
        GradientArrival(table, 0)(tensor)
        return of_row(table.rows[0])

    def residual() -> dict[str, float]:
        table = ResidualTable([("0", nn.Linear(4, 4))], "cpu", Clock())
        table.add(0, (tensor,), tensor)
        return of_row(table._rows[0])

    yield "feature", lambda: feature(nn.Identity())
    yield "rectifier", lambda: feature(nn.ReLU())
    yield "sigmoid", lambda: feature(nn.Sigmoid())
    yield "gelu", lambda: feature(nn.GELU())
    yield "gradient", gradient
    yield "residual", residual
    for kernels in (kernels_for("cpu"), HostKernels(), Kernels()):

        def norms(kernels: Kernels = kernels) -> dict[str, float]:
            found = kernels.norms([tensor], zeros=True)
            return {"norm": float(found.norms[0]), "count": float(found.sizes[0])}

        def updates(kernels: Kernels = kernels) -> dict[str, float]:
            found = kernels.updates(kernels.sample([tensor], (1,)), [tensor], (1,))
            return {"moved": float(found[0, 0]), "norm": float(found[1, 0])}

        def stream(kernels: Kernels = kernels) -> dict[str, float]:
            values = plain_values(tensor)
            if values.dim() < 2 or not values.numel():
                return {}
            return {"norm": math.sqrt(float(kernels.stream(values, values, 1)[0].sum()))}

        yield f"norms ({type(kernels).__name__})", norms
        yield f"updates ({type(kernels).__name__})", updates
        yield f"stream ({type(kernels).__name__})", stream


def read(tensor: Tensor) -> dict[str, Any]:
    """What is read of a tensor, by entry; the name of the error where it raises one."""
    found: dict[str, Any] = {}
    for entry, function in entries(tensor):
        try:
            with torch.no_grad():
                found[entry] = function()
        except Exception as error:  # noqa: BLE001
            found[entry] = type(error).__name__ if "UnreadableError" in type(error).__name__ else f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    """Print a line for each kind."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for kind, (make, _) in KINDS.items():
        print(json.dumps([kind, read(make())]), flush=True)
    for kind, transform in TRANSFORMS.items():
        seen: dict[str, Any] = {}

        def look(x: Tensor, seen: dict[str, Any] = seen) -> Tensor:
            from lightning_hooks.hooks.tensors import UnreadableError, in_memory, plain_values

            seen["in memory"] = in_memory(x)
            try:
                plain_values(x)
            except UnreadableError:
                seen["plain"] = UNREADABLE
            return x * 2

        transform(look, _values())
        print(json.dumps([kind, seen]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
