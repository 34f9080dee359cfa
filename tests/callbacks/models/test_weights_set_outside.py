"""Weights that something other than the optimizer sets while training pauses, and what sets them for a good reason."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateFinder, ModelPruning, StochasticWeightAveraging
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lightning_hooks import Alert, TrainingMonitor
from lightning_hooks.diagnostics.setup.outside import WeightsSet, returns
from tests.support.models import Classifier, loader, mlp, trainer

pytestmark = pytest.mark.filterwarnings("ignore")

Hook = Callable[[Any], None]


class On(Callback):
    """A callback of a user's own: functions of the model at some events."""

    def __init__(self, **hooks: Hook) -> None:
        for name, hook in hooks.items():
            setattr(self, name, lambda _trainer, module, *args, hook=hook: hook(module))


class Average:
    """An exponential moving average of the weights, as callbacks keep it."""

    def __init__(self, decay: float = 0.99) -> None:
        self.decay, self.shadow, self.kept = decay, list[Tensor](), list[Tensor]()

    def start(self, module: nn.Module) -> None:
        self.shadow = [parameter.detach().clone() for parameter in module.parameters()]

    def update(self, module: nn.Module, *args: Any) -> None:
        for mean, parameter in zip(self.shadow, module.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - self.decay)

    def swap(self, module: nn.Module) -> None:
        self.kept = [parameter.detach().clone() for parameter in module.parameters()]
        self.write(module, self.shadow)

    def put_back(self, module: nn.Module) -> None:
        self.write(module, self.kept)

    def write(self, module: nn.Module, values: list[Tensor]) -> None:
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.data.copy_(value)

    def callback(self, restores: bool) -> On:
        """It is swapped in for validation."""
        hooks: dict[str, Hook] = {"on_train_batch_end": self.update, "on_validation_start": self.swap}
        return On(on_fit_start=self.start, **hooks, **({"on_validation_end": self.put_back} if restores else {}))


class Clipped(Classifier):
    """Its weights are clipped after each step, as those of a critic."""

    def on_train_batch_end(self, *args: Any) -> None:
        for parameter in self.net.parameters():
            parameter.data.clamp_(-0.05, 0.05)


class LookaheadSteps(torch.optim.Adam):
    """Lookahead: slow weights go half of the way to the fast ones every five steps, which go on from there."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.count, self.slow = 0, [p.detach().clone() for group in self.param_groups for p in group["params"]]

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        self.count += 1
        if self.count % 5 == 0:
            for slow, fast in zip(self.slow, (p for group in self.param_groups for p in group["params"]), strict=True):
                slow.lerp_(fast.detach(), 0.5)
                fast.data.copy_(slow)
        return loss


class Adapter(nn.Module):
    """A linear layer that is frozen, with a low-rank one beside it that can be merged into it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 4, bias=False), nn.Linear(4, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))

    @torch.no_grad()
    def merge(self, sign: float = 1.0) -> None:
        self.layer.weight += sign * self.up.weight @ self.down.weight


def adapters() -> nn.Sequential:
    return nn.Sequential(Adapter(nn.Linear(8, 32)), nn.ReLU(), Adapter(nn.Linear(32, 32)), nn.ReLU(), nn.Linear(32, 3))


def merge(module: Any) -> None:
    for part in module.modules():
        if isinstance(part, Adapter):
            part.merge()


def unmerge(module: Any) -> None:
    for part in module.modules():
        if isinstance(part, Adapter):
            part.merge(-1.0)


def merge_for_good(module: Any) -> None:
    """As in ReLoRA: the low-rank part starts again."""
    merge(module)
    for part in module.modules():
        if isinstance(part, Adapter):
            nn.init.zeros_(part.up.weight)
            part.down.reset_parameters()


def fit(module: Any, *callbacks: Any, first: bool = False, epochs: int = 4, **kwargs: Any) -> tuple[list[Alert], list[WeightsSet]]:
    """Train with others' callbacks behind the monitor, or before it: the alerts, and what was set in each window."""
    monitor = TrainingMonitor(summary=False)
    run = trainer([*callbacks, monitor] if first else [monitor, *callbacks], max_epochs=epochs, **kwargs)
    run.fit(module, loader(n=160), loader(n=16))
    reports = monitor.history["gradients"]
    alerts = [alert for report in reports for alert in report.alerts if alert.kind == "set_outside"]
    return alerts, [report.model_setup.weights_set for report in reports if report.model_setup.weights_set is not None]


