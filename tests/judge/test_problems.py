"""What is one problem: which of many alerts stands for it, what it explains, and what stays a problem of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hooks.alerts import Alert, AlertBook, ClipReport, FeatureReport, GradientFlowReport, NonfiniteSteps
from lightning_hooks.clipping.watch import StepEvents
from lightning_hooks.declare.cause import Cause
from lightning_hooks.declare.window import Window
from lightning_hooks.judge.problems import in_problems

SITES = [f"site{number}" for number in range(4)]


def alert(name: str, severity: Any = "warning", batch: int | None = None, step: int = 120, **causes: float) -> Alert:
    """``kind at site``, with the scores of its causes."""
    kind, _, site = name.partition(" at ")
    known = tuple(Cause(name, f"It is {name}.", score) for name, score in causes.items())
    return Alert(kind, site, 1.0, 0.5, 3, step, severity, "seen", batch=batch, causes=known)


def forward(*alerts: Alert | str, every: int = 1, **batches: int) -> FeatureReport:
    """The report of four modules; of some the batch at which they first were not finite."""
    sites: Any = {site: SimpleNamespace(first_nonfinite_batch=batches.get(site)) for site in SITES}
    return FeatureReport(3, 120, sites, (), every_n_steps=every, alerts=_alerts(alerts))


def backward(*alerts: Alert | str) -> GradientFlowReport:
    return GradientFlowReport(3, 120, dict.fromkeys(SITES), {}, 1.0, alerts=_alerts(alerts))  # type: ignore[arg-type]


def steps(*alerts: Alert | str) -> ClipReport:
    return ClipReport(3, 120, {}, events={"0-SGD": StepEvents()}, alerts=_alerts(alerts))


def _alerts(given: Iterable[Alert | str]) -> tuple[Alert, ...]:
    return tuple(alert(one) if isinstance(one, str) else one for one in given)


def problems(*reports: Any, **options: Any) -> dict[str, tuple[str, ...]]:
    """The root alerts of each report in order, with what each explains."""
    ordered = in_problems(Window(reports), **options).of_report
    return {one.name: one.consequences for alerts in ordered for one in alerts if not one.cause}


# Symptoms: what came first.


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([forward("dead at site1")], {"dead at site1": ()}),
        ([forward("dead at site3", "dead at site1")], {"dead at site1": ("dead at site3",)}),
        ([forward("dead at site2", "constant at site0")], {"constant at site0": ("dead at site2",)}),
        (
            [forward("dead at site1", "dead at site3", "constant at site2")],
            {"dead at site1": ("dead at site3", "constant at site2")},
        ),
        (  # backward: the last module comes first
            [backward("vanishing at site0", "zero at site0", "zero at site2")],
            {"zero at site2": ("zero at site0", "vanishing at site0")},
        ),
        (  # compared with what explodes any gradient is small
            [backward(alert("exploding at site0", "critical"), "vanishing at site3")],
            {"exploding at site0": ("vanishing at site3",)},
        ),
        ([backward("exploding at site0"), forward("dead at site3")], {"dead at site3": ("exploding at site0",)}),
        (  # an outcome is what symptoms lead to, though it was found first
            [backward(alert("loss_spike at loss", batch=20)), steps(alert("spike at 0-SGD", batch=21))],
            {"spike at 0-SGD": ("loss_spike at loss",)},
        ),
        (
            [backward(alert("loss_spike at loss", batch=20), "loss_diverging at loss")],
            {"loss_spike at loss": ("loss_diverging at loss",)},
        ),
        (  # the gravest stands for its kind and for others
            [forward("dead at site0", alert("dead at site2", "critical"), "constant at site1")],
            {"dead at site2": ("dead at site0", "constant at site1")},
        ),
    ],
)
def test_a_symptom_belongs_to_the_one_that_came_first(reports: Sequence[Any], expected: Any) -> None:
    assert problems(*reports) == expected


def test_one_report_explains_another() -> None:
    flow = backward(*(f"zero at {site}" for site in SITES), "vanishing at site0")
    judged = in_problems(Window([forward("dead at site2"), flow]))
    (problem,) = judged.problems
    assert (problem.report, problem.alert.name) == (0, "dead at site2")
    ((root,), effects) = judged.of_report
    assert root.follows == "Consequences: zero at 4 sites (site3, site2, site1, …); vanishing at site0."
    assert {(one.severity, one.cause) for one in effects} == {("info", "dead at site2")}
    assert len(effects) == 5


# Facts.


def test_a_fact_stands_alone() -> None:
    """It is wrong in itself, so each site of it is a root; no symptom is explained by it without a cause that both have."""
    found = [alert("missing at site0.weight", batch=1), "missing at site2.weight", "not_zeroed at 0-SGD", "dead at site1"]
    assert problems(backward(*found)) == {
        "missing at site0.weight": (), "missing at site2.weight": (), "not_zeroed at 0-SGD": (), "dead at site1": ()
    }  # fmt: skip
    (alerts,) = in_problems(Window([backward(*found)])).of_report
    first, *others = (one for one in AlertBook().grouped(alerts) if one.kind == "missing")
    assert (first.site, first.also, others[0].also) == ("site0.weight", ("site2.weight",), ())


# One cause.


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (alert("spike at 0-SGD", rate_too_high=0.9), alert("steps_skipped at 0-SGD", rate_too_high=0.5), True),
        (alert("not_updated at a", rate_too_low=0.6), alert("no_progress at loss", rate_too_low=0.5), True),
        (alert("not_updated at a", rate_too_low=0.6), alert("updates_lost at a", half_weights=0.6), False),
        (alert("not_updated at a", rate_too_low=0.6), alert("updates_lost at a"), True),  # one that it may have
        (alert("not_updated at a", rate_too_low=0.6), alert("eval_mode at a"), False),
        (alert("not_updated at a", rate_too_low=0.39), alert("updates_lost at a", rate_too_low=0.39), False),  # too little for it
        (alert("not_updated at a", rate_too_low=0.6), alert("loud at a", rate_too_low=0.39), False),
        (alert("not_updated at a", "info", rate_too_low=0.6), alert("updates_lost at a", rate_too_low=0.6), True),
    ],
)
def test_one_cause_joins_kinds_of_all_monitors(first: Alert, second: Alert, joined: bool) -> None:
    for given in ([steps(first), backward(second)], [backward(second, first)]):
        found = problems(*given)
        assert sorted(map(len, found.values())) == ([1] if joined else [0, 0])


def test_a_cause_that_is_known_explains_what_came_before_it() -> None:
    given = forward("constant at site0", alert("dead at site3", offset_bias=0.9))
    assert problems(given) == {"dead at site3": ("constant at site0",)}


def test_the_causes_of_what_is_new_are_asked_for_once_a_kind() -> None:
    asked: list[str] = []

    def explain(found: Sequence[Alert]) -> list[Alert]:
        asked.extend(one.name for one in found)
        causes = (Cause("rate_too_low", "It is so.", 0.9),)
        return [replace(one, causes=causes) for one in found]

    book = AlertBook()
    book.new_alerts([alert("not_updated at a")])
    report = backward("not_updated at b", "updates_lost at a", "updates_lost at b", "no_progress at loss")
    found = problems(report, books=[book], explain=explain)
    assert asked == ["updates_lost at a", "no_progress at loss"]
    assert found == {"not_updated at b": (), "updates_lost at a": ("no_progress at loss",), "updates_lost at b": ()}


# What is not finite.


@pytest.mark.parametrize(
    ("module", "loss", "root"),
    [
        (20, 20, "nonfinite at site1"),  # the same batch: forward comes before the loss
        (20, 27, "nonfinite at site1"),
        (30, 27, "nonfinite at site1"),  # not known: it was not sampled in between
        (30, 20, "loss_nonfinite at loss"),  # sampled at that batch, and finite
        (40, 25, "loss_nonfinite at loss"),
    ],
)
@pytest.mark.parametrize("held", ["", "loss_nonfinite", "nonfinite"])
def test_what_is_not_finite_has_one_root(module: int, loss: int, root: str, held: str) -> None:
    critical: Callable[..., Alert] = lambda name, batch: alert(name, "critical", batch)  # noqa: E731
    features = forward(alert("nonfinite at site1", "critical"), every=10, site1=module)
    reports = [backward(critical("loss_nonfinite at loss", loss)), features, steps(critical("nonfinite at 0-SGD", loss))]
    books = [AlertBook() for _ in reports]
    for book, report in zip(books[:2], reports, strict=False):
        book.new_alerts(one for one in report.alerts if one.kind == held)
    lasts = {"": root, "loss_nonfinite": "loss_nonfinite at loss", "nonfinite": "nonfinite at site1"}
    ((name, effects),) = problems(*reports, books=books).items()
    assert (name, len(effects)) == (lasts[held], 2)


def nonfinite_step(share: float, batch: int, *parameters: str) -> ClipReport:
    events = StepEvents(first_nonfinite_batch=batch, first_nonfinite_parameters=parameters, nonfinite_share=share)
    report = ClipReport(3, 120, {}, events={"0-SGD": events})
    return replace(report, alerts=tuple(NonfiniteSteps()(report)))


def test_the_step_at_which_a_nan_was_born() -> None:
    born = nonfinite_step(0.5, 3, "site0.weight", "site1.weight")
    sites = [alert(f"nonfinite at site{number}", "critical") for number in (0, 2)]
    assert problems(forward(*sites, site0=10, site2=10), born) == {
        "nonfinite at site1.weight": ("nonfinite at site0", "nonfinite at site2")
    }
    assert problems(forward(sites[1], site2=3), born) == {"nonfinite at site2": ("nonfinite at site1.weight",)}  # before it


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("batch", [3, 10])
def test_a_step_that_names_no_layer_is_reported_with_the_first_that_is_found(batch: int, every: int) -> None:
    whole = nonfinite_step(1.0, batch, "site0.weight", "site3.weight")
    assert problems(whole) == {"nonfinite at 0-SGD": ()}
    site = alert("nonfinite at site1", "critical")
    ((root,), _) = in_problems(Window([forward(site, every=every, site1=10), whole])).of_report
    assert (root.name, root.consequences) == ("nonfinite at site1", ("nonfinite at 0-SGD",))
    earlier = (
        " A step with such a gradient was taken at training batch 3, before this site was sampled: the fault may have begun "
        "elsewhere. Set every_n_steps=1 to find out."
    )
    assert root.text == "seen" + (earlier if batch == 3 else "")


def test_it_is_quick_for_large_models() -> None:
    sites = [f"site{number}" for number in range(5000)]
    features = FeatureReport(3, 120, dict.fromkeys(sites), ())  # type: ignore[arg-type]
    features = replace(features, alerts=_alerts(f"{kind} at {site}" for site in sites for kind in ("nonfinite", "dead")))
    flow = GradientFlowReport(3, 120, dict.fromkeys(sites), {}, 1.0)  # type: ignore[arg-type]
    flow = replace(flow, alerts=_alerts(f"{kind} at {site}.weight" for site in sites for kind in ("zero", "missing")))
    start = time.process_time()
    found = in_problems(Window([features, flow]))
    assert time.process_time() - start < 5  # comparing each with each would take minutes
    assert [problem.alert.kind for problem in found.problems] == ["nonfinite", "missing"]
