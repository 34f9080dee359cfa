"""A training loop in plain PyTorch, as a session sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from typing_extensions import override

from lightning_hooks.declare.warn import warn
from lightning_hooks.hosts.host import Console, Host, LossScaling, Metrics, Position, RunFiles, TrainingSetup
from lightning_hooks.hosts.loop_setup import setup_of, unwrapped
from lightning_hooks.hosts.replicas import replicated
from lightning_hooks.trackers import Trackers


class PlainHost(Host):
    """A training loop in plain PyTorch. Whoever drives the session counts epochs and steps here.

    Args:
        model: The model.
        optimizers: Its optimizers.
        setup: What is known of the loop; None for what the model and the process group say.
        loggers: Where values go: TensorBoard's ``SummaryWriter`` and the like.
        log_dir: Where ``report_dir="auto"`` writes; None for nowhere.
        scaler: The GradScaler; None if there is none.

    Attributes:
        epoch: The epoch, from 0.
        batch: The training batch of the epoch, from 0.
        accumulation: What the loop divides the loss by before backward.
        global_step: The number of optimizer steps so far.
        epoch_ends: Whether the training batch that ends now is the epoch's last.
        should_stop: Whether an alert asks the loop to end.
        runs_again: Whether a step is being run again, and nothing that the model does is the loop's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Any],
        *,
        setup: TrainingSetup | None = None,
        loggers: Sequence[Any] = (),
        log_dir: Path | None = None,
        scaler: Any = None,
    ) -> None:
        self.wrapped, self._model = model, unwrapped(model)
        self._optimizers, self._scaler = list(optimizers), scaler
        self.setup = setup_of(model) if setup is None else setup
        self._trackers = Trackers(loggers if self.setup.is_global_zero else (), _fault)
        self.metrics: LoopMetrics = LoopMetrics(self)
        self.console = Console()
        self.files = LoopFiles(log_dir)
        self.epoch = self.batch = self.global_step = 0
        self.accumulation = 1
        self.epoch_ends = self.should_stop = self.runs_again = False

    @property
    def progress(self) -> dict[str, int]:
        """How far training is, for a checkpoint; to set it goes on from there."""
        return {"epoch": self.epoch, "batch": self.batch, "global_step": self.global_step}

    @progress.setter
    def progress(self, progress: Mapping[str, int]) -> None:
        self.epoch, self.batch, self.global_step = (progress[name] for name in ("epoch", "batch", "global_step"))

    @property
    @override
    def model(self) -> nn.Module:
        return self._model

    @property
    @override
    def position(self) -> Position:
        return Position(self.epoch, self.global_step, self.epoch_ends)

    @property
    @override
    def optimizers(self) -> Sequence[Any]:
        return self._optimizers

    @property
    @override
    def loss_scaling(self) -> LossScaling:
        return LossScaling(self.accumulation, self._scaler, unscales_in_step=self._scaler is not None)

    @property
    @override
    def trackers(self) -> Trackers:
        return self._trackers

    @override
    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        return replicated(self.wrapped) if self.setup.world_size > 1 else ()

    @override
    def stop(self) -> None:
        self.should_stop = True


class LoopMetrics(Metrics):
    """What is logged in a loop.

    Attributes:
        values: The latest value of each tag of the monitors.
        reported: The user's metrics, as far as the loop has any.
    """

    def __init__(self, host: PlainHost) -> None:
        self._host = host
        self.values: dict[str, float] = {}
        self.reported: dict[str, Any] = {}

    @property
    @override
    def step(self) -> int:
        return max(self._host.global_step - 1, 0)  # of the last step, from 0

    @property
    @override
    def available(self) -> Mapping[str, Any]:
        return self.reported

    @override
    def write(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        self.values.update(scalars)
        self._host.trackers.scalars(dict(logged), self.step)
        self._host.trackers.save()


class LoopFiles(RunFiles):
    """The directory that the user names.

    Args:
        log_dir: Where ``auto`` is; None for nowhere.
    """

    def __init__(self, log_dir: Path | None) -> None:
        self._log_dir = log_dir

    @override
    def folder(self, report_dir: Any) -> Path | None:
        if report_dir == "auto":
            return self._log_dir
        return None if report_dir is None else Path(report_dir)


def _fault(tracker: str, error: Exception) -> None:
    warn(
        f"{tracker} raised {type(error).__name__}: {error}. What lightning_hooks writes may be missing there; training goes "
        "on, and this warning is shown once."
    )
