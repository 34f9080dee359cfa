"""What is limited apart from the cost of a step: an epoch's end, memory, and a step that is not sampled."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from lightning_hooks import monitors
from tests.benchmarks import epoch_end, sites
from tests.benchmarks.own_time import own_time
from tests.benchmarks.workloads import WORKLOADS

NEVER = 10**6
"""A stride by which the first step alone is sampled."""


def measure_limits(modules: int = 1000, steps: int = 40) -> dict[str, dict[str, Any]]:
    """By key: the value measured, what it is of, its unit and its limit (None for none)."""
    with contextlib.redirect_stderr(None):
        end = epoch_end.measure(modules, "none")
    found = {
        "epoch_end": _entry(f"an epoch's end at {modules} modules", 1e3 * end["later"], "ms", 100),
        "memory": _entry(f"memory held, a module (of {modules})", sites.kept_bytes(modules, 8) / (modules + 1) / 1e3, "kB", 6),
    }
    for key, clip, limit in (("other_step", None, 120), ("other_step_clipped", 1.0, None)):
        times = own_time(WORKLOADS["digits"], lambda: monitors(every_n_steps=NEVER), steps, clip)
        label = "a step that is not sampled, small CNN" + (", and gradients are read because they are clipped" if clip else "")
        found[key] = _entry(label, 1e6 * float(np.median(times.steps[3:])), "µs", limit)
    for entry in found.values():
        limit = "" if entry["limit"] is None else f" (limit {entry['limit']})"
        print(f"  {entry['label']}: {entry['value']:.2f} {entry['unit']}{limit}", flush=True)
    return found


def _entry(label: str, value: float, unit: str, limit: float | None) -> dict[str, Any]:
    return {"label": label, "value": value, "unit": unit, "limit": limit}
