"""Harm before alarm: what the weights at a site bring decides between a warning and an info, and each alert has its record."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from docs.kind_pages import page
from lightning_hooks import Alert, TrainingMonitor
from lightning_hooks.alerts import GradientFlowReport, LearningReport, LossReport, ParameterLearning, ParameterSetup, RuleBook
from lightning_hooks.alerts.explain import excuses_of, explain
from lightning_hooks.alerts.harm import alone, weighed
from lightning_hooks.declare import records
from lightning_hooks.declare.hypothesis import Cause
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.records import Record, record_of
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.learning.effect import Effects
from lightning_hooks.session.alerting import Alerting
from tests.evidence.cure.records import FILE as CURES
from tests.evidence.records import FILE, text
from tests.evidence.records import records as records_of
from tests.support.models import Classifier, trainer

PLACES = {"a": 0, "act": 1, "b": 2, "head": 3}
SIZES = {"a.weight": 300, "a.bias": 100, "b.weight": 500, "head.weight": 100}


def flow(gains: dict[str, float] | None = None, loss: float = 0.2, **learning: Any) -> GradientFlowReport:
    """A window of a training that goes well, in which each parameter brings as much as it has elements."""
    shares = {name: gain / 1000 for name, gain in {**SIZES, **(gains or {})}.items()}
    parameters = {name: ParameterLearning(4, share, 0.0, share) for name, share in shares.items()}
    losses = LossReport(32, loss, 0.0, loss, loss, loss, start=1.0, recent=(1.0,) * 24 + (loss,) * 8)
    setups = {name: ParameterSetup(size, 2, True, True) for name, size in SIZES.items()}
    known = LearningReport(**{"steps": 4, "predicted_gain": 0.25, "parameters": parameters, "over_constant": loss, **learning})
    return GradientFlowReport(0, 32, dict.fromkeys(PLACES), {}, 1.0, setups=setups, loss=losses, learning=known)


def harmless(site: str, report: GradientFlowReport) -> str:
    effect = Effects(report, PLACES).at(site)
    assert effect is not None
    return effect.harmless


@pytest.mark.parametrize(
    ("site", "weights", "share", "size"),
    [("act", "a", 0.4, 0.4), ("a", "a", 0.4, 0.4), ("b.weight", "b", 0.5, 0.5), ("b/sdpa", "b", 0.5, 0.5)],
)
def test_the_effect_at_a_site_is_that_of_its_own_weights_or_of_the_last_ones_before_it(
    site: str, weights: str, share: float, size: float
) -> None:
    effect = Effects(flow(), PLACES).at(site)
    assert effect is not None
    assert (effect.weights, effect.share, effect.size, effect.before) == (weights, *map(pytest.approx, (share, size, 1.0)))
    assert effect.fallen == pytest.approx(0.2)


def test_the_effect_at_a_call_is_that_of_the_weights_before_it_though_its_module_holds_all() -> None:
    places = {"net.a": 0, "net/tanh": 1, "net.b": 2, "net": 3}
    known = flow()
    assert known.learning is not None
    parameters = {f"net.{name}": stats for name, stats in known.learning.parameters.items()}
    setups = {f"net.{name}": setup for name, setup in known.setups.items()}
    report = replace(known, setups=setups, learning=replace(known.learning, parameters=parameters))
    effect = Effects(report, places).at("net/tanh")
    assert effect is not None
    assert (effect.weights, effect.share) == ("net.a", pytest.approx(0.4))
    whole = Effects(report, places).at("net/relu")  # whose place is not known
    assert whole is not None
    assert whole.weights == "net"


def test_where_nothing_is_known_there_is_no_effect() -> None:
    report = flow()
    assert Effects(report, PLACES).at("0-Adam") is None
    assert Effects(replace(report, learning=None), PLACES).at("a") is None
    unsure = {name: replace(stats, share=None) for name, stats in report.learning.parameters.items()}
    assert Effects(replace(report, learning=replace(report.learning, parameters=unsure)), PLACES).at("a") is None


def test_a_falling_loss_alone_clears_nothing() -> None:
    assert harmless("act", flow()) == (
        "the training goes well: 40% of the parameters, in a, bring 40% of the fall of the loss, which is at 20% of its start"
    )
    assert not harmless("act", flow({"a.weight": 1.0, "a.bias": 0.0}))  # next to nothing comes from there
    assert not harmless("act", flow({"a.weight": 6000.0}))  # all comes from there
    assert not harmless("b", flow({"a.weight": 0.1, "a.bias": 0.1, "b.weight": 51.0}))  # nothing reaches what is before it


def test_a_loss_that_rose_at_once_has_not_fallen() -> None:
    report = flow()
    assert report.loss is not None
    rose = replace(report.loss, recent=(0.25, *report.loss.recent[1:]))
    assert not harmless("act", replace(report, loss=rose))
    effect = Effects(replace(report, loss=rose), PLACES).at("act")
    assert effect is not None
    assert effect.fallen == pytest.approx(0.8)


@pytest.mark.parametrize("wrong", [{"loss": 0.7}, {"over_constant": 0.9}, {"step_ratio": 0.05}, {"step_ratio": 0.0}])
def test_shares_alone_clear_nothing(wrong: Any) -> None:
    assert harmless("act", flow())
    assert not harmless("act", flow(**wrong))


@pytest.mark.parametrize(
    ("loss", "learning", "clause"),
    [
        (0.05, {}, "the training goes well: the loss is 5% of that of the best constant answer"),
        (0.06, {}, ""),
        (0.05, {"over_constant": 0.06}, ""),
        (0.05, {"over_constant": None}, ""),  # the first loss may have been far above chance
    ],
)
def test_a_loss_next_to_nothing_clears_all_sites(loss: float, learning: Any, clause: str) -> None:
    assert Effects(flow(loss=loss, **learning), PLACES).solved == clause


def alert(kind: str = "dead", site: str = "act", severity: Any = "warning") -> Alert:
    return Alert(kind, site, 0.75, 0.7, 0, 32, severity, "75% of its units are dead.", diagnosis="A common cause.")


def test_soft_warnings_are_weighed_and_the_others_stay_as_they_are() -> None:
    given = [alert(), alert(site="b"), alert("zero"), alert(site="0-Adam"), alert(site="head", severity="critical")]
    report = replace(flow({"b.weight": 1.0}), alerts=tuple(given))
    (found,) = weighed(Window([report]), [{"dead at act", "dead at b", "dead at 0-Adam", "dead at head"}]).reports
    assert [(one.severity, one.diagnosis.removeprefix("A common cause.").strip()) for one in found.alerts] == [
        ("info", f"It is an info: {harmless('act', report)} (harmless)."),
        ("warning", "50% of the parameters, in b, bring 0.1% of the fall of the loss."),
        ("warning", ""),
        ("warning", "Its effect on learning is not measured."),
        ("critical", ""),
    ]
    (alone,) = weighed(Window([replace(report, learning=None)]), [{"dead at act"}]).reports
    assert alone.alerts[0] == replace(given[0], diagnosis="A common cause. Its effect on learning is not measured.")


def fitted(kept: int, lr: float = 0.05, **options: Any) -> list[Alert]:
    """The alerts about a rectifier of 128 units of which ``kept`` fire, in the last report."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 3))
    with torch.no_grad():
        net[0].bias[kept:] = -20.0  # type: ignore[index]
    x = torch.randn(1024, 8)
    model = Classifier(net, lr=lr, optimizer=torch.optim.Adam)
    monitor = TrainingMonitor(summary=False, report_dir=None, every_n_steps=4, **options)
    trainer([monitor], max_epochs=4).fit(model, DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 16, shuffle=True))
    assert monitor.features is not None
    return [one for one in monitor.features.alerts if one.kind == "dead"]


