"""A Lightning Trainer, as a session sees it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import ref

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn
from typing_extensions import override

from lightning_hooks.declare.host import (
    Console,
    GradientChanges,
    Host,
    LossScaling,
    Metrics,
    Position,
    RunFiles,
    Scheduled,
    StepAgain,
    TrainingSetup,
)
from lightning_hooks.declare.warn import LIGHTNINGS, LOGGER, warn
from lightning_hooks.hosts import lightning_api
from lightning_hooks.hosts.plain import replicated, warn_of_logger
from lightning_hooks.replay.rerun import without_logging
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.console import safe_path


class LightningFiles(RunFiles):
    """Where the files of a Trainer's run belong: the directory of the first logger that has one.

    That directory is the logger's ``log_dir`` where it has one, else ``save_dir/name/version``, where Lightning puts the run's
    checkpoints. A remote address is skipped. Where none has a directory, but one keeps files with its run, as MLflow does in a
    database or on a server, it is ``default_root_dir/name/version``, where checkpoints are then. Without a logger, or in a
    fast_dev_run, nothing is written unasked, least of all into the working directory.
    """

    def __init__(self, trainer: Trainer, trackers: Callable[[], Trackers]) -> None:
        self._trainer, self._trackers = ref(trainer), trackers

    @override
    def folder(self, report_dir: Any) -> Path | None:
        if report_dir != "auto":
            return None if report_dir is None else Path(report_dir)
        trainer = self._trainer()
        if trainer is None or trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by one of the trainer's connectors
            return None
        found = next((folder for logger in trainer.loggers if (folder := folder_of(logger)) is not None), None)
        if found is None and self._trackers().keep_files:
            logger = trainer.loggers[0]
            return Path(trainer.default_root_dir, safe_path(str(logger.name)), safe_path(str(logger.version)))
        return found


def folder_of(logger: Any) -> Path | None:
    """The directory of a logger's run; None where it has none, or a remote one."""
    own: Any = getattr(logger, "log_dir", None)
    if _is_local(own):
        return Path(own)
    save_dir: Any = getattr(logger, "save_dir", None)
    if _is_local(save_dir):
        version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
        return Path(save_dir) / str(logger.name) / version
    return None


def _is_local(place: Any) -> bool:
    return isinstance(place, (str, os.PathLike)) and "://" not in str(place)  # not one of fsspec's addresses, such as s3://


class FitObjects:
    """What belongs to the fit of a trainer, and outlives its session."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = ref(trainer)
        self.epoch_log, self.files = lightning_api.EpochLog(), LightningFiles(trainer, lambda: self.trackers)

    @cached_property
    def trackers(self) -> Trackers:
        """The trainer's loggers behind one interface; empty on ranks other than 0. A logger that raises is reported once."""
        trainer = self._trainer()
        return Trackers(trainer.loggers if trainer is not None and trainer.is_global_zero else (), warn_of_logger)


class TrainerReference:
    """Base of what asks a trainer, and does not keep it alive."""

    def __init__(self, trainer: Trainer, of_fit: FitObjects) -> None:
        self._trainer, self._of_fit = ref(trainer), of_fit

    @property
    def trainer(self) -> Trainer:
        """The trainer."""
        found = self._trainer()
        assert found is not None, "the trainer is gone"
        return found


