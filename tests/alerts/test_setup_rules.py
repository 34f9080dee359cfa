"""Rules over how a model and its data are set up, just below and just above their limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import (
    RULES,
    BatchCounts,
    BatchRepeated,
    EvalMode,
    FeatureReport,
    FrozenStatistics,
    GradientFlowReport,
    LabelCounts,
    LabelsIgnored,
    LearningReport,
    LinearNetwork,
    ModelSetup,
    ModuleSettings,
    NotOptimized,
    OptimizerChoices,
    ParameterSetup,
    RanksSameBatch,
    RuleBook,
    Unregistered,
    UnregisteredModules,
    VectorDecay,
)
from lightning_hooks.declare.rulebook import reports_of, rules_by_report
from lightning_hooks.diagnostics.gradients.stats import ParameterGradientStats
from lightning_hooks.diagnostics.loss.report import LossReport
from tests.support.judged import judged
from tests.support.models import Classifier, loader, mlp, trainer

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


def test_a_part_that_was_frozen_in_eval_mode_keeps_it() -> None:
    modes, frozen = {"net.body.bn": 2}, {"net.body.fc.weight": FROZEN, "net.body.bn.weight": FROZEN, "net.head.weight": TRAINS}
    now = report(BODY, eval_modes=modes)
    for earlier, severity in ((report(frozen, eval_modes=modes), "info"), (report(frozen), "warning"), (now, "warning")):
        assert [alert.severity for alert in judged(EvalMode(), now, [earlier])] == [severity]


def test_what_eval_mode_says() -> None:
    (warning, info) = EvalMode()(report(BODY, eval_modes={"net.body.bn": 2, "net.body.drop": 2, "net.drop": 1}))
    assert warning.seen == (
        "it trains in eval mode: net.body.bn, net.body.drop behave as in validation. Dropout drops nothing there, and batch norm "
        "does not update its statistics. Common causes: a "
        "pretrained model, which is loaded in eval mode, or an eval() that no train() undoes."
    )
    assert warning.advice == ("Call net.body.train() before training", "Freeze it if it is not to learn")
    assert info.seen == (
        "net.drop is in eval mode within modules in training mode. Common cause: an eval() in a hook of the model, such as "
        "on_train_batch_start, that no train() undoes."
    )


def test_frozen_statistics() -> None:
    setups = {"net.a.fc.weight": FROZEN, "net.a.bn.weight": FROZEN, "net.b.bn.weight": FROZEN, "net.b.fc.weight": TRAINS}
    rule = FrozenStatistics()
    assert brief(rule, report(setups, updating={"net.a.bn": 0.5})) == [("frozen_statistics", "net.a", 0.5, "info")]
    (alert,) = rule(report(setups, updating={"net.a.bn": 0.51}))
    assert (alert.site, alert.severity) == ("net.a", "warning")
    assert alert.seen == (
        "it is frozen, but net.a.bn is in training mode and updates its running statistics: those of net.a.bn have moved by 0.51 "
        "standard deviations (limit 0.5). In validation it computes something else than its weights were trained for. "
        "requires_grad_(False) does not stop batch norm."
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
        ({"settings": {"bn": {"momentum": 0.0}}}, "bn", 0.0),
        ({}, "", 0.0),
    ],
)
def test_module_settings(setup: dict[str, Any], site: str, value: float) -> None:
    assert brief(ModuleSettings(), report(**setup)) == ([("settings", site, value, "warning")] if site else [])


def test_modules_with_one_setting_are_one_alert() -> None:
    settings = {f"n{index}": {"eps": 1e5} for index in range(6)}
    (alert,) = ModuleSettings()(report(settings=settings))
    assert alert.site == "n0"
    assert alert.seen == (
        "eps is 1e+05 (limit 1), as large as the variance of ordinary activations. The same: n1, n2, n3 and 2 more. What it "
        "normalises becomes small. Common causes: a typing error such as 1e5 for 1e-5, arguments in another order."
    )
    (one, two) = ModuleSettings()(report(settings={"a": {"p": 0.95}, "b": {"p": 0.99}}))
    assert one.seen == (
        "dropout, or stochastic depth, drops 95% of its input (limit 90%): little of it is left. Common cause: the "
        "share to keep was given, where PyTorch takes the share to drop."
    )
    assert (two.site, one.advice) == ("b", ("Set p between 0.1 and 0.5",))
    (few,) = ModuleSettings()(report(values_per_channel={"bn": 2.0, "bn2": 2.0}))
    assert few.seen == (
        "batch norm has 2 values per channel and batch (limit 4): its mean and variance are noise, and unlike those of "
        "validation. The same: bn2. Common cause: very small batches."
    )
    (momentum,) = ModuleSettings()(report(settings={"bn": {"momentum": 0.0}}))
    assert momentum.seen == (
        "batch norm with momentum 0: its running statistics stay at 0 and 1, whatever the data are. Validation uses them. "
        "Common cause: the momentum of another framework, where 1 means PyTorch's 0."
    )


def test_optimizer_choices_are_infos() -> None:
    rule = OptimizerChoices()
    assert brief(rule, report(vector_decay={"0-AdamW": VectorDecay(0.01, 7)})) == []  # AdamW's default
    (alert,) = rule(report(vector_decay={"0-AdamW": VectorDecay(0.1, 7)}))
    assert (alert.site, alert.value, alert.severity) == ("0-AdamW", 0.1, "info")
    assert alert.seen == ("its weight decay of 0.1 also applies to 7 biases and scales of norms, which most recipes leave out.")
    both = replace(TRAINS, optimizers=("0-Adam", "1-SGD"))
    (alert,) = rule(report({"a": both, "b": both, "c": replace(TRAINS, optimizers=("0-Adam", "0-Adam"))}))
    assert (alert.site, alert.value, alert.severity) == ("a", 2.0, "info")
    assert alert.seen == "a, b are held by several optimizers (0-Adam, 1-SGD): each updates what the other has set."
    (alert,) = rule(report({"a": both, "b": replace(both, optimizers=("0-Adam", "1-SGD", "0-Adam")), "c": FROZEN}))
    assert (alert.site, alert.severity) == ("a", "warning")  # all that either holds
    assert alert.message.endswith("each updates what the other has set, and none holds anything else.")
    assert [alert.severity for alert in rule(report({"a": both, "b": replace(both, optimizers=("1-SGD", "2-SGD"))}))] == ["info"]


@pytest.mark.parametrize(
    ("change", "found"), [({"reached": True}, True), ({}, False), ({"reached": True, "training": False}, False)]
)
def test_unregistered(change: dict[str, Any], found: bool) -> None:
    given = report(unregistered={"net.blocks": UnregisteredModules(3, 1200, **change)})
    assert brief(Unregistered(), given) == ([("unregistered", "net.blocks", 1200.0, "warning")] if found else [])


def test_what_unregistered_says() -> None:
    held = UnregisteredModules(3, 1200, reached=True)
    (alert,) = Unregistered()(report(unregistered={"net.blocks": held}))
    assert alert.seen == (
        "it is a plain list or dictionary whose modules (3, with 1200 parameters) get gradients, but the model does not know them. "
        "parameters(), state_dict() and to() leave them out, no optimizer holds them, and checkpoints do not hold them."
    )
    (alert,) = Unregistered()(report(unregistered={"net.blocks": replace(held, optimized=True)}))
    assert "to() leave them out, and checkpoints do not hold them." in alert.seen


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


def test_what_labels_ignored_says() -> None:
    (alert,) = LabelsIgnored()(report(labels=LabelCounts(10, 5, 100, 60)))
    assert (alert.site, alert.value, alert.threshold) == ("the data", 0.5, 0.5)
    assert alert.seen == (
        "all targets are ignore_index in 5 of 10 sampled batches (60% of all targets): cross entropy averages over nothing, which "
        "is NaN. Common causes: labels masked as a whole, sequences cut off before their answer, a wrong ignore_index."
    )


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
            "the model sees few different samples. Common causes: workers of an IterableDataset that all yield the same data, "
            "loader workers with equal seeds, a buffer that is not filled again."
        )


@pytest.mark.parametrize(
    ("size", "repeated", "severity"), [(1, 9, "info"), (1, 8, "warning"), (2, 9, "warning"), (None, 9, "warning")]
)
def test_one_sample_that_is_fitted_is_an_info(size: float | None, repeated: int, severity: str) -> None:
    given = replace(report(batches=BatchCounts(9, repeated)), learning=LearningReport(batch_size=size))
    (alert,) = BatchRepeated()(given)
    assert alert.severity == severity


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
            "rank. Common causes: use_distributed_sampler=False without a sampler of your own, an IterableDataset that does not "
            "look at its rank."
        )


def test_half_of_the_parameters_in_no_optimizer() -> None:
    alone = replace(TRAINS, optimizers=())
    (half,) = NotOptimized()(report({"a": TRAINS, "b": alone}))
    assert half.seen.endswith("was created. So 50% of what trains is in no optimizer.")
    (less,) = NotOptimized()(report({"a": replace(TRAINS, elements=101), "b": alone}))
    assert less.seen.endswith("was created.")


def test_a_report_with_a_setup_survives_json() -> None:
    given = report(
        BODY,
        eval_modes={"a": 2}, updating={"b": 0.1}, values_per_channel={"b": 2.0}, settings={"c": {"p": 0.9}},
        unregistered={"d": UnregisteredModules(1, 2, True)}, vector_decay={"0-SGD": VectorDecay(0.1, 2)},
        labels=LabelCounts(1, 2, 3, 4), batches=BatchCounts(1, 1, 2, 3, 3, 3),
    )  # fmt: skip
    assert GradientFlowReport.from_dict(given.to_dict()) == given
    plain = given.to_dict()
    del plain["model_setup"]
    assert GradientFlowReport.from_dict(plain).model_setup == ModelSetup()


def test_labels_that_are_ignored_are_one_rule_over_two_reports():
    """A limit of the user's own holds for the batches of the one and for the calls of the other."""
    assert reports_of(LabelsIgnored()) == (FeatureReport, GradientFlowReport)
    for entry in ({"kind": "labels_ignored", "threshold": 0.9}, LabelsIgnored(0.9)):
        handed = rules_by_report([entry], RULES)
        for reads in (FeatureReport, GradientFlowReport):
            (rule,) = [rule for rule in RuleBook(RULES[reads], handed[reads], reads).rules if rule.kind == "labels_ignored"]
            assert rule.threshold == 0.9


