"""Rules over how a model and its data are set up, just below and just above their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import (
    BatchCounts,
    BatchRepeated,
    EvalMode,
    FewSamples,
    FrozenStatistics,
    GradientFlowReport,
    LabelCounts,
    LabelsIgnored,
    LinearNetwork,
    ModelSetup,
    ModuleSettings,
    ParameterSetup,
    RanksSameBatch,
    Unregistered,
    UnregisteredModules,
)
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from lightning_hooks.diagnostics.loss.report import LossReport
from tests.support.models import Classifier, loader, trainer

TRAINS = ParameterSetup(100, 2, True, True, ("0-Adam",), 10, 1e-3, 1e-3)
FROZEN = ParameterSetup(100, 2, False, False)
WAITS = replace(TRAINS, has_gradient=False)


def report(setups: dict[str, ParameterSetup] | None = None, loss: LossReport | None = None, **setup: Any) -> GradientFlowReport:
    return GradientFlowReport(0, 40, {}, {}, 1.0, setups=setups or {}, loss=loss, model_setup=ModelSetup(**setup))


def brief(rule: Any, given: GradientFlowReport) -> list[tuple[str, str, float, str]]:
    return [(alert.kind, alert.site, alert.value, alert.severity) for alert in rule(given)]


BODY = {"net.body.fc.weight": TRAINS, "net.body.bn.weight": TRAINS, "net.head.weight": TRAINS}


@pytest.mark.parametrize(
    ("modes", "setups", "found"),
    [
        ({}, BODY, []),
        ({"net.body.bn": 2, "net.body.drop": 2}, BODY, [("eval_mode", "net.body", 2.0, "warning")]),
        ({"net.body.bn": 3, "net.drop": 2}, BODY, [("eval_mode", "net", 2.0, "warning")]),
        ({"net.body.bn": 4, "drop": 2}, BODY, [("eval_mode", "the model", 2.0, "warning")]),
        (
            {"net.body.bn": 2, "net.drop": 1},
            BODY,
            [("eval_mode", "net.body", 1.0, "warning"), ("eval_mode", "net.drop", 1.0, "info")],
        ),
        ({"net.body.bn": 1}, BODY, [("eval_mode", "net.body.bn", 1.0, "info")]),
        ({"net.body.bn": 2}, {**BODY, "net.body.fc.weight": FROZEN}, [("eval_mode", "net.body", 1.0, "warning")]),  # half of it
        ({"net.body.bn": 2}, {**BODY, "net.body.fc.weight": replace(FROZEN, elements=101)}, []),
        (
            {"net.body.bn": 2},
            {"net.body.fc.weight": WAITS, "net.body.bn.weight": WAITS, "net.head.weight": TRAINS},
            [],
        ),  # a teacher
        ({"net.body.bn": 2}, {**dict.fromkeys(BODY, replace(TRAINS, optimizers=())), "net.head.weight": TRAINS}, []),  # a loss
        ({"net.body.bn": 2}, {}, []),
    ],
)
def test_eval_mode(modes: dict[str, int], setups: dict[str, ParameterSetup], found: list[Any]) -> None:
    assert brief(EvalMode(), report(setups, eval_modes=modes)) == found


@pytest.mark.parametrize(("modes", "severity"), [({"net.body.bn": 1}, "warning"), ({"net.body.bn": 1, "net.drop": 1}, "warning")])
def test_a_norm_in_eval_mode_that_has_seen_no_data(modes: dict[str, int], severity: str) -> None:
    found = brief(EvalMode(), report(BODY, eval_modes=modes, unestimated=("net.body.bn",)))
    assert found[0] == ("eval_mode", "net.body.bn", 1.0, severity)
    assert found[1:] == [("eval_mode", site, 1.0, "info") for site in modes if site != "net.body.bn"]


def test_frozen_statistics() -> None:
    setups = {"net.a.fc.weight": FROZEN, "net.a.bn.weight": FROZEN, "net.b.bn.weight": FROZEN, "net.b.fc.weight": TRAINS}
    rule = FrozenStatistics()
    assert brief(rule, report(setups, updating={"net.a.bn": 0.5})) == [("frozen_statistics", "net.a", 0.5, "info")]
    (alert,) = rule(report(setups, updating={"net.a.bn": 0.51}))
    assert (alert.site, alert.severity) == ("net.a", "warning")
    assert alert.seen == (
        "it is frozen, but net.a.bn is in training mode and updates its running statistics: those of net.a.bn have moved by 0.51 "
        "standard deviations (limit 0.5)."
    )
    assert brief(rule, report(setups, updating={"net.b.bn": 2.0})) == [("frozen_statistics", "net.b.bn", 2.0, "warning")]
    held = {**setups, "net.b.bn.weight": replace(FROZEN, optimizers=("0-Adam",))}
    turns = {"net.b.bn.weight": ParameterGradientStats(4, 1.0, 2.0, 0.1, 0.0, 0, 0, 1e-3)}
    assert brief(rule, replace(report(held, updating={"net.b.bn": 2.0}), parameters=turns)) == []
    assert brief(rule, report(setups)) == []


@pytest.mark.parametrize(
    ("setup", "site", "value"),
    [
        ({"values_per_channel": {"bn": 3.9, "bn2": 2.0}}, "bn", 2.0),
        ({"values_per_channel": {"bn": 4.0}}, "", 0.0),
        ({"settings": {"drop": {"p": 0.9}}}, "drop", 0.9),
        ({"settings": {"drop": {"p": 0.89}}}, "", 0.0),
        ({"settings": {"drop": {"p": 0.9}}, "eval_modes": {"drop": 1}}, "", 0.0),
        ({"settings": {"norm": {"eps": 1.0}}}, "norm", 1.0),
        ({"settings": {"norm": {"eps": 0.99}}}, "", 0.0),
        ({"settings": {"bn": {"momentum": 0.0}}}, "bn", 1.0),
        ({"settings": {"norm": {"normalized": 1.0}}}, "norm", 1.0),
        ({}, "", 0.0),
    ],
)
def test_module_settings(setup: dict[str, Any], site: str, value: float) -> None:
    assert brief(ModuleSettings(), report(**setup)) == ([("settings", site, value, "warning")] if site else [])


@pytest.mark.parametrize(("momentum", "planned", "found"), [(1e-3, 692, True), (1e-3, 693, False), (1e-3, None, False)])
def test_a_momentum_with_which_statistics_stay_at_0_and_1(momentum: float, planned: int | None, found: bool) -> None:
    """0.999 to the power of 692 is 0.5004, and to that of 693 0.4999."""
    given = replace(report(settings={"bn": {"momentum": momentum}}), planned_steps=planned)
    assert bool(brief(ModuleSettings(), given)) is found


@pytest.mark.parametrize(
    ("change", "found"), [({"reached": True}, True), ({}, False), ({"reached": True, "training": False}, False)]
)
def test_unregistered(change: dict[str, Any], found: bool) -> None:
    given = report(unregistered={"net.blocks": UnregisteredModules(3, 1200, **change)})
    assert brief(Unregistered(), given) == ([("unregistered", "net.blocks", 1200.0, "warning")] if found else [])


NAN = LossReport(9, 1.0, 0.0, 1.0, 1.0, 1.0, nonfinite_steps=1)


@pytest.mark.parametrize(
    ("labels", "loss", "severity"),
    [
        (None, None, None),
        (LabelCounts(10, 0, 100, 99), None, None),
        (LabelCounts(10, 4, 100, 60), None, "info"),
        (LabelCounts(10, 1, 100, 60), NAN, "warning"),
        (LabelCounts(10, 5, 100, 60), None, "warning"),
    ],
)
def test_labels_ignored(labels: LabelCounts | None, loss: LossReport | None, severity: str | None) -> None:
    assert [alert.severity for alert in LabelsIgnored()(report(loss=loss, labels=labels))] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("compared", "repeated", "found"), [(0, 0, False), (2, 2, False), (3, 3, True), (10, 3, True), (10, 2, False)]
)
def test_batch_repeated(compared: int, repeated: int, found: bool) -> None:
    alerts = list(BatchRepeated()(report(batches=BatchCounts(compared, repeated))))
    assert bool(alerts) is found
    for alert in alerts:
        assert (alert.kind, alert.site, alert.severity) == ("batch_repeated", "the data", "warning")
        assert alert.value == repeated / compared
        assert alert.seen == (
            f"{repeated} of {compared} sampled batches are the same as the batch after them, or a tensor of theirs is (limit 30%): "
            "the model sees few different samples."
        )


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (BatchCounts(samples=128, seen=120, copies=7, distinct=24), True),
        (BatchCounts(samples=40, seen=25, copies=9, distinct=32), True),
        (BatchCounts(samples=40, seen=24, copies=9, distinct=32), False),  # as often as not
        (BatchCounts(samples=128, seen=120, copies=7, distinct=33), False),
        (BatchCounts(samples=128, seen=120, copies=6, distinct=24), False),  # an epoch goes through few data several times
        (BatchCounts(samples=15, seen=15, copies=9, distinct=4), False),
        (BatchCounts(samples=20, seen=15, copies=9, distinct=21), False),
        (BatchCounts(samples=128, seen=128, copies=99, distinct=1), False),  # one sample is fitted
        (BatchCounts(10, 10, samples=128, seen=120, copies=7, distinct=24), False),  # whole batches repeat
    ],
)
def test_few_samples(counts: BatchCounts, found: bool) -> None:
    alerts = list(FewSamples()(report(batches=counts)))
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [("batch_repeated", "the data", "warning")] * found
    for alert in alerts:
        assert alert.seen == (
            f"{counts.seen} of {counts.samples} samples had come in an earlier batch of the same epoch (limit 60%), "
            f"{counts.copies} are copies of others of their own batch, and no more than {counts.distinct} that were read are "
            "different."
        )


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (BatchCounts(ranks=2, rank_batches=4, same_on_ranks=4, different=3), True),
        (BatchCounts(ranks=2, rank_batches=4, same_on_ranks=3, different=3), False),
        (BatchCounts(ranks=2, rank_batches=4, same_on_ranks=4, different=2), False),
        (BatchCounts(ranks=2, rank_batches=16, same_on_ranks=16, different=1), False),  # one batch alone
        (BatchCounts(ranks=1, rank_batches=4, same_on_ranks=4, different=4), False),  # tensor parallelism, or one process
        (BatchCounts(ranks=2), False),
    ],
)
def test_ranks_same_batch(counts: BatchCounts, found: bool) -> None:
    alerts = list(RanksSameBatch()(report(batches=counts)))
    assert bool(alerts) is found
    for alert in alerts:
        assert (alert.kind, alert.site, alert.severity) == ("ranks_same_batch", "the data", "warning")
        assert alert.seen == (
            "all 2 ranks got the same batch in 4 of 4 sampled batches: their gradients are the same, and training is as with one "
            "rank."
        )


class LowRank(nn.Module):
    """A linear layer with an adapter, which is narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.down, self.up = nn.Linear(8, 3), nn.Linear(8, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.whole(x) + self.up(self.down(x))


def in_a_row(*between: nn.Module, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), *between, nn.Linear(width, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "found"),
    [
        (in_a_row(), ("net.0", "net.1", 2)),
        (in_a_row(nn.Dropout(0.1), nn.Linear(16, 16), nn.Identity()), ("net.0", "net.4", 3)),
        (in_a_row(nn.Unflatten(1, (4, 4)), nn.Flatten(), width=16), ("net.0", "net.3", 2)),
        (in_a_row(nn.ReLU()), None),
        (in_a_row(nn.BatchNorm1d(16)), None),
        (in_a_row(nn.Softplus()), None),
        (in_a_row(width=2), None),  # of low rank
        (nn.Linear(8, 3), None),
        (LowRank(), None),
    ],
)
def test_a_network_without_activations(net: nn.Module, found: Any) -> None:
    monitor = TrainingMonitor(summary=False)
    trainer([monitor]).fit(Classifier(net), loader())
    alerts = [alert for alert in monitor.alerts if alert.severity != "info"]
    assert [(alert.kind, alert.site, alert.value) for alert in alerts] == ([("settings", found[0], found[2])] if found else [])
    if found:
        assert f"from here to {found[1]} there is nothing but linear maps" in alerts[0].message
    assert not [*LinearNetwork()(report())]
