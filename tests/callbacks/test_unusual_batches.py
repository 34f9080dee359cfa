"""The five largest losses of a run, each with its epoch, batch, step and samples, against a plain list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import GradientFlowMonitor, TrainingMonitor
from lightning_hooks.diagnostics.unusual import MOST_SAMPLES
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.data import whole
from tests.support.models import Classifier, trainer
from tests.support.pages import of_kind, section_of

FOUND = tuple[float, int, int, int, tuple[int, ...]]
"""A value, its epoch, batch and step, and the samples."""


class Noting(Classifier):
    """A classifier that notes each batch's loss."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), lr=0.05)
        self.noted: list[FOUND] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch[:2], batch_idx)
        loss = loss * (torch.nan if batch_idx == 3 and self.current_epoch == 1 and self.spoils else 1.0)
        self.noted.append((loss.item(), self.current_epoch, batch_idx, self.global_step, tuple(batch[2].tolist())))
        return loss

    spoils = False


def loader(batch_size: int = 8) -> DataLoader[Any]:
    torch.manual_seed(1)
    x, y = torch.randn(88, 4), torch.randint(0, 3, (88,))
    x[17] *= 60  # an outlier
    return DataLoader(TensorDataset(x, y, torch.arange(88)), batch_size, shuffle=True)


def five(noted: list[FOUND]) -> list[FOUND]:
    """The five largest finite ones, the largest first."""
    return sorted((one for one in noted if one[0] < float("inf")), key=lambda one: -one[0])[:5]


def check(found: Any, expected: list[FOUND], known: bool = True, rel: float = 1e-5) -> None:
    assert [(one.epoch, one.batch, one.step) for one in found] == [one[1:4] for one in expected]
    assert [one.value for one in found] == pytest.approx([one[0] for one in expected], rel=rel)
    assert [one.samples for one in found] == [one[4][:MOST_SAMPLES] if known else () for one in expected]


@pytest.mark.parametrize("options", [{}, {"report_every_n_steps": 4}, {"every_n_steps": 5}], ids=["epochs", "windows", "sampled"])
def test_the_largest_of_a_run_whatever_the_windows_and_the_sampling(options: dict[str, Any], tmp_path: Path) -> None:
    module, monitor = Noting(), TrainingMonitor(capsule="rows", report_dir=tmp_path, **options)
    trainer([monitor], max_epochs=3).fit(module, loader())
    flow = monitor.gradients
    assert flow is not None
    check(flow.largest_losses, five(module.noted))

    run = read_run(tmp_path)
    (shown,), expected = of_kind(section_of(whole(run, 0.0), "unusual"), "table"), five(module.noted)
    assert shown["heads"] == ["loss", "epoch", "batch", "step", "samples"]
    assert [row[0] for row in shown["rows"]] == pytest.approx([one[0] for one in expected], rel=1e-3)
    assert [tuple(row[1:4]) for row in shown["rows"]] == [one[1:4] for one in expected]
    assert [row[4].partition(", ")[0] for row in shown["rows"]] == [str(one[4][0]) for one in expected]


def test_a_loss_that_is_not_finite_is_none_of_them() -> None:
    module = Noting()
    module.spoils = True
    monitor = GradientFlowMonitor(capsule=None)
    trainer([monitor], max_epochs=2, accumulate_grad_batches=2).fit(module, loader())
    check(monitor.report.largest_losses, five(module.noted), known=False)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_a_resumed_run_goes_on_with_those_before(tmp_path: Path) -> None:
    """In the middle of an epoch, whose first batches have the largest losses."""
    module = Noting()

    class Interrupted(Noting):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step == 16:
                self.trainer.save_checkpoint(tmp_path / "mid.ckpt")

    whole, monitor = Interrupted(), TrainingMonitor(capsule="rows", summary=False)
    one = trainer([monitor], max_epochs=2)
    one.fit(whole, loader())
    again = TrainingMonitor(capsule="rows", summary=False)
    trainer([again], max_epochs=2).fit(module, loader(), ckpt_path=tmp_path / "mid.ckpt", weights_only=False)
    expected = five([one for one in whole.noted if one[3] < 16] + module.noted)
    assert again.gradients is not None
    found = again.gradients.largest_losses
    assert [one.value for one in found] == pytest.approx([one[0] for one in expected], rel=1e-5)
    assert [(one.epoch, one.batch, one.step) for one in found] == [one[1:4] for one in expected]
    check([one for one in found if one.step < 11], [one for one in expected if one[3] < 11])
    assert len({(one[3] >= 11) + (one[3] >= 16) for one in expected}) > 1  # from before the interruption, and from behind it
