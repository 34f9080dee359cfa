"""Every kind of alert has a title and advice, and so has every alert of a built-in rule."""

import ast
import dataclasses
import inspect

import pytest

from lightning_hooks import alerts
from lightning_hooks.alerts import ALERT_KINDS, FILES, RULES, Dead, Rule, declared_in
from lightning_hooks.alerts.explain import rules_that_raise, thresholds_of
from lightning_hooks.declare.kinds import ALWAYS, KINDS
from lightning_hooks.declare.rulebook import reports_of

BUILT_IN = sorted(
    {thing for thing in vars(alerts).values() if inspect.isclass(thing) and issubclass(thing, Rule) and thing.kind},
    key=lambda rule: rule.__name__,
)


@dataclasses.dataclass
class Report:
    epoch: int = 3
    step: int = 40


def test_the_table_holds_every_kind_and_no_other():
    assert set(KINDS) == set(ALERT_KINDS)
    assert len({kind.title for kind in KINDS.values()}) == len(KINDS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__.rpartition(".")[2])
def test_a_kind_stands_with_its_rules(file):
    """One file holds all of a kind: what there is in the package beyond it is made from its KINDS and rules.

    A rule that finds the same in another report stands where that is measured.
    """
    own, rules = {kind.name for kind in file.KINDS}, declared_in(file)
    assert own <= {rule.kind for rule in rules}
    for rule in [rule for rule in rules if rule.kind not in own]:
        (home,) = (other for other in FILES if KINDS[rule.kind] in other.KINDS)
        others = [other for other in declared_in(home) if other.kind == rule.kind]
        assert not {*reports_of(rule)} & {read for other in others for read in reports_of(other)}
    assert {type(rule).__name__ for rule in rules} == set(file.__all__)
    for rule in rules:
        assert type(rule).__module__ == file.__name__
        assert getattr(alerts, type(rule).__name__) is type(rule)
        assert type(rule).__name__ in alerts.__all__
        assert all(type(rule) in map(type, RULES[report]) for report in reports_of(rule))
    for kind in file.KINDS:
        assert KINDS[kind.name] is kind
        assert sum(kind in other.KINDS for other in FILES) == 1


def test_a_limit_is_the_default_of_a_rule():
    drawn = {name: kind.limit for name, kind in KINDS.items() if kind.limit}
    assert set(drawn) == {"dead", "saturated", "always_clipped", "exploding", "update_too_small", "update_too_large"}
    for name, limit in drawn.items():
        assert limit in {value for rule in rules_that_raise(name) for value in thresholds_of(rule).values()}


@pytest.mark.parametrize("kind", ALERT_KINDS)
def test_a_kind_has_a_title_and_advice(kind):
    known = KINDS[kind]
    assert known.title[0].isupper()
    assert not known.title.endswith(".")
    assert len(known.title) <= 50
    assert known.advice
    for step in known.advice:
        assert step[0].isupper()
        assert not step.endswith(".")
        assert len(step) <= 100


# With them numbers are lost, or nothing learns any more
CRITICAL = {"nonfinite", "loss_nonfinite", "id_out_of_range", "ranks_differ", "dead"}


@pytest.mark.parametrize("rule", BUILT_IN)
def test_an_alert_of_every_built_in_rule_says_what_to_try(rule):
    assert any(isinstance(one, rule) for book in RULES.values() for one in book), "a rule that nobody asks"
    made = rule().finding(Report(), "layer", 2.0, 1.0, "it is so.")
    assert (made.title, made.message, made.diagnosis) == (KINDS[rule.kind].title, "it is so.", "")
    assert made.advice
    assert made.text == " ".join(["it is so.", *(f"{step}." for step in made.advice)])
    what, *rest = str(made).splitlines()
    severity = "critical" if rule.kind in CRITICAL else "warning"
    assert what == f"[{severity}] {rule.kind} at layer (epoch 3, step 40): it is so."
    assert len(rest) == 1
    assert rest[0].startswith("  try: ")


def test_how_severe_a_finding_is_follows_from_its_kind_its_value_and_whether_it_is_conclusive():
    found = [Dead().finding(Report(), "relu", share, 0.7, "they never fire.").severity for share in (0.99, 1.0)]
    assert found == ["warning", "critical"]
    assert Dead().finding(Report(), "relu", 1.0, 0.7, "they never fire.", conclusive=False).severity == "info"
    assert Dead(severity="warning").finding(Report(), "relu", 1.0, 0.7, "they never fire.").severity == "warning"
    assert Rule(severity="critical").finding(Report(), "relu", 1.0, 0.7, "it is so.", conclusive=[]).severity == "critical"


@pytest.mark.parametrize("kind", ALERT_KINDS)
def test_a_kind_says_when_its_findings_are_not_conclusive(kind):
    nodes = [node for rule in BUILT_IN if rule.kind == kind for node in ast.walk(ast.parse(inspect.getsource(rule)))]
    findings = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.finding"]
    given = [word.value for call in findings for word in call.keywords if word.arg == "conclusive"]
    always = len(given) == len(findings) and all(isinstance(value, ast.Constant) for value in given)
    assert (bool(KINDS[kind].inconclusive), KINDS[kind].inconclusive == ALWAYS) == (bool(given), always)


@pytest.mark.parametrize("rule", BUILT_IN)
def test_no_built_in_rule_states_a_severity(rule):
    names = {node.value for node in ast.walk(ast.parse(inspect.getsource(rule))) if isinstance(node, ast.Constant)}
    assert not names & {"warning", "critical", "info"}
