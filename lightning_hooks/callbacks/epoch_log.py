"""Logging a window's numbers as Lightning does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer

from lightning_hooks.callbacks.lightning_api import log_step
from lightning_hooks.collectors.warn import warn
from lightning_hooks.trackers import Trackers


class EpochLog:
    """Logs numbers that are the same on every rank: for loggers, and where EarlyStopping and ModelCheckpoint read them.

    ``self.log_dict`` would warn without ``sync_dist``, and cost one collective per key with it. A key that somebody else logs
    keeps their value, with one warning.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._warned = False

    def write(
        self, who: str, trainer: Trainer, trackers: Trackers, scalars: Mapping[str, float], logged: Mapping[str, float]
    ) -> None:
        """Log numbers.

        Args:
            who: The callback, for the warning.
            trainer: The trainer.
            trackers: Its loggers.
            scalars: The numbers by tag, for ``trainer.callback_metrics``.
            logged: Those that loggers get.
        """
        known = trainer.callback_metrics  # Lightning makes it again each time it is asked for
        taken = {tag for tag in scalars if tag in known and tag not in self._tags}
        if taken and not self._warned:
            self._warned = True
            named = ", ".join(map(repr, sorted(taken)[:3])) + " and others" * (len(taken) > 3)
            warn(
                f"{who} does not log {named}: these keys are logged by the model or another callback already. "
                "Rename them there to have both."
            )
        # Norms can be beyond float32.
        tensors = {tag: torch.tensor(value, dtype=torch.float64) for tag, value in scalars.items() if tag not in taken}
        self._tags.update(tensors)
        known.update(tensors)
        trainer.logged_metrics.update({tag: tensors[tag] for tag in logged if tag in tensors})
        trackers.scalars({tag: value for tag, value in logged.items() if tag in tensors}, log_step(trainer))
        trackers.save()
