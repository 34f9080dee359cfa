"""What is asked of the training loop that a session belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from lightning_hooks.trackers import Trackers


class Host(ABC):
    """A training loop. Lightning's Trainer is one; another loop has to answer the same questions."""

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The model."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model is."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The epoch, from 0."""

    @property
    @abstractmethod
    def global_step(self) -> int:
        """The number of optimizer steps so far."""

    @property
    @abstractmethod
    def log_step(self) -> int:
        """The step on the loggers' axis at which values of the window are logged."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    @abstractmethod
    def data_parallel_size(self) -> int:
        """The number of ranks that gradients are averaged over."""

    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters that every rank is to hold alike at the end of each step; empty where none are, or that is not known."""
        return ()

    @property
    @abstractmethod
    def is_global_zero(self) -> bool:
        """Whether this rank logs, writes and prints."""

    @property
    @abstractmethod
    def automatic_optimization(self) -> bool:
        """Whether the loop calls backward and the optimizer, rather than the user's ``training_step``."""

    @property
    @abstractmethod
    def accumulation(self) -> int:
        """What the loop divides the loss by before backward."""

    @property
    @abstractmethod
    def optimizers(self) -> Sequence[Any]:
        """The optimizers, as they are now."""

    @property
    @abstractmethod
    def loss_scaler(self) -> Any:
        """The GradScaler; None if there is none."""

    @property
    def unscales_in_step(self) -> bool:
        """Whether nothing announces a step, and the GradScaler has unscaled the gradients once ``optimizer.step`` is entered."""
        return False

    @property
    @abstractmethod
    def clip_norm(self) -> float | None:
        """The total norm that the loop is configured to clip gradients to; None for another way, or none."""

    @abstractmethod
    def may_clip(self) -> bool:
        """Whether anything can change gradients between ``before_optimizer_step`` and the update."""

    @abstractmethod
    def check_gradients(self, who: str) -> None:
        """Check that this rank can read whole gradients.

        Raises:
            RuntimeError: If parameters are sharded in a way that does not say how.
        """

    @property
    @abstractmethod
    def batches_per_epoch(self) -> float:
        """Training batches of an epoch, the same on every rank; infinite where that is not known, or there is no end."""

    @property
    @abstractmethod
    def epoch_ends(self) -> bool:
        """Whether the training batch that ends now is the epoch's last."""

    @property
    def planned_steps(self) -> int | None:
        """The ``global_step`` at which training ends if nothing ends it before; None where that is not known."""
        return None

    @property
    @abstractmethod
    def trackers(self) -> Trackers:
        """The loggers behind one interface; empty on ranks other than 0."""

    @property
    @abstractmethod
    def training_metrics(self) -> Mapping[str, Any]:
        """What the user logs: tag to value."""

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Any]:
        """The user's metrics as callbacks have them, with or without a logger: name to value."""

    @abstractmethod
    def watched_tags(self) -> set[str]:
        """The tags that early stopping, checkpointing or a scheduler reads."""

    @abstractmethod
    def log(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        """Log the values of a window.

        Args:
            who: The monitor, for messages.
            scalars: All, by tag.
            logged: Those that loggers get.
        """

    @abstractmethod
    def show_progress(self, values: Mapping[str, Any]) -> None:
        """Show values in the progress bar."""

    @abstractmethod
    def printing(self) -> AbstractContextManager[None]:
        """A context in which lines can be printed next to a progress bar."""

    @abstractmethod
    def stop(self) -> None:
        """End training after this epoch."""

    @abstractmethod
    def folder(self, report_dir: Any) -> Path | None:
        """Where the run's files belong; None for nowhere.

        Args:
            report_dir: ``auto`` for the log directory, a directory, or None.
        """

    @abstractmethod
    def keep_temporary(self, file: Path, kept_in: Sequence[str], everything: bool) -> str:
        """Return where a run's file is found after training, in words.

        Args:
            file: The file.
            kept_in: The trackers that keep a copy.
            everything: Whether all of the run's files are kept by trackers.
        """

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What the run's record says of the loop: precision, devices, length."""
