"""A callback that gives a fit the monitors it lacks."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_hooks.callbacks.either_package import EitherPackage
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.callbacks.step_monitor import StepMonitor, refuse_sharded
from lightning_hooks.callbacks.trainer import callbacks_of
from lightning_hooks.callbacks.trio import monitors


class StandIn(EitherPackage):
    """Gives every fit the monitors that its trainer lacks; what the user has already is never doubled.

    It is what ``LIGHTNING_HOOKS=1`` adds to a trainer. Unlike monitors that a script asks for, these never refuse a fit: where
    one cannot listen, as to gradients of which each rank holds a shard, that is told and it is left out.

    Args:
        **arguments: As for :func:`lightning_hooks.monitors`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.monitors = monitors(**arguments)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        callbacks = callbacks_of(trainer)
        present = {callback.prefix for callback in callbacks if isinstance(callback, Monitor)}
        added: list[Any] = [
            monitor for monitor in self.monitors if monitor.prefix not in present and _possible(monitor, trainer, pl_module)
        ]
        at = next(place for place, callback in enumerate(callbacks) if callback is self) + 1
        # A new list: Lightning goes through the old one just now, and it may be the user's own.
        trainer.callbacks = [*callbacks[:at], *added, *callbacks[at:]]  # type: ignore[attr-defined]


def _possible(monitor: Monitor[Any], trainer: Trainer, pl_module: LightningModule) -> bool:
    if isinstance(monitor, StepMonitor):
        try:
            refuse_sharded(trainer, pl_module, type(monitor).__name__)
        except RuntimeError as error:
            rank_zero_warn(f"LIGHTNING_HOOKS: {error}")
            return False
    return True