class LightningHost(TrainerReference, Host):
    """A Lightning Trainer whose training starts, as a session sees it."""

    loss_scaling = LossScaling()
    uneven = False

    def __init__(self, trainer: Trainer, pl_module: LightningModule, of_fit: FitObjects) -> None:
        super().__init__(trainer, of_fit)
        self._model = ref(pl_module)
        self.position: Position = self
        self.metrics, self.console = LightningMetrics(trainer, of_fit), LightningConsole(trainer, of_fit)
        self.files, self.again = of_fit.files, LightningStepAgain(self)
        ranks = lightning_api.world_size(trainer)
        if ranks < trainer.world_size:
            warn(
                f"{type(trainer.strategy).__name__} says that {trainer.world_size} ranks train, but torch.distributed has no "
                "process group that joins them: each rank reports what it measured alone."
            )
        self.setup = TrainingSetup(
            device=pl_module.device,
            world_size=ranks,
            data_parallel_size=lightning_api.data_parallel_size(trainer),
            is_global_zero=trainer.is_global_zero,
            automatic_optimization=pl_module.automatic_optimization,
            steps_announced=pl_module.automatic_optimization,
            clip_norm=lightning_api.configured_norm(trainer, pl_module),
            batches_per_epoch=lightning_api.batches_per_epoch(trainer),
            planned_steps=lightning_api.planned_steps(trainer, pl_module),
            unreadable_shards=lightning_api.unreadable_shards(trainer, pl_module),
            description={
                "max_epochs": trainer.max_epochs,
                "precision": str(trainer.precision),
                "accelerator": type(trainer.accelerator).__name__,
            },
        )
        self.refresh()

    @property
    @override
    def model(self) -> LightningModule:
        found = self._model()
        if found is None:
            raise ReferenceError("the model is gone")
        return found

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self.trainer.current_epoch

    @property
    def global_step(self) -> int:
        """The number of optimizer steps so far."""
        trainer = self._trainer()  # asked at each step, as the next ones are: without a call of ours more
        return 0 if trainer is None else trainer.global_step

    @property
    def epoch_ends(self) -> bool:
        """Whether the training batch that ends now is the epoch's last."""
        trainer = self._trainer()
        return trainer is not None and bool(
            trainer.is_last_batch or trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step
        )

    @property
    @override
    def schedulers(self) -> Sequence[Scheduled]:
        if not self.model.automatic_optimization:  # the user steps them
            return ()
        return [Scheduled(one.scheduler, one.interval == "epoch", one.frequency) for one in self.trainer.lr_scheduler_configs]

    @property
    @override
    def optimizers(self) -> Sequence[Any]:
        trainer = self._trainer()
        return () if trainer is None else trainer.optimizers

    @override
    def refresh(self) -> None:
        trainer = self.trainer
        of_trainer = lightning_api.loss_scaler(trainer)
        scaler = of_trainer or (None if self.setup.automatic_optimization else lightning_api.own_loss_scaler(self.model))
        self.loss_scaling = LossScaling(trainer.accumulate_grad_batches, scaler, of_trainer is None and scaler is not None)

    @override
    def gradient_changes(self) -> GradientChanges:
        return lightning_api.gradient_changes(self.trainer, self.model)

    @override
    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        trainer = self.trainer
        averaged = getattr(trainer.strategy, "_model_averager", None) is not None  # local SGD: ranks differ until then
        if self.setup.world_size == 1 or averaged or lightning_api.is_sharded(trainer, self.model):
            return ()
        return replicated(trainer.strategy.model)

    @override
    def stop(self) -> None:
        self.trainer.should_stop = True


