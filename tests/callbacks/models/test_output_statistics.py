"""What a model puts out, over whole trainings: values against references, and what the training does not notice."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureStatsMonitor
from lightning_hooks.alerts import PrecisionStats
from tests.diagnostics import test_outputs, test_representation
from tests.support.models import Classifier, loader, mlp, trainer

N = 6


class Language(nn.Module):
    """Puts out logits for each of five tokens; keeps what its modules put out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.act, self.head = nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 11)
        self.kept: dict[str, list[Tensor]] = defaultdict(list)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("embed", "act", "head"):
            x = getattr(self, name)(x)
            if torch.is_grad_enabled():
                self.kept[name].append(x.detach().clone())
        return x


class Tokens(Classifier):
    """Masks some targets itself, and keeps what its loss is given."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.given: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        y = torch.where(y == 3, -100, y)
        if batch_idx == 2:
            y = torch.full_like(y, -100)
        logits = self.net(x).transpose(1, 2)
        self.given.append((logits.detach().clone(), y))
        return F.cross_entropy(logits, y, reduction="sum")


def tokens(n: int = 8 * N) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((n, 5, 8), generator=generator)
    return DataLoader(TensorDataset(x, torch.randint(11, (n, 5), generator=generator)), batch_size=8)


@pytest.mark.usefixtures("all_detailed")
@pytest.mark.parametrize(
    "kwargs", [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2}], ids=["fp32", "bf16", "accumulated"]
)
def test_values(kwargs: dict[str, Any]) -> None:
    torch.manual_seed(0)
    monitor, model = FeatureStatsMonitor(every_n_steps=1, summary=False), Tokens(Language())
    trainer([monitor], **kwargs).fit(model, tokens())
    report = monitor.report
    assert list(report.outputs) == ["cross_entropy"]
    test_outputs.check(report.outputs["cross_entropy"], test_outputs.reference(model.given))
    assert (report.outputs["cross_entropy"].ignored_calls, report.outputs["cross_entropy"].lost_calls) == (1, 0)
    assert set(report.representations) == {"net.embed", "net.act", "net.head"}
    for name, stats in report.representations.items():
        test_representation.check(stats, model.net.kept[name.removeprefix("net.")])
    layers = 0 if "precision" not in kwargs else 2
    assert report.precision == (PrecisionStats("bf16-mixed", 0.0, (), 2) if layers else None)
    assert [(a.kind, a.severity) for a in report.alerts if a.kind == "labels_ignored"] == [("labels_ignored", "info")]
    assert type(report).from_dict(report.to_dict()) == report


class Likelihood(Classifier):
    """A negative log-likelihood of what ``last`` makes of the logits."""

    def __init__(self, last: Any, loss: Any) -> None:
        super().__init__(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
        self.last, self.loss = last, loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.last(self.net(batch[0])), batch[1])  # type: ignore[no-any-return]


@pytest.mark.usefixtures("all_detailed")
@pytest.mark.parametrize(("loss", "site"), [(F.nll_loss, "nll_loss"), (nn.NLLLoss(), "loss/nll_loss")])
@pytest.mark.parametrize(
    ("last", "kinds"),
    [
        (lambda x: x.log_softmax(1), set()),
        (lambda x: F.log_softmax(x, -1), set()),
        (nn.LogSoftmax(1), set()),
        (lambda x: x.softmax(1), {"output_range"}),
        (lambda x: x, {"output_range"}),
        (lambda x: x.log_softmax(0), {"softmax_dim"}),
        (nn.LogSoftmax(0), {"softmax_dim"}),
    ],
)
def test_a_negative_log_likelihood(loss: Any, site: str, last: Any, kinds: set[str]) -> None:
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Likelihood(last, loss), loader(n=32 * N))
    report = monitor.report
    assert list(report.outputs) == [site]
    found = {alert.kind for alert in report.alerts if alert.kind in ("output_range", "softmax_dim")}
    assert found == kinds
    assert "log_softmax" not in report.functions.values()


class Between(Classifier):
    """A loss between numbers, with a target of its own; some of the images' numbers are the model's inputs."""

    def __init__(self, loss: Any, target: Any) -> None:
        super().__init__(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Unflatten(1, (1, 8, 8))))
        self.loss, self.target = loss, target
        self.register_buffer("once", torch.randn(1, 1, 8, 8))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.net(batch[0])
        return self.loss(*self.target(self, output, batch[0]))  # type: ignore[no-any-return]


LOSSES = {name: getattr(F, name) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")}
MODULES = {
    f"loss/{name}": kind() for name, kind in zip(LOSSES, (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss), strict=True)
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("site", "loss"), [*LOSSES.items(), *MODULES.items()])
@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        (lambda model, output, x: (output, x), set()),
        (lambda model, output, x: (output, torch.randn_like(x)), set()),
        (lambda model, output, x: (output.mean((2, 3)), x.mean((1, 2, 3))), {"output_range"}),
        (lambda model, output, x: (output, model.once.expand_as(x)), {"constant"}),
        (lambda model, output, x: (model.once.expand_as(x), output), {"constant"}),
        (lambda model, output, x: (output, torch.ones_like(x)), set()),
    ],
    ids=["itself", "noise", "pairs", "one", "one, then the output", "ones"],
)
def test_losses_between_numbers(site: str, loss: Any, target: Any, kinds: set[str]) -> None:
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Between(loss, target), loader((1, 8, 8), n=8 * N))
    report = monitor.report
    assert list(report.targets) == [site]
    assert {alert.kind for alert in report.alerts if alert.site == site} == kinds
    assert set(report.functions) == set()
    assert type(report).from_dict(report.to_dict()) == report


def test_costly_statistics_are_of_the_first_batches_of_a_window_and_of_each_sixteenth() -> None:
    monitor = FeatureStatsMonitor(every_n_steps=1, report_every_n_steps=40, summary=False)
    trainer([monitor]).fit(Classifier(mlp()), loader(n=8 * 80))
    assert [report.sampled_batches for report in monitor.history] == [40, 40]
    for report in monitor.history:
        assert report.outputs["cross_entropy"].calls == 6  # 1 to 4, 17, 33
        assert {stats.calls for stats in report.representations.values()} == {6}
        assert report.sites["net.0"].calls == 40
