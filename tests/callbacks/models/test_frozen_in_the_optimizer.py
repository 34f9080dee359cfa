"""Parameters of an optimizer that do not require a gradient, by mistake or on purpose, and what is frozen in mid-run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor
from tests.support.models import Classifier, trainer

pytestmark = pytest.mark.filterwarnings("ignore")


class Tuned(Classifier):
    """A body that is frozen at first, and a head."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__(nn.Sequential(), 3e-3, torch.optim.Adam)
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.backbone.requires_grad_(not frozen)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])


def data() -> DataLoader[Any]:
    x = torch.randn(640, 16, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=32)


def fit(module: Any, *callbacks: Any, epochs: int = 3, **kwargs: Any) -> tuple[TrainingMonitor, list[list[Alert]]]:
    monitor = TrainingMonitor(summary=False)
    trainer([*callbacks, monitor], max_epochs=epochs).fit(module, data(), **kwargs)
    alerts = [[alert for alert in report.alerts if alert.kind == "not_optimized"] for report in monitor.history["gradients"]]
    return monitor, alerts


class FreezesAgain(BaseFinetuning):
    """It freezes before training, also where that goes on, and unfreezes at one epoch only."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=1e-4)


class Unfreezes(FreezesAgain):
    """It unfreezes where training goes on behind that epoch too."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_fit_start(trainer, pl_module)
        if trainer.ckpt_path:
            pl_module.backbone.requires_grad_(True)


class Head(Tuned):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.head.parameters(), self.lr)


@pytest.mark.parametrize("callback", [FreezesAgain, Unfreezes])
def test_what_is_frozen_again_when_training_goes_on(tmp_path: Path, callback: type[BaseFinetuning]) -> None:
    torch.manual_seed(0)
    first = trainer([callback(), TrainingMonitor(summary=False)], max_epochs=2)
    first.fit(Head(frozen=False), data())
    first.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    _, alerts = fit(Head(frozen=False), callback(), ckpt_path=tmp_path / "last.ckpt", weights_only=False)
    if callback is Unfreezes:
        assert alerts == [[]]
        return
    ((alert,),) = alerts
    assert (alert.severity, alert.site) == ("warning", "0-Adam")
    assert alert.message == (
        "4 of its 6 parameters do not require a gradient (backbone.0.weight, backbone.0.bias, backbone.2.weight and 1 more), "
        "though it has taken steps with them, and their learning rate is 0.0001: they were frozen again when training went on."
    )
    assert alert.advice[0].startswith("Call requires_grad_(True) on backbone.0, backbone.2")


def test_what_is_frozen_in_mid_run_is_an_event() -> None:
    class Freezes(Tuned):
        def on_train_epoch_start(self) -> None:
            self.backbone.requires_grad_(self.current_epoch < 2)

    torch.manual_seed(0)
    _, alerts = fit(Freezes(frozen=False), epochs=5)
    assert [[(alert.severity, alert.site) for alert in each] for each in alerts] == [[], [], [("info", "backbone")], [], []]
    assert alerts[2][0].message.endswith("and 1 more were frozen between steps 40 and 60.")
