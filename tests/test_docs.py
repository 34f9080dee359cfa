"""The docs are complete: every kind of alert and every public name has a page, every hook system a test, every link a target."""

from __future__ import annotations

import ast
import posixpath
import re
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import pytest

from docs import kind_pages, layers, reference_pages
from lightning_hooks.alerts import ALERT_KINDS, RULES, Dead, Rule, explain
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.rule import percent

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
INDEX = (DOCS / "examples.md").read_text(encoding="utf-8")
WRITTEN = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
PAGES = {**WRITTEN, **kind_pages.pages(), **reference_pages.pages()}
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split("|")]
    for line in WRITTEN["about/hook_systems.md"].splitlines()
    if re.match(r"\| \d+ \|", line)
]
TESTS = [(row[0], *test.split("::")) for row in ROWS for test in re.findall(r"`(tests/[\w/]+\.py::\w+)(?:\[[^`]*\])?`", row[-1])]


def test_the_table_has_all_26_systems() -> None:
    assert [row[0] for row in ROWS] == [str(number) for number in range(1, 27)]
    assert all(row[1] and row[2] for row in ROWS)


def test_every_system_has_a_test() -> None:
    assert {row[0] for row in ROWS} == {number for number, *_ in TESTS}


@pytest.mark.parametrize(("number", "path", "name"), TESTS)
def test_named_test_exists(number: str, path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"row {number}"


@pytest.mark.parametrize("page", sorted(WRITTEN))
def test_page_is_in_the_navigation(page: str) -> None:
    assert re.search(
        rf"^ +- (?:[\w ]+: )?{re.escape(page)}$|\[{re.escape(page)}\]", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    ), f"add {page} to the navigation in mkdocs.yml"


def test_the_architecture_is_that_of_the_imports() -> None:
    assert layers.diagram() in WRITTEN["about/architecture.md"], "run python -m docs.layers"


@pytest.mark.parametrize("path", sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("examples/*.py")]), ids=lambda path: path.name)
def test_notebook_or_example_is_in_the_index(path: Path) -> None:
    assert f"| `{path.name}` |" in INDEX, f"add a row for {path.name} to docs/examples.md"


def test_the_index_names_nothing_that_is_gone() -> None:
    for name in re.findall(r"^\| `([\w.]+\.(?:py|ipynb))` \|", INDEX, re.MULTILINE):
        assert list(ROOT.glob(f"*/{name}")), name


@pytest.mark.parametrize(
    ("page", "target"),
    [(page, target) for page, text in PAGES.items() for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", text)],
)
def test_link_has_a_target(page: str, target: str) -> None:
    assert not target.startswith("/"), "links are relative"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    assert path in PAGES or (DOCS / path).is_file()


def test_every_kind_has_a_page() -> None:
    assert set(kind_pages.paths()) == {f"alerts/{kind}.md" for kind in ALERT_KINDS} == set(kind_pages.pages())


def test_every_kind_is_in_one_group_of_the_table() -> None:
    rows = re.findall(r"^\| (.+) \| \[`(\w+)`\]\(\2\.md\) \| (\w+) \|$", kind_pages.table(), re.MULTILINE)
    assert sorted(kind for _, kind, _ in rows) == sorted(ALERT_KINDS)
    assert ("Dead units", "dead", "warning") in rows
    assert {severity for *_, severity in rows} == {"info", "warning", "critical"}
    groups = re.findall(r"^### (.+)$", kind_pages.table(), re.MULTILINE)
    assert groups == [
        "Set-up",
        "Data",
        "Loss",
        "Forward",
        "Backward",
        "Updates",
        "Clipping",
        "Attention, experts, residual streams",
        "Several processes",
    ]


@pytest.mark.parametrize("kind", ALERT_KINDS)
def test_a_kinds_page_has_its_thresholds_and_advice(kind: str) -> None:
    text = kind_pages.page(kind)
    rules = [rule for rules in RULES.values() for rule in rules if rule.kind == kind]
    assert rules
    for rule in rules:
        _, explained = explain.documented(type(rule))
        for name in {field.name for field in fields(rule)} - {field.name for field in fields(Rule)}:
            assert explained[name], f"{type(rule).__name__}'s docstring does not explain {name}"
            assert f"| `{name}` | `{getattr(rule, name)!r}` |" in text
    for section in ("What it means", "Formula and threshold", "How to fix it", "Its record", "How to change or mute it"):
        assert f"## {section}" in text
    assert f'"-{kind}"' in text
    assert "{" not in explain.formula(kind) + explain.severities(kind)


@pytest.mark.parametrize("kind", ALERT_KINDS)
def test_a_kinds_code_runs(kind: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", kind_pages.page(kind), re.DOTALL)
    exec(code, {})


def test_a_formula_has_the_default_of_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "> 0.7\n" in explain.formula("dead")
    monkeypatch.setitem(KINDS, "dead", replace(KINDS["dead"], formula="{Dead.of_few}"))
    assert explain.formula("dead") == "0.8"


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(reference_pages.pages().values())
    for name in import_module("lightning_hooks").__all__:
        assert f"::: {reference_pages.path_of('lightning_hooks', name)}\n" in text
    for package, names in reference_pages.packages().items():
        for name in names:
            assert f"::: {reference_pages.path_of(f'lightning_hooks.{package}', name)}\n" in text


@pytest.mark.example
def test_every_kind_that_the_zoo_plants_has_an_affected_and_a_healthy_picture() -> None:
    from docs import make_figures

    assert make_figures.expected() == kind_pages.ZOO["expected"], "run python -m docs.make_figures"
    planted = {kind for kinds in kind_pages.ZOO["expected"].values() for kind in kinds} & set(ALERT_KINDS)
    assert planted == set(kind_pages.ZOO["figures"]) == set(make_figures.PICTURES)
    for made in kind_pages.ZOO["figures"].values():
        assert set(made["files"]) == {"affected", "healthy"}
        assert all((DOCS / "alerts" / path).stat().st_size < 60_000 for path in made["files"].values())


def test_the_regimes_name_tests_that_exist() -> None:
    names = re.findall(r"`(test_\w+)`", WRITTEN["about/regimes.md"])
    assert names
    for name in names:
        assert list(ROOT.glob(f"tests/**/{name}.py")), name


def test_the_false_alarm_record_is_that_of_the_zoo() -> None:
    results, healthy = kind_pages.zoo_results()
    assert healthy == "0 of 213"
    assert set(kind_pages.ZOO["expected"]) <= set(results)


def test_the_limit_of_dead_units_is_the_rules_wherever_it_is_stated() -> None:
    files = [ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb"), ROOT / "examples/cli/config.yaml"]
    text = " ".join(" ".join(path.read_text(encoding="utf-8") for path in files).split())
    quoted = re.findall(r"output zero for every sampled input \(limit (\d+%)\)", text)
    in_prose = re.findall(r"default rule\]\(\.\./alerts/dead\.md\) warns above (\d+ %)|built-in rule starts at (\d+ %)", text)
    assert len(quoted) >= 3
    assert len(in_prose) == 2
    assert {*quoted} <= {percent(Dead().threshold), percent(Dead().of_few)}
    assert {"".join(found).replace(" ", "") for found in in_prose} == {percent(Dead().threshold)}
