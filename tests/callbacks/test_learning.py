"""What of a training learns: predicted gains of real trainings against float64, and a training that is the same with it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradientFlowMonitor, TrainingMonitor
from lightning_hooks.diagnostics.reports import GradientFlowReport
from tests.support.models import Classifier, loader, mlp, trainer

QUIET: dict[str, Any] = {"summary": False, "report_dir": None, "every_n_steps": 1}


class Kept(Classifier):
    """Keeps the gradients before they are clipped, and the weights around each step, in float64."""

    def __init__(self, net: nn.Module, **kwargs: Any) -> None:
        super().__init__(net, **kwargs)
        self.steps: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        named = [*self.named_parameters()]
        kept = ({n: p.grad.double().clone() for n, p in named}, {n: p.detach().double().clone() for n, p in named})
        self.steps.append(kept)


def exact_gains(model: Kept) -> dict[str, float]:
    """Minus gradient times update, of each parameter, summed over the steps."""
    last = {name: p.detach().double() for name, p in model.named_parameters()}
    after = [weights for _, weights in model.steps[1:]] + [last]
    gains: dict[str, float] = {}
    for (gradients, weights), then in zip(model.steps, after, strict=True):
        for name, gradient in gradients.items():
            gains[name] = gains.get(name, 0.0) - (gradient * (then[name] - weights[name])).sum().item()
    return gains


def adamw(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5)


@pytest.mark.usefixtures("all_detailed")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_shares_are_those_of_gradients_before_clipping_and_updates_with_weight_decay(accumulate: int) -> None:
    torch.manual_seed(0)
    model, monitor = Kept(mlp(), optimizer=adamw), GradientFlowMonitor(**QUIET)
    trainer([monitor], gradient_clip_val=0.01, accumulate_grad_batches=accumulate).fit(model, loader(n=48))
    gains, report = exact_gains(model), monitor.learning
    assert report is not None
    assert report.steps == len(model.steps) == 6 // accumulate
    assert report.predicted_gain == pytest.approx(sum(gains.values()) / report.steps, rel=1e-5)
    assert {name: stats.gain for name, stats in report.parameters.items()} == pytest.approx(gains, rel=1e-4, abs=1e-8)
    shares = {name: gain / sum(gains.values()) for name, gain in gains.items()}
    assert {name: stats.share for name, stats in report.parameters.items()} == pytest.approx(shares, rel=1e-4, abs=1e-6)
    of_module = shares["net.0.weight"] + shares["net.0.bias"]
    assert report.modules["net.0"] == pytest.approx(of_module, rel=1e-5)
    assert report.modules["net"] == pytest.approx(1.0)
    assert report.batch_size == 8 * accumulate
    flat = [torch.cat([gradient.flatten() for gradient in gradients.values()]) for gradients, _ in model.steps]
    cosines = [torch.cosine_similarity(one, other, 0).item() for one, other in itertools.pairwise(flat)]
    assert report.coherence == pytest.approx(sum(cosines) / len(cosines), rel=1e-4)


def test_tags_and_reports_as_plain_data() -> None:
    model, monitor = Classifier(mlp()), TrainingMonitor(**QUIET)
    fit = trainer([monitor])
    fit.fit(model, loader())
    report = monitor.learning
    assert report is not None
    assert monitor.gradients is not None
    assert report is monitor.gradients.learning
    found = {tag: value.item() for tag, value in fit.callback_metrics.items() if tag.startswith("learning/")}
    assert found["learning/predicted_gain"] == pytest.approx(report.predicted_gain)
    assert found["learning/over_constant"] == pytest.approx(report.over_constant)
    assert GradientFlowReport.from_dict(monitor.gradients.to_dict()).learning == report


def test_the_last_gradient_goes_into_the_checkpoint(tmp_path: Any) -> None:
    def fitted(epochs: int, ckpt: Any = None) -> Any:
        torch.manual_seed(0)
        model, monitor = Classifier(mlp()), GradientFlowMonitor(**QUIET)
        fit = trainer([monitor], max_epochs=epochs)
        fit.fit(model, loader(), ckpt_path=ckpt)
        fit.save_checkpoint(tmp_path / "last.ckpt")
        return monitor.learning

    fitted(1)
    lost = {"progress": None}  # of a batch that no checkpoint holds
    resumed, whole = fitted(2, tmp_path / "last.ckpt"), fitted(2)
    assert dataclasses.replace(resumed, **lost) == dataclasses.replace(whole, **lost)


@pytest.mark.parametrize("wrong", ["yes", 2, None, 1])
def test_a_wrong_argument(wrong: Any) -> None:
    with pytest.raises(TypeError, match="learning must be 'auto', True or False; got"):
        GradientFlowMonitor(learning=wrong)
