"""What an optimizer tells of its own step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer

from lightning_hooks.hooks import Listener


def has_step_hooks(optimizer: Any) -> bool:
    """Whether hooks on the optimizer's ``step`` can be registered; a warning where they cannot."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        rank_zero_warn(
            f"{kind} is not a torch.optim.Optimizer and has no step hooks: its steps, gradients and clips are not seen. Derive it "
            "from torch.optim.Optimizer to have them."
        )
        return False
    # torch keeps step hooks under private names, which Optimizer.__init__ sets.
    if not (hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "_optimizer_step_post_hooks")):
        rank_zero_warn(
            f"{kind} never called torch.optim.Optimizer.__init__ and has no step hooks: its steps, gradients and clips are not "
            f"seen. Call super().__init__(params, defaults) in {kind}.__init__ to have them."
        )
        return False
    return True


def warn_unseen(kinds: list[str], backwards: int, epoch: int) -> None:
    """An epoch had backward passes, and no optimizer's ``step`` was called."""
    which = ", ".join(dict.fromkeys(kinds))
    rank_zero_warn(
        f"{which}: step() was not called in epoch {epoch}, which had {backwards} backward passes, so that gradients, updates and "
        "clips are not seen: they are recorded where the step() of an optimizer from configure_optimizers is called. If it updates "
        "the weights by other methods (first_step and second_step of SAM), call its step() with a closure, or let "
        "configure_optimizers return the optimizer whose step() they call. This warning is shown once."
    )


class BeforeUpdate(Listener):
    """Step pre-hook: looks at the gradients after the closure, or now if there is none.

    Args:
        entered: Told that ``step`` has been entered; says whether it is not inside another step of the same optimizer, as that of
            a base class is.
        clipped: Told that gradients are as the update will see them.
    """

    def __init__(self, entered: Callable[[Optimizer], bool], clipped: Callable[[Optimizer], None]) -> None:
        self.entered, self.clipped = entered, clipped

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hand on a closure that looks when the one given is done."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not self.entered(optimizer):
            return None
        if closure is None:
            self.clipped(optimizer)
            return None

        def watched() -> Any:
            result = closure()
            self.clipped(optimizer)
            return result

        return (args, {**kwargs, "closure": watched}) if "closure" in kwargs else ((args[0], watched, *args[2:]), kwargs)


class AfterUpdate(Listener):
    """Step post-hook.

    Args:
        left: Told that ``step`` has been left.
    """

    def __init__(self, left: Callable[[Optimizer], None]) -> None:
        self.left = left

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell of it."""
        self.left(optimizer)
