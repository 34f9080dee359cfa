"""What the monitors cost: whole fits with and without them in turn, and the microseconds inside their code.

python -m tests.benchmarks.overhead [--quick] [--workloads digits …] [--rows every default …] [--parts fits own …] [--json FILE]

*Whole fits.* A row is measured by fits off, on, off, on …: a new model and new callbacks each time, the same seed and data. Time is
the CPU time of the process, with one thread for torch; a second pass takes the wall time with as many threads as torch takes by
itself. The times at which steps start are noted by a callback that does nothing else, so that one fit gives what a step costs and
what the start and the end of training cost, which the difference of two lengths of fits gives with more noise. The first steps do
not count for a step: PyTorch warms up, and the monitors look at everything in their first sampled batches. They count for the
start. Where fits take long, the default settings are nine steps of a fit that samples none and one of a fit that samples all. Of
steps at the same place of repeated fits the low quartile is taken, with and without: other work on the machine only adds to a time.
The quartile of the ratios of pairs would not do: the more a machine is disturbed, the less it would say that we cost. The spread is
what the quartiles of these ratios say.

*Microseconds inside* are those of ``own_time.py``: what figures under 2 % are held by.

``--parts``: ``fits`` (CPU time), ``wall`` (of the most important rows), ``own`` (microseconds inside, of a sampled step, another
one, a first look, and of start and end), ``reads`` (what is read of tensors, and how long it takes), ``counts`` (operations, waits
for the device, dispatches to our function modes), ``capabilities`` (what each takes of a sampled step), ``off`` (also what is saved
without each) and ``limits`` (``limits.py``).
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from lightning_hooks import kernels, monitors
from tests.benchmarks.capabilities import CAPABILITIES, prices
from tests.benchmarks.fits import FitTimes, by_place, clock_of, fit
from tests.benchmarks.limits import measure_limits
from tests.benchmarks.own_time import dispatches, own_time
from tests.benchmarks.reads import measure_reads
from tests.benchmarks.rows import LONG, ROWS, SHORT, Row
from tests.benchmarks.tables import code_hash, commit
from tests.benchmarks.workloads import NAMES, WORKLOADS, Workload

FIRST = 16
"""Sampled steps at the start of a fit that do not count: the first ones are recorded in detail, later ones each sixteenth (and
the calls of all modules in each tenth)."""
FIRST_OFF = 3
"""Steps that do not count where none is sampled."""
NEVER = 10**6
"""A stride by which the first step alone is sampled."""
MANY = 50
"""Steps from which on a workload is a fast one: its fits with the default settings are long enough for a whole period."""
PARTS = ("fits", "own", "reads", "counts", "capabilities", "off", "wall", "limits")
MAIN = ("digits", "resnet", "transformer")
"""The workloads of the README's table, of which everything is measured."""
WALL = ("default", "every")
"""The rows that are measured in wall time too."""
QUICK = ("default", "every", "native0")


def parts_of(name: str, short: bool) -> Sequence[str]:
    """What is measured of a workload unless it is asked for."""
    if short and not is_fast(WORKLOADS[name]):
        return ["own"]  # one pair of long fits says nothing
    if short or name not in MAIN:
        return ["fits", "own"]
    return [part for part in PARTS if part not in ("off", "limits")]  # turned off one by one they take too long for too little


def rows_of(name: str, short: bool) -> Sequence[str]:
    """The rows that are measured of a workload unless they are asked for."""
    return QUICK if short else list(ROWS) if name == "digits" else LONG if name in MAIN else SHORT


def is_fast(workload: Workload) -> bool:
    """Whether fits with the default settings are measured as they are, over whole periods of the sampling."""
    return workload.steady >= MANY


