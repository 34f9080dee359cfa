"""What is known of one optimizer: the hooks on its step, its next step, and the gradients that the last one left behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.declare.host import Host
from lightning_hooks.declare.parameter_places import ParameterPlaces
from lightning_hooks.declare.step import EarlierOptimizers, Step, loss_scale, versions
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.modes import dispatch_modes, function_modes, is_captured, outside_modes
from lightning_hooks.hooks.tensors import addresses_of, computed, is_freed


@dataclass(slots=True, eq=False, repr=False)
class OptimizerState:
    """What is known of one optimizer's next step."""

    position: int  # its place among the optimizers
    optimizer: Any
    hooked: bool  # it has step hooks
    host: Host
    places: ParameterPlaces
    changed: Callable[[EarlierOptimizers], None]  # called where there are new parameters
    step: Step | None = None
    held: list[Tensor] = field(default_factory=list)  # the parameters of its groups
    members: list[Tensor] = field(default_factory=list)  # those that torch computes with, each once
    indices: list[int] = field(default_factory=list)  # of these
    left: GradientTrace | None = None  # the gradients that the last step left behind
    waiting: bool = False  # gradients of an earlier batch have not been used for a step
    discarded: int = 0  # batches since the last step whose gradients never were
    ready: bool = False  # on_before_optimizer_step has come
    looks: int = 0  # how often gradients were ready in the step under way: LBFGS asks for them several times
    announced_empty: bool = False  # since its last step all ranks recorded a manual backward, and here there were no gradients
    depth: int = 0  # how many calls of step are under way: a subclass may call that of its base class

    def _look_at_groups(self, held: list[Tensor]) -> None:
        places = self.places
        if places.update(self.host.model, places.optimizers):
            self.changed([*range(len(places.optimizers))])
        found = places.members(getattr(self.optimizer, "param_groups", ()))
        usable = computed(found.values())
        self.held, self.indices, self.members = held, [*compress(found, usable)], [*compress(found.values(), usable)]

    def new_step(self, unscaled: bool) -> Step:
        """Return the step under way, with the gradients that are there now, ``unscaled`` or still multiplied by the loss scale."""
        held: list[Tensor] = []
        for group in getattr(self.optimizer, "param_groups", ()):
            held += group["params"]
        if len(held) != len(self.held) or not all(map(is_, held, self.held)):
            self._look_at_groups(held)
        self.looks += self.depth > 0
        before, scaler, shards = self.step, self.host.loss_scaling.scaler, self.places.shards
        # Lightning leaves the unscaling to optimizers that say they do it themselves; torch has no public flag for it.
        unscales_itself = scaler is not None and bool(getattr(self.optimizer, "_step_supports_amp_scaling", False))
        present: list[Tensor] = []
        gradients: list[Tensor] = []
        indices: list[int] = []
        missing: list[int] = []
        for index, parameter in zip(self.indices, self.members, strict=True):
            gradient = parameter.grad
            if gradient is not None:
                indices.append(index)
                present.append(parameter)
                gradients.append(gradient)
            elif parameter.requires_grad:
                missing.append(index)
        addresses = addresses_of(gradients)
        if 0 in addresses:  # where one was freed before the step there is a gradient, and nothing to read
            kept = [not is_freed(gradient) for gradient in gradients]
            indices, present = [*compress(indices, kept)], [*compress(present, kept)]
        again = self.looks > 1
        return Step(
            optimizer=self.position,
            n_parameters=len(self.places.names),
            indices=indices,
            missing=missing,
            parameters=present,
            loss_scale=None if scaler is None else loss_scale(scaler),
            carries_scale=unscales_itself or not unscaled,
            skips_nonfinite=unscales_itself,
            global_step=self.host.position.global_step,
            addresses=addresses if shards is None and 0 not in addresses else None,
            shards=shards,
            again=again,
            before=before.before if again and before is not None else None,
            after=before.after if again and before is not None else None,
            found=gradients if shards is None and 0 not in addresses else (),
            unzeroed=self.left is not None and self.left.unzeroed and self.left.added_to,
            wasted=self.left is not None and self.left.wasted,
        )


def has_step_hooks(optimizer: Any) -> bool:
    """Whether hooks on the optimizer's ``step`` can be registered; a warning where they cannot."""
    # torch keeps step hooks under private names, which Optimizer.__init__ sets.
    hooked = isinstance(optimizer, Optimizer) and hasattr(optimizer, "_optimizer_step_post_hooks")
    if not hooked:
        warn(
            f"{type(optimizer).__name__} has no step hooks: its steps, gradients and clips are not seen. Derive it from "
            "torch.optim.Optimizer, and call super().__init__(params, defaults) in its __init__, to have them."
        )
    return hooked


