"""Steps of a training loop, traced as LayerProfiler traces them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lightning_hooks.hooks import Faults, HookManager, guarded
from lightning_hooks.profiling import ProfileReport
from lightning_hooks.profiling.tracer import StepTracer, profiled_modules


class ProfiledSteps:
    """Traces each step in a block of :meth:`step`, in which backward is not announced."""

    def __init__(self, model: nn.Module, modules: Any = None, warmup_steps: int = 0) -> None:
        self._faults, self._hooks = Faults(), HookManager()
        self._tracer = StepTracer(profiled_modules(model, modules), torch.device("cpu"), warmup_steps, self._faults)

    def __enter__(self) -> ProfiledSteps:
        def register(name: str, module: nn.Module, hook: Callable[..., Any], kind: str, **options: bool) -> None:
            self._hooks.register(module, guarded(hook, name, self._faults), kind, label=name, **options)

        self._tracer.hook(register)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.remove_all()
        assert not self._faults.take()

    @contextmanager
    def step(self) -> Iterator[None]:
        traced = self._tracer.begin_step()
        try:
            yield
        except BaseException:
            self._tracer.tracing = False  # the step is discarded
            raise
        if traced:
            self._tracer.end_step()

    def report(self) -> ProfileReport:
        return self._tracer.report(epoch=0, step=self._tracer.steps, batches=self._tracer.steps)
