"""What a session asks of the training loop that it belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import nn

from lightning_hooks.trackers import Trackers


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetup:
    """What is known when training starts and stays as it is.

    Attributes:
        device: Where the model is.
        world_size: The number of ranks.
        data_parallel_size: The number of ranks that gradients are averaged over.
        is_global_zero: Whether this rank logs, writes and prints.
        automatic_optimization: Whether the loop minimises the one loss of each batch, with one optimizer.
        steps_announced: Whether ``before_optimizer_step`` comes before gradients are clipped. Otherwise they are read after each
            backward, before anybody can clip them, and a batch's loss may come with its end.
        clip_norm: The total norm that the loop is configured to clip gradients to; None for another way, or none.
        batches_per_epoch: Training batches of an epoch, the same on every rank; infinite where that is not known.
        planned_steps: The ``global_step`` at which training ends if nothing ends it before; None where that is not known.
        unreadable_shards: What spreads parameters over ranks in a form that does not say how, in words; empty for nothing.
        description: What the run's record says of the loop, such as its precision and its length.
    """

    device: torch.device
    world_size: int = 1
    data_parallel_size: int = 1
    is_global_zero: bool = True
    automatic_optimization: bool = True
    steps_announced: bool = True
    clip_norm: float | None = None
    batches_per_epoch: float = float("inf")
    planned_steps: int | None = None
    unreadable_shards: str = ""
    description: Mapping[str, Any] = field(default_factory=dict)

    def check_gradients(self, who: str) -> None:
        """Check that this rank can read whole gradients.

        Raises:
            RuntimeError: If parameters are sharded in a form that does not say how.
        """
        if self.unreadable_shards:
            raise RuntimeError(
                f"{who} needs whole gradients at the optimizer step, and under {self.unreadable_shards} each rank holds a shard of "
                "them: its norms would be wrong. Train with strategy='ddp', with FSDP2 (fully_shard under ModelParallelStrategy) "
                "or on one device, or leave this callback out; FeatureStatsMonitor needs no gradients and is not concerned."
            )


class Position(Protocol):
    """How far training is when it is asked."""

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""

    @property
    def global_step(self) -> int:
        """The number of optimizer steps so far."""

    @property
    def epoch_ends(self) -> bool:
        """Whether the training batch that ends now is the epoch's last."""

    @property
    def uneven(self) -> bool:
        """Whether another rank may have had its last batch, so that a window cannot end now."""


# Of gradients between ``before_optimizer_step`` and the update: nothing changes them, at most one multiplication of all of them
# by the same number does, as clipping by norm is, or that is not known
GradientChanges = Literal["none", "scaled", "any"]