def measure_row(workload: Workload, row: Row, wall: bool = False) -> dict[str, Any]:
    """Fits without and with the callbacks of a row, in turn."""
    clock = clock_of(workload, wall)
    first, steady = (FIRST_OFF, 3) if row.stride == NEVER else (FIRST * row.stride, workload.steady)
    # A process goes on warming up for some hundred milliseconds: where that is many steps, the same ones are compared.
    first_off, steady_off = (first, steady) if is_fast(workload) else (FIRST_OFF, 3)
    off, on = [], []
    with row.within():
        for _ in range(workload.pairs):
            off.append(fit(workload, list, first_off + steady_off, clock))
            on.append(fit(workload, row.make, first + steady, clock))
    without, having = by_place(off), by_place(on)
    step_off, step_on = float(np.mean(without.steps[first_off:])), float(np.mean(having.steps[first:]))
    ratios = [np.mean(b.steps[first:]) / np.mean(a.steps[first_off:]) for a, b in zip(off, on, strict=True)]
    at_first = sum(having.steps[:first]) - first * step_on - sum(without.steps[:first_off]) + first_off * step_off
    return {
        "percent": 100 * (step_on / step_off - 1),
        "quartiles": [100 * (float(q) - 1) for q in np.quantile(ratios, (0.25, 0.5, 0.75))],
        "us": 1e6 * (step_on - step_off),
        "step_ms": 1e3 * step_off,
        "start_ms": 1e3 * (having.start - without.start + at_first),
        "end_ms": 1e3 * (having.end - step_on - without.end + step_off),
        "pairs": workload.pairs,
    }


def by_default(unsampled: dict[str, Any], sampled: dict[str, Any]) -> dict[str, Any]:
    """The default settings, of fits that sample no step and fits that sample every step: one in ten is sampled."""
    mixed = {key: (9 * unsampled[key] + sampled[key]) / 10 for key in ("percent", "us")}
    quartiles = [(9 * a + b) / 10 for a, b in zip(unsampled["quartiles"], sampled["quartiles"], strict=True)]
    return {**unsampled, **mixed, "quartiles": quartiles}


