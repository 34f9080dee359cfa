"""Measures what a step gains: the loss of its own batch, run again after the update."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.declare.context import MeasuredLoss, is_measured
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.step import groups_of
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks.generators import Generators, GeneratorWatch
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.hooks.tensors import copied, has_values
from lightning_hooks.replay.rerun import StepRerun, shallow
from lightning_hooks.replay.state import TRAINER, ModelSnapshot, NotRestoredError, require

ACCUMULATES = "gradients are accumulated over several batches"
LEVEL = 16  # batches whose losses make a level
# How far a loss may be off, as a share of it: a few roundings in single precision, and one in half precision.
SINGLE, HALF = 1e-6, 4e-3


@dataclass(slots=True)
class _Batch:
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    generators: Generators
    buffers: list[tuple[Tensor, Tensor]]  # each with its value


class StepMeasure:
    """Measures some steps of one run. Without a call of :meth:`open` it does nothing.

    Before the first step a copy of the model runs the first batch. Where that changes something that cannot be put back, no step is
    measured. Where it passes, all that the model holds is put back and checked after each time, ``unobserved`` by monitors.

    Attributes:
        why_not: Why steps are not measured; empty where they are.
        on: Whether some are.
    """

    def __init__(self, host: Host, unobserved: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._host, self._unobserved = host, unobserved
        self.why_not, self.on = "", False
        self._receivers: list[Callable[[MeasuredLoss], None]] = []
        self._tried = self._accumulates = False  # the second: a backward was not followed by a step
        self._now: _Batch | None = None
        self._loss: Tensor | None = None
        self._levels: deque[Tensor] = deque(maxlen=LEVEL)
        self._step, self._others, self._in_batch = 0, "", False

    def open(self, receive: Callable[[MeasuredLoss], None]) -> None:
        """Call ``receive`` after each step that was measured."""
        self._receivers.append(receive)
        self.on = not self.why_not
        reasons = (
            "under torch.compile another graph would be compiled" if compiled_regions(self._host.model) else "",
            self._host.again.why_not(),
            ACCUMULATES if self._host.loss_scaling.accumulation > 1 else "",
            "a loss scaler may skip the step" if self._host.loss_scaling.scaler is not None else "",
        )
        self._stop(next(filter(None, reasons), ""))

    def _check_hooks(self) -> None:
        for name, module in self._host.model.named_modules():
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                inner = hook.func if isinstance(hook, partial) else hook
                module_name = getattr(inner, "__module__", None) or type(inner).__module__
                ours = module_name.startswith(("torch.", "lightning_hooks."))
                require(ours, f"a hook at {name or 'the model'} would run once more")

    def close(self) -> None:
        """The run is over: let the batches go."""
        self._now = self._loss = None
        self.on = False
        self._receivers.clear()
        self._levels.clear()

    @property
    def measuring(self) -> bool:
        """Whether the step under way is measured."""
        return self._now is not None

    def forward(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """``training_step`` is about to be called, with these arguments."""
        self._now = self._loss = None
        if self._in_batch:
            self._stop("the optimizer runs training_step several times in a step")
            return
        self._in_batch = True
        self._step = self._host.position.global_step + 1
        if not is_measured(self._step) and self._tried:
            return
        with self._stops_where_it_fails():
            self._begin(args, kwargs)

    def _begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep what the forward pass begins from; raise NotRestoredError if the step cannot be measured.

        Gates are closed while a step runs again: the calls of the batch under way are recorded after it.
        """
        require(args and not hasattr(type(args[0]), "__next__"), "training_step fetches its batches by itself")
        require(not self._accumulates, ACCUMULATES)
        found = (copied(buffer) for buffer in self._host.model.buffers())
        buffers = [(buffer, buffer.detach().clone()) for buffer in found if buffer is not None]
        now = _Batch((shallow(args[0]), *args[1:]), dict(kwargs), GeneratorWatch(self._host.setup.device).read(), buffers)
        tried, self._tried = self._tried, True
        self._check_hooks()
        if not tried:
            self._try(now)
        if is_measured(self._step):
            self._now, self._others = now, self._sums_of_others()

    def before_backward(self, loss: Any) -> None:
        """Backward starts."""
        if isinstance(loss, Tensor):
            self._loss = loss.detach()
            self._levels.append(self._loss)

    def batch_end(self) -> None:
        """A training batch ends, and with it the step."""
        now, loss, self._in_batch = self._now, self._loss, False
        self._accumulates |= loss is not None and self._host.position.global_step < self._step
        if now is None or loss is None or self._host.position.global_step != self._step:  # no step was taken
            return
        self._now = None
        with self._stops_where_it_fails(), self._unobserved():
            (after,) = self._losses([now])
            require(self._sums_of_others() == self._others, "weights that no optimizer holds move with the step")
        if self.why_not:
            return
        level = float(torch.stack([*self._levels]).double().mean())
        half = "16" in str(self._host.setup.description.get("precision", "")) or loss.dtype in (torch.float16, torch.bfloat16)
        for receive in self._receivers:
            receive(MeasuredLoss(self._step, float(loss), after, level, abs(float(loss)) * (HALF if half else SINGLE)))

    def _losses(self, batches: Sequence[_Batch]) -> list[float]:
        host = self._host
        with StepRerun(host.model, self._step_again, host.setup.device, host.again.muted) as again:
            outcomes = [again.run(kept, kept.generators, buffers=kept.buffers) for kept in batches]
        for outcome in outcomes:
            if outcome.loss is None:
                raise outcome.error or NotRestoredError("training_step returns no loss")
        return [float(outcome.loss) for outcome in outcomes if outcome.loss is not None]

    def _step_again(self, kept: _Batch) -> Any:
        """Run a step again; raise where the step itself moves weights: it would be another step then."""
        before = _sums(self._host.model.parameters())
        returned = self._host.again.run(*kept.args, **kept.kwargs)
        require(_sums(self._host.model.parameters()) == before, "training_step moves weights")
        return returned

    def _try(self, first: _Batch) -> None:
        """Run the step twice on a copy of the model, and see whether it can be run again."""
        model, device = self._host.model, self._host.setup.device
        whole = ModelSnapshot(model, device)
        try:
            model_copy, batch = copy.deepcopy((model, first))
            batch_state = ModelSnapshot(batch.args[0], device)
            with _contents_of(model_copy, model):
                one, other = self._losses([batch, batch])
            require(not batch_state.changed(), "training_step changes its batch")
            require(one == other, "running a step twice gives two losses")
        finally:
            whole.restore()
        changed = whole.changed()
        require(not changed, f"running a copy of the model changed {', '.join(changed[:5])}")

    def _sums_of_others(self) -> str:
        """What changes once weights that no optimizer holds have moved."""
        optimizers = groups_of(self._host.optimizers)
        held = {id(parameter) for _, groups in optimizers for group in groups for parameter in group["params"]}
        return _sums(parameter for parameter in self._host.model.parameters() if id(parameter) not in held)

    @contextmanager
    def _stops_where_it_fails(self) -> Iterator[None]:
        """A block of which an error ends the measuring, and not the run. All ranks stop together: a step may wait for others."""
        why_not = ""
        try:
            yield
        except NotRestoredError as error:
            why_not = str(error)
        except Exception as error:  # noqa: BLE001  of the user's step, too
            why_not = f"running a step again raised {type(error).__name__}: {error}"
        if self._host.setup.world_size > 1:
            stops = torch.tensor(float(bool(why_not)), device=self._host.setup.device)
            torch.distributed.all_reduce(stops, torch.distributed.ReduceOp.MAX)
            why_not = why_not or ("another rank cannot run its step again" if stops.item() else "")
        self._stop(why_not)

    def _stop(self, why_not: str) -> None:
        if why_not and not self.why_not:
            self.why_not, self.on, self._now = why_not, False, None
            warn(f"learning=True: no step is measured by running it again: {why_not}. What needs no second forward is.")


@contextmanager
def _contents_of(model_copy: nn.Module, model: nn.Module) -> Iterator[None]:
    """A context in which a model, and each module in it, holds what that of its copy does; who holds the model runs the copy."""
    pairs = [(module, vars(module), vars(other)) for module, other in zip(model.modules(), model_copy.modules(), strict=True)]
    try:
        for module, own, contents in pairs:
            contents |= {name: own[name] for name in TRAINER if name in own}  # a copy has none
            object.__setattr__(module, "__dict__", contents)
        yield
    finally:
        for module, own, _ in pairs:
            object.__setattr__(module, "__dict__", own)


def _sums(parameters: Iterable[Tensor]) -> str:
    return repr([parameter.detach().double().sum().item() for parameter in filter(has_values, parameters)])
