"""The parts of `make gpu` that are no tests: ``python -m tests.gpu.parts NAME`` prints what it finds, and writes $OUT/NAME.json."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import logging
import math
import os
import platform
import shutil
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_hooks
from lightning_hooks import TrainingMonitor, kernels
from lightning_hooks.statistics.kernels import Bounds, Kernels, Units, kernels_for
from lightning_hooks.statistics.kernels.host import HostKernels
from lightning_hooks.statistics.rows import Clock, Column, empty_table
from tests.benchmarks.fits import by_place, clock_of, fit
from tests.benchmarks.peers import FiveItems, NothingFloor, WandbWatch
from tests.benchmarks.workloads import WORKLOADS, DigitsCNN, ResNet18, SdpaTransformer, Workload
from tests.support.host_reads import NoSync

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
QUIET: dict[str, Any] = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    "accelerator": "gpu" if CUDA else "cpu", "devices": 1, "max_epochs": 1,
}  # fmt: skip
PACKAGE = str(Path(lightning_hooks.__file__).parent)
Found = dict[str, Any]


class SkippedError(Exception):
    """A part needs what this machine lacks."""


def needs_cuda() -> None:
    if not CUDA:
        raise SkippedError("no CUDA device")


def versions() -> Found:
    """What is there."""
    wanted = ("torch", "lightning", "torchmetrics", "triton", "transformers", "timm", "numpy", "pytest")
    found: Found = {"python": platform.python_version()}
    for name in wanted:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    found["device"] = torch.cuda.get_device_name() if CUDA else "CPU"
    return found | {"cuda": torch.version.cuda, "compiler": next(filter(shutil.which, ("cc", "gcc", "clang")), None)}


T = TypeVar("T")


class _AnyHook(Generic[T]):
    """In place of hatchling's."""


def library() -> Found:
    """The C library, built in place with the machine's compiler; hatchling need not be installed for it."""
    hook = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    hook.BuildHookInterface = _AnyHook  # type: ignore[attr-defined]
    sys.modules.setdefault(hook.__name__, hook)
    import hatch_build

    problem = "" if hatch_build.LIBRARY.exists() else hatch_build.build(hatch_build.SOURCE, hatch_build.LIBRARY)
    if problem:
        raise SkippedError(problem)
    return {"built": str(hatch_build.LIBRARY), "kernels": kernels()}


# Values.

