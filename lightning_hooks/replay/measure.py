"""Measures what a step gains: the loss of its own batch, run again after the update."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.declare.measured import MeasuredLoss, is_measured
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.hosts.host import Host, StepAgain
from lightning_hooks.replay.generators import Generators, GeneratorWatch
from lightning_hooks.replay.rerun import StepRerun, shallow
from lightning_hooks.replay.state import KeptState, NotRestoredError

ACCUMULATES = "gradients are accumulated over several batches"
LEVEL = 16
"""Batches whose losses make a level."""
SINGLE, HALF = 1e-6, 4e-3
"""How far a loss may be off, as a share of it: a few roundings in single precision, and one in half precision."""


@dataclass(slots=True)
class _Batch:
    """A batch with what its forward pass began from."""

    batch: Any
    rest: tuple[tuple[Any, ...], dict[str, Any]]
    generators: Generators
    buffers: list[tuple[Tensor, Tensor]]  # each with its value


class StepMeasure:
    """Measures some steps of one run. Without a call of :meth:`open` it does nothing.

    Before the first step a copy of the model runs the first batch. Where that changes something that cannot be put back, no step is
    measured. Where it passes, all that the model holds is put back and checked after each time.

    Args:
        host: The training loop.
        unobserved: A context in which no monitor records what the model does.

    Attributes:
        why_not: Why steps are not measured; empty where they are.
    """

    def __init__(self, host: Host, unobserved: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._host, self._unobserved = host, unobserved
        self.why_not = ""
        self._receivers: list[Callable[[MeasuredLoss], None]] = []
        self._tried = self._accumulates = False  # the second: a backward was not followed by a step
        self._now: _Batch | None = None
        self._last: _Batch | None = None
        self._other_before: float | None = None
        self._loss: Tensor | None = None
        self._levels: deque[Tensor] = deque(maxlen=LEVEL)
        self._step, self._mark, self._in_batch = 0, "", False

    def open(self, receive: Callable[[MeasuredLoss], None]) -> None:
        """A collector wants to know.

        Args:
            receive: Called after each step that was measured.
        """
        self._receivers.append(receive)
        accumulated = ACCUMULATES if self._host.loss_scaling.accumulation > 1 else ""
        compiled = "under torch.compile another graph would be compiled" if compiled_regions(self._host.model) else ""
        if self._host.loss_scaling.scaler is not None:
            accumulated = accumulated or "a loss scaler may skip the step"
        self._stop(compiled or self._host.again.why_not() or accumulated)

    def _hooked(self) -> str:
        """The first module with a hook that would run once more, and is neither ours nor torch's."""
        for name, module in self._host.model.named_modules():
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                inner = hook.func if isinstance(hook, partial) else hook
                if not (getattr(inner, "__module__", None) or type(inner).__module__).startswith(("torch.", "lightning_hooks.")):
                    return f"a hook at {name or 'the model'} would run once more"
        return ""

    def close(self) -> None:
        """The run is over: let the batches go."""
        self._now = self._last = self._loss = None
        self._receivers.clear()
        self._levels.clear()

    @property
    def measuring(self) -> bool:
        """Whether the step under way is measured."""
        return self._now is not None

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``training_step`` is about to be called, with these arguments."""
        self._now = self._loss = self._other_before = None
        if not self._receivers or self.why_not:
            return
        if self._in_batch:
            self._stop("the optimizer runs training_step several times in a step")
            return
        self._in_batch = True
        self._step = self._host.position.global_step + 1
        if not is_measured(self._step) and self._tried:
            return
        try:  # gates are closed while a step runs again: the calls of the batch under way are recorded after it
            why_not = self._begin(args, kwargs)
        except Exception as error:  # noqa: BLE001  the run goes on
            why_not = _raised(error)
        self._stop(self._agreed(why_not))

    def _begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Keep what the forward pass begins from; return why the step cannot be measured, or nothing."""
        if not args or hasattr(type(args[0]), "__next__"):
            return "training_step fetches its batches by itself"
        if self._accumulates:
            return ACCUMULATES
        tried, self._tried = self._tried, True
        why_not = self._hooked() or ("" if tried else self._try(args, kwargs))
        if why_not or not is_measured(self._step):
            return why_not
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._host.model.buffers() if buffer.layout == torch.strided]
        states = GeneratorWatch(self._host.setup.device).read()
        batch = shallow(args[0])
        if self._last is not None:
            self._other_before = self._again([self._last])[0]
        self._now = _Batch(batch, (tuple(args[1:]), dict(kwargs)), states, buffers)
        self._mark = self._others_mark()
        return ""

    def before_backward(self, loss: Any) -> None:
        """Backward starts."""
        if not self._receivers or self.why_not or not isinstance(loss, Tensor):
            return
        self._loss = loss.detach()
        self._levels.append(self._loss)

    def batch_end(self) -> None:
        """A training batch ends, and with it the step."""
        now, loss, self._in_batch = self._now, self._loss, False
        self._accumulates |= loss is not None and self._host.position.global_step < self._step
        if now is None or self.why_not:
            return
        if loss is None or self._host.position.global_step != self._step:  # no step was taken
            return
        self._now = None
        try:
            with self._unobserved():
                found = self._again([now] if self._last is None else [now, self._last])
                moved = "weights that no optimizer holds move with the step" if self._others_mark() != self._mark else ""
        except Exception as error:  # noqa: BLE001  the run goes on
            moved, found = _raised(error), []
        self._last = now
        why_not = self._agreed(moved)
        self._stop(why_not)
        if why_not:
            return
        level = float(torch.stack([*self._levels]).double().mean())
        other = found[1] if found[1:] else None
        half = "16" in str(self._host.setup.description.get("precision", "")) or loss.dtype in (torch.float16, torch.bfloat16)
        rounding = abs(float(loss)) * (HALF if half else SINGLE)
        for receive in self._receivers:
            receive(MeasuredLoss(self._step, float(loss), found[0], level, rounding, self._other_before, other))

    def _again(self, batches: Sequence[_Batch]) -> list[float]:
        """The losses of batches, with the weights as they are."""
        host = self._host

        def step(kept: _Batch) -> Any:
            return _still(host.model, host.again, kept.rest)(kept.batch)

        with StepRerun(host.model, step, host.setup.device, host.again.muted) as again:
            outcomes = [again.run(kept, kept.generators, buffers=kept.buffers) for kept in batches]
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [math.nan if outcome.loss is None else float(outcome.loss) for outcome in outcomes]

    def _try(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Run the step twice on a copy of the model; why it cannot be run again, or nothing."""
        host, states = self._host, GeneratorWatch(self._host.setup.device).read()
        whole = KeptState(host.model, host.setup.device)
        try:
            model, batch, rest = copy.deepcopy((host.model, args[0], (tuple(args[1:]), dict(kwargs))))
            on_copy: StepAgain = host.again.on(model)
            batch_state = KeptState(batch, host.setup.device)
            with StepRerun(model, _still(model, on_copy, rest), host.setup.device, on_copy.muted) as again:
                outcomes = [again.run(batch, states) for _ in range(2)]
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors:
                raise errors[0]
            if batch_state.changed():
                return "training_step changes its batch"
            losses = [outcome.loss for outcome in outcomes if outcome.loss is not None]
            if len(losses) < 2 or not torch.equal(*losses):
                return "running a step twice gives two losses" if losses else "training_step returns no loss"
        except Exception as error:  # noqa: BLE001
            return _raised(error)
        finally:
            whole.restore()
        changed = whole.changed()
        return f"running a copy of the model changed {', '.join(changed[:5])}" if changed else ""

    def _others_mark(self) -> str:
        """What changes once weights that no optimizer holds have moved."""
        groups = [group for optimizer in self._host.optimizers for group in getattr(optimizer, "param_groups", ())]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        return _mark(parameter for parameter in self._host.model.parameters() if id(parameter) not in held)

    def _agreed(self, why_not: str) -> str:
        """What any rank found: all stop together, for a step may wait for others."""
        if self._host.setup.world_size > 1:
            stops = torch.tensor(float(bool(why_not)), device=self._host.setup.device)
            torch.distributed.all_reduce(stops, torch.distributed.ReduceOp.MAX)
            return why_not or ("another rank cannot run its step again" if stops.item() else "")
        return why_not

    def _stop(self, why_not: str) -> None:
        if why_not and not self.why_not:
            self.why_not, self._now, self._last = why_not, None, None
            warn(f"learning=True: no step is measured by running it again: {why_not}. What needs no second forward is.")


def _still(model: nn.Module, again: StepAgain, rest: tuple[tuple[Any, ...], dict[str, Any]]) -> Callable[[Any], Any]:
    """A function that runs a step again, and raises where the step itself moves weights: it would be another step then."""

    def step(batch: Any) -> Any:
        before = _mark(model.parameters())
        returned = again.run(batch, *rest[0], **rest[1])
        if _mark(model.parameters()) != before:
            raise NotRestoredError("training_step moves weights")
        return returned

    return step


def _mark(parameters: Iterable[Tensor]) -> str:
    """The sums of weights."""
    return repr([parameter.detach().double().sum().item() for parameter in parameters])


def _raised(error: Exception) -> str:
    return str(error) if isinstance(error, NotRestoredError) else f"running a step again raised {type(error).__name__}: {error}"
