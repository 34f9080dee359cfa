"""Whatever else the loops do, training statistics are those of the training batches."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import monitors
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer
from tests.support.reference import everything


def reports(model: Classifier | None = None, val: bool = False, callbacks: Any = (), **kwargs: Any) -> str:
    torch.manual_seed(0)
    model = model or Classifier(mlp())
    ours = monitors(every_n_steps=2, summary=False)
    torch.manual_seed(1)
    trainer([*callbacks, *ours], gradient_clip_val=0.5, **kwargs).fit(model, loader(), loader(seed=9) if val else None)
    features, *others = (callback.report for callback in ours[:3])
    return everything([dataclasses.replace(features, inputs={}), *others])  # all that is of training


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


@pytest.mark.filterwarnings("ignore:You requested to overfit")
def test_limits_are_honoured() -> None:
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours, limit_train_batches=3).fit(Classifier(mlp()), loader())
    assert ours[0].report.sites["net.0"].count == 3 * 8 * 16
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours, overfit_batches=2).fit(Classifier(mlp()), loader())
    assert ours[0].report.sites["net.0"].calls == 2


def test_fast_dev_run_reports_its_one_batch() -> None:
    ours = monitors(summary=False)
    trainer(ours, fast_dev_run=True).fit(Classifier(mlp()), loader(), loader())
    assert ours[0].report.sites["net.0"].calls == 1
    assert ours[2].report.optimizers["0-SGD"].steps == 1


class OfALauncher(SingleDeviceStrategy):
    """Knows of ranks that torch.distributed does not join."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.world_size = 2


def test_ranks_without_a_process_group_report_alone() -> None:
    alone = reports()
    message = (
        "OfALauncher says that 2 ranks train, but torch.distributed has no process group that joins them: each rank reports what "
        "it measured alone."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as said:
        assert reports(strategy=OfALauncher()) == alone
    assert [str(one.message) for one in said].count(message) == 1


def test_predict_validate_and_test_are_not_listened_to() -> None:
    class More(Classifier):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.net(batch[0])

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net(batch[0])

    ours = monitors(summary=False)
    run, model = trainer(ours), More(mlp())
    run.fit(model, loader())
    before = everything([callback.report for callback in ours[:3]])
    run.validate(model, loader(), verbose=False)
    run.test(model, loader(), verbose=False)
    run.predict(model, loader())
    assert everything([callback.report for callback in ours[:3]]) == before


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


def test_a_frozen_backbone_is_recorded_once_it_is_thawed() -> None:
    from lightning.pytorch.callbacks import BaseFinetuning

    class Thaw(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None:
            self.freeze(pl_module.net.stem, train_bn=False)

        def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.net.stem, optimizer)

    class Thawing(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    ours = monitors(every_n_steps=1, summary=False)
    kept: list[Any] = []

    class Keep(BaseFinetuning):
        def freeze_before_training(self, pl_module: Any) -> None: ...

        def finetune_function(self, *args: Any) -> None: ...

        def on_train_epoch_end(self, *args: Any) -> None:
            kept.append((ours[1].report, ours[2].report))

    trainer([Thaw(), *ours, Keep()], max_epochs=2).fit(Thawing(ResidualCNN()), loader((1, 6, 6)))
    (frozen, _), (thawed, clip) = kept
    assert "net.stem" in frozen.silent
    assert "net.stem.weight" not in frozen.parameters
    assert thawed.modules["net.stem"].calls == 7
    assert thawed.parameters["net.stem.weight"].steps == 7
    assert frozen.alerts == ()
    (event,) = thawed.alerts
    assert (event.severity, event.message) == ("info", "net.stem.weight, net.stem.bias were unfrozen between steps 7 and 14.")
    assert clip.optimizers["0-SGD"].norm_before == pytest.approx(thawed.total_norm)