class HeadReplaced(Classifier):
    """Its optimizer is made before (or after) the last layer is replaced."""

    def __init__(self, planted: bool) -> None:
        super().__init__(mlp())
        self.planted = planted

    def configure_optimizers(self) -> Any:
        early = super().configure_optimizers()
        self.net[-1] = nn.Linear(16, 4)
        return early if self.planted else super().configure_optimizers()


def test_an_optimizer_that_was_made_before_the_head_is_one_alert() -> None:
    monitor = TrainingMonitor(summary=False)
    trainer([monitor], max_epochs=2).fit(HeadReplaced(planted=True), loader())
    (alert,) = [alert for alert in monitor.alerts if alert.severity != "info"]
    assert (alert.kind, alert.site, alert.also) == ("not_optimized", "net.4.weight", ("net.4.bias",))
    held = "0-SGD holds 2 tensors (3x16, 3) that are no parameters of the model: it was created before a layer was replaced."
    assert alert.diagnosis.startswith(held)
    assert alert.advice == ("Create the optimizer after the layer, in configure_optimizers",)


def test_an_optimizer_that_is_made_after_the_head_is_none() -> None:
    monitor = TrainingMonitor(summary=False)
    trainer([monitor], max_epochs=2).fit(HeadReplaced(planted=False), loader())
    assert [alert for alert in monitor.alerts if alert.severity != "info"] == []


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
