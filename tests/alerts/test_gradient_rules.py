"""Rules over gradient-flow reports, just below and just above their thresholds."""

import math
from dataclasses import replace

import pytest

from lightning_hooks.alerts import (
    Exploding,
    GradientFlowReport,
    Missing,
    Mute,
    NonfiniteGradients,
    ParameterSetup,
    RuleBook,
    Stretching,
    Vanishing,
    Zero,
)
from lightning_hooks.diagnostics.gradients.stats import GradientStats
from lightning_hooks.diagnostics.loss.report import LossReport
from tests.support.judged import judged


def rms(*values):
    return [{"rms": value} for value in values]


@pytest.mark.parametrize(
    ("values", "sites"),
    [
        ([0.1, 0.1, 0.1], []),
        ([1.01e-5, 1e-2, 0.1], []),
        ([0.99e-5, 1e-2, 0.1], ["site1", "site0"]),  # the first is where it is lost
        ([0.99e-5, 1e-4, 1e-3, 1e-2, 0.1], ["site0"]),  # little by little
        ([1e-6, 1e-6, 0.1], ["site2", "site0", "site1"]),
        ([0.1, 1e-9], []),  # a later module may have less
        ([1.1e-12, 1.1e-12], []),
        ([0.9e-12, 0.9e-12], ["site0", "site1"]),
        ([0.0, math.nan, 0.1], []),  # these have rules of their own
        ([1e-6, 0.0, math.nan, 0.1], ["site3", "site0"]),
        ([1e-6, 0.1, 1e-6], ["site1", "site0"]),  # against the largest of those after it
        ([], []),
    ],
)
def test_vanishing(gradients, values, sites):
    alerts = list(Vanishing()(gradients(*rms(*values))))
    assert [alert.site for alert in alerts] == sites
    assert all((alert.kind, alert.severity, alert.epoch, alert.step) == ("vanishing", "warning", 3, 120) for alert in alerts)


@pytest.mark.parametrize(
    ("optimizer", "ratio", "decay", "sites"),
    [
        ("0-SGD", 1e-3, 0.0, []),
        ("0-SGD", 0.9e-3, 0.0, ["site0"]),
        ("0-SGD", 1e-3, 5e-4, ["site0"]),  # half of it is the decay's
        ("0-Adam", 1e-3, 0.0, ["site0"]),  # whose steps do not depend on the gradient's size
        ("0-SGD", None, 0.0, ["site0"]),
    ],
)
def test_a_weight_that_moves_with_its_gradient_learns(gradients, optimizer, ratio, decay, sites):
    given = gradients(*rms(1e-6, 1e-4, 1e-3, 1e-2, 1e-1), parameters=({"update_ratio": ratio},))
    (stats,) = given.parameters.values()
    held = ParameterSetup(10, 2, True, True, (optimizer,), 10, 0.1, 0.1, decay)
    given = replace(given, parameters={f"{site}.weight": stats for site in given.modules}, setups={"site0.weight": held})
    assert [alert.site for alert in Vanishing()(given)] == sites


def test_vanishing_says_against_what(gradients):
    where, relative = Vanishing(relative=1e-3)(gradients(*rms(5e-5, 0.1)))
    assert where.site == "site1"
    assert "RMS at its output is 1.0e-01, and almost nothing of it reaches the layers before" in where.text
    assert "It falls from a norm of 5.0e-01 at site1 to 2.5e-04 at site0, mostly in the backward pass through site1." in where.text
    (gradual,) = Vanishing()(gradients(*rms(1e-6, 1e-4, 1e-3, 1e-2, 1e-1)))
    assert "from a norm of 5.0e-01 at site4 to 5.0e-06 at site0, gradually (by a factor of 0.056 per module)." in gradual.text
    assert (relative.value, relative.threshold) == (pytest.approx(5e-4), 1e-3)
    assert "is 5.0e-05, 5.0e-04 times that of a layer after it (limit 1e-03)" in relative.text
    (absolute,) = Vanishing(absolute=1e-6)(gradients(*rms(1e-7)))
    assert (absolute.value, absolute.threshold) == (1e-7, 1e-6)
    assert "is 1.0e-07, below the limit of 1e-06" in absolute.text
    assert "Try ReLU or GELU. Use He initialisation." in absolute.text


