"""What measured steps gain: values against losses computed once more, and a training that is the same with it."""

from __future__ import annotations

import copy
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradientFlowMonitor, TrainingMonitor
from lightning_hooks.declare.context import MeasuredLoss
from lightning_hooks.diagnostics.learning.steps import MeasuredSteps, read_steps
from tests.support.models import Classifier, loader, trainer

QUIET: dict[str, Any] = {"summary": False, "report_dir": None, "every_n_steps": 3}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 3))


class Kept(Classifier):
    """Keeps what each step begins from."""

    def __init__(self) -> None:
        super().__init__(net())
        self.kept: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.kept.append((batch, torch.get_rng_state(), copy.deepcopy(self.net)))
        return super().training_step(batch, batch_idx)


def loss_of(model: nn.Module, buffers: nn.Module, batch: Any, state: Tensor) -> float:
    """The loss in float64: with the weights of one model, and the randomness and statistics of a forward pass before."""
    again = copy.deepcopy(model).double()
    torch.set_rng_state(state)
    mask = nn.functional.dropout(torch.ones(len(batch[0]), 16), 0.3)  # what the float32 forward pass has drawn
    hidden = again[1](again[0](batch[0].double())) * mask
    return nn.functional.cross_entropy(again[4](again[3](hidden)), batch[1]).item()


def test_gain_ratio_and_progress_are_those_of_losses_in_float64() -> None:
    torch.manual_seed(0)
    model, monitor = Kept(), GradientFlowMonitor(**QUIET, learning=True)
    trainer([monitor], max_epochs=2).fit(model, loader(n=56))
    nets = [kept[2] for kept in model.kept] + [model.net]
    gains, ratios, levels = [], [], []
    for step in (1, 2, 4, 8):
        batch, state, before = model.kept[step - 1]
        after = nets[step]
        gains.append(loss_of(before, before, batch, state) - loss_of(after, before, batch, state))
        exact = copy.deepcopy(before).double()
        exact.zero_grad()
        torch.set_rng_state(state)
        mask = nn.functional.dropout(torch.ones(len(batch[0]), 16), 0.3)
        nn.functional.cross_entropy(exact[4](exact[3](exact[1](exact[0](batch[0].double())) * mask)), batch[1]).backward()
        predicted = 0.1 * sum(p.grad.square().sum().item() for p in exact.parameters())
        ratios.append(gains[-1] / predicted)
        levels.append(statistics.fmean(model.losses[:step]))
    report = monitor.learning
    assert report is not None
    assert report.reruns == 4
    assert report.gain == pytest.approx(statistics.fmean(gains), rel=1e-4)
    assert report.step_ratio == pytest.approx(statistics.median(ratios), rel=1e-3)
    own = gains[0] + gains[1] + 2 * gains[2] + 4 * gains[3]
    assert report.progress == pytest.approx((levels[0] - levels[-1]) / own, rel=1e-3)


@pytest.mark.filterwarnings("ignore:learning=True")
@pytest.mark.parametrize("kind", ["plain", "target", "teacher", "iterating", "in place"])
def test_the_training_is_the_same_bit_for_bit(kind: str) -> None:
    outcomes = []
    for learning in (True, False):
        torch.manual_seed(0)
        models: dict[str, Any] = {"target": Target, "teacher": Teacher, "iterating": Iterating, "in place": lambda: InPlace(net())}
        model, monitor = models.get(kind, lambda: Classifier(net()))(), TrainingMonitor(**QUIET, learning=learning)
        trainer([monitor], max_epochs=2).fit(model, loader())
        if monitor.learning is not None:
            assert monitor.learning.reruns == (4 if kind == "plain" else 0)
        outcomes.append((model.losses, [*model.state_dict().values()], torch.get_rng_state()))
    (losses, weights, state), (plain_losses, plain_weights, plain_state) = outcomes
    assert losses == plain_losses
    assert torch.equal(state, plain_state)
    assert all(torch.equal(one, other) for one, other in zip(weights, plain_weights, strict=True))


class Iterating(Classifier):
    def __init__(self) -> None:
        super().__init__(net())
        self.numbers = iter(range(1000))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        next(self.numbers)
        return super().training_step(batch, batch_idx)


CALLS: list[int] = []


