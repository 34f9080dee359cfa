"""Whether anybody can clip gradients in a fit, and to what norm Lightning was told to."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch.optim import optimizer as torch_optimizer

from lightning_hooks.callbacks.trainer import callbacks_of

_IN_THE_MODULE = (
    "configure_gradient_clipping",
    "clip_gradients",
    "on_before_optimizer_step",
    "optimizer_step",
)


def configured_norm(trainer: Trainer, pl_module: LightningModule) -> float | None:
    """The total norm to which Lightning was told to clip, or None."""
    by_norm = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm) or "norm") == "norm"
    value: Any = trainer.gradient_clip_val
    return float(value) if value and by_norm and pl_module.automatic_optimization else None


def may_clip(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Whether anything could change gradients between ``on_before_optimizer_step`` and the update.

    False only where nobody has a place to do it: automatic optimisation without a loss scaler, no ``gradient_clip_val``, no
    override in the module, no other callback that is told of the step, no plugin of the user's, no other step hook.
    """
    if trainer.gradient_clip_val or not pl_module.automatic_optimization:
        return True
    plugin = type(trainer.precision_plugin)
    if getattr(trainer.precision_plugin, "scaler", None) is not None or not plugin.__module__.startswith(
        ("lightning.", "pytorch_")
    ):
        return True
    if any(_overridden(pl_module, name) for name in _IN_THE_MODULE):
        return True
    tellers = [
        each
        for each in callbacks_of(trainer)
        if _overridden(each, "on_before_optimizer_step") and not getattr(each, "only_looks", False)
    ]
    # torch keeps step hooks under private names; without them nobody else's could be seen.
    hooked = [getattr(optimizer, "_optimizer_step_pre_hooks", ()) for optimizer in trainer.optimizers]
    return bool(tellers) or any(hooked) or bool(getattr(torch_optimizer, "_global_optimizer_pre_hooks", ()))


def _overridden(instance: Any, name: str) -> bool:
    """Whether a class between the instance's and Lightning's own writes the method, or the instance carries one."""
    if name in vars(instance):
        return True
    for kind in type(instance).__mro__:
        if name in vars(kind):
            return not kind.__module__.startswith(("lightning.pytorch.", "pytorch_lightning."))
    return False
