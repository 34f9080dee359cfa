"""HookDebugger: one step as text, breakpoints in hooks, and the reason why a hook did not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.debugging.trace import Breakpoint, Call, Trace
from lightning_hooks.debugging.tracer import Tracer
from lightning_hooks.hooks import Gate, HookManager, ModuleSelector, select_modules
from lightning_hooks.hooks.checks import check_bools, check_choice, check_count
from lightning_hooks.hooks.selection import can_be_called, is_metric
from lightning_hooks.hosts.lightning_api import log_step
from lightning_hooks.trackers import show


class HookDebugger(HookedCallback):
    """Prints the calls and gradients of chosen steps, stops at a condition, and explains hooks that did not run.

    The trace has every call in order, forward and backward, with the shapes, dtypes and devices (and statistics, if requested) of
    arguments and outputs; the module in which the step raised; the selected modules without a gradient; and for every selected
    module without a call the reason: never called, used without a call, a fused path, compiled before the hooks. Weights, losses
    and random state are unchanged; a traced step is slow. Under a loss scaler gradients are shown times the scale.

    Args:
        modules: The modules to trace; None for all.
        steps: The training batches to trace, counted from 0 at the start of the fit: a number or several; () for none.
        statistics: Whether to show the minimum, maximum, mean, standard deviation and number of nonfinite values of each tensor.
        break_when: Stop when this is true: a function of a :class:`~lightning_hooks.debugging.Call` (``lambda call:
            call.output.max() > 100``), called in every training batch; or ``nonfinite``, for the first NaN or infinite value.
        on_break: ``debugger`` calls ``sys.breakpointhook``; ``raise`` raises a
            :class:`~lightning_hooks.debugging.HookBreakError` that names the site.
        show: Whether to print the trace.

    Attributes:
        trace: The last :class:`~lightning_hooks.debugging.Trace`; None before the first.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or, at train start, if ``modules`` matches nothing.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import HookDebugger
        >>> trainer = Trainer(callbacks=[HookDebugger(break_when="nonfinite", on_break="raise")], logger=False)
    """

    records_recomputation: ClassVar[bool] = True
    fit_only: ClassVar[tuple[str, ...]] = ("_tracer",)

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        steps: int | Sequence[int] = 0,
        statistics: bool = False,
        break_when: Callable[[Call], Any] | Literal["nonfinite"] | None = None,
        on_break: Literal["debugger", "raise"] = "debugger",
        show: bool = True,
    ) -> None:
        super().__init__(modules=modules)
        self.steps = [check_count("steps", step, least=0) for step in (steps if isinstance(steps, Sequence) else [steps])]
        if break_when is not None and not callable(break_when) and break_when != "nonfinite":
            raise ValueError(f"break_when must be a function of a Call, or 'nonfinite'; got {break_when!r}.")
        check_choice("on_break", on_break, ("debugger", "raise"))
        check_bools(statistics=statistics, show=show)
        self.statistics, self.show, self.break_when, self.on_break = statistics, show, break_when, on_break
        self.trace: Trace | None = None
        self._tracer: Tracer | None = None
        self._batch, self._title = 0, ""

    def _hook(self, model: nn.Module, hooks: HookManager, gate: Gate | None) -> Tracer:
        every: ModuleSelector = lambda _, module: can_be_called(module) and not is_metric(module)  # noqa: E731
        chosen = select_modules(model, every if self.modules is None else self.modules)
        self._tracer = Tracer(chosen, self.statistics)
        self._tracer.attach(chosen, hooks, self.faults)
        if self.break_when is not None:
            Breakpoint(self.break_when, self.on_break, self.faults, gate).attach(chosen, hooks)
        return self._tracer

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[HookDebugger]:
        """Trace a model in a ``with`` block, in plain PyTorch; afterwards the trace is in ``trace``.

        Args:
            model: The model; ``modules`` are names in it.

        Example:
            >>> import torch
            >>> from lightning_hooks import HookDebugger
            >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
            >>> with HookDebugger(show=False).watch(net) as debugger:
            ...     net(torch.zeros(4, 2)).sum().backward()
            >>> debugger.trace.forward_order, debugger.trace.backward_order
            (['0', '1'], ['1', '0'])
        """
        error: BaseException | None = None
        with HookManager() as hooks:
            self._hook(model, hooks, None).begin()
            try:
                yield self
            except BaseException as raised:
                error = raised
                raise
            finally:
                self._finish(model, type(model).__name__, self.show, error)
                self.warn_of_faults()

    def _finish(self, model: nn.Module, title: str, printing: bool, error: BaseException | None = None) -> None:
        assert self._tracer is not None
        self.trace = self._tracer.finish(model, title, error)
        if printing:
            show([str(self.trace)])

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._batch, self.trace = 0, None
        self._hook(pl_module, self.hooks, self.gate)

    @override
    def released(self) -> None:
        if self._tracer is not None:
            self._tracer.stop()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._tracer is not None and self._batch in self.steps:
            self._title = f"Step {self._batch} (epoch {trainer.current_epoch}, batch {batch_idx})"
            self._tracer.begin()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._tracer is not None and self._tracer.tracing:
            self._finish(pl_module, self._title, self.show and trainer.is_global_zero)
            self.trackers(trainer).text("hook_debugger/trace", f"```\n{self.trace}\n```", log_step(trainer))
        self._batch += 1
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    @override
    def skipped(self) -> None:
        self.released()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._tracer is not None and self._tracer.tracing:
            self._finish(pl_module, self._title, self.show and trainer.is_global_zero, exception)
        super().on_exception(trainer, pl_module, exception)