SHAPES = {"one": (1,), "odd": (3, 7, 11), "line": (100_003,), "picture": (4, 5, 6, 7), "large": (1 << (22 if CUDA else 17),)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
LARGEST = (1 << 31) + 3


def _views(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "dense", x
    if x.dim() == 4:
        yield "channels last", x.to(memory_format=torch.channels_last)
    if x.numel() > 8:
        yield "every second", x[::2] if x.dim() == 1 else x.transpose(0, 1)[::2]


def _kernels() -> dict[str, tuple[Kernels, torch.device]]:
    """All that read tensors here, each with where."""
    host = torch.device("cpu")
    found = {
        "torch": (Kernels(), DEVICE),
        "torch, host": (HostKernels(), host),
        kernels_for("cpu").name: (kernels_for("cpu"), host),
    }
    return found | ({kernels_for("cuda").name: (kernels_for("cuda"), DEVICE)} if CUDA else {})


def _wrong(reader: Kernels, x: Tensor) -> str:
    """Of what a kernel says of a tensor the first number that is not that of float64; empty where all are."""
    table, fired = empty_table(1, x.device), torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
    bounds, units = Bounds(x, None, 1.5, x.numel()), Units(fired.numel(), x.dim() - 1, fired)
    reader.record(table, 0, x, Clock(x.device), True, bounds, units, moments=True)
    row, values = table[0].double().cpu(), x.double()
    finite = values[values.isfinite()]
    scale = float(finite.square().mean().sqrt())
    deviations = finite - finite.mean()
    expected = {
        "COUNT": finite.numel(), "ZEROS": int((values == 0).sum()), "NONFINITE": values.numel() - finite.numel(),
        "MEAN": float(finite.mean()), "MIN": float(finite.min()), "MAX": float(finite.max()),
        "M2": float(deviations.square().sum()), "MOMENT_M4": float(deviations.square().square().sum()),
        "SATURATED": int((values >= 1.5).sum()), "UNITS": fired.numel(),
    }  # fmt: skip
    for name, number in expected.items():
        told = float(row[getattr(Column, name)])
        size = max(abs(number), scale if name == "MEAN" else 0.0)
        if not math.isclose(told, number, rel_tol=1e-5, abs_tol=1e-5 * size):
            return f"{name} is {told}, expected {number}"
    same = torch.equal(fired, (values.reshape(-1, fired.numel()) != 0).any(0))
    return "" if same else "other units fired"


def _of_more_than_32_bits() -> Found:
    """What each kernel with room for it says of as many values as 32 bits do not count."""
    expected, found = [LARGEST - 1, 1.0, 1.0], {}
    for name, (reader, device) in _kernels().items():
        need = LARGEST * (24 if name == "torch" else 3)  # torch's own make copies in float32
        if not CUDA or name == "torch, host" or (device.type == "cuda" and torch.cuda.mem_get_info()[0] < need):
            found[name] = "skipped: " + ("as slow as it is" if CUDA and device.type == "cpu" else "no CUDA device with room for it")
            continue
        x = torch.ones(LARGEST, dtype=torch.float16, device=device)
        x[-1] = math.nan
        table = empty_table(1, device)
        reader.record(table, 0, x, Clock(device))
        told = [float(table[0, column]) for column in (Column.COUNT, Column.NONFINITE, Column.MEAN)]
        found[name] = "right" if told == expected else f"wrong: {told}, expected {expected}"
    return found


def values() -> Found:
    """Every kernel against float64: dtypes, shapes, strides, and more values than 2**31."""
    checked, wrong = 0, []
    for name, (reader, device) in _kernels().items():
        torch.manual_seed(0)
        for dtype in DTYPES:
            for shape_name, shape in SHAPES.items():
                x = torch.randn(shape).relu() + 0.5
                x.view(-1)[0] = 0.0
                for view, tensor in _views(x.to(device, dtype)):
                    checked += 1
                    if text := _wrong(reader, tensor):
                        wrong.append(f"{name} {dtype} {shape_name} {view}: {text}")
    large = _of_more_than_32_bits()
    assert not wrong, "\n".join(wrong)
    assert not any(text.startswith("wrong") for text in large.values()), large
    return {"kernels": [*_kernels()], "checked": checked, "large": large}


# Trainings that are the same, bit for bit.


class Task(LightningModule):
    """A net under cross entropy."""

    def __init__(self, net: nn.Module, optimizer: dict[str, Any], captured: bool = False) -> None:
        super().__init__()
        self.net, self.options, self.losses = net, optimizer, []
        self.captured = captured

    def on_fit_start(self) -> None:
        if self.captured:  # before there are hooks: torch takes no module that has some
            self.net = torch.cuda.make_graphed_callables(self.net, (torch.zeros(8, 1, 8, 8, device=self.device),))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, **self.options)


def _pictures(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32)


def _tokens(n: int) -> Tensor:
    return torch.randint(0, 100, (n, 64))


def _digits(n: int) -> Tensor:
    return torch.randn(n, 1, 8, 8)


def _channels_last() -> nn.Module:
    return ResNet18().to(memory_format=torch.channels_last)


def _compiled() -> nn.Module:
    torch.compiler.reset()
    return torch.compile(DigitsCNN(), backend="inductor" if CUDA else "aot_eager")  # type: ignore[return-value]


class Case:
    """A training."""

    def __init__(
        self, net: Callable[[], nn.Module], data: Callable[[int], Tensor], precision: Any = "32-true", cuda: bool = False,
        math_only: bool = False, captured: bool = False, **optimizer: Any,
    ) -> None:  # fmt: skip
        self.net, self.data, self.precision, self.cuda = net, data, precision, cuda
        self.math_only, self.captured, self.optimizer = math_only, captured, optimizer

    def run(self, callbacks: list[Callback], steps: int) -> list[Tensor]:
        """The weights and losses, and the generators' states."""
        torch.manual_seed(0)
        task = Task(self.net(), self.optimizer, self.captured)
        torch.manual_seed(1)
        loader = DataLoader(TensorDataset(self.data(8 * steps), torch.randint(0, 10, (8 * steps,))), batch_size=8)
        all_of = torch.nn.attention.SDPBackend
        backends = [all_of.MATH] if self.math_only else [all_of.FLASH_ATTENTION, all_of.MATH]  # flash where it can be had
        with torch.nn.attention.sdpa_kernel(backends):
            Trainer(**QUIET, precision=self.precision, callbacks=callbacks, limit_train_batches=steps).fit(task, loader)
        weights = [*task.state_dict().values(), torch.stack(task.losses)]
        states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if CUDA else [])]
        return [value.cpu() for value in (*weights, *states)]