def test_a_layer_is_not_affected_whose_predecessors_are_not(gradients):
    """A healthy transformer's queries and keys get next to nothing; its embeddings, before them, plenty."""
    assert list(Vanishing()(gradients(*rms(1.0, 1e-9, 1.0)))) == []
    assert [alert.site for alert in Vanishing()(gradients(*rms(1e-9, 1e-7, 1.0)))] == ["site2", "site0", "site1"]


def test_what_falls_through_a_part_without_parameters_has_not_vanished(gradients):
    """The gradient of log(sigmoid) is huge at the sigmoid's output where it is nearly 0, and of the usual size before it."""
    report = gradients(*rms(1e-3, 1e-3, 900.0), parameters=[{}, {}])
    held = dict(zip(("site0.weight", "site1.weight"), report.parameters.values(), strict=True))
    assert list(Vanishing()(replace(report, parameters=held))) == []
    far = gradients(*rms(1e-9, 1e-3, 900.0), parameters=[{}, {}])
    assert "site0" in [alert.site for alert in Vanishing()(replace(far, parameters=held))]


@pytest.mark.parametrize(
    ("modules", "parameters", "sites"),
    [
        ([0.1, 0.1], [0.1], []),
        ([0.99e3, 0.1], [], []),
        ([1.01e3, 0.1], [], ["site1", "site0"]),  # the first is where it grows
        ([500.0, 1.0, 0.1], [], []),
        ([999.0, 0.1], [999.0], []),
        ([1001.0, 1001.0], [1001.0], ["site0", "site1", "weight0"]),
        ([0.1, 999.0], [], []),
        ([1.01e-3, 1e-7], [], ["site1", "site0"]),
        ([2e-2, 2e-3, 2e-4, 2e-5, 1e-6], [], ["site0"]),  # little by little
        ([0.99e-3, 1e-7], [], []),
        ([1.01e-3, 1e-7, 0.1], [], []),  # one small gradient on the way explodes nothing
        ([1.01e-3, 1.01e-3, 1e-7], [], ["site2", "site0", "site1"]),
        ([1e-8, 1.01e-3, 1e-7], [], []),  # nor does a large one that those before it do not share
        ([1.0, 0.0, math.nan], [math.nan], []),
        ([math.inf, 0.1], [], ["site1", "site0"]),
    ],
)
def test_exploding(gradients, modules, parameters, sites):
    alerts = list(judged(Exploding(), gradients(*rms(*modules), parameters=rms(*parameters))))
    assert [alert.site for alert in alerts] == sites
    assert all((alert.kind, alert.epoch, alert.step) == ("exploding", 3, 120) for alert in alerts)
    # growth is a fault of the model's; size may be in the units of the loss
    assert all((alert.severity == "critical") == ("grows" in alert.text) for alert in alerts)


def test_exploding_says_against_what(gradients):
    rule = Exploding(relative=1e2, absolute=50.0)
    where, growing, huge, weight = rule(gradients(*rms(6e3, 60.0, 49.0), parameters=rms(51.0)))
    assert (where.site, where.value) == ("site1", growing.value)
    assert "grows in the backward pass (RMS 6.0e+03" in where.text
    assert "It grows from a norm of 2.4e+02 at site2 to 3.0e+04 at site0, mostly in the backward pass through site1." in where.text
    assert (growing.value, growing.threshold) == (pytest.approx(6e3 / 49), 1e2)
    assert "grows in the backward pass (RMS 6.0e+03, 1.2e+02 times that near the loss, limit 1e+02)" in growing.text
    assert (huge.value, huge.threshold) == (60.0, 50.0)
    assert "is very large (RMS 6.0e+01, limit 5e+01)" in huge.text
    assert (weight.site, weight.value) == ("weight0", 51.0)
    assert "Try a lower learning rate. Set gradient_clip_val=1.0" in weight.text