def measure_fits(workload: Workload, rows: Sequence[str], wall: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in sorted(rows, key=lambda key: ROWS[key].stride):
        row = ROWS[key]
        if row.stride == 1 or is_fast(workload):
            found[key] = measure_row(workload, row, wall)
        else:
            every = key.replace("default-", "").replace("default", "every")
            if every not in found:
                found[every] = measure_row(workload, ROWS[every], wall)
            never = replace(row, make=lambda: monitors(every_n_steps=NEVER), stride=NEVER)
            found[key] = by_default(measure_row(workload, never, wall), found[every])
        entry = found[key]
        low, _, high = entry["quartiles"]
        print(
            f"  {ROWS[key].label:44}{entry['percent']:+7.1f} %   pairs {low:+.1f} … {high:+.1f} %{entry['us']:+10.0f} µs a step of "
            f"{entry['step_ms']:.2f} ms; start {entry['start_ms']:+.0f} ms, end {entry['end_ms']:+.0f} ms",
            flush=True,
        )
    return found


def measure_own(workload: Workload, rows: Sequence[str]) -> dict[str, Any]:
    """Microseconds inside the package, of rows with and without the C library."""
    found = {}
    for key, row in (("c", ROWS["every"]), ("torch", ROWS["native0"])):
        if key == "torch" and not {"native0", "default-native0"} & set(rows):
            continue
        steady, repeats = min(workload.steady, 40), min(workload.pairs, 3)
        plain_steps = FIRST_OFF + (steady if is_fast(workload) else 3)
        taken: list[list[FitTimes]] = [[], [], []]
        with row.within():
            for _ in range(repeats):  # in turn: a step without us is measured while the machine has the same other work
                taken[0].append(fit(workload, list, plain_steps))
                taken[1].append(own_time(workload, lambda: monitors(every_n_steps=1), FIRST + steady))
                taken[2].append(own_time(workload, lambda: monitors(every_n_steps=NEVER), plain_steps))
        plain, sampled, other = map(by_place, taken)
        step, another = (1e6 * float(np.mean(times.steps[FIRST_OFF:])) for times in (plain, other))
        a_sampled = 1e6 * float(np.mean(sampled.steps[FIRST:]))
        found[key] = {
            "sampled": a_sampled,
            "other": another,
            "default": (a_sampled + 9 * another) / 10,
            "step_ms": step / 1e3,
            "percent": {"every": 100 * a_sampled / step, "default": 10 * (a_sampled + 9 * another) / step},
            "first_looks": 1e6 * float(np.mean(sampled.steps[1:FIRST])),
            "start_ms": 1e3 * sampled.start,
            "end_ms": 1e3 * (sampled.end - a_sampled / 1e6),
        }
        entry = found[key]
        print(
            f"  inside our code ({key}): {entry['sampled']:.0f} µs a sampled step, {entry['other']:.0f} another, "
            f"{entry['default']:.0f} by default; {entry['first_looks']:.0f} a first look; start {entry['start_ms']:.0f} ms, "
            f"end {entry['end_ms']:.0f} ms; of a step of {step / 1e3:.2f} ms {entry['percent']['every']:.1f} % at every step, "
            f"{entry['percent']['default']:.1f} % by default",
            flush=True,
        )
    return found


def measure_counts(workload: Workload) -> dict[str, Any]:
    """Per step, over a fit without callbacks: waits of the host, operations (on CUDA kernels), and calls of our function modes."""
    nothing = _operations(workload, list, FIRST_OFF, 2)
    found = {}
    for key, stride, first, steps in (("sampled", 1, FIRST, 16), ("other", NEVER, FIRST_OFF, 2)):
        make = lambda stride=stride: monitors(every_n_steps=stride)  # noqa: E731
        syncs, operations = (there - here for there, here in zip(_operations(workload, make, first, steps), nothing, strict=True))
        every, own = dispatches(workload, make, first, steps)
        found[key] = {"syncs": syncs, "operations": operations, "dispatches": every, "own_dispatches": own}
        print(
            f"  {'a sampled step' if stride == 1 else 'another step'}: {syncs:.0f} syncs, {operations:.0f} operations, {every:.0f} "
            f"dispatches to our function modes, {own:.0f} of them by our own code",
            flush=True,
        )
    return found


def _operations(workload: Workload, make: Any, first: int, steps: int) -> tuple[float, float]:
    """Waits of the host, and operations, of a step after the first ones."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if workload.cuda else [])]
    seen = profile(activities=activities, acc_events=True)
    starts = count(-1)  # of the fit, then of each step

    def at_start() -> float:
        step = next(starts)
        if step == first:
            seen.start()
        elif step == first + steps:
            seen.stop()
        return 0.0

    fit(workload, make, first + steps, at_start)
    found = {event.key: event.count for event in seen.key_averages()}
    launched = [number for key, number in found.items() if key.startswith("cudaLaunchKernel" if workload.cuda else "aten::")]
    return found.get("aten::_local_scalar_dense", 0) / steps, sum(launched) / steps


def measure_capabilities(workload: Workload, step_ms: float, chosen: Sequence[str], off: bool) -> dict[str, Any]:
    """Microseconds of a sampled step that each capability takes, inside its own functions and as the difference without it."""
    found = prices(chosen, workload, FIRST, min(workload.steady, 16), off)
    for key, entry in found.items():
        saved = "" if math.isnan(entry["saved"]) else f", {entry['saved']:.0f} µs saved without"
        entry["percent"] = (entry["saved"] if math.isnan(entry["inside"]) else entry["inside"]) / 10 / step_ms
        print(
            f"  {CAPABILITIES[key].label:36}{entry['inside']:8.0f} µs inside{saved}, {entry['percent']:+.2f} % of a step",
            flush=True,
        )
    return found


def quick(workload: Workload) -> Workload:
    """A workload with few and short fits."""
    fast = is_fast(workload)
    return replace(workload, pairs=min(workload.pairs, 5 if fast else 1), steady=64 if fast else 16)


def plain_step(workload: Workload) -> float:
    """Milliseconds of CPU time of a step without callbacks."""
    return 1e3 * float(np.mean(by_place([fit(workload, list, FIRST_OFF + 3) for _ in range(2)]).steps[FIRST_OFF:]))


def measure(
    name: str,
    workload: Workload,
    rows: Sequence[str],
    parts: Sequence[str] = PARTS,
    capabilities: Sequence[str] = tuple(CAPABILITIES),
) -> dict[str, Any]:
    """One workload."""
    result: dict[str, Any] = {"workload": name}
    wanted = [key for key in rows if ROWS[key].available]
    torch.set_num_threads(1)
    if "fits" in parts:
        print(f"\n{NAMES.get(name, name)}: CPU time, one thread", flush=True)
        result["fits"] = measure_fits(workload, wanted)
    if "own" in parts:
        print(f"\n{NAMES.get(name, name)}: microseconds", flush=True)
        result["own"] = measure_own(workload, wanted)
    if "reads" in parts:
        result["reads"] = measure_reads(workload, FIRST, min(workload.steady, 40))
    if "counts" in parts:
        result["counts"] = measure_counts(workload)
    known = [*result.get("fits", {}).values(), *result.get("own", {}).values()]
    result["step_ms"] = step_ms = known[0]["step_ms"] if known else plain_step(workload)
    if "capabilities" in parts:
        print(f"\n{NAMES.get(name, name)}: capabilities, a sampled step", flush=True)
        result["capabilities"] = measure_capabilities(workload, step_ms, capabilities, "off" in parts)
    if "wall" in parts:
        torch.set_num_threads(USUAL_THREADS)
        print(f"\n{NAMES.get(name, name)}: wall time, {USUAL_THREADS} threads", flush=True)
        result["wall"] = measure_fits(workload, [key for key in wanted if key in WALL], wall=True)
        torch.set_num_threads(1)
    return result


USUAL_THREADS = torch.get_num_threads()
"""As torch chose them when this module was imported."""


def machine() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "lightning": pl.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": USUAL_THREADS,
        "kernels": kernels()["cpu"],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), help="by default all that this machine can run")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), help="by default all; of slow workloads the most important")
    parser.add_argument("--parts", nargs="*", choices=PARTS, help="by default all")
    parser.add_argument("--capabilities", nargs="*", choices=list(CAPABILITIES), default=list(CAPABILITIES))
    parser.add_argument("--pairs", type=int, help="how often fits with and without are compared")
    parser.add_argument("--quick", action="store_true", help="few and short fits of the main rows, for development")
    parser.add_argument("--json", type=Path, help="write the results there")
    arguments = parser.parse_args()
    quiet()
    about = {"commit": commit(), "code": code_hash(), "machine": machine(), "quick": arguments.quick}
    print(", ".join(f"{key} {value}" for key, value in about["machine"].items()))
    can_run = [name for name, workload in WORKLOADS.items() if workload.cuda == torch.cuda.is_available()]
    results: list[dict[str, Any]] = []
    for name in arguments.workloads or (MAIN if arguments.quick and can_run[0] in MAIN else can_run):
        workload = quick(WORKLOADS[name]) if arguments.quick else WORKLOADS[name]
        workload = replace(workload, pairs=arguments.pairs or workload.pairs)
        rows, parts = arguments.rows or rows_of(name, arguments.quick), arguments.parts or parts_of(name, arguments.quick)
        if parts != ["limits"]:
            results.append(measure(name, workload, rows, parts, arguments.capabilities))
        write(arguments.json, {**about, "results": results})
    if "limits" in (arguments.parts or ([] if arguments.quick or arguments.workloads else PARTS)):
        print("\nLimits", flush=True)
        found = measure_limits()
        write(arguments.json, {**about, "results": results, "limits": found})


def write(path: Path | None, measured: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(rounded(measured), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Numbers with as many digits as they are worth."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return (float(f"{value:.4g}") if math.isfinite(value) else None) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
