"""The verdict: what is wrong, since when, and what to try."""

import json
import math
from dataclasses import replace

import pytest

from lightning_hooks.declare.book import AlertBook
from lightning_hooks.run_report import judge, read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.verdict import conclude, courses, problems_of
from tests.support.made_reports import FIT, alert, features

DIAGNOSIS = "all of its units gave zero. Usually a large bias did it."
ADVICE = ("Try a lower learning rate", "Use a GELU")


@pytest.fixture
def verdict_of(tmp_path):
    """The verdict of a run whose features monitor raised (kind, site, severity) in each epoch."""

    def make(*epochs, end="finished", prefix="features", losses=(), **more):
        file = tmp_path / "run" / FOLDER / REPORTS
        file.unlink(missing_ok=True)
        append(file, line("fit", FIT))
        for epoch, found in enumerate(epochs):
            alerts = tuple(alert(kind, site, epoch, severity, DIAGNOSIS, ADVICE) for kind, site, severity in found)
            append(file, report_line(prefix, "", features(epoch, ["a", "b"], alerts=alerts), 0.0))
        for epoch, loss in enumerate(losses):
            append(file, line("epoch", {"epoch": epoch, "loss": loss}))
        if end:
            append(file, line("end", {"how": end, "error": "ValueError: boom"} | more))
        return judge(read_run(file))

    return make


DEAD = ("dead", "a", "critical")


def test_nothing_wrong(verdict_of):
    verdict = verdict_of([], [], [])
    assert (verdict.status, verdict.headline, verdict.problems) == ("healthy", "3 epochs, no rule broken.", ())
    assert verdict.details == ()


def test_what_lasts_is_reported_since_when(verdict_of):
    verdict = verdict_of([], [DEAD], [DEAD, ("dead", "b", "warning")])
    assert (verdict.status, verdict.headline) == ("critical", "Dead units at a and 1 more, since epoch 1.")
    (problem,) = verdict.problems
    assert (problem.sites, problem.since, problem.until, problem.lasts) == (("a", "b"), 1, 2, True)
    assert problem.seen == "All of its units gave zero. Usually a large bias did it."
    assert problem.advice == ADVICE


def test_a_problem_whose_site_moves_is_one_problem_from_its_first_epoch(verdict_of):
    wandering = [("vanishing", site, "warning") for site in ("b.133.1", "b.133.0", "b.132.1")]
    verdict = verdict_of([], *([one] for one in wandering))
    (problem,) = verdict.problems
    assert problem.sites == ("b.133.1", "b.133.0", "b.132.1")
    assert (problem.when, problem.first.epoch) == ("since epoch 1", 1)


def test_the_first_alert_says_what_where_and_when(tmp_path):
    file = tmp_path / "run" / FOLDER / REPORTS
    append(file, line("fit", FIT))
    for epoch, (value, batch) in enumerate([(0.5102, 10), (1.0, 0), (1.0, 0)]):
        nan = replace(alert("nonfinite", "a", epoch, "critical", f"{value:.2%} are NaN."), value=value, batch=batch, since_step=10)
        append(file, report_line("features", "", features(epoch, ["a"], alerts=(nan,)), 0.0))
    run = read_run(file)
    (problem,) = judge(run).problems
    assert (problem.when, problem.seen) == ("since epoch 0, batch 10", "51.02% are NaN.")
    assert (problem.first.value, problem.first.batch, problem.first.since_step) == (0.5102, 10, 10)
    (course,) = courses(run)
    assert (course.since, course.alert.value, course.alert.batch) == (0, 0.5102, 10)


@pytest.mark.parametrize(
    ("losses", "status", "clause"),
    [
        ([2.3, 1.0, 0.41], "healthy", "; the loss fell from 2.30 to 0.410."),
        ([1.386, 1.386, 1.386], "unknown", "; the loss has not fallen: 1.39 in the first epoch, 1.39 in the last."),
        ([0.5, 0.2, 123.4], "unknown", "; the loss has not fallen: 0.500 in the first epoch, 123 in the last."),
        ([math.nan, 0.5, 0.25], "healthy", "; the loss fell from 0.500 to 0.250."),
        ([math.nan, 0.5, math.nan], "healthy", "."),
    ],
)
def test_what_is_said_of_the_loss(verdict_of, losses, status, clause):
    nothing = verdict_of([], [], [], losses=losses)
    assert (nothing.status, nothing.headline) == (status, f"3 epochs, no rule broken{clause}")
    past = verdict_of([DEAD], [], [], losses=losses)
    assert (past.status, past.headline) == (status, f"Dead units at a, in epoch 0, not seen since{clause}")
    assert verdict_of([], [], [DEAD], losses=losses).headline == "Dead units at a, since epoch 2."


def test_a_checkpoint_holds_what_was_found():
    def history(first, later):
        found = AlertBook()
        for epoch, alerts in enumerate(epochs[:first]):
            found.new_alerts(alerts, epoch, 2.0 / (epoch + 1))
        if later:
            resumed = AlertBook()
            resumed.load_state_dict(json.loads(json.dumps(found.state_dict())))
            found = resumed
        for epoch, alerts in enumerate(epochs[first:], first):
            found.new_alerts(alerts, epoch, 2.0 / (epoch + 1))
        return found

    epochs = [[alert("dead", "a", 0)], [], [], [alert("dead", "b", 3), alert("silent", "a", 3, "info")], [alert("dead", "a", 4)]]
    whole, resumed = history(5, False), history(4, True)
    assert problems_of(whole, 4) == problems_of(resumed, 4)
    assert (resumed.windows, resumed.losses) == (5, (2.0, 0.4))
    assert conclude([resumed], True, None).headline == "Dead units at b and 1 more, since epoch 3 (also in epoch 0)."


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        ("interrupted", "Training was interrupted by the user."),
        (None, "Training was still running when this was written, or was killed."),
    ],
)
def test_how_training_ended_is_reported(verdict_of, end, detail):
    assert verdict_of([], end=end).details[0] == detail


def test_a_run_that_raised_is_not_called_healthy(verdict_of):
    verdict = verdict_of([], end="exception")
    assert (verdict.status, verdict.headline) == ("failed", "Training ended with ValueError: boom. No alert was raised before it.")
    verdict = verdict_of([("silent", "a", "info")], end="exception", epoch=0, step=4)
    assert verdict.headline == "Training ended with ValueError: boom (epoch 0, step 4). No alert was raised before it."
    verdict = verdict_of([DEAD], [], end="exception")
    assert verdict.headline == "Training ended with ValueError: boom. Dead units at a, in epoch 0, not seen since."
    assert verdict.status == "failed"