class Outside(Classifier):
    """The loss depends on what the model does not hold."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        CALLS.append(1)
        return super().training_step(batch, batch_idx) * len(CALLS)


class InPlace(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batch[0].mul_(0.5)
        return super().training_step(batch, batch_idx)


class Teacher(Classifier):
    """Weights that no optimizer holds move within the step."""

    def __init__(self) -> None:
        super().__init__(net())
        self.teacher = nn.Linear(8, 3).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss + (self.net(batch[0]) - self.teacher(batch[0])).square().mean()

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.teacher.weight.data.mul_(0.9)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


class Target(Classifier):
    """The step itself moves weights, which the optimizer holds too."""

    def __init__(self) -> None:
        super().__init__(net())
        self.target = nn.Linear(8, 3).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.target.weight.data.mul_(0.9)
        return super().training_step(batch, batch_idx) + (self.net(batch[0]) - self.target(batch[0])).square().mean()


class Hooked(Classifier):
    """Somebody else's hook, which another call would run once more."""

    def __init__(self) -> None:
        super().__init__(net())
        self.net[0].register_forward_hook(lambda *_: CALLS.append(1))


@pytest.mark.parametrize(
    ("model", "expected", "settings"),
    [
        (Target, "training_step moves weights", {}),
        (Hooked, "a hook at net.0 would run once more", {}),
        (lambda: Classifier(net(), optimizer=torch.optim.LBFGS), "runs training_step several times", {}),
        (Iterating, "model.numbers is a range_iterator", {}),
        (lambda: Outside(net()), "running a step twice gives two losses", {}),
        (lambda: InPlace(net()), "training_step changes its batch", {}),
        (Teacher, "weights that no optimizer holds move with the step", {}),
        (lambda: Classifier(net()), "gradients are accumulated", {"accumulate_grad_batches": 2}),
    ],
)
def test_why_steps_are_not_measured(model: Any, expected: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    quiet, asked = GradientFlowMonitor(**QUIET), GradientFlowMonitor(**QUIET, learning=True)
    with pytest.warns(UserWarning, match="learning=True: no step is measured by running it again: "):
        trainer([asked], **settings).fit(model(), loader())
    report = asked.learning
    assert report is not None
    assert (report.gain, report.step_ratio, report.progress) == (None,) * 3
    assert expected in report.why_not["step_ratio"]
    assert report.predicted_gain is not None
    trainer([quiet], **settings).fit(model(), loader())
    assert quiet.learning is not None
    assert quiet.learning.why_not["step_ratio"] == "steps are run again with learning=True only"


def steps_of(*measured: MeasuredLoss, predicted: float = 1.0, error: float = 0.0) -> MeasuredSteps:
    steps = MeasuredSteps()
    for one in measured:
        steps.add(one, predicted, error)
    return steps


def test_ratios_that_are_not_sure_or_not_those_of_the_loss_are_not_given() -> None:
    measured = [MeasuredLoss(step, 5.0, 3.0, 5.0) for step in (1, 2, 4, 8)]
    for steps, expected in (
        (steps_of(*measured, predicted=1.0), "steps gain more than gradients predict"),
        (steps_of(*measured, predicted=2.0, error=0.5), "the error"),
        (steps_of(MeasuredLoss(1, 5.0, 3.0, 5.0, rounding=0.5), predicted=2.0), "the error"),
        (MeasuredSteps(), "no step was measured yet"),
    ):
        fields, why_not = read_steps(steps.table.pack().tolist(), "")
        assert fields.get("step_ratio") is None
        assert why_not["step_ratio"].startswith(expected)
    assert read_steps(steps_of(*measured, predicted=4.0).table.pack().tolist(), "")[0]["step_ratio"] == 0.5


def test_the_state_goes_into_the_checkpoint(tmp_path: Any) -> None:
    def fitted(epochs: int, ckpt: Any = None) -> Any:
        torch.manual_seed(0)
        model, monitor = Classifier(nn.Sequential(nn.Linear(8, 3))), GradientFlowMonitor(**QUIET, learning=True)
        fit = trainer([monitor], max_epochs=epochs)
        fit.fit(model, loader(n=24), ckpt_path=ckpt)
        fit.save_checkpoint(tmp_path / "last.ckpt")
        return monitor.learning

    fitted(1)
    resumed, whole = fitted(3, tmp_path / "last.ckpt"), fitted(3)
    assert (resumed.reruns, resumed.gain, resumed.step_ratio) == (whole.reruns, whole.gain, whole.step_ratio)
