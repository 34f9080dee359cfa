"""The five largest losses and gradient norms of a run, each with its epoch, batch, step and samples, against a plain list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import GradientClipMonitor, GradientFlowMonitor, TrainingMonitor
from lightning_hooks.diagnostics.unusual import MOST_SAMPLES, UnusualBatch
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.data import whole
from tests.support.models import Classifier, trainer
from tests.support.pages import of_kind, section_of

FOUND = tuple[float, int, int, int, tuple[int, ...]]
"""A value, its epoch, batch and step, and the samples."""


class Noting(Classifier):
    """A classifier that notes each batch's loss and each step's gradient norm, in float64."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), lr=0.05)
        self.noted: list[FOUND] = []
        self.norms: list[FOUND] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch[:2], batch_idx)
        loss = loss * (torch.nan if batch_idx == 3 and self.current_epoch == 1 and self.spoils else 1.0)
        self.at = self.current_epoch, batch_idx, self.global_step, tuple(batch[2].tolist())
        self.noted.append((loss.item(), *self.at))
        return loss

    spoils = False

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        squares = sum(p.grad.double().square().sum().item() for p in self.parameters() if p.grad is not None)
        epoch, batch, _, samples = self.at
        self.norms.append((squares**0.5, epoch, batch, self.global_step, samples))


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
    flow, clip = monitor.gradients, monitor.clipping
    assert flow is not None
    assert clip is not None
    check(flow.largest_losses, five(module.noted))
    check(clip.largest_norms["0-SGD"], five(module.norms))
    assert 17 in clip.largest_norms["0-SGD"][0].samples

    run = read_run(tmp_path)
    losses, norms = of_kind(section_of(whole(run, 0.0), "unusual"), "table")
    assert losses["heads"] == ["value", "epoch", "batch", "step", "samples"]
    for shown, expected in ((losses, five(module.noted)), (norms, five(module.norms))):
        assert [row[0] for row in shown["rows"]] == pytest.approx([one[0] for one in expected], rel=1e-3)
        assert [tuple(row[1:4]) for row in shown["rows"]] == [one[1:4] for one in expected]
        assert [row[4].partition(", ")[0] for row in shown["rows"]] == [str(one[4][0]) for one in expected]


def test_a_loss_that_is_not_finite_is_none_of_them_and_an_accumulated_step_is_at_its_last_batch() -> None:
    module = Noting()
    module.spoils = True
    monitors = GradientFlowMonitor(capsule=None), GradientClipMonitor()
    trainer(monitors, max_epochs=2, accumulate_grad_batches=2).fit(module, loader())
    check(monitors[0].report.largest_losses, five(module.noted), known=False)
    finite = [one for one in module.norms if one[0] == one[0]]
    check(monitors[1].report.largest_norms["0-SGD"], five(finite), known=False)


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
    when: set[int] = set()
    for name, before, noted in (("losses", whole.noted, module.noted), ("norms", whole.norms, module.norms)):
        expected = five([one for one in before if one[3] < 16] + noted)
        when |= {(one[3] >= 11) + (one[3] >= 16) for one in expected}
        found = _largest(again, name)
        assert [one.value for one in found] == pytest.approx([one[0] for one in expected], rel=1e-5)
        assert [(one.epoch, one.batch, one.step) for one in found] == [one[1:4] for one in expected]
        check([one for one in found if one.step < 11], [one for one in expected if one[3] < 11])
    assert when == {0, 1, 2}  # the epoch before, the window that was interrupted, the rest of it


def _largest(monitor: TrainingMonitor, name: str) -> tuple[UnusualBatch, ...]:
    assert monitor.gradients is not None
    assert monitor.clipping is not None
    return monitor.gradients.largest_losses if name == "losses" else monitor.clipping.largest_norms["0-SGD"]
