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
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.callbacks.gradient_trace import GradientTrace
from lightning_hooks.callbacks.parameter_places import ParameterPlaces
from lightning_hooks.callbacks.step import Kept, Step
from lightning_hooks.callbacks.step_hooks import AfterUpdate, BeforeUpdate, has_step_hooks, warn_unseen
from lightning_hooks.callbacks.trainer import callbacks_of, loss_scale, loss_scaler
from lightning_hooks.callbacks.who_clips import may_clip
from lightning_hooks.hooks import HookManager
from lightning_hooks.hooks.tensors import is_freed
from lightning_hooks.statistics.shards import Shards, is_distributed
from lightning_hooks.statistics.step_reader import StepReader


@dataclass(slots=True, eq=False, repr=False)
class StepObserver:
    """What one callback wants to be told. Each takes the :class:`Step`, but ``changed``, which takes what was kept."""

    gradients: Callable[[Step], Any]
    clipped: Callable[[Step], Any]
    taken: Callable[[Step], Any]
    skipped: Callable[[Step], Any]
    changed: Callable[[Kept], Any]


@dataclass(slots=True, eq=False, repr=False)
class _Watch:
    """What is known of one optimizer's next step."""

    hooked: bool  # it has step hooks
    step: Step | None = None
    reader: StepReader = field(default_factory=StepReader)
    members: tuple[list[int], list[tuple[int, Tensor]]] = ([], [])  # ids of its parameters; index and parameter of each
    left: GradientTrace | None = None  # the gradients that the last step left behind
    ready: bool = False  # on_before_optimizer_step has come
    stepping: bool = False  # between the step's pre-hook and its post-hook
    looks: int = 0  # how often gradients were ready in the step under way: LBFGS asks for them several times
    told_empty: bool = False  # since its last step all ranks were told of a manual backward, and here there were no gradients
    depth: int = 0  # how many calls of step are under way: a subclass may call that of its base class


_PROBES: WeakKeyDictionary[Trainer, StepProbe] = WeakKeyDictionary()


