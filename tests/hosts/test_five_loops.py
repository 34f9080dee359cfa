"""One net, one order of data, five loops: the same reports to the last bit, the same alerts, the same report page."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks.__main__ import main
from tests.hosts.loops import EPOCHS, LOOPS, Result
from tests.support.pages import data_of, of_kind, section_of, texts

OWN = {"overhead", "planned_steps", "limit", "lr_initial", "samples"}
"""A measured time, what not every loop knows (the samples of a batch among it), and what a scheduler enters."""


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two reports differ."""
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one) if field.name not in OWN]
        for name in names:
            yield from differences(getattr(one, name), getattr(other, name), f"{path}.{name}")
    elif isinstance(one, dict):
        if list(one) != list(other):
            yield f"{path}: {list(one)} and {list(other)}"
        for key in one:
            yield from differences(one[key], other.get(key), f"{path}[{key}]")
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield f"{path}: {one} and {other}"
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from differences(left, right, f"{path}[{index}]")
    elif one != other and not (one != one and other != other):
        yield f"{path}: {one} and {other}"


@pytest.fixture(scope="module")
def in_lightning(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("lightning")
    return LOOPS["lightning"](folder), folder


KNOWN_OF_A_TRAINER = ("configured limit 0.05", "32-true", "precision", "CPUAccelerator", "accelerator", "2", "epochs planned")
"""What the page says of the loop's settings, of which some loops know less."""


def page(folder: Path) -> list[str]:
    """What the report page says, without names, measured times, samples, and what a loop knows of its settings."""
    found = data_of((folder / "lightning_hooks" / "report.html").read_text())["page"]
    for chart in of_kind(section_of(found, "clipping"), "chart"):
        chart["lines"] = [line for line in chart["lines"] if not line["label"].startswith("configured limit ")]
    lines = [line for part in ("verdicts", "problems", "sections") for line in texts(found[part])]
    passed_over = re.compile(r"|Health report: .*|Made by .*|[\d.]+ (ms|s|%)|\u2013|(\d+, )+\d+( and \d+ more)?")
    return [line for line in lines if line not in KNOWN_OF_A_TRAINER and not passed_over.fullmatch(line)]


def alerts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "lightning_hooks" / "alerts.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "lightning"])
def test_the_reports_are_those_of_lightning(name: str, in_lightning: tuple[Result, Path], tmp_path: Path) -> None:
    if name in ("transformers", "accelerate"):
        pytest.importorskip("accelerate")
    (net, expected), folder = in_lightning
    same_net, found = LOOPS[name](tmp_path)
    assert all(map(torch.equal, net.parameters(), same_net.parameters())), "the loops' own arithmetic"
    assert [len(reports) for reports in found.history.values()] == [len(reports) for reports in expected.history.values()]
    assert len(found.history["features"]) == EPOCHS
    wrong = [line for kind, reports in expected.history.items() for line in differences([*reports], [*found.history[kind]], kind)]
    assert wrong == []
    assert [alert.kind for alert in found.alerts] == ["dead"]
    assert found.alerts == expected.alerts
    assert found.verdict == expected.verdict == "Dead units at act, since epoch 0."
    assert alerts(tmp_path) == alerts(folder)
    assert page(tmp_path) == page(folder)


def test_compare_finds_no_difference_between_two_loops(
    in_lightning: tuple[Result, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = in_lightning
    LOOPS["plain"](tmp_path)
    assert main(["compare", str(folder), str(tmp_path), "--output", str(tmp_path / "compare.html")]) == 0
    assert "All numbers that both runs have are the same." in capsys.readouterr().out
