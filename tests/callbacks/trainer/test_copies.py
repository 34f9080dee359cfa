"""Callbacks that are copied or pickled in the middle of a fit, as launchers, tuners and users do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import AttentionMonitor, HookDebugger, TrainingMonitor, monitors
from tests.callbacks.trainer.test_exits import ALL
from tests.support.models import Classifier, ResidualCNN, hook_counts, is_attached, loader, trainer
from tests.support.reference import same_state


def _never(call: Any) -> bool:
    """What can be pickled."""
    return False


COPIED: dict[str, Callable[[], Any]] = {
    **ALL,
    "debugger": lambda: HookDebugger(steps=[0, 1], break_when=_never, show=False),
    "trio": lambda: monitors(every_n_steps=1, summary=False),
    "training": lambda: TrainingMonitor(every_n_steps=1, summary=False, histograms=True, check_every_n_steps=1, max_overhead=0.5),
    "attention": lambda: AttentionMonitor(every_n_steps=1, summary=False),
}
EVENTS = ("on_train_batch_start", "on_before_backward", "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end")


class Copying(Callback):
    """Copies other callbacks in a hook of Lightning."""

    def __init__(self, callbacks: list[Callback], *events: str) -> None:
        self.copies: list[Callback] = []

        def take(*args: Any, **kwargs: Any) -> None:
            for callback in callbacks:
                self.copies += [copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))]

        for event in events:
            setattr(self, event, take)


def fit(callbacks: list[Callback], *others: Callback, folder: Path | None = None) -> Classifier:
    seed_everything(0, verbose=False)
    model = Classifier(ResidualCNN())
    settings = {} if folder is None else {"logger": CSVLogger(folder)}
    trainer([*callbacks, *others], max_epochs=2, **settings).fit(model, loader((1, 6, 6), n=24))
    return model


def made(which: str) -> list[Callback]:
    callbacks = COPIED[which]()
    return callbacks if isinstance(callbacks, list) else [callbacks]


@pytest.mark.filterwarnings("ignore:AttentionMonitor has seen no attention")
@pytest.mark.parametrize("which", COPIED)
def test_a_copy_that_is_made_in_a_fit_is_not_attached_and_leaves_the_original_as_it_is(which: str) -> None:
    originals = made(which)
    copying = Copying(originals, *EVENTS)
    with_copies, without = fit(originals, copying), fit(alone := made(which))
    assert same_state(with_copies, without)
    if which not in ("profiler", "training"):  # they measure time
        reports = [[repr(getattr(callback, "report", None)) for callback in callbacks] for callbacks in (originals, alone)]
        assert reports[0] == reports[1]
    assert copying.copies
    assert not any(is_attached(callback) for callback in copying.copies)
    assert not any(hook_counts(with_copies).values())


@pytest.mark.filterwarnings("ignore:AttentionMonitor has seen no attention")
@pytest.mark.parametrize("which", COPIED)
def test_a_copy_that_is_made_in_a_fit_works_in_another(which: str, tmp_path: Path) -> None:
    originals = made(which)
    copying = Copying(originals, "on_train_batch_end")
    fit(originals, copying, folder=tmp_path)
    for copies in (copying.copies[: 2 * len(originals) : 2], copying.copies[1 : 2 * len(originals) : 2]):
        assert hook_counts(fit(copies)) == hook_counts(fit(made(which)))
        assert not any(is_attached(callback) for callback in copies)
