"""Hooks on an optimizer's own step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from lightning_hooks.declare.warn import Once, warn
from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.modes import dispatch_modes, function_modes, is_captured, outside_modes
from lightning_hooks.session.optimizer_state import OptimizerState


def has_step_hooks(optimizer: Any) -> bool:
    """Whether hooks on the optimizer's ``step`` can be registered; a warning where they cannot."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        warn(
            f"{kind} is not a torch.optim.Optimizer and has no step hooks: its steps, gradients and clips are not seen. Derive it "
            "from torch.optim.Optimizer to have them."
        )
        return False
    # torch keeps step hooks under private names, which Optimizer.__init__ sets.
    if not (hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "_optimizer_step_post_hooks")):
        warn(
            f"{kind} never called torch.optim.Optimizer.__init__ and has no step hooks: its steps, gradients and clips are not "
            f"seen. Call super().__init__(params, defaults) in {kind}.__init__ to have them."
        )
        return False
    return True


class UnseenSteps:
    """Finds epochs with backward passes in which no optimizer's ``step`` was called, and warns of them once."""

    def __init__(self) -> None:
        self.backwards = 0  # in this epoch
        self.seen = False  # a step, in this epoch
        self._warn_once = Once()

    def epoch_end(self, kinds: list[str], epoch: int) -> None:
        """An epoch is over.

        Args:
            kinds: The types of the optimizers that have step hooks.
            epoch: Its number.
        """
        kinds = [kind for kind in kinds if kind != "_MockOptimizer"]  # Lightning's, where the module has none: a rule says so
        if kinds and self.backwards and not self.seen:
            self._warn_once(
                f"{', '.join(dict.fromkeys(kinds))}: step() was not called in epoch {epoch}, which had {self.backwards} backward "
                "passes, so that gradients, updates and clips are not seen: they are recorded where the step() of an optimizer "
                "from configure_optimizers is called. If it updates the weights by other methods (first_step and second_step of "
                "SAM), call its step() with a closure, or let configure_optimizers return the optimizer whose step() they call. "
                "This warning is shown once."
            )
        self.backwards, self.seen = 0, False


class BeforeUpdate(Listener):
    """Step pre-hook: looks at the gradients after the closure, or now if there is none.

    Args:
        watch: What is known of the optimizer.
        unseen: Notes that a step was seen.
        starts: Called when gradients are as the update will see them.
    """

    def __init__(self, watch: OptimizerState, unseen: UnseenSteps, starts: Callable[[OptimizerState], None]) -> None:
        self.watch, self.unseen, self.starts = watch, unseen, starts

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hand on a closure that looks when the one given is done."""
        if torch.cuda.is_initialized() and is_captured():  # type: ignore[no-untyped-call]
            return None
        closure, watch = kwargs.get("closure", args[1] if len(args) > 1 else None), self.watch
        watch.depth += 1
        if watch.depth > 1:  # inside another step of the same optimizer, as that of a base class is
            return None
        self.unseen.seen, watch.looks = True, 0

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
    """Step post-hook.

    Args:
        watch: What is known of the optimizer.
        left: Called when ``step`` has been left.
    """

    def __init__(self, watch: OptimizerState, left: Callable[[OptimizerState], None]) -> None:
        self.watch, self.left = watch, left

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
