"""Whether a second run is cured: alerts that are gone, that stay, that are new, and how the two learn."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lightning_hooks.__main__ import main
from lightning_hooks.alerts import Alert
from lightning_hooks.diagnostics.loss.report import LossReport, ValidationLoss
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.verify import learning, verify
from tests.run_report.test_health import strict
from tests.support.made_reports import FIT, flow

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/guides/verify.schema.json").read_text(encoding="utf-8"))
NAN = math.nan
GOOD, BAD = (2.3, 1.5, 0.9, 0.4), (2.3, 2.3, 2.31, 2.3)
Make = Callable[..., Run]


def alert(site: str, kind: str = "dead", severity: Any = "warning", cause: str = "") -> Alert:
    return Alert(kind, site, 1.0, 0.7, 0, 0, severity, "seen.", cause=cause)


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Write a run with given losses and alerts by epoch, and read it."""

    def make(
        name: str,
        losses: Sequence[float] = GOOD,
        alerts: dict[int, Sequence[Alert]] | Sequence[Alert] = (),
        how: str | None = "finished",
        validations: Sequence[float] = (),
        at: int | None = None,
    ) -> Run:
        file = tmp_path / "logs" / name / FOLDER / REPORTS
        append(file, line("fit", FIT))
        for epoch, mean in enumerate(losses):
            found = alerts.get(epoch, ()) if isinstance(alerts, dict) else alerts
            dated = tuple(dataclasses.replace(one, epoch=epoch, step=10 * epoch + 10) for one in found)
            known = tuple(ValidationLoss(loss, mean) for loss in validations[: epoch + 1])
            loss = LossReport(8, mean, 0.1, mean, mean, mean, validations=known)
            window = {} if at is None else {"window": epoch}
            report = dataclasses.replace(flow(epoch, ["net.a", "net.b"]), alerts=dated, loss=loss, **window)
            append(file, report_line("gradient_flow", "None", report, 0.0))
            place = {"epoch": epoch} if at is None else {"epoch": 0, "at": report.step}
            append(file, line("epoch", {**place, "seconds": 1.0, **({} if math.isnan(mean) else {"loss": mean})}))
        if how:
            append(file, line("end", {"how": how, "error": "KeyError: '/home/me'", "epoch": 3, "step": 9}))
        return read_run(file)

    return make


DEAD, ZERO = alert("net.a"), alert("net.b", "zero")
FOLLOWS = alert("net.b", "zero", cause=DEAD.name)


