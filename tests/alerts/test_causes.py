"""Causes first: which of many alerts is the root, what follows from it, and in which words."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import Alert, AlertBook, ClipReport, NonfiniteSteps
from lightning_hooks.alerts.causes import in_order_of_cause
from lightning_hooks.clipping import StepEvents
from lightning_hooks.declare.window import Window


def with_alerts(report: Any, *names: str, values: dict[str, float] | None = None) -> Any:
    """The report with alerts of these names, in this order."""
    parts = [name.split(" at ") for name in names]
    alerts = [Alert(kind, site, (values or {}).get(site, 1.0), 0.5, 3, 120, "warning", "seen") for kind, site in parts]
    return replace(report, alerts=tuple(alerts))


def roots(*reports: Any) -> dict[str, tuple[str, ...]]:
    return {alert.name: alert.consequences for _, alert in in_order_of_cause(Window(reports)).roots}


@pytest.fixture
def model(features: Any, gradients: Any) -> tuple[Any, Any]:
    """Four modules, each with a parameter."""
    parameters = {f"site{i}.weight": stats for i, stats in enumerate(gradients(parameters=[{}] * 4).parameters.values())}
    return features({}, {}, {}, {}), replace(gradients({}, {}, {}, {}), parameters=parameters)


@pytest.mark.parametrize(
    ("names", "values", "expected"),
    [
        (["dead at site1"], {}, {"dead at site1": ()}),
        (["dead at site1", "dead at site3", "constant at site2"], {}, {"dead at site1": ("dead at site3", "constant at site2")}),
        (["dead at site1", "dead at site3"], {"site1": 0.6}, {"dead at site1": (), "dead at site3": ()}),
        (["dead at site1", "dead at site3"], {"site1": 0.6, "site3": 0.7}, {"dead at site1": ("dead at site3",)}),
        (["dead at site2", "constant at site0"], {}, {"constant at site0": ("dead at site2",)}),
        (["constant at site1", "constant at site2"], {}, {"constant at site1": ("constant at site2",)}),
        (["saturated at site2", "saturated at site3"], {}, {"saturated at site2": ("saturated at site3",)}),
        (["dead at site1", "saturated at site0"], {}, {"dead at site1": (), "saturated at site0": ()}),
    ],
)
def test_forward(model: Any, names: list[str], values: Any, expected: Any) -> None:
    assert roots(with_alerts(model[0], *names, values=values)) == expected


def test_one_report_explains_another(model: Any) -> None:
    features = with_alerts(model[0], "dead at site2")
    flow = with_alerts(model[1], *(f"zero at site{i}.weight" for i in range(4)), "vanishing at site0")
    ordered = in_order_of_cause(Window([features, flow]))
    ((place, root),) = ordered.roots
    assert (place, root.name) == (0, "dead at site2")
    assert root.follows == ("Consequences: zero at 4 sites (site0.weight, site1.weight, site2.weight, …); vanishing at site0.")
    assert [(alert.name, alert.severity, alert.cause) for alert in ordered.of_report[1]] == [
        *((f"zero at site{i}.weight", "info", "dead at site2") for i in range(4)),
        ("vanishing at site0", "info", "dead at site2"),
    ]
    assert roots(flow) == {
        "vanishing at site0": (),
        "zero at site3.weight": ("zero at site0.weight", "zero at site1.weight", "zero at site2.weight"),
    }


def test_what_was_delivered_before_stays_the_cause_of_what_spread_from_it(model: Any) -> None:
    report = with_alerts(model[0], *(f"nonfinite at site{i}" for i in range(4)))
    assert list(roots(report)) == ["nonfinite at site0"]
    before = AlertBook()
    before.new_alerts(alert for alert in report.alerts if alert.site == "site2")
    ordered = in_order_of_cause(Window([report]), [before])
    ((_, root),) = ordered.roots
    assert root.name == "nonfinite at site2"
    assert set(root.consequences) == {"nonfinite at site0", "nonfinite at site1", "nonfinite at site3"}


def test_consequences_name_a_site_once(model: Any) -> None:
    """The output and the gradient of a module have one name."""
    report = with_alerts(model[0], *(f"nonfinite at site{i}" for i in (0, 1, 2)))
    flow = with_alerts(model[1], *(f"nonfinite at site{i}" for i in (2, 1, 0)))
    ((_, root), *others) = in_order_of_cause(Window([report, flow])).roots
    assert (root.name, others) == ("nonfinite at site0", [])
    assert root.consequences == ("nonfinite at site1", "nonfinite at site2")
    assert root.follows == "Consequences: nonfinite at 2 sites (site1, site2)."


@pytest.mark.parametrize(("value", "explains"), [(31.0, True), (0.75, False)])  # steps with old gradients; a share thrown away
def test_gradients_that_add_up_explain_what_large_steps_bring_about(model: Any, value: float, explains: bool) -> None:
    clip = with_alerts(ClipReport(3, 120, {}), "not_zeroed at 0-SGD", values={"0-SGD": value})
    features = with_alerts(model[0], "dead at site1", values={"site1": 0.9})
    flow = with_alerts(model[1], "exploding at site2", "spike at 0-SGD")
    effects = {"dead at site1", "exploding at site2", "spike at 0-SGD"}
    found = roots(features, flow, clip)
    assert set(found["not_zeroed at 0-SGD"]) == (effects if explains else set())
    assert set(found) == {"not_zeroed at 0-SGD"} | (set() if explains else effects)


def test_a_parameter_counts_from_its_batch_where_that_is_known(model: Any) -> None:
    features = with_alerts(model[0], "nonfinite at site0")
    features.sites["site0"] = replace(features.sites["site0"], first_nonfinite_batch=20)
    flow = with_alerts(model[1], "nonfinite at site3.weight")
    assert list(roots(features, flow)) == ["nonfinite at site0"]
    known = replace(flow, alerts=(replace(flow.alerts[0], batch=13),))
    assert list(roots(features, known)) == ["nonfinite at site3.weight"]


def test_the_path_is_cut_at_the_last_of_a_row(model: Any) -> None:
    assert roots(with_alerts(model[1], "missing at site0.weight", "missing at site1.weight")) == {
        "missing at site1.weight": ("missing at site0.weight",)
    }
    separate = with_alerts(model[1], "missing at site0.weight", "missing at site2.weight")
    assert set(roots(separate)) == {"missing at site0.weight", "missing at site2.weight"}  # site1 is unaffected: two causes


def test_it_is_quick_for_large_models(features: Any, gradients: Any) -> None:
    affected = features(*[{}] * 5000)
    affected = with_alerts(
        affected, *(f"nonfinite at {site}" for site in affected.sites), *(f"dead at {site}" for site in affected.sites)
    )
    flow = gradients(*[{}] * 5000, parameters=[{}] * 5000)
    flow = with_alerts(flow, *(f"{kind} at {name}" for name in flow.parameters for kind in ("zero", "missing")))
    start = time.process_time()
    ordered = in_order_of_cause(Window([affected, flow]))
    assert time.process_time() - start < 5  # comparing each with each would take minutes
    assert [alert.kind for _, alert in ordered.roots] == ["missing", "nonfinite", "dead"]


def test_kinds_that_nothing_is_known_of_and_optimizers_stand_alone(model: Any) -> None:
    clip = with_alerts(ClipReport(3, 120, {}), "steps_skipped at 0-SGD")
    features = with_alerts(model[0], "loud at site3", "dead at site0")
    assert roots(features, clip) == {"dead at site0": (), "steps_skipped at 0-SGD": (), "loud at site3": ()}
    assert roots(clip) == {"steps_skipped at 0-SGD": ()}
    assert in_order_of_cause(Window([])) == ([], [])


@pytest.mark.parametrize(
    ("names", "values", "expected"),
    [
        (
            ["update_too_large at site2.weight", "update_too_large at site0.weight"],
            {},
            {"update_too_large at site2.weight": ("update_too_large at site0.weight",)},  # the largest was found first
        ),
        (
            ["not_optimized at site2.weight", "not_optimized at site1.weight"],
            {},
            {"not_optimized at site1.weight": ("not_optimized at site2.weight",)},
        ),
        (["constant at site1", "exploding at site0"], {}, {"constant at site1": ("exploding at site0",)}),
        (["constant at site1", "exploding at site2"], {}, {"exploding at site2": (), "constant at site1": ()}),
        (["update_too_small at 0-SGD", "zero at site1.weight"], {}, {"zero at site1.weight": ("update_too_small at 0-SGD",)}),
        (["update_too_small at 0-SGD", "dead at site1"], {}, {"dead at site1": ("update_too_small at 0-SGD",)}),
        (["update_too_small at 0-SGD", "dead at site1"], {"site1": 0.6}, {"dead at site1": (), "update_too_small at 0-SGD": ()}),
    ],
)
def test_updates(model: Any, names: list[str], values: Any, expected: Any) -> None:
    found = roots(with_alerts(model[0], *names, values=values))
    assert found == expected
    assert list(found) == list(expected)


def test_what_was_built_wrongly_comes_before_what_it_did(model: Any) -> None:
    late = ["silent at site3", "vanishing at site0", "nonfinite at site1", "update_too_large at site1.weight"]
    early = ["missing at site3.weight", "double_softmax at site3", "shared at site1", "poor_init at site2"]
    assert list(roots(with_alerts(model[0], *late, *early))) == [*early[::-1], *late[::-1]]


def nonfinite_step(share: float, batch: int, *parameters: str) -> ClipReport:
    events = StepEvents(first_nonfinite_batch=batch, first_nonfinite_parameters=parameters, nonfinite_share=share)
    report = ClipReport(3, 120, {}, events={"0-SGD": events})
    return replace(report, alerts=tuple(NonfiniteSteps()(report)))


def nonfinite_modules(model: Any, **batches: int) -> Any:
    sites = {name: replace(stats, first_nonfinite_batch=batches.get(name)) for name, stats in model[0].sites.items()}
    return with_alerts(replace(model[0], sites=sites), *(f"nonfinite at {name}" for name in batches))


def test_the_step_at_which_a_nan_was_born(model: Any) -> None:
    born = nonfinite_step(0.5, 3, "site0.weight", "site1.weight")
    spread = nonfinite_modules(model, site0=10, site2=10)
    assert roots(spread, born) == {"nonfinite at site1.weight": ("nonfinite at site0", "nonfinite at site2")}
    seen = nonfinite_modules(model, site2=3, site3=3)  # forward, in the same batch: that was before
    assert roots(seen, born) == {"nonfinite at site2": ("nonfinite at site3", "nonfinite at site1.weight")}


@pytest.mark.parametrize("batch", [3, 10])
def test_a_step_that_names_no_layer_is_reported_with_the_first_that_is_found(model: Any, batch: int) -> None:
    whole = nonfinite_step(1.0, batch, "site0.weight", "site3.weight")
    assert roots(whole) == {"nonfinite at 0-SGD": ()}
    ((_, root),) = in_order_of_cause(Window([nonfinite_modules(model, site1=10), whole])).roots
    assert (root.name, root.consequences) == ("nonfinite at site1", ("nonfinite at 0-SGD",))
    earlier = (
        " A step with such a gradient was taken at training batch 3, before this site was sampled: the fault may have begun "
        "elsewhere. Set every_n_steps=1 to find out."
    )
    assert root.text == "seen" + (earlier if batch == 3 else "")


def test_no_warning_follows_from_an_info(model: Any) -> None:
    """An unused part of a library's model, nearer to the loss than what the user cut off."""
    report = with_alerts(model[1], "missing at weight0", "missing at weight1")
    unused, cut = report.alerts[1], report.alerts[0]
    report = replace(report, alerts=(cut, replace(unused, severity="info")))
    assert [alert.name for _, alert in in_order_of_cause(Window([report])).roots] == ["missing at weight0", "missing at weight1"]
    assert [alert.severity for _, alert in in_order_of_cause(Window([report])).roots] == ["warning", "info"]
