"""What running a training step again asks of Lightning: its loaders, the step without a wrapper, and logging that does nothing."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.declare.host import Host, StepAgain
from lightning_hooks.hooks.attributes import exchange
from lightning_hooks.hosts import lightning_api
from lightning_hooks.replay.rerun import without_logging
from lightning_hooks.replay.rows import LoaderRows


def record_rows(trainer: Trainer) -> Callable[[], None]:
    """Record which indices the training loaders of a trainer draw; return what ends that.

    The loaders often do not exist before training starts, and their first batches are drawn before any callback is asked again. The
    strategy, which belongs to the trainer, is handed each final loader: its method is exchanged on the instance.
    """
    rows, process = LoaderRows(), trainer.strategy.process_dataloader

    def recording(loader: object) -> object:
        found = process(loader)
        if not trainer.sanity_checking and not trainer.validating:
            rows.record(found)
        return found

    put_back = exchange(trainer.strategy, process_dataloader=recording)
    combined: Any = trainer.fit_loop._combined_loader  # has no public name
    for loader in () if combined is None else combined.flattened:
        rows.record(loader)

    def end() -> None:
        rows.release()
        put_back()

    return end


class TrainerHost(Host):
    """A host whose training loop is a Trainer."""

    @property
    @abstractmethod
    def trainer(self) -> Trainer:
        """The trainer."""

    @property
    @abstractmethod
    @override
    def model(self) -> LightningModule:
        """The model that it trains."""


class LightningStepAgain(StepAgain):
    """How a Trainer runs a step again.

    Args:
        host: The trainer, as a session sees it.
    """

    def __init__(self, host: TrainerHost) -> None:
        self._host = host

    @override
    def loader_iterators(self) -> tuple[Sequence[tuple[str, Any]], int]:
        fetcher: Any = self._host.trainer.fit_loop._data_fetcher  # none of these has a public name
        combined: Any = getattr(fetcher, "_combined_loader", None)
        mode: Any = getattr(combined, "_iterator", None)
        if mode is None or not hasattr(fetcher, "batches"):
            return (), 0
        fetched = len(fetcher.batches)
        names = _names(combined.iterables, len(combined.flattened))
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
                trainer.loggers = [_dummy(trainer)]
            yield

    @override
    def why_not(self) -> str:
        host = self._host
        sharded = lightning_api.is_sharded(host.trainer, host.model)
        if not host.model.automatic_optimization:
            return "under manual optimisation a step updates the weights"
        if sharded:
            return f"under {sharded} ranks hold shards, and wait for each other"
        return self.why_not_in(host)


def _names(iterables: Any, count: int) -> list[str]:
    if count == 1 and not isinstance(iterables, dict | list | tuple):
        return [""]
    if isinstance(iterables, dict) and len(iterables) == count:
        return [str(name) for name in iterables]
    return [f"loader {place}" for place in range(count)]


def _dummy(trainer: Trainer) -> Any:
    """A logger of the trainer's own package that does nothing, as in a fast_dev_run."""
    known = (kind.__module__ for kind in type(trainer).__mro__)
    package = next(module for module in known if module.startswith(("lightning.pytorch.", "pytorch_lightning.")))
    root = "lightning.pytorch" if package.startswith("lightning.") else "pytorch_lightning"
    return importlib.import_module(f"{root}.loggers.logger").DummyLogger()
