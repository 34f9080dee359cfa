"""What a model puts out, over whole trainings: values against references, and what the training does not notice."""

from __future__ import annotations

import copy
from collections import defaultdict
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor
from lightning_hooks.alerts import DropoutUse, PrecisionStats, SoftmaxUse
from tests.diagnostics import test_outputs, test_representation
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import same_state

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


def test_nothing_of_calls_where_they_are_switched_off() -> None:
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False, functional=False)
    trainer([monitor]).fit(Tokens(Language()), tokens())
    assert (monitor.report.outputs, monitor.report.softmax, monitor.report.dropout) == ({}, {}, {})
    assert monitor.report.representations


class Odd(nn.Module):
    """Drops whatever its mode, in two ways, and has softmaxes along several dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head, self.softmax = nn.Linear(8, 16), nn.Linear(16, 3), nn.Softmax(dim=0)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.fc(x), 0.25)
        h = F.dropout(h, 0.1, self.training)
        h = F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], dropout_p=0.2)[:, 0]
        return self.head(h * self.softmax(h) * h.softmax(-1))


def test_calls_that_are_not_what_they_seem() -> None:
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor], num_sanity_val_steps=1).fit(Classifier(Odd()), loader(n=8 * N), loader(n=32))
    report = monitor.report
    calls = report.dropout["net/dropout"].calls
    assert report.dropout == {
        "net/dropout": DropoutUse(0.25, calls, 0, 1),
        "net/dropout_1": DropoutUse(0.1, calls, 0, 0),
        "net/sdpa": DropoutUse(0.2, calls, 0, 1),
    }
    assert report.softmax == {"net.softmax/softmax": SoftmaxUse(calls, calls, 0), "net/softmax": SoftmaxUse(calls, 0, 0)}
    kinds = {(alert.kind, alert.site) for alert in report.alerts}
    expected = {("dropout_in_eval", "net/dropout"), ("dropout_in_eval", "net/sdpa"), ("softmax_dim", "net.softmax/softmax")}
    assert expected <= kinds
    assert not torch.overrides._get_overloaded_args((), lambda a: type(a))
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore:Found .* module.s. in eval mode")
def test_a_part_in_eval_mode() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.head = Odd().eval(), nn.Linear(3, 3)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self.frozen.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.frozen(x))

    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(Halves()), loader(n=8 * N))
    found = monitor.report.dropout["net.frozen/dropout"]
    assert (found.in_eval_mode, found.in_validation) == (found.calls, 0)


def test_autocast_that_is_switched_off() -> None:
    class Full(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 64), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                x = self.body(x)
            return self.head(x)

    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor], precision="bf16-mixed").fit(Classifier(Full()), loader(n=8 * N))
    assert monitor.report.precision == PrecisionStats("bf16-mixed", pytest.approx(512 / 704), ("net.body",), 2)
    assert [alert.site for alert in monitor.report.alerts if alert.kind == "precision_not_applied"] == ["net.body"]


@pytest.mark.parametrize("make", [Odd, lambda: Encoder()], ids=["functions", "fused"])
def test_training_and_validation_stay_as_they_are(make: Any) -> None:
    class Validates(Classifier):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.outputs: list[Tensor] = []

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.outputs.append(self.net(batch[0]))
            copy.deepcopy(self.net)

    runs = []
    for ours in ([], [FeatureStatsMonitor(every_n_steps=1, summary=False), GradientFlowMonitor(every_n_steps=1, summary=False)]):
        torch.manual_seed(0)
        model = Validates(make())
        trainer(ours, max_epochs=2).fit(
            model, loader((5, 8) if make is not Odd else (8,), n=24), loader((5, 8) if make is not Odd else (8,), n=24)
        )
        runs.append(model)
    assert same_state(*runs)
    assert runs[0].losses == runs[1].losses
    assert all(torch.equal(one, other) for one, other in zip(runs[0].outputs, runs[1].outputs, strict=True))


class Encoder(nn.Module):
    """Takes a fused path in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


@pytest.mark.parametrize(
    ("site", "loss"),
    [
        ("bce_with_logits", F.binary_cross_entropy_with_logits),
        ("loss/bce_with_logits", nn.BCEWithLogitsLoss()),
        ("binary_cross_entropy", F.binary_cross_entropy),
        ("mse_loss", F.mse_loss),
        ("loss/smooth_l1_loss", nn.SmoothL1Loss()),
    ],
)
@pytest.mark.parametrize(("scale", "found"), [(1.0, False), (2.0, True)])
def test_targets_that_outputs_cannot_reach(site: str, loss: Any, scale: float, found: bool) -> None:
    if site == "binary_cross_entropy" and found:
        pytest.skip("torch refuses such targets by itself")

    def target(model: Any, output: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return (output if "logits" in site else output.flatten(1).sigmoid().view_as(output)), scale * torch.rand_like(x)

    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Between(loss, target), loader((1, 8, 8), n=8 * N))
    stats = monitor.report.targets[site]
    assert stats.bounded == stats.calls * 8 * 64
    assert bool(stats.outside) is found
    assert {alert.kind for alert in monitor.report.alerts if alert.site == site} == ({"output_range"} if found else set())


@pytest.mark.parametrize(
    ("site", "loss"), [("kl_div", partial(F.kl_div, reduction="batchmean")), ("loss/kl_div", nn.KLDivLoss(reduction="batchmean"))]
)
@pytest.mark.parametrize("logarithms", [True, False])
def test_kl_div_of_probabilities(site: str, loss: Any, logarithms: bool) -> None:
    def target(model: Any, output: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        given = output.flatten(1).log_softmax(1) if logarithms else output.flatten(1).softmax(1)
        return given, x.flatten(1).softmax(1)

    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Between(loss, target), loader((1, 8, 8), n=8 * N))
    stats = monitor.report.targets[site]
    assert stats.bounded == stats.calls * 8 * 64
    assert stats.outside == (0 if logarithms else stats.bounded)
    assert {alert.kind for alert in monitor.report.alerts if alert.site == site} == (set() if logarithms else {"output_range"})


def test_costly_statistics_are_of_the_first_batches_of_a_window_and_of_each_sixteenth() -> None:
    monitor = FeatureStatsMonitor(every_n_steps=1, report_every_n_steps=40, summary=False)
    trainer([monitor]).fit(Classifier(mlp()), loader(n=8 * 80))
    assert [report.sampled_batches for report in monitor.history] == [40, 40]
    for report in monitor.history:
        assert report.outputs["cross_entropy"].calls == 6  # 1 to 4, 17, 33
        assert {stats.calls for stats in report.representations.values()} == {6}
        assert report.sites["net.0"].calls == 40