class BeforeUpdate(Listener):
    """Step pre-hook: calls ``starts`` when gradients are as the update will see them, after the closure if there is one.

    Before that it calls ``entered``, if there is one, with the optimizer and whether there is a closure.
    """

    def __init__(
        self, watch: OptimizerState, starts: Callable[[OptimizerState], None], entered: Callable[[Any, bool], None] | None
    ) -> None:
        self.watch, self.starts, self.entered = watch, starts, entered

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hand on a closure that looks when the one given is done."""
        if torch.cuda.is_initialized() and is_captured():  # type: ignore[no-untyped-call]
            return None
        closure, watch = kwargs.get("closure", args[1] if len(args) > 1 else None), self.watch
        if self.entered is not None and not watch.depth:
            self.entered(optimizer, closure is not None)
        watch.depth += 1
        if watch.depth > 1:  # inside another step of the same optimizer, as that of a base class is
            return None
        watch.looks = 0

        def watched() -> Any:
            result = None if closure is None else closure()
            if function_modes() or dispatch_modes():
                with outside_modes():
                    self.starts(watch)
            else:
                self.starts(watch)
            return result

        if closure is None:
            watched()
            return None
        return (args, {**kwargs, "closure": watched}) if "closure" in kwargs else ((args[0], watched, *args[2:]), kwargs)


class AfterUpdate(Listener):
    """Step post-hook: calls ``left`` when ``step`` has been left, and then ``taken``, if there is one, with the optimizer."""

    def __init__(self, watch: OptimizerState, left: Callable[[OptimizerState], None], taken: Callable[[Any], None] | None) -> None:
        self.watch, self.left, self.taken = watch, left, taken

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Report it."""
        watch = self.watch
        if torch.cuda.is_initialized() and is_captured():  # type: ignore[no-untyped-call]
            return
        watch.depth = max(watch.depth - 1, 0)
        if not watch.depth:
            if function_modes() or dispatch_modes():
                with outside_modes():
                    self.left(watch)
            else:
                self.left(watch)
            if self.taken is not None:
                self.taken(optimizer)


LOOKED_AT = 4  # how many parameters of an optimizer are looked at, evenly spread: what zeroes or clips one does so to all


class GradientTrace:
    """Follows the gradients of one optimizer from one step to the next by torch's own count of changes in place; reads no number.

    Args:
        parameters: The parameters that had a gradient at the step that was just taken.
        unannounced: Whether nobody says when they are zeroed, as under manual optimization. Then those of biases are kept
            until the next backward: where the parameters have none then, what was done to them before was in vain.

    Attributes:
        parameters: Those that are looked at.
        versions: Their gradients as they were after the step, or after the last backward.
        over: Backward has added to zeroed gradients since, and nothing but the next step is to come.
        unzeroed: Nothing was done to the gradients between the step and what backward added to them: they were not zeroed.
        wasted: They were changed, and then zeroed.
    """

    def __init__(self, parameters: Sequence[Tensor], unannounced: bool = False) -> None:
        small = [*islice((parameter for parameter in parameters if parameter.dim() < 2), LOOKED_AT)] if unannounced else []
        self.parameters = small or parameters[:: -(-len(parameters) // LOOKED_AT)]
        self._keeps = bool(small)
        self._kept = [gradient for parameter in small if (gradient := parameter.grad) is not None] if small else []
        self.unzeroed = True
        self.wasted = self.over = False
        self.versions = versions(self.parameters)

    @property
    def added_to(self) -> bool:
        """Whether the gradients are the tensors that they were: backward adds to them in place, code may put others there."""
        return [tensor for tensor, _ in versions(self.parameters)] == [tensor for tensor, _ in self.versions]

    def before_backward(self) -> None:
        """Backward starts. Zeroing leaves no gradient, or counts as a change."""
        if not self._kept and self.parameters[0].grad is None:
            self.unzeroed = False
            return
        now = versions(self.parameters)
        self.unzeroed = self.unzeroed and now == self.versions
        if self._kept and not now:
            before = zip(self._kept, self.versions, strict=True)
            self.wasted |= any(gradient._version != version for gradient, (_, version) in before)
        self._kept = []

    def after_backward(self) -> None:
        """Backward is done, before another one or without a zeroing: what it added is no doing of the user's."""
        self.versions = versions(self.parameters)
        if self._keeps:
            self._kept = [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None]
