"""Problems over time: what an earlier window had explains what lasts, and what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor
from lightning_hooks.alerts import AlertBook, AttentionReport, GradientFlowReport
from lightning_hooks.declare.cause import Cause
from lightning_hooks.declare.window import Window
from lightning_hooks.judge.diagnosis import Diagnosis
from lightning_hooks.judge.problems import in_problems
from tests.support.models import trainer

RATE, LOGITS, COLLAPSE = "update_too_large at head.weight", "attention_logits at a", "attention_collapse at a"
MODULES: dict[str, Any] = dict.fromkeys(("a", "b", "head"))


def found(name: str, epoch: int) -> Alert:
    """``kind at site``, with ``info`` or ``critical`` before it where it is not a warning."""
    severity, _, rest = name.rpartition(": ")
    kind, _, site = rest.partition(" at ")
    return Alert(kind, site, 1.0, 0.5, epoch, 10 * epoch + 10, severity or "warning", "seen", 10 * epoch + 10)  # type: ignore[arg-type]


def story(
    *windows: Sequence[str], books: Sequence[AlertBook] | None = None, first: int = 0
) -> list[tuple[dict[str, str], list[str]]]:
    """Of each window the alerts above info or with a cause, each with its cause; and what is new."""
    books = books or (AlertBook(), AlertBook())
    result: list[tuple[dict[str, str], list[str]]] = []
    for epoch, names in enumerate(windows, first):
        alerts = [found(name, epoch) for name in names]
        flow = replace(
            GradientFlowReport(epoch, 10, MODULES, {}, 1.0), alerts=tuple(a for a in alerts if "attention" not in a.kind)
        )
        attention = replace(AttentionReport(epoch, 10, {}), alerts=tuple(a for a in alerts if "attention" in a.kind))
        shown: dict[str, str] = {}
        new: list[str] = []
        for book, ordered in zip(books, in_problems(Window([flow, attention]), books).of_report, strict=True):
            grouped = book.grouped(ordered)
            new += [alert.name for alert in book.new_alerts(grouped, epoch)]
            shown.update({alert.name: alert.cause for alert in grouped if alert.severity != "info" or alert.cause})
        result.append((shown, new))
    return result


def test_a_problem_stays_the_cause_of_what_it_has_damaged() -> None:
    first, second, third, last = story([RATE], [COLLAPSE], [COLLAPSE], ["attention_collapse at b"])
    assert first == ({RATE: ""}, [RATE])
    assert second == third == ({RATE: "", COLLAPSE: RATE}, [])
    assert last == ({RATE: "", "attention_collapse at b": RATE}, [])


def test_the_alert_is_the_one_that_was_passed_on_with_what_follows_now() -> None:
    book = AlertBook()
    book.new_alerts([replace(found(RATE, 0), message="a step changes it by 131%")])
    report = replace(AttentionReport(3, 10, {}), alerts=(found(COLLAPSE, 3), found("attention_collapse at b", 3)))
    ordered = in_problems(Window([replace(GradientFlowReport(3, 10, MODULES, {}, 1.0)), report]), [book, AlertBook()])
    ((alert,), _) = ordered.of_report
    assert (alert.message, alert.epoch, alert.since_step, alert.severity) == ("a step changes it by 131%", 0, 10, "warning")
    assert {*alert.consequences} == {COLLAPSE, "attention_collapse at b"}
    assert [problem.alert.name for problem in ordered.problems] == [RATE]


@pytest.mark.parametrize(
    ("windows", "root"),
    [
        (([COLLAPSE], [RATE, COLLAPSE], [COLLAPSE]), COLLAPSE),  # it was passed on before, and stays the head
        (([COLLAPSE], [RATE]), COLLAPSE),
        (([RATE], ["loss_spike at loss"], ["not_zeroed at 0-SGD"]), "not_zeroed at 0-SGD"),  # a fact stands alone
        (([f"info: {RATE}"], [COLLAPSE]), COLLAPSE),  # an info explains no warning
        (([RATE], [f"critical: {COLLAPSE}"]), f"critical: {COLLAPSE}"),  # what is graver is passed on
        (([RATE], [], [], [COLLAPSE]), COLLAPSE),  # it had ended
    ],
)
def test_what_stands_for_a_problem(windows: Sequence[Sequence[str]], root: str) -> None:
    books = AlertBook(), AlertBook()
    *_, (shown, new) = story(*windows, books=books)
    name = root.rpartition(": ")[2]
    assert shown.pop(name) == ""
    assert set(shown.values()) <= {name}
    assert new == ([] if windows[0][0] == root else [name])
    assert name in {alert.name for book in books for alert in book.open}


def test_what_grows_graver_is_passed_on_by_what_explains_it() -> None:
    books = AlertBook(), AlertBook()
    *_, (shown, new) = story([RATE], [COLLAPSE], [f"critical: {COLLAPSE}"], books=books)
    assert (shown, new) == ({RATE: "", COLLAPSE: RATE}, [RATE])
    assert [alert.severity for alert in books[0].open] == ["critical"]


@pytest.mark.parametrize(("cause", "joined"), [("rate_too_high", True), ("constant_weights", False)])
@pytest.mark.parametrize("began", [0, 2])
def test_a_new_problem_with_a_cause_belongs_to_an_earlier_one_with_the_same(cause: str, joined: bool, began: int) -> None:
    """Another monitor's, whenever it began: one cause is one problem."""
    causes = [(Cause(name, "It is so.", 0.9),) for name in ("rate_too_high", cause)]
    head, effect = replace(found(RATE, 1), causes=causes[0]), replace(found(COLLAPSE, 3), causes=causes[1])
    book = AlertBook()
    book.new_alerts([head])
    reports = GradientFlowReport(3, 10, MODULES, {}, 1.0), AttentionReport(3, 10, {})
    alerts = (replace(effect, since_step=10 * began),)
    ordered = in_problems(Window([reports[0], replace(reports[1], alerts=alerts)]), [book, AlertBook()])
    assert [problem.alert.name for problem in ordered.problems] == [RATE if joined else COLLAPSE]
    assert [one.cause for one in ordered.of_report[1]] == [RATE if joined else ""]