def test_nonfinite(gradients):
    report = gradients(
        {},
        {"nonfinite_fraction": 0.125, "first_nonfinite_batch": 7},
        parameters=[{}, {"nonfinite_steps": 1, "first_nonfinite_step": 90}, {"nonfinite_steps": 2}],
    )
    alerts = list(NonfiniteGradients()(report))
    assert [(alert.site, alert.value, alert.severity, alert.kind) for alert in alerts] == [
        ("site1", 0.125, "critical", "nonfinite"),
        ("weight1", 1, "critical", "nonfinite"),
        ("weight2", 2, "critical", "nonfinite"),
    ]
    assert [alert.text.split(" is NaN or infinite")[0] for alert in alerts] == [
        "12.5% of the gradient",
        "at 1 measured step the gradient",
        "at 2 measured steps the gradient",
    ]
    assert all("add an eps inside them. Try a lower learning rate." in alert.text for alert in alerts)
    assert [alert.text.split("infinite")[1].split("; ")[0] for alert in alerts] == [
        ", first in training batch 7 of the epoch",
        ", first at step 90",
        "",
    ]
    assert [(alert.batch, alert.since_step) for alert in alerts] == [(7, None), (None, 90), (None, None)]


@pytest.mark.parametrize(
    ("threshold", "fraction", "found"),
    [(1.0, 1.0, True), (1.0, 0.9999, False), (0.9, 0.9, True), (0.9, 0.89, False), (1.0, math.nan, False)],
)
def test_zero(gradients, threshold, fraction, found):
    alerts = list(judged(Zero(threshold), gradients({}, parameters=[{}, {"zero_fraction": fraction}])))
    assert [(alert.kind, alert.site, alert.value, alert.severity) for alert in alerts] == (
        [("zero", "weight1", fraction, "warning")] if found else []
    )
    assert all("Check the layers after it" in alert.text for alert in alerts)


@pytest.mark.parametrize(("weight", "severity"), [({}, "info"), ({"zero_fraction": 1.0}, "warning"), ({"steps": 0}, "warning")])
def test_the_zero_gradient_of_a_bias_is_an_info_where_its_weight_learns(gradients, weight, severity):
    report = gradients({}, parameters=[weight, {"zero_fraction": 1.0}])
    ours = dict(zip(("head.weight", "head.bias"), report.parameters.values(), strict=True))
    alerts = list(judged(Zero(), replace(report, parameters=ours)))
    assert [alert.severity for alert in alerts if alert.site == "head.bias"] == [severity]
    parametrised = {name.replace("weight", "parametrizations.weight.original"): stats for name, stats in ours.items()}
    alerts = list(judged(Zero(), replace(report, parameters=parametrised)))
    assert [alert.severity for alert in alerts if alert.site == "head.bias"] == [severity]


@pytest.mark.parametrize(("weight", "severity"), [({}, "info"), ({"zero_fraction": 1.0}, "warning"), ({"steps": 0}, "warning")])
def test_a_bias_without_a_gradient_is_an_info_where_its_weight_learns(gradients, weight, severity):
    """As in a loss of the derivatives of an output, which do not depend on an offset."""
    report = gradients({}, parameters=[weight, {"steps": 0, "missing_steps": 9}])
    ours = dict(zip(("head.weight", "head.bias"), report.parameters.values(), strict=True))
    alerts = list(judged(Missing(), replace(report, parameters=ours)))
    assert [alert.severity for alert in alerts if alert.site == "head.bias"] == [severity]


@pytest.mark.parametrize("spare", ["", "a part of Bert (from transformers) that this task does not use"])
def test_a_zero_gradient_in_a_library_s_model_is_an_info(gradients, spare):
    held = ParameterSetup(10, 2, True, True, ("0-Adam",), 10, 0.1, 0.1, spare=spare)
    setups = {"weight0": held, "weight1": replace(held, elements=10)}
    (alert,) = judged(Zero(), replace(gradients({}, parameters=[{"zero_fraction": 1.0}, {}]), setups=setups))
    assert alert.severity == ("info" if spare else "warning")
    assert spare in alert.seen


@pytest.mark.parametrize(("others", "severity"), [(10, "info"), (9, "warning")])
def test_a_large_part_of_a_library_s_model_is_not_unused(gradients, others, severity):
    held = ParameterSetup(10, 2, True, True, ("0-Adam",), 10, 0.1, 0.1, spare="a part of Bert")
    setups = {"weight0": held, "weight1": replace(held, elements=others)}
    (alert,) = judged(Zero(), replace(gradients({}, parameters=[{"zero_fraction": 1.0}, {}]), setups=setups))
    assert alert.severity == severity


