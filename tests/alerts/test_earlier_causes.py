"""Root causes over time: what an earlier window had is the cause of what lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor
from lightning_hooks.alerts import AlertBook, AttentionReport, GradientFlowReport
from lightning_hooks.alerts.causes import in_order_of_cause
from lightning_hooks.declare.window import Window
from lightning_hooks.run_report import judge, read_run
from lightning_hooks.run_report.health import health_of
from lightning_hooks.run_report.verdict import courses
from lightning_hooks.session.diagnosis import Diagnosis
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
        for book, ordered in zip(books, in_order_of_cause(Window([flow, attention]), books).of_report, strict=True):
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


def test_it_is_over_with_its_consequences() -> None:
    books = AlertBook(), AlertBook()
    shown = story([RATE], [COLLAPSE], [COLLAPSE], [], [], [COLLAPSE], books=books)
    assert [new for _, new in shown] == [[RATE], [], [], [], [], [COLLAPSE]]
    (over,) = books[0].ended
    assert (over.since, over.until, [*over.consequences]) == (0, 2, [COLLAPSE])


def test_the_alert_is_the_one_that_was_passed_on_with_what_follows_now() -> None:
    book = AlertBook()
    book.new_alerts([replace(found(RATE, 0), message="a step changes it by 131%")])
    report = replace(AttentionReport(3, 10, {}), alerts=(found(COLLAPSE, 3), found("attention_collapse at b", 3)))
    ordered = in_order_of_cause(Window([replace(GradientFlowReport(3, 10, MODULES, {}, 1.0)), report]), [book, AlertBook()])
    ((alert,), _) = ordered.of_report
    assert (alert.message, alert.epoch, alert.since_step, alert.severity) == ("a step changes it by 131%", 0, 10, "warning")
    assert alert.consequences == (COLLAPSE, "attention_collapse at b")
    assert [root.name for _, root in ordered.roots] == [RATE]


def test_a_consequence_of_a_consequence() -> None:
    """The loss spikes after too large updates, and goes on to diverge when nothing else is found any more."""
    assert story([RATE], ["loss_spike at loss"], ["saturated at a"], ["loss_diverging at loss"])[1:] == [
        ({RATE: "", "loss_spike at loss": RATE}, []),
        ({"saturated at a": ""}, ["saturated at a"]),
        ({RATE: "", "loss_diverging at loss": RATE}, []),
    ]
    chain = story([RATE, LOGITS], [LOGITS], ["saturated at a"])
    assert [shown for shown, _ in chain] == [{RATE: "", LOGITS: RATE}, {RATE: "", LOGITS: RATE}, {RATE: "", "saturated at a": RATE}]


@pytest.mark.parametrize(
    "windows",
    [
        ([COLLAPSE], [RATE, COLLAPSE], [COLLAPSE]),  # it was passed on as a root cause before
        ([f"info: {RATE}"], [COLLAPSE]),  # an info is the cause of no warning
        ([RATE], [f"critical: {COLLAPSE}"]),  # nor a warning of what is critical
        ([RATE], [], [], [COLLAPSE]),  # it had ended
        (["saturated at b"], [COLLAPSE]),  # the kinds declare no such link
        (["update_too_large at 0-AdamW"], [COLLAPSE]),  # it is declared for weights alone
    ],
)
def test_what_is_no_cause(windows: Sequence[Sequence[str]]) -> None:
    shown, _ = story(*windows)[-1]
    assert set(shown.values()) == {""}
    assert len(shown) == 1


def test_what_began_in_the_same_window_before_its_cause_stays_a_root_cause() -> None:
    leap, spike = replace(found("exploding at head", 0), batch=21), replace(found("loss_spike at loss", 0), batch=20)
    book, roots = AlertBook(), []
    for epoch, alerts in enumerate([(leap, spike), (spike,)]):
        report = replace(GradientFlowReport(epoch, 10, {}, {}, 1.0), alerts=alerts)
        ordered = in_order_of_cause(Window([report]), [book])
        roots.append({alert.name for _, alert in ordered.roots})
        book.new_alerts(book.grouped(ordered.of_report[0]))
    assert roots == [{leap.name, spike.name}, {spike.name}]


def test_infos_follow_from_nothing_earlier() -> None:
    (_, (shown, new)) = story([RATE], [f"info: {COLLAPSE}"])
    assert (shown, new) == ({}, [COLLAPSE])


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

    monkeypatch.setattr(Diagnosis, "explained", explained)
    monitor = TrainingMonitor(summary=False, every_n_steps=8)
    trainer([monitor], max_epochs=3).fit(Attends(0.01), tokens())
    assert set(map(repr, seen)) == {"(0, [])", "(1, [0])", "(2, [0, 1])"}
    assert all(report.earlier == () for reports in monitor.history.values() for report in reports)


@pytest.mark.slow
def test_the_learning_rate_that_came_first_is_the_headline_of_a_collapse(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    monitor = TrainingMonitor(summary=False, every_n_steps=1)
    fit = trainer([monitor], max_epochs=7, logger=CSVLogger(tmp_path, name="", version=""))
    fit.fit(Attends(0.2), tokens())
    windows = [{alert.name: alert for alert in report.alerts} for report in monitor.history["gradients"]]
    (root,) = (alert for alert in windows[0].values() if alert.kind == "update_too_large" and not alert.cause)
    assert "learning rate is 0.2" in root.diagnosis
    assert root.advice[0].startswith("Set optimizer.lr to 0.003 (it is 0.2)")

    collapsed = [alert for alert in monitor.attention.alerts if alert.kind == "attention_collapse"]
    assert {alert.cause for alert in collapsed} == {root.name}
    assert [(alert.name, alert.severity) for alert in monitor.alerts] == [(root.name, "warning")]
    assert monitor.verdict.startswith("Updates as large as the weights at ")
    assert monitor.verdict.endswith(", since epoch 0.")

    run = read_run(tmp_path)
    assert judge(run).headline == monitor.verdict
    (problem,) = (problem for problem in judge(run).problems if problem.lasts and problem.severity != "info")
    assert {alert.name for alert in collapsed} <= set(problem.consequences)
    (course,) = (course for course in courses(run) if course.alert.name == root.name)
    assert (course.lasts, course.severity) == (True, "warning")
    first, *_ = health_of(run).document()["alerts"]
    assert (first["kind"], first["open"]) == ("update_too_large", True)
    assert "[warning] attention" not in caplog.text
    assert "[ended]" not in caplog.text
