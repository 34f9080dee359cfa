"""What callbacks ask of a trainer and Lightning has no public name for."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor


def callbacks_of(trainer: Trainer) -> list[Any]:
    """The callbacks of a trainer, in their order."""
    found: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by one of the trainer's connectors
    return found


def epoch_step(trainer: Trainer) -> int:
    """The step at which Lightning itself logs what is logged at an epoch's end.

    Lightning counts batches that ended in an optimizer step, and steps its count back by one for the epoch's metrics;
    ``global_step`` counts every optimizer and would put our points elsewhere on the axis. The count has no public name.
    """
    stepped: int = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step)
    return stepped if trainer.validating else max(stepped - 1, 0)  # in validation the batch before it is not counted yet


def loss_scaler(trainer: Trainer) -> Any:
    """The trainer's GradScaler, or None if its precision has none."""
    return getattr(trainer.precision_plugin, "scaler", None)


def loss_scale(scaler: Any) -> Tensor | None:
    """The scale in force as a device tensor; ``get_scale()`` would wait for the device."""
    scale = scaler._scale
    return scale.clone() if scale is not None else None


def epoch_ends(trainer: Trainer) -> bool:
    """Whether the training batch that ends now is the epoch's last, as far as can be told before other callbacks have decided.

    It may be wrong where somebody asked to stop and ``min_epochs`` or ``min_steps`` are not reached: training goes on then.
    """
    steps: int = trainer.max_steps
    return bool(trainer.is_last_batch or trainer.should_stop or 0 <= steps <= trainer.global_step)