@pytest.mark.slow
def test_a_dead_part_of_a_training_that_goes_well_is_an_info_with_its_share() -> None:
    (found,) = fitted(kept=32)
    assert found.severity == "info"
    assert "It is an info: the training goes well: 74.9% of the parameters, in net.0, bring " in found.diagnosis
    (asked,) = fitted(kept=32, rules=[{"kind": "dead", "severity": "warning"}])
    assert (asked.severity, "the fall of" in asked.diagnosis) == ("warning", False)
    (unmeasured,) = fitted(kept=32, learning=False)
    assert unmeasured.severity == "warning"
    assert unmeasured.diagnosis.endswith("Its effect on learning is not measured.")


def test_a_dead_layer_that_cuts_the_net_off_stays_a_warning() -> None:
    (found,) = fitted(kept=1)
    assert found.severity == "warning"
    assert " 74.9% of the parameters, in net.0, bring " in found.diagnosis


def test_what_may_do_no_harm_is_in_the_state_of_a_checkpoint() -> None:
    first, second = (Alerting((), RuleBook(())) for _ in range(2))
    first.soft = {"dead at act"}
    second.load_state_dict(first.state_dict(), None)
    assert second.soft == {"dead at act"}


# Records.


def run(name: str, kinds: tuple[str, ...] = (), *, healthy: bool = False, planted: bool = True, **more: Any) -> dict[str, Any]:
    alerts = [[kind, "net", "warning", 8] for kind in more.pop("alerts", ())]
    return {"name": name, "kinds": kinds, "healthy": healthy, "planted": planted, "alerts": alerts, **more}


