"""A damaged or hostile file costs what it held: a command says so in a sentence, and never ends in a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import monitors
from lightning_hooks.__main__ import main
from tests.support.models import Classifier, loader, mlp, trainer

NUMBERS = [True, -1, 0, 10**15, 10**400, -1e308, 5e-324, "NaN", "Infinity"]
TEXTS = [None, "", "x", "\x00\ud800<script>", "0-999999999", "1*9"]
LISTS = [[], [None], [[1]], ["a"] * 3, [1e308, -1e308]]
OBJECTS = [{}, {"name": ["a"]}, {"names": "0-3"}, {"names": "0", "values": 1}, {"all": []}, {"of": [0], "cause": 3}]
JUNK: st.SearchStrategy[Any] = st.sampled_from([*NUMBERS, *TEXTS, *LISTS, *OBJECTS])


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The file of a real run with an alert."""
    folder = tmp_path_factory.mktemp("run")
    model = Classifier(mlp())
    model.net[0].bias.data.fill_(-100.0)
    trainer(monitors(every_n_steps=1, summary=False), max_epochs=3, logger=CSVLogger(folder, name="", version=0)).fit(
        model, loader()
    )
    text = next(folder.rglob("reports.jsonl")).read_text()
    assert '"kind":"dead"' in text
    return text.splitlines()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all that a JSON value holds."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*path, key)
        yield from places(entry, (*path, key))


def changed(event: Any, path: tuple[Any, ...], junk: Any) -> Any:
    event = copy.deepcopy(event)
    place = event
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = junk
    return event


def commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both commands end well, or with one sentence."""
    for command in (["report", str(folder)], ["compare", str(folder), str(folder)]):
        status, errors = main(command), capsys.readouterr().err
        assert status in (0, 2)
        assert (status == 2) == any(line.startswith("error: ") for line in errors.splitlines())


def write(folder: Path, lines: list[str]) -> Path:
    (folder / "lightning_hooks").mkdir(exist_ok=True)
    (folder / "lightning_hooks/reports.jsonl").write_text("\n".join(lines) + "\n", errors="surrogatepass")
    return folder


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_with_junk_in_it(data: st.DataObject, lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = list(lines)
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(damaged) - 1))
        try:
            event = json.loads(damaged[number])
        except ValueError:
            continue
        path = data.draw(st.sampled_from(list(places(event))))
        text = json.dumps(changed(event, path, data.draw(JUNK)))
        damaged[number] = text[: data.draw(st.sampled_from([len(text), len(text), len(text) // 2]))]
    commands(write(tmp_path, damaged), capsys)


def test_nothing_but_junk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, ["[" * 100_000, "1e999", '{"event": [1]}', '{"event": "report", "report": 3}', "\x00" * 50])
    assert main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
