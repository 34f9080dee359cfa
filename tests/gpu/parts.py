"""The parts of `make gpu` that are no tests: ``python -m tests.gpu.parts NAME`` prints what it finds, and writes $OUT/NAME.json."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import shutil
import sys
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

from lightning_hooks import TrainingMonitor, kernels
from lightning_hooks.statistics import Column, empty_table
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import Clock
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
Found = dict[str, Any]


class SkippedError(Exception):
    """A part needs what this machine lacks."""


def needs_cuda() -> None:
    if not CUDA:
        raise SkippedError("no CUDA device")


def versions() -> Found:
    """What is there."""
    wanted = ("torch", "lightning", "torchmetrics", "triton", "transformers", "numpy", "pytest")
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

SHAPES = {"one": (1,), "odd": (3, 7, 11), "line": (100_003,), "picture": (4, 5, 6, 7), "large": (1 << 22,)}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
LARGEST = (1 << 31) + 3


def _views(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "dense", x
    if x.dim() == 4:
        yield "channels last", x.to(memory_format=torch.channels_last)
    if x.numel() > 8:
        yield "every second", x[::2] if x.dim() == 1 else x.transpose(0, 1)[::2]


def _wrong(x: Tensor) -> str:
    """Of what a kernel says of a tensor the first number that is not that of float64; empty where all are."""
    table = empty_table(1, DEVICE)
    kernels_for(DEVICE.type).record(table, 0, x, Clock(DEVICE))
    row, values = table[0].double().cpu(), x.double()
    finite = values[values.isfinite()]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    expected = {
        "COUNT": finite.numel(), "ZEROS": int((values == 0).sum()), "NONFINITE": values.numel() - finite.numel(),
        "MEAN": float(finite.mean()), "MIN": float(finite.min()), "MAX": float(finite.max()),
        "M2": float((finite - finite.mean()).square().sum()),
    }  # fmt: skip
    for name, number in expected.items():
        told = float(row[getattr(Column, name)])
        size = max(abs(number), scale if name == "MEAN" else 0.0)
        if not math.isclose(told, number, rel_tol=1e-5, abs_tol=1e-5 * size):
            return f"{name} is {told}, expected {number}"
    return ""


def values() -> Found:
    """Every kernel against float64: dtypes, shapes, strides, sizes above 2**31 where there is room for them."""
    torch.manual_seed(0)
    checked, wrong = 0, []
    for dtype in DTYPES:
        for shape_name, shape in SHAPES.items():
            x = torch.randn(shape, device=DEVICE).relu() + 0.5
            x.view(-1)[0] = 0.0
            for view, tensor in _views(x.to(dtype)):
                if tensor.element_size() == 1:
                    tensor = tensor.float()  # hooks record a cast of what torch does not compute with, or leave it out
                checked += 1
                if text := _wrong(tensor):
                    wrong.append(f"{dtype} {shape_name} {view}: {text}")
    large = "left out: no CUDA device with room for it"
    if CUDA and torch.cuda.mem_get_info()[0] > 4 * LARGEST * 2:
        x = torch.ones(LARGEST, dtype=torch.float16, device=DEVICE)
        x[-1] = math.nan
        table = empty_table(1, DEVICE)
        kernels_for("cuda").record(table, 0, x, Clock(DEVICE))
        told = [float(table[0, column]) for column in (Column.COUNT, Column.NONFINITE, Column.MEAN)]
        large = f"{LARGEST} values: {told}"
        if told != [LARGEST - 1, 1.0, 1.0]:
            wrong.append(large)
    assert not wrong, "\n".join(wrong)
    return {"kernels": kernels_for(DEVICE.type).name, "checked": checked, "large": large}


# Trainings that are the same, bit for bit.


class Task(LightningModule):
    """A net under cross entropy."""

    def __init__(self, net: nn.Module, optimizer: dict[str, Any], captured: bool = False) -> None:
        super().__init__()
        self.net, self.options, self.losses = net, optimizer, []
        self.captured = captured
        self.again: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = batch[0]
        if self.captured:
            self.again = torch.cuda.make_graphed_callables(self.net, (x,)) if self.again is None else self.again
            x = self.again(x)
        loss = nn.functional.cross_entropy(x if self.captured else self.net(x), batch[1])
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

    def run(self, callbacks: list[Callback], steps: int) -> tuple[list[Tensor], Tensor]:
        """The weights and losses, and the generator's state."""
        torch.manual_seed(0)
        task = Task(self.net(), self.optimizer, self.captured)
        torch.manual_seed(1)
        loader = DataLoader(TensorDataset(self.data(8 * steps), torch.randint(0, 10, (8 * steps,))), batch_size=8)
        backends = (
            [torch.nn.attention.SDPBackend.MATH] if self.math_only else list(torch.nn.attention.SDPBackend.__members__.values())
        )
        with torch.nn.attention.sdpa_kernel(backends):
            Trainer(**QUIET, precision=self.precision, callbacks=callbacks, limit_train_batches=steps).fit(task, loader)
        weights = [*task.state_dict().values(), torch.stack(task.losses)]
        return [value.cpu() for value in weights], torch.cuda.get_rng_state() if CUDA else torch.get_rng_state()


