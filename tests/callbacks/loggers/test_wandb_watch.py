"""Next to wandb.watch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_hooks import monitors
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer
from tests.support.reference import everything, same_state

wandb = pytest.importorskip("wandb", reason="wandb is of the trackers extra, and is not installed")


class Watch(Callback):
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        wandb.watch(pl_module.net, log="all", log_freq=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore:.*wandb.*")
def test_both_watch_and_neither_minds(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")

    def fit(callbacks: list[Any]) -> Classifier:
        torch.manual_seed(0)
        model = Classifier(mlp())
        trainer(callbacks).fit(model, loader())
        return model

    alone, expected = fit([]), monitors(every_n_steps=1, summary=False)
    fit(expected)
    run = wandb.init(dir=str(tmp_path), project="test", settings=wandb.Settings(console="off"))
    try:
        ours = monitors(every_n_steps=1, summary=False)
        model = fit([Watch(), *ours])
        theirs = hook_counts(model)
        wandb.unwatch(model.net)
    finally:
        run.finish()
    assert same_state(alone, model)
    assert [everything(callback.report) for callback in ours] == [everything(callback.report) for callback in expected[:3]]
    assert any(count for key, count in theirs.items() if key.endswith(("_forward_hooks", ":tensor")))
