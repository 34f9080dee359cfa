"""One instance of a callback observes one fit at a time."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Callback

from lightning_hooks import monitors
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer


class Inner(Callback):
    """Runs something within the second batch of a fit."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.run()


def test_an_instance_in_a_trainer_inside_its_fit_is_an_error_that_names_it() -> None:
    ours, model, inner = monitors(every_n_steps=1, summary=False), Classifier(mlp()), Classifier(mlp())
    with pytest.raises(
        RuntimeError, match="This FeatureStatsMonitor is attached to the fit of another Trainer that is still running"
    ):
        trainer([*ours, Inner(lambda: trainer(ours).fit(inner, loader()))]).fit(model, loader())
    assert not any(hook_counts(model).values())
    assert not any(hook_counts(inner).values())
    trainer(ours).fit(Classifier(mlp()), loader())  # and may be used again
    assert ours[0].report.sites["net.0"].calls == 7


def test_the_fit_goes_on_as_before_where_that_error_is_caught_or_the_inner_run_is_no_fit() -> None:
    def attempt() -> None:
        with pytest.raises(RuntimeError, match="one instance observes one fit at a time"):
            trainer(ours).fit(Classifier(mlp()), loader())
        trainer(ours).validate(Classifier(mlp()), loader(), verbose=False)

    ours = monitors(every_n_steps=1, summary=False)
    trainer([*ours, Inner(attempt)]).fit(Classifier(mlp()), loader())
    assert ours[0].report.sites["net.0"].calls == 7
    assert ours[2].report.optimizers["0-SGD"].steps == 7


def test_an_instance_of_its_own_in_a_trainer_inside_a_fit() -> None:
    ours, others = monitors(every_n_steps=1, summary=False), monitors(every_n_steps=1, summary=False)
    trainer([*ours, Inner(lambda: trainer(others).fit(Classifier(mlp()), loader()))]).fit(Classifier(mlp()), loader())
    for three in (ours, others):
        assert three[0].report.sites["net.0"].calls == 7
        assert three[2].report.optimizers["0-SGD"].steps == 7
