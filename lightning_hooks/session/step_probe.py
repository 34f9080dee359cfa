"""What happens at an optimizer step: gradients ready, clipped, step taken or skipped. Measured once for all members.

Lightning has a callback hook before clipping (``on_before_optimizer_step``) and none between clipping and the update. There an
optimizer step pre-hook looks: under a loss scaler it fires at that moment; otherwise Lightning hands ``optimizer.step`` a
closure that runs backward and clipping, and the pre-hook hands on a closure that looks when that one is done. (After the step
would be too late: several multi-tensor optimizers write into the gradients.) A step post-hook says that the step was taken;
gradients that were ready and not followed by it are a skipped step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from operator import is_
from typing import Any

from lightning_hooks.declare.host import GradientChanges, Host
from lightning_hooks.declare.parameter_places import ParameterPlaces
from lightning_hooks.declare.step import EarlierOptimizers, Step
from lightning_hooks.hooks import HookManager
from lightning_hooks.session.optimizer_state import (
    AfterUpdate,
    BeforeUpdate,
    GradientTrace,
    OptimizerState,
    has_step_hooks,
)

# What an observer does at some of STEP_EVENTS: functions of the Step, of ``changed`` of what was kept
StepCalls = Mapping[str, Callable[[Any], Any]]
# The optimizers whose gradients an observer takes at their next step; None for those of all at each step
Due = Collection[int] | None
STEP_EVENTS = ("gradients", "update", "taken", "skipped", "changed")  # the events that observers of optimizer steps are called at
OnFault = Callable[[str, Exception], None]  # takes the site and the error of what failed


class StepObservers:
    """The observers of the optimizer steps of one run.

    Attributes:
        readers: Of the norms of each step: what they do with a fault.
        calls: What is called, by the event.
    """

    def __init__(self) -> None:
        self._observers: dict[int, tuple[StepCalls, OnFault | None, Due]] = {}
        self.readers: list[OnFault] = []
        self._gradients: list[tuple[Due, Callable[[Any], Any]]] = []
        self.calls: dict[str, list[Callable[[Any], Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, owner: object, observer: StepCalls, on_fault: OnFault | None, due: Due) -> None:
        """Add an observer, behind all others; the arguments are those of :meth:`StepProbe.subscribe`."""
        self._observers.pop(id(owner), None)
        self._observers[id(owner)] = observer, on_fault, due
        self._changed()

    def remove(self, owner: object) -> None:
        """Remove an observer."""
        self._observers.pop(id(owner), None)
        self._changed()

    def _changed(self) -> None:
        known = self._observers.values()
        self.readers = [on_fault for _, on_fault, _ in known if on_fault is not None]
        self._gradients = [(due, calls["gradients"]) for calls, _, due in known if "gradients" in calls]
        self.calls = {event: [calls[event] for calls, _, _ in known if event in calls] for event in STEP_EVENTS}

    def ready(self, step: Step) -> None:
        """The gradients of a step are there, and not clipped."""
        for due, call in self._gradients:
            if due is None or step.optimizer in due:
                call(step)
        if self.readers and step.before is None:  # after those who count zeros too, and read both at once
            try:
                step.before = step.norms() if step.known is None else step.known
            except Exception as error:  # noqa: BLE001  training goes on
                self._failed(error)
        step.found = ()  # it would keep gradients that are exchanged for others, or freed

    def read_after(self, step: Step) -> None:
        """Read the norms of gradients that clipping may have changed."""
        try:
            step.after = step.norms()
        except Exception as error:  # noqa: BLE001  training goes on
            self._failed(error)

    def notify(self, event: str, value: Step | EarlierOptimizers) -> None:
        """Another event."""
        for call in self.calls[event]:
            call(value)

    def _failed(self, error: Exception) -> None:
        """The norms cannot be read: they are read no more."""
        readers, self.readers = self.readers, []
        for on_fault in readers:
            on_fault("optimizer step (the norms of the gradients)", error)


class StepProbe:
    """Watches the optimizer steps of one run for all who subscribe.

    Optimizers that are exchanged are followed from the next batch on, parameters that are added to one from its next step on.

    Attributes:
        places: The optimizers and their parameters.
        watches: What is known of each optimizer.
        loop: What a loop that announces no steps does before and after each; set before anybody subscribes.
    """

    def __init__(self, host: Host) -> None:
        self._host, self.places = host, ParameterPlaces(host.setup.device)
        self._observers = StepObservers()
        self.watches: list[OptimizerState] = []  # of each optimizer
        self._watch_of: dict[int, OptimizerState] = {}  # the same by the ids of the optimizers
        self._hooks = HookManager()
        self.loop: tuple[Callable[[Any, bool], None] | None, Callable[[Any], None] | None] = None, None
        self._backward = self._installed = False
        self._changes: GradientChanges = "any"

    def subscribe(self, owner: object, observer: StepCalls, on_fault: OnFault | None = None, due: Due = None) -> None:
        """Add an observer; the first one installs the hooks.

        Args:
            owner: Whose it is.
            observer: What it does.
            on_fault: Of one that reads ``before`` and ``after`` of each step: takes what reading them raises, once.
            due: Of which optimizers it takes the gradients.
        """
        if not self._observers:
            self._install()
        self._observers.add(owner, observer, on_fault, due)

    def unsubscribe(self, owner: object) -> None:
        """Remove an observer; with the last one the hooks go."""
        self._observers.remove(owner)
        if not self._observers:
            self._installed = False
            self._hooks.remove_all()
            self.places.release()
            self.watches, self._watch_of, self._backward = [], {}, False

    def _install(self) -> EarlierOptimizers:
        """Hook the optimizers as they are now; return which of them were there before."""
        self._hooks.remove_all()
        self._installed = True
        self._changes = self._host.gradient_changes()
        places, watches = self.places, self.watches
        before, names = places.optimizers, places.optimizer_names
        places.update(self._host.model, self._host.optimizers)  # Lightning steps anything that has what it needs
        self.watches, self._watch_of = [], {}
        parts = self._host, places, self._changed
        kept: EarlierOptimizers = []
        with self._hooks.all_or_nothing():
            for position, (label, optimizer) in enumerate(zip(places.optimizer_names, places.optimizers, strict=True)):
                kept.append(position if before and names[position : position + 1] == [label] else None)
                same = position < len(before) and before[position] is optimizer
                watch = watches[position] if same else OptimizerState(position, optimizer, has_step_hooks(optimizer), *parts)
                self.watches.append(watch)
                self._watch_of[id(optimizer)] = watch
                if watch.hooked:
                    before_step, after_step = self.loop
                    pre, post = BeforeUpdate(watch, self._starts, before_step), AfterUpdate(watch, self._left, after_step)
                    self._hooks.register(optimizer, pre, "optimizer_step_pre", label=label)
                    self._hooks.register(optimizer, post, "optimizer_step_post", label=label)
        return kept

    def _changed(self, kept: EarlierOptimizers) -> None:
        self._observers.notify("changed", kept)

    # The events of the training loop.

    def batch_start(self) -> None:
        """A training batch starts: no step is under way, and optimizers may have been exchanged since the last one."""
        if not self._installed:
            return
        for watch in self.watches:
            watch.depth, watch.waiting = 0, watch.step is not None  # where a step raised and was caught, it is over
        now, known = self._host.optimizers, self.places.optimizers
        if len(now) != len(known) or not all(map(is_, now, known)):
            self._changed(self._install())

    def before_backward(self) -> None:
        """Backward starts."""
        self._backward = True
        for watch in self.watches:
            step = watch.step if watch.waiting else None
            if step is not None and all(parameter.grad is None for parameter in step.parameters):
                watch.discarded += 1  # gradients of an earlier batch that are gone by now were never used
            watch.waiting = False
            left = watch.left
            if left is not None and not left.over:
                left.before_backward()
            if watch.ready and not watch.depth:  # announced, and not taken before this next backward
                self.skip(watch)

    def before_zero_grad(self, optimizer: Any) -> None:
        """Lightning is about to zero an optimizer's gradients."""
        watch = self._watch_of.get(id(optimizer)) or self._watch(optimizer)
        left = None if watch is None else watch.left
        if left is None or left.over:
            return
        for parameter, (_, version) in zip(left.parameters, left.versions, strict=False):
            gradient = parameter.grad
            if gradient is not None and gradient._version != version:
                left.wasted |= left.added_to
                return

    def after_backward(self) -> None:
        """Backward is done. Where steps are not announced the user may clip from here on: this is where *before* is."""
        alone = self._host.setup.steps_announced and self._host.loss_scaling.accumulation == 1
        for watch in self.watches:
            left = watch.left
            if left is not None and alone and not left.unzeroed:
                left.over = True
            elif left is not None:
                left.after_backward()
        if self._host.setup.steps_announced:
            return
        for watch in self.watches:
            if not watch.hooked:
                continue
            step = watch.new_step(unscaled=False)
            if any(parameter.requires_grad for parameter in step.parameters):
                watch.step = step
                self._observers.ready(step)
            elif self._host.setup.world_size > 1 and any(parameter.requires_grad for parameter in watch.members):
                watch.announced_empty = True  # other ranks may have gradients, and what is done with a step may be a collective
                self._observers.ready(step)

    def before_optimizer_step(self, optimizer: Any) -> Step | None:
        """Gradients are unscaled and not yet clipped by Lightning; return the step under way."""
        watch = self._watch_of.get(id(optimizer)) or self._watch(optimizer)
        if watch is None:
            return None
        if not watch.hooked:  # for those who change its gradients; nothing says whether it stepped
            watch.step = watch.new_step(unscaled=True)
            watch.step.found = ()
            return watch.step
        if watch.ready and not watch.depth:  # two steps in one batch, and the first was not taken
            self.skip(watch)
        watch.ready = True
        step = watch.step
        if step is None or self._host.setup.steps_announced:
            step = watch.step = watch.new_step(unscaled=True)
            step.late = watch.announced_empty
            self._observers.ready(step)
            if self._changes != "any":
                step.mark(scaled=self._changes == "scaled")
        else:  # looked at after a manual backward, when gradients were still scaled
            step.carries_scale = step.skips_nonfinite
            step.refresh()
        watch.left = None  # what is done to the gradients from here on is for this step, taken or not
        return step

    def current(self, optimizer: Any) -> Step | None:
        """The optimizer's step under way."""
        watch = self._watch(optimizer)
        return None if watch is None else watch.step

    # The events of the optimizers.

    def _starts(self, watch: OptimizerState) -> None:
        """Gradients are as the update will see them."""
        step = watch.step
        if step is None:
            return
        same = step.changed(scaled=self._changes == "scaled")
        if step.carries_scale and not step.skips_nonfinite and (watch.ready or self._host.loss_scaling.unscales_in_step):
            step.carries_scale = False  # by now unscaled, wherever it was looked at before
        if same and step.after is None:
            step.after = step.before
        elif self._observers.readers and step.after is None:
            self._observers.read_after(step)
        for call in self._observers.calls["update"]:
            call(step)

    def _left(self, watch: OptimizerState) -> None:
        step, watch.step, watch.ready, watch.announced_empty = watch.step, None, False, False
        if step is not None and (step.indices or self._backward):
            step.discarded, watch.discarded = watch.discarded, 0
            if step.parameters and step.shards is None:  # what is written to a shard does not count as written to the whole
                watch.left = GradientTrace(step.parameters, unannounced=not self._host.setup.steps_announced)
            for call in self._observers.calls["taken"]:
                call(step)
        self._backward = False

    def _watch(self, optimizer: Any) -> OptimizerState | None:
        """That of an optimizer, or of the one in Lightning's wrapper: one of the user's own may keep another by the same name."""
        watch = self._watch_of.get(id(optimizer))
        return self._watch_of.get(id(getattr(optimizer, "optimizer", None))) if watch is None else watch

    def skip(self, watch: OptimizerState) -> None:
        """A step that was announced was not taken."""
        step, watch.step, watch.ready, watch.announced_empty = watch.step, None, False, False
        if step is not None and step.indices:
            self._observers.notify("skipped", step)
