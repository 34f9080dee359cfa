"""Profiling in any training loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from lightning_hooks.hooks import Faults, HookManager, ModuleSelector, guarded
from lightning_hooks.hooks.checks import check_count
from lightning_hooks.hooks.selection import can_be_called, clean_name, compiled_around, compiled_regions, select_modules
from lightning_hooks.profiling.clock import OTHER
from lightning_hooks.profiling.report import ProfileReport
from lightning_hooks.profiling.tracer import StepTracer


def profiled_modules(root: nn.Module, modules: ModuleSelector | None = None) -> list[tuple[str, nn.Module | None]]:
    """Select the modules of ``root`` to time, not itself: (name, module to hook) pairs; None for a module inside compiled code.

    None selects every module that can be called, since every module takes time and the total of a block is of interest too. A
    compiled module consists of fused kernels: a module that ``torch.compile(module)`` returned is timed as a whole, without hooks
    inside compiled code.
    """
    chosen = select_modules(root, (lambda _, module: can_be_called(module)) if modules is None else modules)
    wrappers = {clean_name(name): module for name, module in root.named_modules() if "_orig_mod" in module._modules}
    compiled = compiled_regions(root)
    found: list[tuple[str, nn.Module | None]] = []
    for name, module in chosen:
        region = compiled_around(name, compiled)
        found.append((name, module if region is None else wrappers.get(name) if region == name else None))
    return found


class ProfileSession:
    """Profiles the layers of a model in any training loop. The hooks are registered in the ``with`` block.

    Backward is detected. Forward is the call of the model; ``other_time`` is the rest, such as the loss function and the optimizer.

    Args:
        model: The model, on the CPU or a CUDA device.
        modules: The modules; None for every module of the model.
        warmup_steps: Number of first steps that are not measured, at least 0.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If ``modules`` matches nothing, or ``warmup_steps`` is negative.
        RuntimeError: If the model is on another kind of device.

    Example:
        >>> import torch
        >>> from lightning_hooks.profiling import ProfileSession
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        >>> with ProfileSession(model, warmup_steps=1) as session:
        ...     for _ in range(3):
        ...         with session.step():
        ...             model(torch.randn(4, 8)).sum().backward()
        >>> report = session.report()
        >>> report.measured_steps, list(report.sites)
        (2, ['0', '1'])
    """

    def __init__(self, model: nn.Module, *, modules: ModuleSelector | None = None, warmup_steps: int = 3) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module; got {model!r}.")
        check_count("warmup_steps", warmup_steps, least=0)
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._sites = profiled_modules(model, modules)
        self._faults = Faults()
        self._tracer = StepTracer([name for name, _ in self._sites], device, warmup_steps, self._faults)
        self._hooks = HookManager()
        self._model: nn.Module | None = model

    def __enter__(self) -> ProfileSession:
        if self._model is None:
            raise RuntimeError("This ProfileSession has been used. Create a new one for another profile.")
        sites = [(-1, "", self._model), *((site, name, module) for site, (name, module) in enumerate(self._sites))]
        with self._hooks.all_or_nothing():
            self._tracer.hook(sites, self._register)
        return self

    def _register(self, name: str, module: nn.Module, hook: Any, kind: str, **options: bool) -> None:
        self._hooks.register(module, guarded(hook, name, self._faults), kind, label=name, **options)

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self._hooks.remove_all()
        self._tracer.tracing = False
        self._model, self._sites = None, []
        for site, error in self._faults.take():
            warnings.warn(f"ProfileSession: the hook at {site!r} raised {error}; its times are incomplete.", stacklevel=2)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one training step in this block; raise RuntimeError outside of the ``with`` block of the session."""
        if self._model is None or not len(self._hooks):
            raise RuntimeError("Run steps inside the with block of the ProfileSession: its hooks are not registered.")
        traced = self._tracer.begin_step(OTHER)
        try:
            yield
        except BaseException:
            self._tracer.tracing = False  # the step is discarded
            raise
        if traced:
            self._tracer.end_step()

    def report(self) -> ProfileReport:
        """Return the report of the steps so far; waits for the device.

        Raises:
            RuntimeError: If no step was measured.
        """
        steps, warmup_steps = self._tracer.steps, self._tracer.warmup_steps
        if steps <= warmup_steps:
            raise RuntimeError(
                f"No step was measured: {steps} were run, and the first {warmup_steps} are warm-up. Run more steps, or lower "
                "warmup_steps."
            )
        return self._tracer.report(epoch=0, step=steps, batches=steps)