def classifier(net: nn.Module | None = None, kind: type[Classifier] = Classifier, **kwargs: Any) -> Classifier:
    torch.manual_seed(0)
    return kind(mlp() if net is None else net, **{"optimizer": torch.optim.Adam, "lr": 2e-3, **kwargs})


class Restored(Classifier):
    """Its weights are restored where an epoch ends."""

    def on_train_start(self) -> None:
        self.kept = copy.deepcopy(self.net.state_dict())

    def on_train_epoch_end(self) -> None:
        self.net.load_state_dict(self.kept)


def test_weights_that_are_restored_at_an_epoch_s_end() -> None:
    alerts, found = fit(classifier(kind=Restored))
    assert [alert.severity for alert in alerts] == ["warning"] * 3
    assert [(one.step, one.share, one.undone, one.restored, one.undone_pauses) for one in found] == [
        (20, 1.0, 1.0, 1.0, 1), (40, 1.0, 1.0, 1.0, 2), (60, 1.0, 1.0, 1.0, 3),
    ]  # fmt: skip
    assert (alerts[0].site, alerts[0].message) == (
        "net",
        "something other than the optimizer set net.0.weight, net.0.bias, net.2.weight and 3 more at the end of the epoch, after "
        "step 20: 100% of the trained weights are what training started with again.",
    )


@pytest.mark.parametrize("first", [False, True])
def test_an_average_that_is_copied_in_for_validation_and_not_put_back(first: bool) -> None:
    alerts, found = fit(classifier(), Average(0.999).callback(restores=False), first=first)
    assert [(alert.severity, alert.site) for alert in alerts] == [("info", "net"), ("warning", "net"), ("warning", "net")]
    assert [one.moment for one in found] == ["in validation"] * 3
    assert all(one.undone > 0.9 and one.restored == 0 for one in found)
    assert alerts[1].message.endswith(
        f"{found[1].undone * 100:.3g}% of what they had learned is gone (so it is after 2 of the last pauses)."
    )


class LoadedAgain(Classifier):
    """Its weights are loaded again after every third step, or after every one."""

    every = 3

    def on_train_start(self) -> None:
        self.kept = copy.deepcopy(self.net.state_dict())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.every == 0:
            self.net.load_state_dict(self.kept)


def test_weights_that_are_loaded_again_between_steps() -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    trainer([monitor], max_epochs=1).fit(classifier(kind=LoadedAgain), loader(n=160))
    (report,) = monitor.history["gradients"]
    (alert,) = (alert for alert in report.alerts if alert.kind == "set_outside")
    # Batches 4, 7, …, 19 begin as the first one did; batch 1 does too, with nothing in between.
    assert report.model_setup.weights_returned == 6
    assert (alert.severity, alert.value, alert.causes[0].name) == ("warning", 6.0, "written_back")
    assert alert.remedies[0].text == "Remove what writes the weights of the model"
    assert alert.message == (
        "at 6 sampled steps its weights were to the bit those of an earlier one, although updates had changed them (limit 3): "
        "something sets them back."
    )


def test_weights_that_are_loaded_again_after_each_step() -> None:
    monitor, module = TrainingMonitor(every_n_steps=5, summary=False), classifier(kind=LoadedAgain)
    module.every = 1
    trainer([monitor], max_epochs=1).fit(module, loader(n=160))
    (report,) = monitor.history["gradients"]
    (alert,) = (alert for alert in report.alerts if alert.kind == "set_outside")
    assert len(report.model_setup.weights_still) == 3
    assert (alert.severity, alert.value, alert.causes[0].name) == ("warning", 3.0, "written_back")
    assert alert.message.startswith("at all sampled steps its weights were to the bit those of an earlier one")


class LoadedBeforeTheStep(Classifier):
    """Its weights are loaded again before each step, which is all that they are away then."""

    def on_train_start(self) -> None:
        self.kept = copy.deepcopy(self.net.state_dict())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.net.load_state_dict(self.kept)


@pytest.mark.parametrize(
    ("kind", "batches", "every", "found"),
    [
        (LoadedBeforeTheStep, 24, 4, True),
        (Classifier, 24, 4, False),
        (LoadedBeforeTheStep, 18, 4, False),
        (LoadedBeforeTheStep, 24, 18, False),  # the last step that is looked at is the 19th
    ],
)
def test_weights_that_are_never_away_from_where_they_began(kind: Any, batches: int, every: int, found: bool) -> None:
    monitor = TrainingMonitor(every_n_steps=every, summary=False)
    trainer([monitor], max_epochs=1).fit(classifier(kind=kind), loader(n=8 * batches))
    (report,) = monitor.history["gradients"]
    alerts = [(alert.severity, alert.causes[0].name) for alert in report.alerts if alert.kind == "set_outside"]
    assert alerts == [("warning", "written_back")] * found
    away = report.model_setup.weights_away
    assert len(away) == 3 * (batches > 20 and every < 18)
    for name, distance in away.items():
        stats = report.parameters[name]
        assert (distance < 1.5 * stats.update_ratio * stats.weight_rms) is found