@dataclass(frozen=True, slots=True)
class LossScaling:
    """What the loss is scaled by before backward.

    Attributes:
        accumulation: What the loop divides it by.
        scaler: The GradScaler; None if there is none.
        unscales_in_step: Whether nothing announces a step, and the GradScaler has unscaled the gradients once ``optimizer.step`` is
            entered.
    """

    accumulation: int = 1
    scaler: Any = None
    unscales_in_step: bool = False


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A learning rate scheduler of the loop.

    Attributes:
        scheduler: The scheduler.
        by_epoch: Whether the loop steps it once per epoch; if not, at optimizer steps.
        every: At every how many of them.
    """

    scheduler: Any
    by_epoch: bool
    every: int = 1


class Metrics(ABC):
    """The values that are logged: the user's, and those of the monitors.

    Attributes:
        trackers: The loggers behind one interface; empty on ranks other than 0.
    """

    trackers: Trackers

    @property
    @abstractmethod
    def step(self) -> int:
        """The step on the loggers' axis at which values of the window are logged."""

    @property
    def available(self) -> Mapping[str, Any]:
        """The user's metrics as callbacks have them, with or without a logger: name to value, which is another object once new."""
        return {}

    def in_epoch(self) -> Mapping[str, Any]:
        """What is logged for the epoch under way, by name: a metric object, or of a mean over batches its sum and its weight."""
        return {}

    def watched_tags(self) -> Mapping[str, Collection[str]]:
        """The tags that early stopping, checkpointing or a scheduler monitors, each with the modes in use: ``min``, ``max``."""
        return {}

    @abstractmethod
    def write(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        """Log the values of a window.

        Args:
            who: The monitor, for messages.
            scalars: All, by tag.
            logged: Those that loggers get.
        """


class Console:
    """Where lines are printed, and a progress bar may be."""

    def printing(self) -> AbstractContextManager[None]:
        """A context in which lines can be printed next to a progress bar."""
        return nullcontext()

    def show_progress(self, values: Mapping[str, Any]) -> None:
        """Show values in the progress bar; without one nothing is shown."""


class RunFiles:
    """Where the run's files belong."""

    def __init__(self, log_dir: Path | None) -> None:
        self._log_dir = log_dir

    def folder(self, report_dir: Any) -> Path | None:
        """Return the directory; None for nowhere.

        Args:
            report_dir: ``auto`` for the log directory, a directory, or None.
        """
        if report_dir == "auto":
            return self._log_dir
        return None if report_dir is None else Path(report_dir)


class StepAgain:
    """How the loop runs a training step again; a loop that cannot says why."""

    def loader_iterators(self) -> tuple[Sequence[tuple[str, Any]], int]:
        """The iterators over the training loaders by name, and how many batches have been fetched beyond the one under way."""
        return (), 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step of the model itself on a batch, without a wrapper around it."""
        raise NotImplementedError(self.why_not())

    def muted(self) -> AbstractContextManager[None]:
        """A context in which the step logs nothing."""
        return nullcontext()

    def release(self) -> None:
        """Training is over: leave everything as it was."""

    def why_not(self) -> str:
        """Why a step cannot be run again in the run; empty where it can."""
        return "this loop does not say how: watch(…, loss_function=…) does"

    @staticmethod
    def why_not_in(host: Host) -> str:
        """Why a step cannot be run again, in any loop; empty where it can."""
        if any(isinstance(module, nn.SyncBatchNorm) for module in host.model.modules()):
            return "with SyncBatchNorm ranks wait for each other"
        if host.setup.device.type != "cpu":
            return "on an accelerator a bad step is known only later"
        differ = host.setup.world_size > 1 and not host.replicated_parameters()
        return "ranks may not come to the same step" if differ else ""


class Host(ABC):
    """A training loop. Lightning's Trainer is one; another loop answers the same questions.

    Attributes:
        setup: What stays as it is from train start on.
        metrics: The values that are logged.
        console: Where lines are printed.
        files: Where the run's files belong.
        again: How a training step is run again.
        position: How far training is.
    """

    setup: TrainingSetup
    metrics: Metrics
    console: Console
    files: RunFiles
    again: StepAgain = StepAgain()
    position: Position

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The model."""

    @property
    @abstractmethod
    def optimizers(self) -> Sequence[Any]:
        """The optimizers, as they are now."""

    @property
    def schedulers(self) -> Sequence[Scheduled]:
        """The learning rate schedulers that the loop steps; empty where that is not known."""
        return ()

    @property
    def loss_scaling(self) -> LossScaling:
        """What the loss is scaled by before backward, as it is now or was at the last :meth:`refresh`."""
        return LossScaling()

    def refresh(self) -> None:  # noqa: B027  most loops have nothing to look at
        """A sampled batch starts, or an epoch: look again at what seldom changes."""

    def gradient_changes(self) -> GradientChanges:
        """What can change gradients between ``before_optimizer_step`` and the update."""
        return "any"

    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters that every rank is to hold alike at the end of each step; empty where none are, or that is not known."""
        return ()

    @abstractmethod
    def stop(self) -> None:
        """End training after this epoch."""
