"""What happens at an optimizer step: gradients ready, clipped, step taken or skipped. Measured once for all who ask.

Lightning has a callback hook before clipping (``on_before_optimizer_step``) and none between clipping and the update. There an
optimizer step pre-hook looks: under a loss scaler it fires at that moment; otherwise Lightning hands ``optimizer.step`` a
closure that runs backward and clipping, and the pre-hook hands on a closure that looks when that one is done. (After the step
would be too late: several multi-tensor optimizers write into the gradients.) A step post-hook says that the step was taken;
gradients that were ready and not followed by it are a skipped step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.callbacks.gradient_trace import GradientTrace
from lightning_hooks.callbacks.step import Known, Step
from lightning_hooks.callbacks.trainer import callbacks_of
from lightning_hooks.callbacks.who_clips import may_clip
from lightning_hooks.hooks import HookManager, Listener
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import is_freed
from lightning_hooks.statistics.shards import Shards, is_distributed


@dataclass(slots=True, eq=False, repr=False)
class StepObserver:
    """What one callback wants to be told. Each takes the :class:`Step`."""

    gradients: Callable[[Step], Any]
    clipped: Callable[[Step], Any]
    taken: Callable[[Step], Any]
    skipped: Callable[[Step], Any]


@dataclass(slots=True, eq=False, repr=False)
class _Watch:
    """What is known of one optimizer's next step."""

    step: Step | None = None
    known: Known = field(default_factory=Known)
    members: tuple[list[int], list[tuple[int, Tensor]]] = ([], [])  # ids of its parameters; index and parameter of each
    left: GradientTrace | None = None  # the gradients that the last step left behind
    ready: bool = False  # on_before_optimizer_step has come
    stepping: bool = False  # between the step's pre-hook and its post-hook


_PROBES: WeakKeyDictionary[Trainer, StepProbe] = WeakKeyDictionary()