def test_weights_that_wait_for_accumulated_gradients_are_not_set_back() -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    trainer([monitor], max_epochs=2, accumulate_grad_batches=4).fit(classifier(), loader(n=32))
    assert [r.batches for r in monitor.history["gradients"]] == [4, 4]
    assert [(r.model_setup.weights_returned, r.model_setup.weights_still) for r in monitor.history["gradients"]] == [(0, ())] * 2


def test_weights_that_are_nan_do_not_return() -> None:
    module = classifier()
    torch.nn.init.constant_(module.net[0].weight, float("nan"))
    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    trainer([monitor], max_epochs=2).fit(module, loader(n=240))
    assert [report.model_setup.weights_away for report in monitor.history["gradients"]] == [{}] * 2
    assert [(r.model_setup.weights_returned, r.model_setup.weights_still) for r in monitor.history["gradients"]] == [(0, ())] * 2


def test_what_counts_as_a_return() -> None:
    a, b = torch.zeros(4), torch.ones(4)
    near = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert returns([a, b, a, near, a, a, b], new=6) == 2  # a and b after one another; not a again, nor after what is near it
    assert returns([a, b, a], new=0) == 0


def swa() -> Any:
    return StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=1, annealing_epochs=1)


def lookahead_at_the_epoch_s_end(module: Any) -> None:
    slow = module.__dict__.setdefault("slow", copy.deepcopy(module.net.state_dict()))
    for name, value in module.net.state_dict().items():
        slow[name].lerp_(value, 0.7)
    module.net.load_state_dict(slow)


def by_hand(module: Any) -> None:
    """Small weights become zero."""
    for parameter in module.net.parameters():
        parameter.data[parameter.data.abs() < 0.1] = 0


def spectral() -> nn.Sequential:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(8, 32)), nn.ReLU(), parametrizations.weight_norm(nn.Linear(32, 3))
    )


LEGITIMATE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "an average that is swapped in and put back": (classifier, lambda: Average().callback(restores=True)),
    "stochastic weight averaging": (classifier, swa),
    "lookahead": (lambda: classifier(optimizer=LookaheadSteps), Callback),
    "lookahead at an epoch's end": (classifier, lambda: On(on_train_epoch_end=lookahead_at_the_epoch_s_end)),
    "pruning": (classifier, lambda: ModelPruning("l1_unstructured", amount=0.2, use_lottery_ticket_hypothesis=False)),
    "pruning that rewinds": (classifier, lambda: ModelPruning("l1_unstructured", amount=0.2)),
    "pruning by hand": (classifier, lambda: On(on_train_epoch_end=by_hand)),
    "a merge that is taken back": (
        lambda: classifier(adapters()), lambda: On(on_validation_start=merge, on_validation_end=unmerge),
    ),
    "a merge for good": (lambda: classifier(adapters()), lambda: On(on_train_epoch_end=merge_for_good)),
    "weights that are clipped": (lambda: classifier(kind=Clipped), Callback),
    "a parametrization": (lambda: classifier(spectral()), Callback),
    "a search of a learning rate": (classifier, lambda: LearningRateFinder(num_training_steps=5)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGITIMATE)
@pytest.mark.parametrize("first", [False, True])
def test_no_warning_where_it_is_meant(name: str, first: bool) -> None:
    module, callback = LEGITIMATE[name]
    alerts, _ = fit(module(), callback(), first=first)
    assert [alert for alert in alerts if alert.severity != "info"] == []


def test_it_costs_thirty_calls_a_window() -> None:
    counts: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        ours = code.co_filename.endswith("setup/outside.py") or code.co_qualname in ("Batches.pause", "_pause.<locals>.call")
        guard = code.co_qualname == "guarded.__call__" and frame.f_locals["self"].site == "weights between steps"
        counts[code.co_qualname] += ours or guard

    watched = On(on_train_start=lambda _: sys.setprofile(count), on_train_end=lambda _: sys.setprofile(None))
    fit(classifier(), watched, epochs=5)
    assert 0 < counts.total() <= 5 * 30, counts
