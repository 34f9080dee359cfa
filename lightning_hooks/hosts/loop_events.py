"""The events of a session, from what can be seen of any training loop: forwards, ``loss.backward()`` and optimizer steps."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lightning_hooks.declare.collector import EPOCH_END, VALIDATION
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import HookManager, Listener
from lightning_hooks.hooks.attributes import exchange
from lightning_hooks.hooks.listener import all_closed
from lightning_hooks.hooks.modes import insert_mode, is_captured, lowest_place, outside_modes, remove_mode
from lightning_hooks.hosts.plain import PlainHost
from lightning_hooks.session.session import Session

SMALLEST_SCALE = 256.0  # from here on a factor of the loss is taken for a loss scale
FORGOTTEN = 3  # steps of every optimizer within one batch after which ``step()`` seems to be forgotten


class LoopEvents:
    """Calls the events of a session from hooks on the model and its optimizers.

    A batch starts with the first forward of the model in training: with gradients, and in training mode unless the model is always
    in evaluation mode. Other forwards are not recorded. Gradients are read when ``backward()`` of the loss returns. A batch ends
    when :meth:`end_batch` is called, or with each optimizer step.

    Attributes:
        session: The session.
        ran: Whether the loss of the batch under way came from :meth:`run`.
    """

    def __init__(self, session: Session, host: PlainHost, ends_at_step: bool = False) -> None:
        self.session, self._host, self._ends_at_step = session, host, ends_at_step
        self._hooks, self._mode = HookManager(), BackwardMode(self._backward)
        self._mode_on = self._in_backward = self._trained = self._warned = self._compared = False
        self._open = self.ran = False  # whether a batch is under way, and whether run() was called for it
        self._forwards: list[ExitStack] = []  # of the model, those under way
        session.probe.loop = self._before_step, self._after_step
        self._steps: Counter[int] = Counter()  # of each optimizer in this batch
        self._thread, self._exchanged = threading.get_ident(), ExitStack()

    def start(self) -> None:
        """Register the hooks on the model, when the members have joined."""
        for module in called_from_outside(self._host.model):
            compiled = vars(module).get("_compiled_call_impl")  # of module.compile(), which compiles hooks too; no public name
            if compiled is not None:
                self._exchanged.callback(exchange(module, _compiled_call_impl=self._around(module, compiled)))
                continue
            self._hooks.register(module, EventHook(self.enter), "forward_pre", with_kwargs=True, prepend=True)
            self._hooks.register(module, EventHook(self._leave), always_call=True)
        scaler = self._host.loss_scaling.scaler
        if scaler is not None:
            self._exchanged.callback(exchange(scaler, unscale_=self._announced(scaler.unscale_)))

    def _around(self, module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter(module, args, kwargs)
            try:
                return compiled(*args, **kwargs)
            finally:
                self._leave(module, args, None)

        return call

    def _announced(self, unscale: Callable[[Any], None]) -> Callable[[Any], None]:
        def unscale_(optimizer: Any) -> None:
            unscale(optimizer)
            if self._open:
                with outside_modes():
                    self.session.before_optimizer_step(optimizer)

        return unscale_

    def stop(self) -> None:
        """Remove everything. Harmless when it was removed before."""
        self._hooks.remove_all()
        self._exchanged.close()
        while self._forwards:
            self._forwards.pop().close()
        self._in_backward = False
        self.look_for_backward(False)

    def end_batch(self, loss: Tensor | None = None) -> None:
        """A training batch is over, with this loss or that of its backward; one without a forward is empty."""
        self.look_for_backward(False)
        with outside_modes():
            if not self._open:
                self._start_batch(None)
            self._open = self.ran = False
            self._steps.clear()
            host = self._host
            host.epoch_ends = host.batch + 1 == host.setup.batches_per_epoch
            host.batch += 1
            self.session.batch_end(loss)
            if host.epoch_ends:
                self.session.batches.pause(VALIDATION)

    def end_epoch(self) -> None:
        """An epoch is over, and a batch that was not ended with it."""
        self.look_for_backward(False)
        self._open, self._host.batch = False, 0
        with outside_modes():
            self.session.batches.pause(EPOCH_END)
            try:
                self.session.epoch_end()
            finally:
                self._host.epoch += 1
            self.session.epoch_start()

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function that gives a batch's loss: with these arguments it is called again where the step is bad."""
        with outside_modes():
            if not self._open:
                self._start_batch(args[0])
            self.session.forward(args, kwargs)
        self.ran = True
        returned = function(*args, **kwargs)
        with outside_modes():
            self.session.evidence.returned(returned)
        return returned

    # The model.

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward of the model starts."""
        if not self._follows():
            return
        forward = ExitStack()
        if not self._forwards:
            self.look_for_backward(False)
            if torch.is_grad_enabled() and (module.training or not self._trained):
                self._trained = module.training
                with outside_modes():
                    if self._open:  # forward again in the same batch
                        for member in self.session.members:
                            member.sampling.gate.resume()
                    else:
                        self._start_batch([*args, *kwargs.values()] if args else kwargs)
                forward.callback(self.look_for_backward, True)
            else:
                forward.enter_context(all_closed())
        self._forwards.append(forward)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._follows() and self._forwards:
            self._forwards.pop().close()

    def _start_batch(self, batch: Any) -> None:
        self._open = True
        self.session.batch_start(batch, self._host.batch)
        if self.session.calls.running:
            self.session.calls.observer.begin_step()

    def _follows(self) -> bool:
        """Whether what runs is a forward of the loop: in its thread, and no recomputation in backward."""
        if torch.compiler.is_compiling() or self._host.runs_again or is_captured():
            return False
        return threading.get_ident() == self._thread and torch._C._current_graph_task_id() == -1

    # Backward.

    def look_for_backward(self, on: bool) -> None:
        """See the backward that comes next, or no longer: the calls until then, or after the last one, are not looked at."""
        if on is not self._mode_on and not self._in_backward:
            self._mode_on = on
            if on:
                insert_mode(self._mode, lowest_place() + self.session.calls.observer.seen)
            else:
                remove_mode(self._mode)

    def _backward(self, loss: Tensor, run: Callable[[], Any]) -> Any:
        if not self._open or self._in_backward or is_captured():
            return run()
        self._in_backward = True
        try:
            with outside_modes():
                if not self._compared and self._host.loss_scaling.scaler is None and is_scaled(loss):
                    warn(
                        "watch: the loss is multiplied by a large power of two before backward(), as a GradScaler does. Pass it, "
                        "watch(model, optimizer, scaler=scaler): without it gradients count as they are, times the scale."
                    )
                self._compared = True
                self.session.before_backward(loss)
            result = run()
            with outside_modes():
                self.session.after_backward()
        finally:
            self._in_backward = False
        return result

    # The optimizers.

    def _before_step(self, optimizer: Any, has_closure: bool) -> None:
        self.look_for_backward(False)
        with outside_modes():
            if not self._open:  # a closure runs forward, or the model's forward was not seen
                self._start_batch(None)
            if not has_closure and self.session.probe.current(optimizer) is None:  # backward was not seen
                self.session.probe.before_backward()
                self.session.before_optimizer_step(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        self._host.global_step += 1
        self._steps[id(optimizer)] += 1
        if self._ends_at_step:
            self.end_batch()
        elif not self._warned and min(self._steps[id(each)] for each in self._host.optimizers) == FORGOTTEN:
            self._warned = True
            warn(
                f"watch: every optimizer has stepped {FORGOTTEN} times and step() was not called. Call step(loss) on what watch() "
                "gives after each training batch: until then no batch ends, and nothing is reported. This warning is shown once."
            )


class EventHook(Listener):
    """A hook of the model that calls a function: copies of the model have none."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> None:
        """Call the function."""
        self._call(*args)


def called_from_outside(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules whose forward a loop calls: the model, or of one without a forward the modules in it."""
    if type(model).forward is nn.Module.forward and "forward" not in vars(model):  # a compiled model has its own
        for child in model.children():
            yield from called_from_outside(child)
    else:
        yield model


class BackwardMode(TorchFunctionMode):
    """Passes each call on unchanged, and hands on those of ``Tensor.backward``."""

    def __init__(self, backward: Callable[[Tensor, Callable[[], Any]], Any]) -> None:
        super().__init__()
        self._backward = backward

    @override
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.backward:
            return self._backward(args[0], lambda: function(*args, **(kwargs or {})))
        return function(*args, **(kwargs or {}))


def is_scaled(loss: Tensor) -> bool:
    """Whether a loss looks as if a GradScaler had scaled it. It waits for the device."""
    node: Any = loss.grad_fn  # what a product is of has no public name
    factor = getattr(node, "_saved_other", None) if type(node).__name__ == "MulBackward0" else None
    if not isinstance(factor, Tensor) or factor.dim() or factor.requires_grad or not factor.is_floating_point():
        return False
    return float(factor) >= SMALLEST_SCALE and math.log2(float(factor)).is_integer()