class LightningMetrics(TrainerReference, Metrics):
    """What a Trainer logs."""

    @property
    @override
    def step(self) -> int:
        return lightning_api.log_step(self.trainer)

    def __init__(self, trainer: Trainer, of_fit: FitObjects) -> None:
        super().__init__(trainer, of_fit)
        self.trackers = of_fit.trackers

    @property
    @override
    def available(self) -> Mapping[str, Any]:
        logs = [value for callback in lightning_api.callbacks_of(self.trainer) for value in vars(callback).values()]
        own = set[str]().union(*(log._tags for log in (*logs, self._of_fit.epoch_log) if type(log) is lightning_api.EpochLog))
        return {name: value for name, value in lightning_api.known_metrics(self.trainer)[0].items() if name not in own}

    @override
    def in_epoch(self) -> Mapping[str, Any]:
        return lightning_api.logged_in_epoch(self.trainer)

    @override
    def watched_tags(self) -> Mapping[str, Collection[str]]:
        return lightning_api.watched_tags(self.trainer)

    @override
    def write(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        self._of_fit.epoch_log.write(who, self.trainer, self._of_fit.trackers, scalars, logged)


class LightningConsole(TrainerReference, Console):
    """A Trainer's progress bar, and lines next to it."""

    @override
    @contextmanager
    def printing(self) -> Iterator[None]:
        """Take the progress bar away while lines are printed, or print them through it.

        tqdm's bars are wiped and drawn again after. Rich's redirects standard error, which log handlers that were made before do
        not know of: they get it for as long.
        """
        with ExitStack() as stack:
            if self.trainer.progress_bar_callback is not None:
                tqdm = sys.modules.get("tqdm")
                if tqdm is not None:
                    stack.enter_context(tqdm.tqdm.external_write_mode(file=sys.stderr))
                for handler in (*_stream_handlers(LOGGER), *_stream_handlers(LIGHTNINGS)):
                    if handler.stream is sys.__stderr__ is not sys.stderr:
                        stack.callback(handler.setStream, handler.stream)
                        handler.setStream(sys.stderr)
            yield

    @override
    def show_progress(self, values: Mapping[str, Any]) -> None:
        self.trainer._logger_connector._progress_bar_metrics.update(values)  # the property computes metrics that are logged


class LightningStepAgain(StepAgain):
    """How a Trainer runs a step again."""

    def __init__(self, host: LightningHost) -> None:
        self._host = host
        self._combined: Callable[[], Any] = lambda: None  # the loaders whose names are known
        self._names: list[str] = []

    @override
    def loader_iterators(self) -> tuple[Sequence[tuple[str, Any]], int]:
        trainer = self._host._trainer()
        fetcher: Any = None if trainer is None else trainer.fit_loop._data_fetcher  # none of these has a public name
        combined: Any = getattr(fetcher, "_combined_loader", None)
        mode: Any = getattr(combined, "_iterator", None)
        if mode is None or not hasattr(fetcher, "batches"):
            return (), 0
        fetched = len(fetcher.batches)
        if combined is not self._combined():
            self._combined, self._names = ref(combined), _names(combined.iterables, len(combined.flattened))
        names = self._names
        if len(mode.iterators) < len(names):  # one loader after the other
            return [(names[mode._iterator_idx], iterator) for iterator in mode.iterators], fetched
        found = list(zip(names, mode.iterators, strict=True))
        if type(mode).__name__ == "_MaxSize":  # a loader that is at its end gives None
            found = [(name, it) for name, it in found if getattr(it, "_num_yielded", 0) >= mode._idx - fetched]
        return found, fetched

    @override
    def run(self, *args: Any, **kwargs: Any) -> Any:
        with self._host.trainer.precision_plugin.train_step_context():
            return self._host.model.training_step(*args, **kwargs)

    @override
    @contextmanager
    def muted(self) -> Iterator[None]:
        trainer = self._host.trainer
        with without_logging(self._host.model), ExitStack() as stack:
            if trainer.loggers:
                stack.callback(setattr, trainer, "loggers", trainer.loggers)
                trainer.loggers = [DummyLogger()]
            yield

    @override
    def why_not(self) -> str:
        host = self._host
        sharded = lightning_api.is_sharded(host.trainer, host.model)
        if not host.model.automatic_optimization:
            return "under manual optimisation a step updates the weights"
        return f"under {sharded} ranks hold shards, and wait for each other" if sharded else self.why_not_in(host)


def _names(iterables: Any, count: int) -> list[str]:
    if count == 1 and not isinstance(iterables, dict | list | tuple):
        return [""]
    if isinstance(iterables, dict) and len(iterables) == count:
        return [str(name) for name in iterables]
    return [f"loader {place}" for place in range(count)]


def _stream_handlers(logger: logging.Logger | None) -> Iterator[logging.StreamHandler[Any]]:
    """Yield the handlers that write what a logger is given: its own, and those of the loggers above it."""
    while logger is not None:
        yield from (handler for handler in logger.handlers if isinstance(handler, logging.StreamHandler))
        logger = logger.parent if logger.propagate else None