@pytest.mark.parametrize(("weight", "severity"), [(9.0, "info"), (11.0, "critical"), (None, "critical")])
def test_gradients_that_do_not_reach_the_weights_do_no_harm(gradients, weight, severity):
    """As those of padding at the output of an embedding."""
    parameters = {} if weight is None else {"parameters": [{"rms": weight}]}
    given = gradients({"rms": 1e4}, {"rms": 0.1}, **parameters)
    given = replace(given, parameters=dict(zip(["site0.weight"], given.parameters.values(), strict=False)))
    assert {alert.severity for alert in judged(Exploding(absolute=math.inf), given)} == {severity}


@pytest.mark.parametrize(
    ("steps", "missing", "nonfinite", "found"),
    [(0, 1, 0, True), (0, 5, 0, True), (1, 5, 0, False), (0, 5, 1, False), (4, 0, 0, False), (0, 0, 0, False)],
)
def test_missing(gradients, steps, missing, nonfinite, found):
    change = {"steps": steps, "missing_steps": missing, "nonfinite_steps": nonfinite}
    alerts = list(judged(Missing(), gradients({}, parameters=[{}, change])))
    assert [(alert.kind, alert.site, alert.value, alert.severity) for alert in alerts] == (
        [("missing", "weight1", missing, "warning")] if found else []
    )
    assert all("Freeze it with requires_grad_(False)" in alert.text for alert in alerts)


@pytest.mark.parametrize("rule", [Vanishing(), Exploding(), NonfiniteGradients(), Zero(), Missing()], ids=repr)
def test_healthy_gradients_give_no_alert(gradients, rule):
    assert list(rule(gradients({}, {}, parameters=[{}]))) == []
    assert list(rule(gradients())) == []


@pytest.mark.parametrize(("at_output", "found"), [(1e-8, ["site0.weight"]), (1e-7, []), (0.0, []), (math.nan, [])])
def test_growth_inside_a_module(gradients, at_output, found):
    """As in a recurrent layer that comes first, where there is no gradient before it."""
    report = gradients({"rms": at_output}, parameters=[{"rms": 200.0}, {"rms": 1.0}])
    names = ("site0.weight", "site0.bias")
    report = replace(report, parameters=dict(zip(names, report.parameters.values(), strict=True)))
    alerts = list(Stretching()(report))
    assert [alert.site for alert in alerts] == found
    assert all("(RMS 2.0e+02) is 2.0e+10 times that at the output" in alert.text for alert in alerts)


@pytest.mark.parametrize(("norms", "found"), [((300.0, 1.0), False), ((301.0, 1.0), True), ((1.0, 301.0), False)])
def test_growth_through_one_module(gradients, norms, found):
    """As through a recurrent module whose weights stretch; of three modules the middle one does it."""
    first, after = ({"rms": norm / 5} for norm in norms)  # of 25 values a call
    alerts = list(Stretching()(gradients(first, after, after)))
    assert [(a.kind, a.site, a.severity) for a in alerts] == ([("exploding", "site1", "warning")] if found else [])
    assert [a.value for a in alerts] == ([pytest.approx(301)] if found else [])
    seen = "the gradient norm grows by a factor of 301 in the backward pass through it (limit 300), from 1.0e+00 to 3.0e+02. Common"
    assert all(a.text.startswith(seen) for a in alerts)


def test_a_branch_next_to_a_small_one_does_not_stretch(gradients):
    """The gradients of queries and keys are thousands of times below those of values and of the layers behind them."""
    assert list(Stretching()(gradients({"rms": 1.0}, {"rms": 1e-4}, {"rms": 1e-4}, {"rms": 1.0}))) == []
    assert [alert.site for alert in Stretching()(gradients({"rms": 1.0}, {"rms": 1e-4}, {"rms": 2e-3}))] == ["site1"]


