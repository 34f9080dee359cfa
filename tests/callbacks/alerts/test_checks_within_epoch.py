"""Checks within an epoch: how soon, what is kept, what is reported, and that nothing else changes."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, TrainingMonitor, monitors
from lightning_hooks.alerts import AlertError
from lightning_hooks.declare.book import EarlyChecks
from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.nonfinite.checks import LINES, StepChecks
from lightning_hooks.hooks import Faults
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Settings
from lightning_hooks.statistics.tables import HostCopies
from tests.support.host_reads import NETS, CountSyncs
from tests.support.models import Classifier, is_attached, loader, mlp, trainer
from tests.support.reference import same_state
from tests.support.trainings import BadBatch, amp


def bad(at: int, factor: float = math.nan, **kwargs: Any) -> BadBatch:
    torch.manual_seed(0)
    model = BadBatch(mlp(), factor, at)
    for name, value in kwargs.items():
        setattr(model, name, value)
    return model


def quiet(**kwargs: Any) -> list[Any]:
    return monitors(**{"summary": False, "on_alert": "stop", "check_every_n_steps": 1, **kwargs})


def until(batches: int) -> BadBatch:
    """The same model after so many good batches."""
    model = bad(-1)
    if batches:
        trainer(limit_train_batches=batches).fit(model, loader())
    return model


# How soon, and what is kept.


@pytest.mark.parametrize(
    ("every", "at", "how"), [(1, 0, "stop"), (1, 2, "raise"), (3, 6, "raise"), (3, 2, "stop"), (100, 6, "stop")]
)
def test_on_the_cpu_the_fit_ends_with_the_step(every: int, at: int, how: str) -> None:
    seen: list[Alert] = []
    model, ours = bad(at), quiet(on_alert=how, check_every_n_steps=every)
    for monitor in ours:
        monitor.subscribe(seen.append)
    run = trainer(ours, max_epochs=3)
    if how == "raise":
        with pytest.raises(AlertError, match="loss_nonfinite at loss") as raised:
            run.fit(model, loader())
        assert list(raised.value.alerts) == seen
        assert not any(is_attached(monitor) for monitor in ours)
        assert same_state(model, until(at)), "the update is not made"
    else:
        run.fit(model, loader())
        assert run.state.finished
        assert run.current_epoch == 1
    assert len(model.losses) == at + 1
    (alert,) = seen
    assert (alert.kind, alert.severity, alert.epoch, alert.batch, alert.since_step) == ("loss_nonfinite", "critical", 0, at, at)
    assert alert.step == at
    assert "nonfinite at net.0.weight" in alert.consequences


def test_a_nan_in_one_micro_batch_ends_the_fit_at_the_step_of_its_window() -> None:
    model, seen = bad(3), []  # windows are batches 0-2, 3-5, 6
    ours = quiet()
    ours[1].subscribe(seen.append)
    trainer(ours, accumulate_grad_batches=3).fit(model, loader())
    assert len(model.losses) == 6
    (alert,) = seen
    assert (alert.site, alert.step) == ("loss", 1)


@pytest.mark.parametrize("how", ["log", "warn", "function"])
def test_who_only_wants_to_know_is_reported_at_once_and_training_is_as_without(how: str) -> None:
    seen: list[tuple[int, Alert]] = []
    model, plain = bad(2), bad(2)

    def reported(alert: Alert) -> None:
        seen.append((len(model.losses), alert))

    ours = quiet(on_alert=reported if how == "function" else how, check_every_n_steps=2)
    for monitor in ours:
        if how != "function":
            monitor.subscribe(reported)
    if how == "warn":
        with pytest.warns(UserWarning, match="loss_nonfinite at loss") as warned:
            trainer(ours, max_epochs=3).fit(model, loader())
        assert len([w for w in warned if "nonfinite" in str(w.message)]) == 1
    else:
        trainer(ours, max_epochs=3).fit(model, loader())
    trainer(max_epochs=3).fit(plain, loader())
    assert [batches for batches, _ in seen] == [3]  # once, in three epochs
    assert len(model.losses) == len(plain.losses) == 21
    assert all(
        torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(model.parameters(), plain.parameters(), strict=True)
    )


# What is reported, and once.


def test_a_rank_that_cannot_read_its_gradients_takes_part_in_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for it."""
    shared: list[torch.Tensor] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: shared.append(tensor.clone()))
    faults = Faults()
    checks = StepChecks(EarlyChecks(1, set()), ["a", "b"], 2, lambda: None, on_fault=faults)

    class UnreadableError(nn.Parameter):
        @property
        def grad(self) -> None:  # type: ignore[override]
            raise ZeroDivisionError

    for parameter in (UnreadableError(torch.ones(2)), nn.Parameter(torch.ones(2))):
        checks.gradients(Step(0, 2, [0], [], [parameter], None, False, False, 0))
    assert [tensor.tolist() for tensor in shared] == [[0.0, 0.0]] * 2
    assert faults.errors == {"optimizer step (norms for checks)": "ZeroDivisionError: "}