CASES = {
    "CNN": Case(DigitsCNN, _digits),
    "CNN, fused": Case(DigitsCNN, _digits, fused=True),
    "CNN, foreach": Case(DigitsCNN, _digits, foreach=True),
    "GPT, flash": Case(SdpaTransformer, _tokens, "bf16-mixed"),
    "GPT, math": Case(SdpaTransformer, _tokens, math_only=True),
    "ResNet-18": Case(ResNet18, _pictures, cuda=True),
    "ResNet-18, bf16": Case(ResNet18, _pictures, "bf16-mixed", cuda=True),
    "ResNet-18, fp16 with GradScaler": Case(ResNet18, _pictures, "16-mixed", cuda=True),
    "ResNet-18, channels last": Case(_channels_last, _pictures, cuda=True),
    "CNN, captured by a CUDA graph": Case(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), _digits, cuda=True, captured=True
    ),
    "CNN, compiled": Case(_compiled, _digits),
}


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def identity() -> Found:
    """Weights, losses and generators with and without the monitors, sampled at every step and by default."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    found: Found = {}
    for name, case in CASES.items():
        if case.cuda and not CUDA:
            found[name] = "skipped: no CUDA device"
            continue
        steps = 6 if CUDA else 3
        alone, faults = case.run([], steps), []
        for options in ({"every_n_steps": 1}, {}):
            monitor = TrainingMonitor(summary=False, report_dir=None, **options)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                having = case.run([monitor], steps)
            if not _same(alone, having):
                again = _same(alone, case.run([], steps))
                faults.append(f"differs with {options}" if again else "not known: two runs without monitors are not the same")
            faults += [str(one.message) for one in said if one.filename.startswith(PACKAGE) or "report this" in str(one.message)]
            silent = monitor.features.silent
            faults += [f"not seen: {', '.join(silent)}"] if silent and case.captured else []
        found[name] = "; ".join(faults) or "same"
        print(f"{name}: {found[name]}")
    assert not any("differs" in text or "Please report" in text for text in found.values()), found
    return found


# Waiting for the device.


class WarnOfSyncs(Callback):
    """From the last step's end on torch warns of each wait; the first callback before the monitors' window ends."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.num_training_batches - 1:
            torch.cuda.set_sync_debug_mode("warn")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")


def syncs() -> Found:
    """Waits for the device: none in a step, where torch raises at the first; at the end of the window, how many."""
    needs_cuda()
    found: Found = {}
    for name, options in {"without": None, "every step": {"every_n_steps": 1}, "default": {}}.items():
        ours = [] if options is None else [TrainingMonitor(summary=False, report_dir=None, **options)]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            CASES["CNN, fused"].run([NoSync(), WarnOfSyncs(), *ours], 12)
        faults = [str(one.message) for one in said if "switched off" in str(one.message)]  # what raises in a hook is a warning
        assert not faults, faults
        waits = sum("synchronizing CUDA operation" in str(one.message) for one in said)
        found[name] = {"in 11 steps": 0, "at the end of the window and of the fit": waits}
    return found