def test_size_alone_is_nothing_to_adam_while_the_loss_falls(gradients):
    held = {"weight0": ParameterSetup(100, 2, True, True, ("0-Adam",))}
    huge = replace(gradients({"rms": 2e3}, parameters=[{"rms": 2e3}]), setups=held)
    low, high = LossReport(40, 2.0, 0.3, 1.5, 2.5, 1.5), LossReport(40, 3.0, 0.0, 3.0, 3.0, 3.0)
    sgd = {"weight0": replace(held["weight0"], optimizers=("0-Adam", "1-SGD"))}
    assert list(judged(Exploding(), replace(huge, loss=low))) == []
    assert list(judged(Exploding(), replace(huge, loss=low), [replace(huge, loss=high)])) == []
    for report, history in (
        (huge, []),  # a loss that nobody saw
        (replace(huge, loss=high), [replace(huge, loss=low)]),
        (replace(huge, loss=replace(low, nonfinite_steps=1)), []),
        (replace(huge, loss=low, setups=sgd), []),
        (replace(huge, loss=low, setups={}), []),
    ):
        assert [alert.site for alert in judged(Exploding(), report, history)] == ["site0", "weight0"]
    for given in (5.0, 1e4):  # a limit of the user's own holds always
        sites = [alert.site for alert in judged(Exploding(absolute=given), replace(huge, loss=low))]
        assert sites == (["site0", "weight0"] if given == 5.0 else [])


def rules_that_raise(report, history=(), given=()):
    """Which rules raise an alert, of the three that gradients of any size concern."""
    book = RuleBook([Exploding(), Stretching(), Vanishing()], given)
    names = {"grows by a factor": "Stretching", "hardly learn": "Vanishing", "weights may become NaN": "Exploding"}
    found = (candidate.alert.message for candidate in book.judge(report.after(history)))
    return {name for message in found for text, name in names.items() if text in message}


def test_of_what_explodes_nothing_else_is_raised(gradients):
    """What a loss did before decides for all rules alike whether gradients explode."""
    held = {"weight0": ParameterSetup(100, 2, True, True, ("0-Adam",))}
    low, high = LossReport(40, 2.0, 0.3, 1.5, 2.5, 1.5), LossReport(40, 3.0, 0.0, 3.0, 3.0, 3.0)
    lost = replace(gradients({"rms": 1e-3}, {"rms": 2e3}), setups=held, loss=high)
    stretched = replace(gradients({"rms": 2e3}, {"rms": 0.3}, {"rms": 0.3}), setups=held, loss=high)
    for rule, report in (("Vanishing", lost), ("Stretching", stretched)):
        rose, fell = [replace(report, loss=low)], [replace(report, loss=replace(high, mean=4.0))]
        assert rules_that_raise(report, rose) == {"Exploding"}
        assert rules_that_raise(report, fell) == {rule}
    assert rules_that_raise(gradients({"rms": 1e5}, {"rms": 0.2}, {"rms": 0.2})) == {"Exploding"}


@pytest.mark.parametrize(
    "given",
    [
        [{"kind": "exploding", "absolute": 1e9}],
        [Exploding(absolute=1e9, sites="site1")],
        [Exploding(absolute=1e9), Exploding(sites="site7")],
        [Mute("exploding", "site1")],
    ],
    ids=["limit", "limit at the site", "limit elsewhere", "mute"],
)
def test_a_limit_or_mute_of_exploding_holds_for_the_rules_that_it_supersedes(gradients, given):
    lost = gradients({"rms": 1e-3}, {"rms": 2e3})
    assert rules_that_raise(lost) == {"Exploding"}
    assert rules_that_raise(lost, given=given) == {"Vanishing"}
    stretched = gradients({"rms": 0.3}, {"rms": 2e3}, {"rms": 0.3}, {"rms": 0.3})
    assert rules_that_raise(stretched) == {"Exploding"}
    assert rules_that_raise(stretched, given=given) >= {"Stretching"}


MODULE = GradientStats(
    calls=4, count=100, mean=0.0, std=0.1, min=-1.0, max=1.0, rms=0.1, norm=1.0, norm_max=2.0, zero_fraction=0.0,
    nonfinite_fraction=0.0,
)  # fmt: skip


def of_roles(**rms: float) -> GradientFlowReport:
    modules = {site.replace("_", "."): replace(MODULE, rms=value) for site, value in rms.items()}
    return GradientFlowReport(0, 40, modules, {}, 1.0, order=tuple(reversed(modules)))