@pytest.mark.parametrize(
    ("a", "b", "outcome", "groups"),
    [
        ({"losses": BAD, "alerts": [DEAD]}, {}, "cured", {"gone": ["net.a"]}),
        ({"alerts": [DEAD]}, {}, "cured", {"gone": ["net.a"]}),  # as good, and it falls
        ({"losses": BAD, "alerts": [DEAD]}, {"losses": BAD}, "same", {"gone": ["net.a"]}),  # the alarm is off, the model guesses
        ({"losses": BAD, "alerts": [DEAD]}, {"losses": BAD, "alerts": [DEAD]}, "same", {"stay": ["net.a"]}),
        ({"losses": BAD, "alerts": [DEAD]}, {"alerts": [DEAD]}, "same", {"stay": ["net.a"]}),
        ({"alerts": [DEAD]}, {"losses": BAD}, "worse", {"gone": ["net.a"]}),
        ({"alerts": [DEAD]}, {"alerts": [ZERO]}, "same", {"gone": ["net.a"], "new": ["net.b"]}),
        ({"alerts": [DEAD]}, {"alerts": [DEAD, ZERO]}, "worse", {"stay": ["net.a"], "new": ["net.b"]}),
        ({}, {}, "same", {}),
        ({"losses": BAD}, {}, "cured", {}),  # it had not learned
        ({"losses": (NAN,) * 4, "alerts": [DEAD]}, {}, "cured", {"gone": ["net.a"]}),
        ({"alerts": [DEAD]}, {"losses": (2.3, NAN, NAN, NAN)}, "worse", {"gone": ["net.a"]}),
        ({"losses": (NAN,) * 4, "alerts": [DEAD]}, {"losses": (NAN,) * 4}, "same", {"gone": ["net.a"]}),
        ({"alerts": [DEAD]}, {"how": "exception"}, "worse", {"gone": ["net.a"]}),
        ({"alerts": [DEAD], "how": "exception"}, {"how": "exception"}, "same", {"gone": ["net.a"]}),
        ({"how": "exception"}, {}, "cured", {}),
        ({"alerts": [DEAD]}, {"how": None}, "cured", {"gone": ["net.a"]}),  # so far
        ({"alerts": [alert("net.a", severity="info")]}, {}, "same", {}),
        # What passed by itself in both is no cure; a spike that only A had is gone.
        ({"alerts": {1: [DEAD]}}, {"alerts": {1: [DEAD]}}, "same", {}),
        ({"alerts": {1: [DEAD]}}, {}, "cured", {"gone": ["net.a"]}),
        ({"alerts": [DEAD]}, {"alerts": {0: [DEAD]}}, "cured", {"gone": ["net.a"]}),
        # A consequence that is a root cause now is not new.
        ({"alerts": [DEAD, FOLLOWS]}, {"alerts": [ZERO]}, "same", {"gone": ["net.a"], "stay": ["net.b"]}),
        # B has not come to where it began.
        ({"alerts": {2: [DEAD], 3: [DEAD]}}, {"losses": GOOD[:2]}, "same", {"unreached": ["net.a"]}),
        ({"alerts": [DEAD]}, {"losses": ()}, "same", {"unreached": ["net.a"]}),
    ],
)  # fmt: skip
def test_the_outcome(a: Any, b: Any, outcome: str, groups: dict[str, list[str]], made: Make) -> None:
    found = verify(made("a", **a), made("b", **b))
    assert found["outcome"] == outcome, found["reasons"]
    assert (not found["reasons"]) == (outcome == "cured")
    for group in ("gone", "stay", "new", "unreached"):
        assert [one["site"] for one in found[group]] == groups.get(group, []), group
    document = json.loads(json.dumps(found, allow_nan=False))
    Draft202012Validator(strict(SCHEMA)).validate(document)
    assert document["outcome"] == outcome


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    ("a", "b", "judged"),
    [
        ((2.0, 1.0), (2.0, 0.94), "better"),  # 6 % of how far it moved
        ((2.0, 1.0), (2.0, 0.96), "same"),
        ((2.0, 1.0), (2.0, 1.04), "same"),
        ((2.0, 1.0), (2.0, 1.06), "worse"),
        ((-1.0, -9.0), (-1.0, -9.9), "better"),
        ((2.0, NAN), (2.0, 1.0), "better"),
        ((2.0, 1.0), (2.0, NAN), "worse"),
        ((NAN, NAN), (NAN, NAN), "unknown"),
        ((NAN, 1.0), (NAN, 0.9), "better"),
        ((1.0, 1.0), (1.02, 1.02), "same"),  # one window
        ((1.0, 1.0), (0.9, 0.9), "better"),
    ],
)
def test_learning_is_judged_by_how_far_the_loss_moved(a: Any, b: Any, judged: str) -> None:
    assert learning(a, b) == judged


def test_the_command(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = made("a", losses=BAD, alerts=[DEAD]), made("b")
    paths = [str(run.path) for run in (a, b)]
    assert main(["verify", *paths]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "A  logs/a: Dead units at net.a, since epoch 0.",
        "B  logs/b: 4 epochs, no rule broken; the loss fell from 2.30 to 0.400.",
        "",
        "Gone (1):",
        "  [warning] dead at net.a",
        "The training loss up to epoch 3: 2.3 to 2.3 in A, 2.3 to 0.4 in B: better.",
        "Outcome: cured.",
    ]
    assert main(["verify", *paths[::-1]]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Outcome: worse. A ended without a problem: there is nothing to cure. B has new alerts. B learns worse: its loss is higher."
    )
    assert main(["verify", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["learning"], found["gone"][0]["fingerprint"]) == ("cured", "better", DEAD.fingerprint)
    assert main(["verify", paths[0], "nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: no lightning_hooks/reports.jsonl in nothing.")