# A NaN.


class _Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.log(10.0 - x[:, :1])


def nan() -> Found:
    """A NaN of one sample: the module, the step and the batch that are named."""
    torch.manual_seed(0)
    x = torch.rand(160, 8)
    x[77, 0] = 10.0
    net = nn.Sequential(_Breaks(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    found: list[Any] = []
    monitor = TrainingMonitor(summary=False, report_dir=None, every_n_steps=1, check_every_n_steps=2, on_alert=found.append)
    Trainer(**QUIET, callbacks=[monitor]).fit(Task(net, {}), DataLoader(TensorDataset(x, torch.zeros(160).long()), batch_size=8))
    alert = next(alert for alert in found if alert.severity == "critical")
    assert (alert.site, alert.batch) == ("net.0", 77 // 8), str(alert)
    return {"alert": str(alert), "samples": [str(sample) for sample in alert.samples]}


# What it costs.

ROWS: dict[str, Callable[[], list[Any]]] = {
    "default": lambda: [TrainingMonitor(summary=False, report_dir=None)],
    "every step": lambda: [TrainingMonitor(summary=False, report_dir=None, every_n_steps=1)],
    "hooks that do nothing": lambda: [NothingFloor()],
    "five .item()": lambda: [FiveItems()],
    "wandb.watch": lambda: [WandbWatch()],
}


def _workloads() -> dict[str, Workload]:
    if not CUDA:
        return {"small CNN": replace(WORKLOADS["digits"], steady=4, pairs=1)}
    short = {"small CNN": "digits", "ResNet-50 at 224": "resnet50-cuda", "GPT of 124 M, 1024 tokens": "gpt2-cuda"}
    return {name: replace(WORKLOADS[key], cuda=True, steady=20, pairs=2) for name, key in short.items()}


def overhead() -> Found:
    """Whole fits in turn: what is added to a step, by the device's events and by wall time, and the memory that is ours."""
    found: Found = {}
    for name, workload in _workloads().items():
        first, steps = 3, 3 + workload.steady
        rows = {key: make for key, make in ROWS.items() if key != "wandb.watch" or importlib.util.find_spec("wandb")}
        fits: dict[str, list[Any]] = {key: [] for key in ("without", *rows)}
        walls: dict[str, list[float]] = {key: [] for key in fits}
        memory: dict[str, float] = {}
        mark = clock_of(workload)
        for _ in range(workload.pairs):
            for key, make in {"without": list, **rows}.items():
                times: list[float] = []
                gc.collect()
                if CUDA:
                    torch.cuda.reset_peak_memory_stats()
                fits[key].append(fit(workload, make, steps, lambda: times.append(time.perf_counter()) or mark()))  # noqa: B023
                walls[key].append(times[1 + steps] - times[1 + first])  # the first is that of the fit's start
                memory[key] = torch.cuda.max_memory_allocated() / 2**20 if CUDA else 0.0
        low = {key: sum(by_place(each).steps[first:]) / workload.steady for key, each in fits.items()}
        for key in rows:
            clock = "device" if CUDA else "CPU"
            found[f"{name}, {key}"] = {
                f"{clock} %": round(100 * (low[key] / low["without"] - 1), 2),
                "wall %": round(100 * (min(walls[key]) / min(walls["without"]) - 1), 2),
                "MiB": round(memory[key] - memory["without"], 1) if CUDA else None,
            }
            print(f"{name} of {1e3 * low['without']:.2f} ms, {key}: {found[f'{name}, {key}']}", flush=True)
    return found


PARTS = (versions, library, values, identity, syncs, nan, overhead)


def main(name: str) -> None:
    """Run a part."""
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.WARNING)
    part = next(part for part in PARTS if part.__name__ == name)
    try:
        found = part()
    except SkippedError as reason:
        print(f"skipped: {reason}")
        found = {"skipped": str(reason)}
    folder = Path(os.environ.get("OUT", "runs/gpu"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