# Half precision.


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_under_a_loss_scaler_is_no_fault(fused: bool) -> None:
    model = bad(2, math.inf, optimizer=lambda p, lr: torch.optim.Adam(p, lr=0.01, fused=fused))
    ours = quiet()
    trainer(ours, plugins=amp(1024.0)).fit(model, loader())
    assert len(model.losses) == 7
    assert ours[2].report.optimizers["0-Adam"].skipped_steps == 1
    assert [alert for monitor in ours[:2] for alert in monitor.report.alerts if alert.severity != "info"] == []


# On an accelerator numbers come later: here a device that takes its time.


class Slow(HostCopies):
    """Copies are there after so many looks."""

    looks = 1

    def send(self, values: Tensor, note: Any = None) -> None:
        self._under_way.append((values.clone(), Event(self.looks), note))


class Event:
    waited = 0

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def synchronize(self) -> None:
        Event.waited += 1


@pytest.mark.parametrize(
    ("every", "looks", "polls"),
    [(1, 0, True), (1, 9, True), (3, 1, True), (3, 9, True), (50, 2, True), (1, 1, False), (3, 0, False)],
)
def test_on_a_device_it_takes_two_intervals_at_most(every: int, looks: int, polls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here(Slow):
        def __init__(self, polls: bool = True) -> None:
            super().__init__(polls)
            self._polls = wanted

    wanted, Here.looks = polls, looks
    monkeypatch.setattr("lightning_hooks.diagnostics.nonfinite.checks.HostCopies", Here)
    monkeypatch.setattr(StepChecks, "on_host", staticmethod(lambda norms: False))
    for at in (0, 4, 7):
        model, seen = bad(at), []
        flow = GradientFlowMonitor(on_alert="stop", every_n_steps=100, check_every_n_steps=every, summary=False)
        flow.subscribe(seen.append)
        trainer([flow]).fit(model, loader(n=960))
        (alert,) = seen
        assert (alert.batch, alert.since_step) == (at, at)
        late = len(model.losses) - 1 - at
        sent = -(at + 1) % every  # from the step to the check that sends it
        expected = sent + (min(looks, every) if polls else every)
        assert late == expected or (late < expected and every > LINES)  # a full page is sent before its time
        assert late <= 2 * every - 1


# Nothing else changes.


def test_on_equals_off_bit_for_bit_and_no_value_is_read_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device; on the host: see ``test_training_unaltered``."""
    build, shape = NETS["cnn"]
    monkeypatch.setattr("lightning_hooks.diagnostics.nonfinite.checks.HostCopies", Slow)
    monkeypatch.setattr(StepChecks, "on_host", staticmethod(lambda norms: False))

    def fit(callbacks: list[Any]) -> tuple[Classifier, int]:
        seed_everything(7, verbose=False)
        counter = CountSyncs()
        model = Classifier(build(), optimizer=torch.optim.Adam, lr=0.01)
        trainer([counter, *callbacks], gradient_clip_val=0.3).fit(model, loader(shape, n=160))
        return model, counter.mode.syncs

    without, reads = fit([])
    watched, more = fit(quiet(every_n_steps=3, check_every_n_steps=2))
    assert watched.losses == without.losses
    assert same_state(watched, without)
    assert more == reads >= 20


# How to ask for it.


@pytest.mark.parametrize(
    ("given", "error"), [(0, ValueError), (-3, ValueError), (True, TypeError), (2.0, TypeError), ("5", TypeError)]
)
@pytest.mark.parametrize("kind", [GradientFlowMonitor, FeatureStatsMonitor, monitors])
def test_bad_input_is_rejected_with_what_was_expected(kind: Any, given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"check_every_n_steps must be .*at least 1, or None .*; got") as raised:
        kind(check_every_n_steps=given)
    assert repr(given) in str(raised.value)


def test_a_monitor_with_nothing_urgent_refuses() -> None:
    with pytest.raises(ValueError, match=r"Own has nothing to check within a window; got check_every_n_steps=5. Give it to Grad"):
        Member("Own", ClipCollector, Settings(check_every_n_steps=5))
    assert Member("Own", ClipCollector, Settings()).early is None
    with pytest.raises(TypeError, match="check_every_n_steps"):
        GradientClipMonitor(check_every_n_steps=5)


class Reads(Classifier):
    """Two tokens a sample, of a table of nine rows."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3)))


@pytest.mark.parametrize("bad", [0, 3])
def test_an_id_beyond_the_table_is_named_at_the_crash(bad: int, caplog: pytest.LogCaptureFixture) -> None:
    ids = torch.randint(0, 9, (40, 2))
    ids[8 * bad + 5, 1] = 9
    data = DataLoader(TensorDataset(ids, torch.zeros(40, dtype=torch.long)), batch_size=8)
    monitor = TrainingMonitor(summary=False, report_dir=None)
    with caplog.at_level(logging.INFO), pytest.raises(IndexError, match="index out of range in self"):
        trainer([monitor]).fit(Reads(), data)
    (line,) = [record.message for record in caplog.records if record.message.startswith("[critical]")]
    seen = f"id 9 in a table of 9 rows, at [5, 1] of tensor 0 of the batch, in training batch {bad} of the epoch."
    (alert,) = monitor.features.alerts
    assert (alert.name, alert.batch) == ("id_out_of_range at net.0", bad)
    where = f"id_out_of_range at net.0 (epoch 0, step {bad}, since batch {bad}, 97% likely)"
    assert line.startswith(f"[critical] {where}: {seen}")
