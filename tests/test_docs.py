"""The docs are complete: every page, notebook and example is listed, every hook system has a home and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import lightning_hooks

ROOT = Path(__file__).parents[1]
DOCS = Path(lightning_hooks.__file__).parent / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split("|")]
    for line in (DOCS / "hook_systems.md").read_text(encoding="utf-8").splitlines()
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


@pytest.mark.parametrize("page", sorted(page.name for page in DOCS.glob("*.md") if page.name != "README.md"))
def test_page_is_in_the_index(page: str) -> None:
    assert f"]({page})" in INDEX, f"add a row for {page} to lightning_hooks/docs/README.md"


@pytest.mark.parametrize("path", sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("examples/*.py")]), ids=lambda path: path.name)
def test_notebook_or_example_is_in_the_index(path: Path) -> None:
    assert f"| `{path.name}` |" in INDEX, f"add a row for {path.name} to lightning_hooks/docs/README.md"


def test_the_index_names_nothing_that_is_gone() -> None:
    for name in re.findall(r"^\| `([\w.]+\.(?:py|ipynb))` \|", INDEX, re.MULTILINE):
        assert list(ROOT.glob(f"*/{name}")), name
