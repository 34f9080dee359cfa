"""During a fit Lightning calls a monitor for no event of a batch that its class does not handle."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lightning_hooks import GradientFlowMonitor, monitors
from lightning_hooks.hosts.lightning_adapter import BATCH_EVENTS, Adapter
from tests.support.models import Classifier, loader, mlp, trainer


class Asks(pl.Callback):
    """Notes which batch events of each callback can be called, and copies them, in the middle of a fit."""

    def __init__(self) -> None:
        self.called: dict[str, set[str]] = {}
        self.copies: list[Any] = []

    @override
    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        ours = [callback for callback in trainer.callbacks if "lightning_hooks" in type(callback).__module__]
        ours += [callback for callback in trainer.callbacks if isinstance(callback, Counts)]
        for callback in ours:
            self.called[type(callback).__name__] = {name for name in BATCH_EVENTS if callable(getattr(callback, name))}
        self.copies = [made for one in ours if isinstance(one, GradientFlowMonitor) for made in (copy.deepcopy(one), pickled(one))]


class Counts(GradientFlowMonitor):
    """A user's monitor, with a method of its own that calls the one of the base class."""

    batches = 0

    @override
    def on_train_batch_end(self, *args: Any) -> None:
        super().on_train_batch_end(*args)
        self.batches += 1


def nothing(*args: Any) -> None:
    """A user's method on the instance."""


def pickled(callback: Any) -> Any:
    return pickle.loads(pickle.dumps(callback))


def test_only_the_adapter_is_called_in_a_batch() -> None:
    trio, asks = monitors(summary=False, report_dir=None), Asks()
    trainer([*trio, asks], max_epochs=1).fit(Classifier(mlp()), loader(n=16, batch_size=8))
    assert {name for name, events in asks.called.items() if events} == {Adapter.__name__}
    assert len(asks.called) == len(trio) + 2  # with the adapter, and what stands first
    for callback in (*trio, *asks.copies):
        assert all(callable(getattr(callback, name)) for name in BATCH_EVENTS)


def test_a_method_of_a_subclass_is_called() -> None:
    monitor, asks = Counts(summary=False), Asks()
    monitor.on_after_backward = nothing  # type: ignore[method-assign]
    trainer([monitor, asks], max_epochs=2).fit(Classifier(mlp()), loader(n=16, batch_size=8))
    assert asks.called["Counts"] == {"on_train_batch_end", "on_after_backward"}
    assert monitor.batches == 4
    assert callable(vars(monitor)["on_after_backward"])