class StepProbe:
    """Watches the optimizer steps of one trainer for all callbacks that subscribe.

    Lightning tells every callback of an event; one of the subscribers, which :meth:`led_by` names, hands it on. Optimizers that are
    exchanged are followed from the next batch on, parameters that are added to one from its next step on.
    """

    def __init__(self) -> None:
        self.optimizer_names: list[str] = []
        self.shards: Shards | None = None
        self._places = ParameterPlaces()
        self._observers: dict[int, StepObserver] = {}
        self._optimizers: list[Any] = []
        self._watches: dict[int, _Watch] = {}
        self._positions: dict[int, int] = {}
        self._hooks = HookManager()
        self._backwards = 0  # in this epoch
        self._steps_seen = False  # in this epoch
        self._told_unseen = False
        self._backward = False
        self._may_clip = True

    @classmethod
    def of(cls, trainer: Trainer) -> StepProbe:
        """Return the trainer's probe, made at the first call."""
        return _PROBES.setdefault(trainer, cls())

    @property
    def names(self) -> list[str]:
        """The parameters that have a place. Those that come later are appended."""
        return self._places.names

    def subscribe(self, owner: object, observer: StepObserver, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add an observer; the first one installs the hooks."""
        if not self._observers:
            self._places, self._optimizers, self._watches, self.shards = ParameterPlaces(), [], {}, None
            self._backwards, self._steps_seen, self._told_unseen = 0, False, False
            self._install(trainer, pl_module)
        self._observers[id(owner)] = observer

    def unsubscribe(self, owner: object) -> None:
        """Remove an observer; with the last one the hooks go."""
        self._observers.pop(id(owner), None)
        if not self._observers:
            self._hooks.remove_all()
            for watch in self._watches.values():
                if watch.step is not None:
                    watch.step.give_back()
            self._watches.clear()
            self._optimizers, self._positions = [], {}
            self._backward = False

    def _install(self, trainer: Trainer, pl_module: LightningModule) -> Kept:
        """Hook the trainer's optimizers as they are now; return which of them were there before."""
        self._hooks.remove_all()
        self._may_clip = may_clip(trainer, pl_module)
        before, watches, names = self._optimizers, self._watches, self.optimizer_names
        self._optimizers = [*trainer.optimizers]  # Lightning steps anything that has what it needs
        self.optimizer_names = [f"{i}-{type(optimizer).__name__}" for i, optimizer in enumerate(self._optimizers)]
        self._positions = {id(optimizer): position for position, optimizer in enumerate(self._optimizers)}
        self._watches = {}
        kept: Kept = []
        with self._hooks.all_or_nothing():
            for position, (label, optimizer) in enumerate(zip(self.optimizer_names, self._optimizers, strict=True)):
                kept.append(position if before and names[position : position + 1] == [label] else None)
                same = position < len(before) and before[position] is optimizer
                self._watches[position] = watches[position] if same else _Watch(has_step_hooks(optimizer))
                if self._watches[position].hooked:
                    self._hooks.register(optimizer, BeforeUpdate(self.entered, self.clipped), "optimizer_step_pre", label=label)
                    self._hooks.register(optimizer, AfterUpdate(self.left), "optimizer_step_post", label=label)
        self._place_parameters(pl_module)
        return kept

    def _place_parameters(self, pl_module: LightningModule) -> bool:
        """Give every parameter a place; return whether there are new ones."""
        new = self._places.update(pl_module, [*zip(self.optimizer_names, self._optimizers, strict=True)])
        if new:
            in_order = self._places.tensors()
            spread = any(parameter is not None and is_distributed(parameter) for parameter in in_order)
            self.shards = Shards(in_order, pl_module.device) if spread else None
        return new

    def index_of(self, parameter: Tensor) -> int | None:
        """The parameter's place in ``names``."""
        return self._places.index_of(parameter)

    def holders(self) -> dict[int, set[int]]:
        """By its id, which optimizers hold a parameter."""
        found: dict[int, set[int]] = {}
        for position, optimizer in enumerate(self._optimizers):
            for parameter in (p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]):
                found.setdefault(id(parameter), set()).add(position)
        return found

    def led_by(self, owner: object, trainer: Trainer) -> bool:
        """Whether ``owner`` is the subscriber that hands events on: the first among the trainer's callbacks as they are now."""
        for callback in callbacks_of(trainer):
            if id(callback) in self._observers:
                return callback is owner
        return id(owner) == next(iter(self._observers), None)  # all are told by callbacks of the user's own

    # What Lightning tells, handed on by the leader.

    def batch_starts(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training batch starts: no step is under way, and optimizers may have been exchanged since the last one."""
        for watch in self._watches.values():
            watch.depth, watch.stepping = 0, False  # where a step raised and was caught
        now: list[Any] = trainer.optimizers
        if len(now) != len(self._optimizers) or any(a is not b for a, b in zip(now, self._optimizers, strict=True)):
            self._tell_changed(self._install(trainer, pl_module))

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
        watch = self._watch(optimizer)
        if watch is not None and watch.left is not None:
            watch.left.before_zero_grad()

    def after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Backward is done. Under manual optimisation the user may clip from here on, so this is where *before* is."""
        self._backwards += 1
        for watch in self._watches.values():
            if watch.left is not None:
                watch.left.after_backward()
        if pl_module.automatic_optimization:
            return
        for position, watch in self._watches.items():
            if not watch.hooked:
                continue
            step = self._step(position, trainer, pl_module, unscaled=False)
            if step.indices and any(parameter.requires_grad for parameter in step.parameters):
                watch.step = step
                self._tell("gradients", step)
            elif trainer.world_size > 1 and any(parameter.requires_grad for _, parameter in self._members(position, pl_module)):
                watch.told_empty = True  # other ranks may have gradients, and what is done with a step may be a collective
                self._tell("gradients", step)

    def before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Gradients are unscaled and not yet clipped by Lightning."""
        position = self._position(optimizer)
        if position is None:
            return
        watch = self._watches[position]
        if not watch.hooked:  # for those who change its gradients; nobody will tell whether it stepped
            watch.step = self._step(position, trainer, pl_module, unscaled=True)
            return
        self._steps_seen = True
        if watch.ready and not watch.stepping:  # two steps in one batch, and the first was not taken
            self._skip(watch)
        watch.ready = True
        if watch.step is None or pl_module.automatic_optimization:
            watch.step = self._step(position, trainer, pl_module, unscaled=True)
            watch.step.late = watch.told_empty
            self._tell("gradients", watch.step)
            if not self._may_clip:
                watch.step.mark()
        else:  # looked at after a manual backward, when gradients were still scaled
            watch.step.carries_scale = watch.step.skips_nonfinite
            watch.step.look_again()
        watch.left = None  # what is done to the gradients from here on is for this step, taken or not

    def current(self, optimizer: Any) -> Step | None:
        """The optimizer's step under way."""
        watch = self._watch(optimizer)
        return None if watch is None else watch.step

    def batch_end(self) -> None:
        """A training batch is over: a step that was announced and not taken will not be."""
        for watch in self._watches.values():
            if watch.ready:
                self._skip(watch)

    def epoch_ends(self, epoch: int) -> None:
        """An epoch is over. One with backward passes and without a step was one whose steps nobody saw."""
        kinds = [type(self._optimizers[position]).__name__ for position, watch in self._watches.items() if watch.hooked]
        kinds = [kind for kind in kinds if kind != "_MockOptimizer"]  # Lightning's, where the module has none: a rule says so
        if kinds and self._backwards and not self._steps_seen and not self._told_unseen:
            self._told_unseen = True
            warn_unseen(kinds, self._backwards, epoch)
        self._backwards, self._steps_seen = 0, False

    # What the optimizers tell.

    def entered(self, optimizer: Optimizer) -> bool:
        """``optimizer.step`` has been entered; return whether it is not inside another one of its own."""
        watch = self._watch(optimizer)
        if watch is None:
            return False
        watch.depth += 1
        if watch.depth > 1:
            return False
        self._steps_seen = True
        watch.looks, watch.stepping = 0, True
        return True

    def clipped(self, optimizer: Optimizer) -> None:
        """Gradients are as the update will see them."""
        watch = self._watch(optimizer)
        if watch is None:
            return
        if watch.step is not None:
            if not watch.step.unchanged():
                watch.step.look_again()
            if watch.ready and not watch.step.skips_nonfinite:
                watch.step.carries_scale = False  # by now unscaled, wherever it was looked at before
            self._tell("clipped", watch.step)
            if watch.step.withheld:
                watch.step.withhold(optimizer)

    def left(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has been left."""
        watch = self._watch(optimizer)
        if watch is None:
            return
        watch.depth = max(watch.depth - 1, 0)
        if watch.depth:
            return
        step, watch.step, watch.ready, watch.stepping, watch.told_empty = watch.step, None, False, False, False
        if step is not None and step.withheld:
            step.give_back()
            self._tell("skipped", step)
        elif step is not None and (step.indices or self._backward):
            if step.parameters and step.shards is None:  # what is written to a shard does not count as written to the whole
                watch.left = GradientTrace(step.parameters)
            self._tell("taken", step)
        self._backward = False

    def _position(self, optimizer: Any) -> int | None:
        """The optimizer's, or that of the one in Lightning's wrapper: one of the user's own may keep another by the same name."""
        found = self._positions.get(id(optimizer))
        return self._positions.get(id(getattr(optimizer, "optimizer", None))) if found is None else found

    def _watch(self, optimizer: Any) -> _Watch | None:
        return self._watches.get(-1 if (position := self._position(optimizer)) is None else position)

    def _skip(self, watch: _Watch) -> None:
        step, watch.step, watch.ready, watch.told_empty = watch.step, None, False, False
        if step is not None and step.indices:
            self._tell("skipped", step)

    def _tell(self, event: str, step: Step) -> None:
        for observer in list(self._observers.values()):
            getattr(observer, event)(step)

    def _tell_changed(self, kept: Kept) -> None:
        for observer in list(self._observers.values()):
            observer.changed(kept)

    def _members(self, position: int, pl_module: LightningModule) -> list[tuple[int, Tensor]]:
        """The optimizer's parameters, each once, with their places; looked up anew when its groups have changed."""
        groups = getattr(self._optimizers[position], "param_groups", ())
        ids = [id(parameter) for group in groups for parameter in group["params"]]
        known, members = self._watches[position].members
        if known != ids:
            if self._place_parameters(pl_module):
                self._tell_changed([*range(len(self._optimizers))])
            found: dict[int, Tensor] = {}
            for group in groups:
                for parameter in group["params"]:
                    index = self.index_of(parameter)
                    if index is not None:
                        found.setdefault(index, parameter)
            members = list(found.items())
            self._watches[position].members = ids, members
        return members

    def _step(self, position: int, trainer: Trainer, pl_module: LightningModule, unscaled: bool) -> Step:
        optimizer, watch = self._optimizers[position], self._watches[position]
        watch.looks += watch.stepping
        scaler = loss_scaler(trainer)
        # Lightning leaves the unscaling to optimizers that say they do it themselves; torch has no public flag for it.
        unscales_itself = scaler is not None and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        present: list[Tensor] = []
        indices: list[int] = []
        missing: list[int] = []
        for index, parameter in self._members(position, pl_module):
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
            reader=watch.reader,
            again=watch.looks > 1,
            unzeroed=watch.left is not None and watch.left.unzeroed,
            wasted=watch.left is not None and watch.left.wasted,
        )
