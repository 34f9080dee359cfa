"""What is measured: the monitors together and alone, the floors, and the peers."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from lightning_hooks import AttentionMonitor, FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, monitors
from lightning_hooks.statistics.kernels import kernels_for
from tests.benchmarks.peers import FLOORS, PEERS


@contextlib.contextmanager
def without_native() -> Iterator[None]:
    """Read tensors with torch's kernels, as with ``LIGHTNING_HOOKS_NATIVE=0`` in the environment of the process."""
    before = os.environ.get("LIGHTNING_HOOKS_NATIVE")
    os.environ["LIGHTNING_HOOKS_NATIVE"] = "0"
    kernels_for.cache_clear()
    try:
        yield
    finally:
        os.environ.pop("LIGHTNING_HOOKS_NATIVE")
        if before is not None:
            os.environ["LIGHTNING_HOOKS_NATIVE"] = before
        kernels_for.cache_clear()


@dataclass(frozen=True)
class Row:
    """A line of the tables.

    Attributes:
        label: What it is called.
        make: Makes its callbacks.
        stride: Every how many steps they sample.
        within: What its fits run in.
        needs: A package that it needs.
    """

    label: str
    make: Callable[[], Sequence[Any]]
    stride: int = 1
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    needs: str = ""

    @property
    def available(self) -> bool:
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def _alone(kind: Callable[..., Any], **options: Any) -> Callable[[], Sequence[Any]]:
    return lambda: [kind(**options)]


ROWS: dict[str, Row] = {
    "default": Row("the monitors, default (every tenth step)", monitors, 10),
    "every": Row("the monitors, every step", lambda: monitors(every_n_steps=1)),
    "default-native0": Row("default, without the C library", monitors, 10, without_native),
    "native0": Row("every step, without the C library", lambda: monitors(every_n_steps=1), 1, without_native),
    "features": Row("FeatureStatsMonitor alone, every step", _alone(FeatureStatsMonitor, every_n_steps=1)),
    "features-modules": Row("… with functional=False", _alone(FeatureStatsMonitor, every_n_steps=1, functional=False)),
    "gradients": Row("GradientFlowMonitor alone, every step", _alone(GradientFlowMonitor, every_n_steps=1)),
    "clipping": Row("GradientClipMonitor alone", _alone(GradientClipMonitor)),
    "attention": Row("AttentionMonitor alone, every step", _alone(AttentionMonitor, every_n_steps=1)),
    **{key: Row(label, _alone(kind)) for key, (label, kind) in FLOORS.items()},
    **{key: Row(label, _alone(kind), needs=needs) for key, (label, kind, needs) in PEERS.items()},
}
LONG = ("default", "every", "default-native0", "native0", "nothing", "five-items", "fastai", "wandb")
"""The rows of a workload whose fits take long."""
SHORT = ("default", "every")
