"""Whatever else the loops do, training statistics are those of the training batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import monitors
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer
from tests.support.reference import everything


def reports(model: Classifier | None = None, val: bool = False, callbacks: Any = (), **kwargs: Any) -> str:
    torch.manual_seed(0)
    model = model or Classifier(mlp())
    ours = monitors(every_n_steps=2, summary=False)
    torch.manual_seed(1)
    trainer([*callbacks, *ours], gradient_clip_val=0.5, **kwargs).fit(model, loader(), loader(seed=9) if val else None)
    features, *others = (callback.report for callback in ours[:3])
    return everything([dataclasses.replace(features, inputs={}, layer_inputs={}), *others])  # all that is of training


@pytest.mark.parametrize(
    "kwargs",
    [
        {"val": True},
        {"val": True, "num_sanity_val_steps": 3},
        {"val": True, "val_check_interval": 2},
        {"val": True, "check_val_every_n_epoch": 5},
        {"limit_train_batches": 7, "val": True, "limit_val_batches": 1},
    ],
    ids=["validation", "sanity", "interval", "rarely", "limits"],
)
def test_training_statistics_do_not_see_validation(kwargs: dict[str, Any]) -> None:
    assert reports(**kwargs) == reports()


class Tunable(Classifier):
    """What the learning-rate and batch-size finders ask of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.batch_size = 8

    def train_dataloader(self) -> Any:
        return loader(batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        return loader(batch_size=self.batch_size)


@pytest.mark.parametrize("finder", ["lr", "batch size"])
def test_tuners_leave_no_hook_and_no_number_behind(finder: str, tmp_path: Any) -> None:
    torch.manual_seed(0)
    model, ours = Tunable(mlp()), monitors(every_n_steps=1, summary=False)
    before = hook_counts(model)
    tuner = (
        LearningRateFinder(num_training_steps=5, update_attr=False)
        if finder == "lr"
        else BatchSizeFinder(mode="power", steps_per_trial=1, init_val=4, max_trials=1)
    )
    trainer([tuner, *ours], default_root_dir=tmp_path, enable_checkpointing=True).fit(model)
    batch_size = 8 if finder == "lr" else model.batch_size
    assert ours[0].report.sites["net.0"].count == 50 * 16
    assert ours[0].report.batches == -(-50 // batch_size)
    assert hook_counts(model) == before


class Checkpointed(nn.Module):
    """The middle block is recomputed in backward."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.mode == "none":
            return self.last(self.block(x))
        return self.last(checkpoint(self.block, x, use_reentrant=self.mode == "reentrant"))


@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant"])
def test_activation_checkpointing_changes_no_number(mode: str) -> None:
    def fit(mode: str) -> str:
        torch.manual_seed(0)
        return reports(Classifier(Checkpointed(mode)))

    found, expected = fit(mode), fit("none")
    assert found == expected
    assert "silent=()" in found