def test_the_record_counts_families_and_keeps_those_apart_that_nothing_was_tuned_on() -> None:
    runs = [
        *(run("a", ("dead",), seed=seed, alerts=["dead"] if seed else []) for seed in range(3)),
        *(run("b", ("dead", "zero"), seed=seed, alerts=["dead"] if seed == 2 else ["zero"]) for seed in range(3)),
        *(run("c", healthy=True, seed=seed, alerts=["dead"] if seed else []) for seed in range(2)),
        run("a", planted=False, learned_from=True),
        run("d", healthy=True, learned_from=False, unreliable=["dead"]),
        run("e", ("dead",), learned_from=False, alerts=["dead"]),
        run("f", ("zero",), learned_from=False, alerts=["dead"]),
    ]
    found = records_of(runs, "2026-11-24")
    assert found["healthy"] == 3
    assert found["kinds"]["dead"] == [2, 2, 3, 1, 1]
    assert found["kinds"]["zero"] == [0, 1, 2, 0, 0]
    assert list(found["kinds"]) == list(KINDS)
    assert json.loads(text(found)) == found


def test_each_alert_carries_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    assert stored["kinds"].keys() == KINDS.keys()
    assert text(stored) == FILE.read_text(encoding="utf-8")
    alarms, found, faults, right, wrong = stored["kinds"]["dead"]
    cures = json.loads(CURES.read_text(encoding="utf-8"))
    assert cures["kinds"].keys() <= KINDS.keys()
    assert text(cures) == CURES.read_text(encoding="utf-8")
    cured = (*cures["kinds"]["dead"], cures["date"])
    assert alert().evidence == Record(alarms, stored["healthy"], found, faults, right, wrong, stored["date"], *cured)
    assert alert("own").evidence is None
    record = Record(2, 300, 9, 12, 3, 2, "2026-11-24")
    monkeypatch.setattr("lightning_hooks.alerts.explain.record_of", lambda kind: record)
    assert record.precision == 0.6
    assert " ".join(" ".join(explain("dead")).split()).count(
        "Record: a warning in 2 of 300 healthy trainings; it found 9 of the 12 faults that it names; precision on families that "
        "nothing was tuned on: 60% (2026-11-24)."
    )
    assert replace(record, wrong=1).precision is None
    assert "nothing was tuned on: unproven" in replace(record, wrong=1).text


def test_the_record_says_how_often_the_remedy_of_a_kind_cured(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"dead": [2, 3], "zero": [0, 1]}
    monkeypatch.setattr(records, "_cures", lambda: {"date": "2026-11-20", "kinds": kinds})
    for kind, says in (("dead", "2 of 3 trainings"), ("zero", "0 of 1 training")):
        evidence = alert(kind).evidence
        assert evidence is not None
        assert evidence.text.endswith(f"; its remedy cured {says} (2026-11-20)")
        assert f"its remedy cured {says} (2026-11-20)." in " ".join(" ".join(explain(kind)).split())
        assert f"its remedy cured {says} (2026-11-20)." in page(kind)
    assert "cured" not in page("saturated")


def test_a_soft_kind_that_is_often_wrong_is_an_info(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"dead": [2, 9, 12, 3, 2], "zero": [2, 9, 12, 3, 2], "saturated": [2, 9, 12, 4, 1]}
    monkeypatch.setattr(records, "_records", lambda: {"date": "2026-11-24", "healthy": 300, "kinds": numbers})
    report = replace(flow({"a.weight": 1.0, "a.bias": 0.0}), alerts=(alert(), alert("zero"), alert("saturated")))
    (found,) = weighed(Window([report]), [{"dead at act", "saturated at act"}]).reports
    assert [one.severity for one in found.alerts] == ["info", "warning", "warning"]
    assert found.alerts[0].diagnosis.endswith(
        "It is an info: on trainings that nothing was tuned on 60% of such alerts were right (often_wrong)."
    )


@pytest.mark.parametrize(
    ("value", "causes", "loss", "severity"),
    [
        (0.8, (), 0.2, "info"),
        (0.8, (Cause("rate_too_high", "", 0.4),), 0.2, "info"),
        (0.8, (Cause("offset_bias", "", 0.6),), 0.2, "warning"),
        (1.0, (), 0.2, "warning"),  # all of it
        (0.8, (), 0.95, "warning"),  # nothing is learned
    ],
)
def test_a_part_that_nothing_explains_is_an_info_while_the_loss_falls(
    value: float, causes: tuple[Cause, ...], loss: float, severity: str
) -> None:
    found = alone(replace(alert(), value=value, causes=causes), flow(loss=loss))
    assert found.severity == severity
    assert found.diagnosis.endswith(
        "It is an info: it is a part only, nothing that is known causes it, and the loss falls (alone)."
    ) is (severity == "info")
    assert alone(replace(alert(), value=value), None).severity == "warning"


def test_the_excuses_of_soft_rules_are_explained() -> None:
    assert [excuse.name for excuse in excuses_of("dead")] == ["solved", "harmless", "often_wrong", "alone"]
    assert "harmless" not in [excuse.name for excuse in excuses_of("nonfinite")]
    assert record_of("own") is None
