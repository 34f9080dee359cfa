"""The monitors in a loop with Hugging Face's Accelerate."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate.accelerator import Accelerator
from torch import nn

from lightning_hooks.hosts.loggers import as_loggers
from lightning_hooks.hosts.loop_monitor import LoopMonitor
from lightning_hooks.hosts.loop_setup import inner_optimizer, setup_of
from lightning_hooks.hosts.plain import PlainHost
from lightning_hooks.hosts.watch import monitor_of


def watch(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    *,
    log_dir: str | os.PathLike[str] | None = None,
    batches_per_epoch: int | None = None,
    loss_function: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> LoopMonitor:
    """Observe a training with Accelerate, as :func:`lightning_hooks.watch` does in plain PyTorch.

    The trackers that ``init_trackers`` has made get the values; the ``GradScaler`` and the accumulation are the accelerator's.

    Args:
        accelerator: The accelerator.
        model: The model, as ``prepare`` returned it.
        optimizer: Its optimizer, or several, as ``prepare`` returned them.
        log_dir: Where the run's reports are written; None for the accelerator's ``logging_dir``, or nowhere where it has none.
        batches_per_epoch: As for :func:`lightning_hooks.watch`.
        loss_function: As for :func:`lightning_hooks.watch`.
        **arguments: Those of :class:`~lightning_hooks.TrainingMonitor`, but ``progress_bar``.

    Returns:
        A context manager around the loop: call ``step(loss)`` after each batch, also where ``accumulate`` takes no step.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type, or there is none of that name.
        ValueError: If an argument is out of range or needs Lightning.
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"watch takes an accelerate.Accelerator first; got {accelerator!r}.")
    given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    setup = setup_of(
        model,
        device=accelerator.device,
        is_global_zero=accelerator.is_main_process,
        automatic_optimization=len(given) == 1,
        steps_announced=False,
        batches_per_epoch=float("inf") if batches_per_epoch is None else float(batches_per_epoch),
        description={"precision": PRECISIONS.get(accelerator.mixed_precision, accelerator.mixed_precision)},
    )
    folder = accelerator.logging_dir if log_dir is None else log_dir
    host = PlainHost(
        model,
        [inner_optimizer(each) for each in given],
        setup=setup,
        loggers=as_loggers([tracker.tracker for tracker in accelerator.trackers]),
        log_dir=None if folder is None else Path(folder),
        scaler=accelerator.scaler,
    )
    host.accumulation = accelerator.gradient_accumulation_steps
    return monitor_of("watch", host, loss_function, arguments)


PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
"""Accelerate's names of precisions to Lightning's."""