@pytest.mark.parametrize(
    ("severity", "cause", "joined"),
    [("warning", "rate_too_high", True), ("critical", "rate_too_high", False), ("warning", "constant_weights", False)],
)
def test_the_cause_of_a_problem_that_is_over_is_not_passed_on_again_unless_what_it_does_is_graver(
    severity: str, cause: str, joined: bool
) -> None:
    head, effect = (
        replace(found(name, epoch), causes=(Cause(of, "It is so.", 0.9),))
        for name, epoch, of in ((RATE, 0, "rate_too_high"), (f"{severity}: {COLLAPSE}", 4, cause))
    )
    books = AlertBook(), AlertBook()
    for epoch in range(4):
        books[0].new_alerts([head] if epoch == 0 else [], epoch)
    assert [one.passed_on.name for one in books[0].past] == [RATE]
    reports = GradientFlowReport(4, 10, MODULES, {}, 1.0), replace(AttentionReport(4, 10, {}), alerts=(effect,))
    ordered = in_problems(Window(reports), books)
    assert [problem.alert.name for problem in ordered.problems] == [COLLAPSE] * (not joined)
    assert [(one.cause, one.severity) for one in ordered.of_report[1]] == [(RATE, "info") if joined else ("", severity)]
    assert ordered.of_report[0] == ()  # it is not back itself


@pytest.mark.parametrize(
    ("kind", "windows", "sure", "joined"),
    [
        ("update_too_large", 2, 0.9, True),  # it was not found in the last window, and may last
        ("update_too_large", 2, 0.5, False),  # that the loss has a cause of its own is more probable
        ("not_zeroed", 2, 0.5, True),  # what is wrong in itself comes first
        ("update_too_large", 3, 0.9, False),  # it is over
    ],
)
def test_a_loss_that_stands_still_is_what_a_problem_does_that_lasts(kind: str, windows: int, sure: float, joined: bool) -> None:
    head = replace(found(f"{kind} at 0-SGD", 0), causes=(Cause("rate_too_high", "It is so.", sure),))
    effect = replace(found("no_progress at loss", windows), causes=(Cause("unrelated_targets", "It is so.", 0.6),))
    book = AlertBook()
    for epoch in range(windows):
        book.new_alerts([head] if epoch == 0 else [], epoch)
    for epoch in range(windows, windows + 3):
        report = replace(GradientFlowReport(epoch, 10, MODULES, {}, 1.0), alerts=(replace(effect, epoch=epoch),))
        (ordered,) = in_problems(Window([report]), [book]).of_report
        assert [one.cause for one in ordered] == [head.name if joined else ""]
        book.new_alerts(book.grouped(ordered), epoch)
        assert [one.kind for one in book.open] == ([] if joined else ["no_progress"])
        assert (book.problems[kind, True][0].over, len(book.cleared)) == (not joined and windows + epoch > 4, 0) or not joined


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("wrong_sign", "rate_too_high", True),  # what grew has overflowed, whichever of its possible causes it is
        ("rate_too_high", "rate_too_high", True),
        ("wrong_sign", "nonfinite_data", False),
    ],
)
def test_what_overflows_belongs_to_what_grew_before(first: str, second: str, joined: bool) -> None:
    head, effect = (
        replace(found(f"critical: {name}", epoch), causes=(Cause(cause, "It is so.", 0.9),))
        for name, epoch, cause in (("exploding at 0-SGD", 1, first), ("loss_nonfinite at loss", 3, second))
    )
    book = AlertBook()
    book.new_alerts([head])
    report = replace(GradientFlowReport(3, 10, MODULES, {}, 1.0), alerts=(effect,))
    ordered = in_problems(Window([report]), [book])
    assert [problem.alert.kind for problem in ordered.problems] == ["exploding" if joined else "loss_nonfinite"]


