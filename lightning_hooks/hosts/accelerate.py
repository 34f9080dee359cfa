"""The monitors in a loop with Hugging Face's Accelerate."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from accelerate.accelerator import Accelerator
from torch import nn

from lightning_hooks.hooks.checks import brief
from lightning_hooks.hosts.loop_monitor import LoopMonitor
from lightning_hooks.hosts.watch import watch as watch_plain


def watch(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    *,
    log_dir: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> LoopMonitor:
    """Observe a training with Accelerate, as :func:`lightning_hooks.watch` does in plain PyTorch.

    The trackers that ``init_trackers`` has made get the values; the ``GradScaler`` and the accumulation are the accelerator's.

    Args:
        accelerator: The accelerator.
        model: The model, as ``prepare`` returned it.
        optimizer: Its optimizer, or several, as ``prepare`` returned them.
        log_dir: Where the run's reports are written; None for the accelerator's ``logging_dir``, or nowhere where it has none.
        **arguments: The others of :func:`lightning_hooks.watch`.

    Returns:
        A context manager around the loop: call ``step(loss)`` after each batch, also where ``accumulate`` takes no step.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type, or there is none of that name.
        ValueError: If an argument is out of range or needs Lightning.
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(f"watch takes an accelerate.Accelerator first; got {brief(accelerator)}.")
    monitor = watch_plain(
        model,
        optimizer,
        scaler=accelerator.scaler,
        loggers=[tracker.tracker for tracker in accelerator.trackers],
        log_dir=accelerator.logging_dir if log_dir is None else log_dir,
        **arguments,
    )
    host, precision = monitor.host, accelerator.mixed_precision
    host.setup = replace(host.setup, device=accelerator.device, description={"precision": PRECISIONS.get(precision, precision)})
    host.accumulation = accelerator.gradient_accumulation_steps
    return monitor


PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}  # Accelerate's names of precisions to Lightning's