def test_queries_that_get_as_little_as_those_of_later_layers_have_not_lost_it():
    """Where all before is frozen the first layer's query is the first module that has a gradient."""
    healthy = of_roles(a0_q=1e-6, a0_v=1e-2, a1_q=1e-6, a1_v=1e-2, head=0.1)
    assert list(Vanishing()(healthy)) == []
    faulty = of_roles(a0_q=1e-6, a0_v=1e-6, a1_q=1e-6, a1_v=1e-2, head=0.1)
    assert [alert.site for alert in Vanishing()(faulty)] == ["a1.v", "a0.v", "a1.q"]
    assert [alert.site for alert in Vanishing()(of_roles(a0_q=1e-6, head=0.1))] == ["head", "a0.q"]  # nothing to compare with


def test_the_first_half_of_an_adapter_is_compared_with_those_of_later_blocks():
    """Its second half starts at zero: nothing comes back through it yet, in any block."""
    adapters = {"a.0.q.A.default": 1e-8, "a.0.q.B.default": 1e-2, "a.1.q.A.default": 1e-8, "a.1.q.B.default": 1e-2, "head": 0.1}
    assert list(Vanishing()(of_roles(**adapters))) == []
    broken = {**adapters, "a.1.q.A.default": 1e-2}
    assert "a.0.q.A.default" in [alert.site for alert in Vanishing()(of_roles(**broken))]


def test_a_side_branch_is_not_what_loses_it():
    """The step down to the query is the largest of all, and nothing passes through it."""
    report = of_roles(stem=1e-7, block_in=1e-6, block_q=1e-9, block_out=1e-2, head=0.1)
    assert next(alert.site for alert in Vanishing()(report)) == "block.out"
    assert "mostly in the backward pass through block.out" in next(iter(Vanishing()(report))).text


def test_a_branch_may_stretch_further_under_adam(gradients):
    held = {"weight0": ParameterSetup(100, 2, True, True, ("0-Adam",))}
    loss = LossReport(40, 2.0, 0.3, 1.5, 2.5, 1.5)

    def stretching(rms, **change):
        report = replace(gradients({"rms": rms}, {"rms": 1e-3}), loss=loss, setups=held)
        return [alert.site for alert in Stretching()(replace(report, **change))]

    assert stretching(0.33) == []
    assert stretching(3.1) == ["site1"]
    assert stretching(0.33, loss=None) == stretching(0.33, setups={}) == ["site1"]


def test_gradients_that_grow_are_not_critical_while_the_loss_falls(gradients):
    report = gradients(*rms(6e3, 60.0, 1e-3))
    falls, rises = (LossReport(40, mean, 0.3, 1.5, 2.5, 2.6, recent=(2.5,) * 10 + (mean,) * 30) for mean in (1.5, 3.0))
    low, high = replace(report, loss=falls), replace(report, loss=rises)
    assert {alert.severity for alert in judged(Exploding(), report)} == {"critical"}
    assert {alert.severity for alert in judged(Exploding(), low)} == {"warning"}
    assert "critical" in {alert.severity for alert in judged(Exploding(), high)}
    assert {alert.severity for alert in judged(Exploding(), low, [high])} == {"warning"}
    assert "critical" in {alert.severity for alert in judged(Exploding(), high, [low])}


@pytest.mark.parametrize(
    ("weight", "bias", "severity"),
    [("q_weight", "q_bias", "info"), ("q_weight", "v_bias", "warning"), ("net.a.q_weight", "net.a.q_bias", "info"),
     ("net.a.weight", "net.b.bias", "warning"), ("net.weight", "bias", "warning"), ("net.a.inner.weight", "net.a.bias", "info")],
)  # fmt: skip
def test_which_weight_belongs_to_a_bias(gradients, weight, bias, severity):
    report = gradients({}, parameters=[{}, {"zero_fraction": 1.0}])
    alerts = judged(Zero(), replace(report, parameters=dict(zip((weight, bias), report.parameters.values(), strict=True))))
    assert [alert.severity for alert in alerts if alert.site == bias] == [severity]