@pytest.mark.parametrize(
    ("first", "kind", "second", "joined"),
    [
        ("rate_too_low", "critical: no_progress", "rate_too_low", True),  # one cause, however grave what it does
        ("idle_step", "critical: no_progress", "unrelated_targets", True),  # the surer of two causes explains the outcome
        ("unrelated_targets", "critical: no_progress", "idle_step", False),
        ("idle_step", "critical: attention_collapse", "unrelated_targets", False),  # a symptom is no outcome
    ],
)
def test_what_a_known_cause_does_later_is_no_news(first: str, kind: str, second: str, joined: bool) -> None:
    sure = {"idle_step": 0.9, "unrelated_targets": 0.6, "rate_too_low": 0.7}
    head, effect = (
        replace(found(f"{what} at a", epoch), causes=(Cause(cause, "It is so.", sure[cause]),))
        for what, epoch, cause in (("update_too_small", 1, first), (kind, 3, second))
    )
    book = AlertBook()
    book.new_alerts([head])
    report = replace(GradientFlowReport(3, 10, MODULES, {}, 1.0), alerts=(effect,))
    (ordered,) = in_problems(Window([report]), [book]).of_report
    assert [alert.kind for alert in book.new_alerts(book.grouped(ordered), 3)] == ([] if joined else [effect.kind])


def test_a_problem_that_has_moved_on_has_its_beginning_and_its_causes() -> None:
    book = AlertBook()
    book.new_alerts([replace(found(RATE, 0), causes=(Cause("rate_too_high", "It is so.", 0.9),))])
    moved, same = replace(found(RATE, 3), site="a.weight"), Cause("rate_too_high", "It is so.", 0.9)
    spike = replace(found("update_spike at head.weight", 3), since_step=20, causes=(same,))
    report = replace(GradientFlowReport(3, 10, MODULES, {}, 1.0), alerts=(moved, spike))
    (problem,) = in_problems(Window([report]), [book]).problems
    assert (problem.alert.name, problem.alert.causes) == (moved.name, ())


@pytest.mark.parametrize(("severity", "known"), [("info", "unrelated_targets"), ("warning", "rate_too_low")])
def test_the_causes_of_what_was_not_probable_are_asked_for_anew(severity: str, known: str) -> None:
    """More steps may tell; what was passed on keeps the causes that it was passed on with."""
    book, names = AlertBook(), f"{severity}: no_progress at loss"
    book.new_alerts(book.grouped([replace(found(names, 0), causes=(Cause("rate_too_low", "It is so.", 0.9),))]))
    report = replace(GradientFlowReport(1, 20, MODULES, {}, 1.0), alerts=(found("no_progress at loss", 1),))
    now = (Cause("unrelated_targets", "It is so.", 0.6),)
    (problem,) = in_problems(
        Window([report]), [book], explain=lambda alerts: [replace(alert, causes=now) for alert in alerts]
    ).problems
    assert [cause.name for cause in problem.alert.causes] == [known]


@pytest.mark.parametrize("cut", [1, 2])
def test_a_resumed_run_knows_the_cause(cut: int) -> None:
    windows = [RATE], [COLLAPSE], [COLLAPSE], [COLLAPSE]
    books, later = (AlertBook(), AlertBook()), (AlertBook(), AlertBook())
    before = story(*windows[:cut], books=books)
    for book, other in zip(books, later, strict=True):
        other.load_state_dict(book.state_dict())
    assert before + story(*windows[cut:], books=later, first=cut) == story(*windows)


class Attends(LightningModule):
    """Predicts the next token of a Markov chain by two layers of attention."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.emb = nn.Embedding(32, 32)
        self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.head = nn.Linear(32, 32)
        for module in (self.emb, self.head, *self.qkv):
            nn.init.normal_(module.weight, std=0.02)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = self.emb(batch[0][:, :-1])
        for norm, qkv in zip(self.norm, self.qkv, strict=False):
            q, k, v = qkv(norm(x)).chunk(3, -1)
            x = x + nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        logits = self.head(self.norm[-1](x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [schedule]


def tokens() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(0)
    chain = torch.softmax(3 * torch.randn(32, 32, generator=draw), -1)
    columns = [torch.randint(0, 32, (256,), generator=draw)]
    for _ in range(24):
        columns.append(torch.multinomial(chain[columns[-1]], 1, generator=draw)[:, 0])
    return DataLoader(TensorDataset(torch.stack(columns, 1)), 16)


def test_causes_are_judged_with_the_reports_of_earlier_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int]]] = []

    def explained(_: Diagnosis, alerts: Sequence[Alert], window: Window, *__: Any) -> list[Alert]:
        seen.extend((report.epoch, [earlier.epoch for earlier in report.earlier]) for report in window.reports)
        return list(alerts)

    def another(report: GradientFlowReport) -> list[Alert]:
        return [Alert(f"own_{report.epoch}", "here", 1.0, 0.5, report.epoch, report.step, "warning", "seen")]

    monkeypatch.setattr(Diagnosis, "explained", explained)
    monitor = TrainingMonitor(summary=False, every_n_steps=8, rules=[another])
    trainer([monitor], max_epochs=3).fit(Attends(0.01), tokens())
    assert set(map(repr, seen)) == {"(0, [])", "(1, [0])", "(2, [0, 1])"}
    assert all(report.earlier == () for reports in monitor.history.values() for report in reports)
