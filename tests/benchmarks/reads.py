"""What reading the tensors of a sampled step takes, next to PyTorch's ``sum`` of the same tensors, the least that a read takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor

from lightning_hooks import monitors
from lightning_hooks.statistics.kernels import kernels_for
from tests.benchmarks.fits import fit
from tests.benchmarks.workloads import Workload


class Reads:
    """Counts the tensors that kernels read, and times the reads or, before each of them, a ``sum`` of the tensor."""

    def __init__(self, sums: bool) -> None:
        self.sums = sums
        self.tensors, self.bytes, self.seconds = 0, 0, 0.0

    def state(self) -> tuple[int, int, float]:
        return self.tensors, self.bytes, self.seconds

    def around(self, read: Callable[..., Any], tensors_of: Callable[..., list[Tensor]]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = tensors_of(*args)
            self.tensors += len(tensors)
            self.bytes += sum(tensor.nbytes for tensor in tensors)
            begin = time.thread_time()
            if self.sums:
                for tensor in tensors:
                    tensor.detach().sum()
            else:
                found = read(*args, **kwargs)
            self.seconds += time.thread_time() - begin
            return read(*args, **kwargs) if self.sums else found

        return call


def _read(workload: Workload, first: int, steps: int, sums: bool) -> tuple[float, float, float]:
    """Tensors, bytes and seconds of a sampled step after the first ones."""
    reads, kernels = Reads(sums), kernels_for("cpu")
    marks: list[tuple[int, int, float]] = []

    def at_start() -> float:
        marks.append(reads.state())
        return 0.0

    given: dict[str, Callable[..., list[Tensor]]] = {
        "record": lambda table, index, values, *_: [values],
        "stream": lambda out, entered, *_: [tensor for tensor in (out, entered) if tensor is not None],
        "norms": lambda tensors, *_: [*tensors],
    }
    timed = {name: reads.around(getattr(kernels, name), tensors_of) for name, tensors_of in given.items()}
    with patch.multiple(kernels, **timed):
        fit(workload, partial(monitors, every_n_steps=1), first + steps, at_start)
    before, after = marks[first + 1], marks[first + steps]  # the first mark is the fit's
    tensors, size, seconds = ((b - a) / (steps - 1) for a, b in zip(before, after, strict=True))
    return tensors, size, seconds


def measure_reads(workload: Workload, first: int, steps: int) -> dict[str, Any]:
    """What a sampled step reads.

    Args:
        workload: What is trained.
        first: Steps at the start that do not count.
        steps: How many count.
    """
    tensors, size, seconds = _read(workload, first, steps, sums=False)
    *_, summed = _read(workload, first, steps, sums=True)
    found = {"tensors": tensors, "mb": size / 1e6, "ms": 1e3 * seconds, "sum_ms": 1e3 * summed}
    print(
        f"  a sampled step reads {tensors:.0f} tensors, {found['mb']:.1f} MB, in {found['ms']:.2f} ms; torch's sum of the same "
        f"tensors takes {found['sum_ms']:.2f} ms",
        flush=True,
    )
    return found