CASES = {
    "CNN": Case(DigitsCNN, _digits),
    "CNN, fused": Case(DigitsCNN, _digits, fused=True),
    "CNN, foreach": Case(DigitsCNN, _digits, foreach=True),
    "CNN, compiled": Case(_compiled, _digits),
    "GPT, flash": Case(SdpaTransformer, _tokens, "bf16-mixed"),
    "GPT, math": Case(SdpaTransformer, _tokens, math_only=True),
    "ResNet-18": Case(ResNet18, _pictures, cuda=True),
    "ResNet-18, bf16": Case(ResNet18, _pictures, "bf16-mixed", cuda=True),
    "ResNet-18, fp16 with GradScaler": Case(ResNet18, _pictures, "16-mixed", cuda=True),
    "ResNet-18, channels last": Case(_channels_last, _pictures, cuda=True),
    "CNN, captured by a CUDA graph": Case(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), _digits, cuda=True, captured=True
    ),
}


def identity() -> Found:
    """Weights, losses and generators with and without the monitors, sampled at every step and by default."""
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    found: Found = {}
    for name, case in CASES.items():
        if case.cuda and not CUDA:
            found[name] = "skipped: no CUDA device"
            continue
        steps = 6 if CUDA else 3
        (alone, state), faults = case.run([], steps), []
        for options in ({"every_n_steps": 1}, {}):
            monitor = TrainingMonitor(summary=False, report_dir=None, **options)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                having, after = case.run([monitor], steps)
            same = all(torch.equal(a, b) for a, b in zip(alone, having, strict=True)) and torch.equal(state, after)
            ours = [
                str(one.message) for one in said if "lightning_hooks" in one.filename or "Please report this" in str(one.message)
            ]
            faults += ([] if same else [f"differs with {options}"]) + ours
        found[name] = "; ".join(faults) or "same"
        print(f"{name}: {found[name]}")
    assert not any("differs" in text or "Please report" in text for text in found.values()), found
    return found


# Waiting for the device.


def syncs() -> Found:
    """Waits for the device in a step, where none may be: torch raises at the first."""
    needs_cuda()
    found: Found = {}
    for every in (1, 10):
        monitor = TrainingMonitor(summary=False, report_dir=None, every_n_steps=every)
        CASES["CNN, fused"].run([NoSync(), monitor], 12)
        found[f"every_n_steps={every}"] = 0
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
    return {name: replace(WORKLOADS[key], cuda=True, steady=30, pairs=2) for name, key in short.items()}


def overhead() -> Found:
    """Whole fits in turn: what is added to a step, by the device's events and by wall time, and the memory that is ours."""
    found: Found = {}
    for name, workload in _workloads().items():
        first, steps = 3, 3 + workload.steady
        rows = {key: make for key, make in ROWS.items() if key != "wandb.watch" or importlib.util.find_spec("wandb")}
        for wall in (False, True):
            fits: dict[str, list[Any]] = {key: [] for key in ("without", *rows)}
            for _ in range(workload.pairs):
                for key, make in {"without": list, **rows}.items():
                    gc.collect()
                    if CUDA:
                        torch.cuda.reset_peak_memory_stats()
                    fits[key].append(fit(workload, make, steps, clock_of(replace(workload, cuda=CUDA and not wall), wall)))
                    if CUDA:
                        found[f"{name}, {key}, MiB"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
            low = {key: sum(by_place(each).steps[first:]) / workload.steady for key, each in fits.items()}
            for key in rows:
                label = f"{name}, {key}, {'wall' if wall else 'device' if CUDA else 'CPU'} %"
                found[label] = round(100 * (low[key] / low["without"] - 1), 2)
                print(f"{label}: {found[label]:+.2f} of {1e3 * low['without']:.2f} ms", flush=True)
    return found


PARTS = (versions, library, values, identity, syncs, nan, overhead)


def main(name: str) -> None:
    """Run a part."""
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