class StepProbe:
    """Watches the optimizer steps of one trainer for all callbacks that subscribe.

    Lightning tells every callback of an event; one of the subscribers, which :meth:`led_by` names, hands it on.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.optimizer_names: list[str] = []
        self.shards: Shards | None = None
        self._index: dict[int, int] = {}
        self._observers: dict[int, StepObserver] = {}
        self._watches: dict[int, _Watch] = {}
        self._positions: dict[int, int] = {}
        self._hooks = HookManager()
        self._backward = False
        self._may_clip = True

    @classmethod
    def of(cls, trainer: Trainer) -> StepProbe:
        """Return the trainer's probe, made at the first call."""
        return _PROBES.setdefault(trainer, cls())

    def subscribe(self, owner: object, observer: StepObserver, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add an observer; the first one installs the hooks."""
        if not self._observers:
            self._install(trainer, pl_module)
        self._observers[id(owner)] = observer

    def unsubscribe(self, owner: object) -> None:
        """Remove an observer; with the last one the hooks go."""
        self._observers.pop(id(owner), None)
        if not self._observers:
            self._hooks.remove_all()
            self._watches.clear()
            self._backward = False

    def _install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks.remove_all()
        self._may_clip = may_clip(trainer, pl_module)
        self.names, self._index = [], {}
        for name, parameter in pl_module.named_parameters():
            self._name(parameter, clean_name(name))
        optimizers: list[Any] = trainer.optimizers  # Lightning steps anything that has what it needs
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                rank_zero_warn(
                    f"{type(optimizer).__name__} is not a torch.optim.Optimizer and has no step hooks: its steps, gradients and "
                    "clips are not seen. Derive it from torch.optim.Optimizer to have them."
                )
        self.optimizer_names = [f"{i}-{type(optimizer).__name__}" for i, optimizer in enumerate(trainer.optimizers)]
        self._watches, self._positions = {}, {}
        parameters = {id(parameter): parameter for parameter in pl_module.parameters()}
        with self._hooks.all_or_nothing():
            for position, optimizer in enumerate(optimizers):
                if not isinstance(optimizer, Optimizer):
                    continue
                for group, settings in enumerate(optimizer.param_groups):
                    for place, parameter in enumerate(settings["params"]):
                        self._name(parameter, f"{self.optimizer_names[position]}.group{group}.{place}")
                        parameters[id(parameter)] = parameter
                self._positions[id(optimizer)] = position
                self._watches[position] = _Watch()
                label = self.optimizer_names[position]
                self._hooks.register(optimizer, _BeforeUpdate(self), "optimizer_step_pre", label=label)
                self._hooks.register(optimizer, _AfterUpdate(self), "optimizer_step_post", label=label)
        in_order = [parameters[key] for key in self._index]
        self.shards = Shards(in_order, pl_module.device) if any(map(is_distributed, in_order)) else None

    def index_of(self, parameter: Tensor) -> int | None:
        """The parameter's place in ``names``."""
        return self._index.get(id(parameter))

    def _name(self, parameter: Tensor, name: str) -> None:
        if id(parameter) not in self._index:  # a tied parameter is one parameter
            self._index[id(parameter)] = len(self.names)
            self.names.append(name)

    def led_by(self, owner: object, trainer: Trainer) -> bool:
        """Whether ``owner`` is the subscriber that hands events on: the first among the trainer's callbacks as they are now."""
        for callback in callbacks_of(trainer):
            if id(callback) in self._observers:
                return callback is owner
        return id(owner) == next(iter(self._observers), None)  # all are told by callbacks of the user's own

    # What Lightning tells, handed on by the leader.

    def before_backward(self) -> None:
        """Backward starts."""
        self._backward = True
        for watch in self._watches.values():
            if watch.left is not None:
                watch.left.before_backward()
            if watch.ready and not watch.stepping:  # announced, and not taken before this next backward
                self._skip(watch)

    def before_zero_grad(self, optimizer: Any) -> None:
        """Lightning is about to zero an optimizer's gradients."""
        watch = self._watch(_unwrapped(optimizer))
        if watch is not None and watch.left is not None:
            watch.left.before_zero_grad()

    def after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Backward is done. Under manual optimisation the user may clip from here on, so this is where *before* is."""
        for watch in self._watches.values():
            if watch.left is not None:
                watch.left.after_backward()
        if pl_module.automatic_optimization:
            return
        for optimizer in trainer.optimizers:
            position = self._positions.get(id(optimizer))
            if position is None:
                continue
            step = self._step(position, optimizer, trainer, unscaled=False)
            if step.indices and any(parameter.requires_grad for parameter in step.parameters):
                self._watches[position].step = step
                self._tell("gradients", step)

    def before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Gradients are unscaled and not yet clipped by Lightning."""
        optimizer = _unwrapped(optimizer)
        position = self._positions.get(id(optimizer))
        if position is None:
            return
        watch = self._watches[position]
        if watch.ready and not watch.stepping:  # two steps in one batch, and the first was not taken
            self._skip(watch)
        watch.ready = True
        if watch.step is None or pl_module.automatic_optimization:
            watch.step = self._step(position, optimizer, trainer, unscaled=True)
            self._tell("gradients", watch.step)
            if not self._may_clip:
                watch.step.mark()
        else:  # looked at after a manual backward, when gradients were still scaled
            watch.step.carries_scale = watch.step.skips_nonfinite
            watch.step.look_again()
        watch.left = None  # what is done to the gradients from here on is for this step, taken or not

    def current(self, optimizer: Any) -> Step | None:
        """The optimizer's step under way."""
        watch = self._watch(_unwrapped(optimizer))
        return None if watch is None else watch.step

    def batch_end(self) -> None:
        """A training batch is over: a step that was announced and not taken will not be."""
        for watch in self._watches.values():
            if watch.ready:
                self._skip(watch)

    # What the optimizers tell.

    def stepping(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has been entered."""
        watch = self._watch(optimizer)
        if watch is not None:
            watch.stepping = True

    def clipped(self, optimizer: Optimizer) -> None:
        """Gradients are as the update will see them."""
        watch = self._watch(optimizer)
        if watch is None:
            return
        watch.stepping = True
        if watch.step is not None:
            if not watch.step.unchanged():
                watch.step.look_again()
            if watch.ready and not watch.step.skips_nonfinite:
                watch.step.carries_scale = False  # by now unscaled, wherever it was looked at before
            self._tell("clipped", watch.step)
            if watch.step.withheld:
                watch.step.withhold()

    def taken(self, optimizer: Optimizer) -> None:
        """The optimizer has stepped."""
        watch = self._watch(optimizer)
        if watch is None:
            return
        step, watch.step, watch.ready, watch.stepping = watch.step, None, False, False
        if step is not None and step.withheld:
            step.give_back()
            self._tell("skipped", step)
        elif step is not None and (step.indices or self._backward):
            if step.parameters and step.shards is None:  # what is written to a shard does not count as written to the whole
                watch.left = GradientTrace(step.parameters)
            self._tell("taken", step)
        self._backward = False

    def _watch(self, optimizer: Optimizer) -> _Watch | None:
        return self._watches.get(self._positions.get(id(optimizer), -1))

    def _skip(self, watch: _Watch) -> None:
        step, watch.step, watch.ready = watch.step, None, False
        if step is not None and step.indices:
            self._tell("skipped", step)

    def _tell(self, event: str, step: Step) -> None:
        for observer in list(self._observers.values()):
            getattr(observer, event)(step)

    def _members(self, position: int, optimizer: Optimizer) -> list[tuple[int, Tensor]]:
        """The optimizer's parameters that have a place, each once; looked up anew when its groups have changed."""
        ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        known, members = self._watches[position].members
        if known != ids:
            found: dict[int, Tensor] = {}
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    index = self._index.get(id(parameter))
                    if index is not None:
                        found.setdefault(index, parameter)
            members = list(found.items())
            self._watches[position].members = ids, members
        return members

    def _step(self, position: int, optimizer: Optimizer, trainer: Trainer, unscaled: bool) -> Step:
        scaler = loss_scaler(trainer)
        # Lightning leaves the unscaling to optimizers that say they do it themselves; torch has no public flag for it.
        unscales_itself = scaler is not None and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        left = self._watches[position].left
        present: list[Tensor] = []
        indices: list[int] = []
        missing: list[int] = []
        for index, parameter in self._members(position, optimizer):
            if parameter.grad is not None:
                if not is_freed(parameter.grad):  # where it was freed before the step there is a gradient, and nothing to read
                    indices.append(index)
                    present.append(parameter)
            elif parameter.requires_grad:
                missing.append(index)
        return Step(
            optimizer=position,
            n_parameters=len(self.names),
            indices=indices,
            missing=missing,
            parameters=present,
            loss_scale=None if scaler is None else loss_scale(scaler),
            carries_scale=unscales_itself or not unscaled,
            skips_nonfinite=unscales_itself,
            global_step=trainer.global_step,
            shards=self.shards,
            known=self._watches[position].known,
            unzeroed=left is not None and left.unzeroed,
            wasted=left is not None and left.wasted,
        )


class _BeforeUpdate(Listener):
    """Step pre-hook: looks at the gradients after the closure, or now if there is none."""

    def __init__(self, probe: StepProbe) -> None:
        self.probe = probe

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self.probe.clipped(optimizer)
            return None

        def watched() -> Any:
            result = closure()
            self.probe.clipped(optimizer)
            return result

        self.probe.stepping(optimizer)
        return (args, {**kwargs, "closure": watched}) if "closure" in kwargs else ((args[0], watched, *args[2:]), kwargs)


class _AfterUpdate(Listener):
    """Step post-hook."""

    def __init__(self, probe: StepProbe) -> None:
        self.probe = probe

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.probe.taken(optimizer)


def _unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer inside Lightning's wrapper, or itself."""
    found: Optimizer = getattr(optimizer, "optimizer", optimizer)
    return found


def loss_scaler(trainer: Trainer) -> Any:
    """The trainer's GradScaler, or None if its precision has none."""
    return getattr(trainer.precision_plugin, "scaler", None)


def loss_scale(scaler: Any) -> Tensor | None:
    """The scale in force as a device tensor; ``get_scale()`` would wait for the device."""
    scale = scaler._scale
    return scale.clone() if scale is not None else None
