"""A callback that gives a fit the monitors it lacks."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_hooks.callbacks.either_package import EitherPackage
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.callbacks.trainer import callbacks_of
from lightning_hooks.callbacks.trio import monitors


class StandIn(EitherPackage):
    """Gives every fit the monitors that its trainer lacks; what the user has already is never doubled.

    It is what ``LIGHTNING_HOOKS=1`` adds to a trainer. Unlike monitors that a script asks for, these never end a fit: one that
    cannot observe this model (it has no modules, a pattern matches none of them, each rank holds a shard of the gradients) is left
    out, with a warning.

    Args:
        **arguments: As for :func:`lightning_hooks.monitors`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.monitors = monitors(**arguments)
        for monitor in self.monitors:
            monitor.on_train_start = partial(_start, monitor)  # type: ignore[method-assign]

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        callbacks = callbacks_of(trainer)
        present = {callback.prefix for callback in callbacks if isinstance(callback, Monitor)}
        added: list[Any] = [monitor for monitor in self.monitors if monitor.prefix not in present]
        at = next(place for place, callback in enumerate(callbacks) if callback is self) + 1
        # A new list: Lightning goes through the old one just now, and it may be the user's own.
        trainer.callbacks = [*callbacks[:at], *added, *callbacks[at:]]  # type: ignore[attr-defined]


def _start(monitor: Monitor[Any], trainer: Trainer, pl_module: LightningModule) -> None:
    """Attach a monitor, or leave it out of this fit. Not before training starts: models may be built after ``setup``."""
    try:
        type(monitor).on_train_start(monitor, trainer, pl_module)
    except Exception as error:  # noqa: BLE001  whatever it is, the script must run as it does without us
        monitor.detach()
        # A new list: Lightning goes through the old one just now.
        trainer.callbacks = [callback for callback in callbacks_of(trainer) if callback is not monitor]  # type: ignore[attr-defined]
        rank_zero_warn(
            f"LIGHTNING_HOOKS: this fit runs without {type(monitor).__name__}, because of {type(error).__name__}: {error} "
            "Training goes on."
        )
