"""Checks within an epoch: how soon, what is kept, what is reported, and that nothing else changes."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, TrainingMonitor, monitors
from lightning_hooks.alerts import AlertError, FeatureReport
from lightning_hooks.declare.book import EarlyChecks
from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.nonfinite.checks import LINES, StepChecks
from lightning_hooks.environment import callbacks_from_environment
from lightning_hooks.hooks import Faults
from lightning_hooks.run_report import judge, read_run
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Settings
from lightning_hooks.statistics.host_copies import HostCopies
from tests.support.host_reads import NETS, CountSyncs
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, is_attached, loader, mlp, trainer
from tests.support.reference import same_state
from tests.support.trainings import BadBatch, Gan, amp


def bad(at: int, factor: float = math.nan, **kwargs: Any) -> BadBatch:
    torch.manual_seed(0)
    model = BadBatch(mlp(), factor, at)
    for name, value in kwargs.items():
        setattr(model, name, value)
    return model


def quiet(**kwargs: Any) -> list[Any]:
    return monitors(**{"summary": False, "on_alert": "stop", "check_every_n_steps": 1, **kwargs})


def until(batches: int, **kwargs: Any) -> BadBatch:
    """The same model after so many good batches."""
    model = bad(-1)
    if batches:
        trainer(limit_train_batches=batches, **kwargs).fit(model, loader())
    return model


# How soon, and what is kept.


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("at", [0, 2, 6])
@pytest.mark.parametrize("how", ["stop", "raise"])
def test_on_the_cpu_the_update_with_a_nan_is_not_made(every: int, at: int, how: str) -> None:
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
    else:
        run.fit(model, loader())
        assert run.state.finished
        assert run.current_epoch == 1
    assert len(model.losses) == at + 1
    assert same_state(model, until(at))
    (alert,) = seen
    assert (alert.kind, alert.severity, alert.epoch, alert.batch, alert.since_step) == ("loss_nonfinite", "critical", 0, at, at)
    assert alert.step == at
    assert "nonfinite at net.0.weight" in alert.consequences


def test_without_checks_the_epoch_goes_on_to_its_end() -> None:
    model = bad(2)
    trainer(monitors(summary=False, on_alert="stop", every_n_steps=1), max_epochs=3).fit(model, loader())
    assert len(model.losses) == 7
    assert not all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("only", ["flow", "clipped", "adam", "late"])
def test_whoever_clips_and_whatever_steps(only: str) -> None:
    kwargs: dict[str, Any] = {"gradient_clip_val": 0.1} if only == "clipped" else {}
    optimizer = (lambda p, lr: torch.optim.AdamW(p, lr=lr)) if only == "adam" else torch.optim.SGD
    model, same = bad(4, math.inf, optimizer=optimizer), bad(-1, optimizer=optimizer)
    seen: list[Alert] = []
    flow = GradientFlowMonitor(on_alert="stop", check_every_n_steps=5, summary=False, every_n_steps=100 if only == "late" else 1)
    flow.subscribe(seen.append)
    trainer([flow], **kwargs).fit(model, loader())
    trainer([], limit_train_batches=4, **kwargs).fit(same, loader())
    assert same_state(model, same)
    assert [(alert.kind, alert.batch) for alert in seen if alert.severity != "info"] == [("loss_nonfinite", 4)]
    assert not flow.faults.errors


def test_a_nan_in_one_micro_batch_ends_the_fit_at_the_step_of_its_window() -> None:
    model, seen = bad(3), []  # windows are batches 0-2, 3-5, 6
    ours = quiet()
    ours[1].subscribe(seen.append)
    trainer(ours, accumulate_grad_batches=3).fit(model, loader())
    assert len(model.losses) == 6
    assert same_state(model, until(3, accumulate_grad_batches=3))
    (alert,) = seen
    assert (alert.site, alert.step) == ("loss", 1)


def test_of_two_optimizers_by_hand_only_the_affected_one_is_held() -> None:
    class BadGan(Gan):
        def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
            first = self.trainer.fit_loop.epoch_loop.batch_idx == 2 and self.calls % 2 == 0
            self.calls += 1
            super().manual_backward(loss * math.nan if first else loss, *args, **kwargs)

    torch.manual_seed(0)
    model = BadGan()
    model.calls = 0
    ours = quiet()
    trainer(ours).fit(model, loader())
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert model.calls == 6
    assert [stats.skipped_steps for stats in ours[2].report.optimizers.values()] == [1, 0]
    assert not any(monitor.faults.errors for monitor in ours)


def test_who_looks_at_the_gradients_after_the_step_finds_them_as_they_were() -> None:
    class Look(Callback):
        found: list[bool] = []  # noqa: RUF012

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            self.found.append(bool(pl_module.net[0].weight.grad.isfinite().all()))

    look = Look()
    trainer([*quiet(), look]).fit(bad(2), loader())
    assert look.found == [True, True, False]


def test_the_checkpoint_after_the_stop_is_finite(tmp_path: Path) -> None:
    saves = ModelCheckpoint(tmp_path, save_last=True)
    run = trainer([*quiet(), saves], enable_checkpointing=True, max_epochs=4)
    run.fit(bad(5), loader())
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert all(bool(value.isfinite().all()) for value in state.values())
    assert same_state(until(5), _with(state))


def _with(state: dict[str, Tensor]) -> nn.Module:
    model = bad(-1)
    model.load_state_dict(state)
    return model


def test_where_training_must_go_on_nothing_that_is_nan_is_applied() -> None:
    model = bad(2)
    trainer(quiet(), min_epochs=2, max_epochs=2).fit(model, loader())
    assert len(model.losses) == 14
    assert all(bool(p.isfinite().all()) for p in model.parameters())


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


class Masked(Classifier):
    """One module's output is NaN in one batch, and does not reach the loss."""

    def __init__(self, at: int) -> None:
        torch.manual_seed(0)
        super().__init__(nn.ModuleDict({"body": mlp(), "aside": nn.Tanh()}))
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.net["aside"](x * math.nan if batch_idx == self.at else x)
        self.losses.append(0.0)
        return nn.functional.cross_entropy(self.net["body"](x), y)


@pytest.mark.parametrize(
    ("every", "sampling", "at", "batches"), [(1, 1, 2, 3), (3, 1, 2, 3), (3, 1, 3, 6), (2, 4, 4, 6), (2, 4, 3, 7)]
)
def test_features_are_looked_at_every_n_batches(every: int, sampling: int, at: int, batches: int) -> None:
    seen: list[Alert] = []
    model = Masked(at)
    monitor = FeatureStatsMonitor(every_n_steps=sampling, check_every_n_steps=every, on_alert="stop", summary=False)
    monitor.subscribe(seen.append)
    trainer([monitor]).fit(model, loader())
    assert len(model.losses) == batches
    assert [(alert.site, alert.batch) for alert in seen] == ([("net.aside", at)] if at % sampling == 0 else [])


def test_the_first_place_in_the_order_of_execution_is_reported_and_the_rest_follows() -> None:
    class Sick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x / 0.0 if self.calls == 4 else x

    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(8, 8), Sick(), nn.Linear(8, 3)))
    ours = quiet(every_n_steps=1, on_alert="raise", check_every_n_steps=10)
    with pytest.raises(AlertError) as raised:
        trainer(ours).fit(model, loader())
    (alert,) = raised.value.alerts
    assert (alert.name, alert.batch, alert.step) == ("nonfinite at net.1", 3, 3)
    assert {"nonfinite at net.2", "nonfinite at net.0.weight"} <= {*alert.consequences}


def test_growth_is_left_to_windows() -> None:
    """What check_every_n_steps looks for are values that are not finite; gradients that grow are judged at a window's end."""

    class Loud(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * 1e6

    torch.manual_seed(0)
    model = Loud(mlp(), lr=1e-12)
    with pytest.raises(AlertError, match="exploding"):
        trainer(quiet(on_alert="raise", report_every_n_steps=5)).fit(model, loader())
    assert len(model.losses) == 5


def test_a_wild_batch_that_ends_in_a_nan_is_reported_as_the_nan() -> None:
    class Wild(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * {2: 1e9, 3: math.nan}.get(batch_idx, 1.0)

    with pytest.raises(AlertError) as raised:
        trainer(quiet(on_alert="raise", every_n_steps=1)).fit(Wild(mlp(), lr=1e-12), loader())
    assert [(alert.kind, alert.batch) for alert in raised.value.alerts] == [("loss_nonfinite", 3)]


# What is reported, and once.


def test_what_was_reported_holds_at_the_epochs_end_and_in_later_epochs(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    ours = quiet(on_alert="log", check_every_n_steps=2, every_n_steps=3)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer(ours, max_epochs=4, logger=CSVLogger(tmp_path, name="", version=0), log_every_n_steps=1).fit(bad(2), loader())
    assert len([r for r in caplog.records if r.message.startswith("[critical] loss_nonfinite")]) == 1
    lines = (tmp_path / "version_0/lightning_hooks/alerts.jsonl").read_text().splitlines()
    (reported,) = [line for line in map(json.loads, lines) if line["kind"] == "loss_nonfinite"]
    assert (reported["event"], reported["site"], reported["epoch"], reported["batch"], reported["step"]) == (
        "raised",
        "loss",
        0,
        2,
        2,
    )
    root = next(alert for alert in ours[1].report.alerts if not alert.cause and alert.severity == "critical")
    assert (root.name, root.since_step) == ("loss_nonfinite at loss", 2)


def test_what_only_a_check_saw_is_in_the_epochs_report() -> None:
    ours = quiet(every_n_steps=100)
    run = trainer(ours)
    run.fit(bad(4), loader())
    assert [(a.name, a.batch) for a in ours[1].report.alerts if not a.cause] == [("loss_nonfinite at loss", 4)]
    assert run.callback_metrics["gradient_flow/alerts/nonfinite"] == 6
    stats = ours[2].report.optimizers["0-SGD"]
    assert (stats.steps, stats.skipped_steps) == (4, 1)


def test_what_is_muted_or_must_be_found_more_than_once_is_left_alone() -> None:
    for rules in (["-nonfinite"], [{"kind": "nonfinite", "times": 2, "of": 3}]):
        model = bad(2)
        trainer(quiet(rules=rules)).fit(model, loader())
        assert len(model.losses) == 7
    model = bad(2)
    trainer(quiet(rules=["-nonfinite at net.4*", "-nonfinite at 0-SGD"])).fit(model, loader())
    assert len(model.losses) == 3


def test_a_rule_of_ones_own_may_be_urgent() -> None:
    asked: list[int] = []

    def plain(report: FeatureReport) -> Any:
        asked.append(report.step)
        return ()

    with pytest.raises(AlertError):
        trainer(quiet(on_alert="raise", rules=[plain])).fit(bad(2), loader())
    assert asked == []  # it sees whole epochs only


def test_a_raise_within_an_epoch_leaves_a_health_report(tmp_path: Path) -> None:
    ours = quiet(on_alert="raise")
    with pytest.raises(AlertError):
        trainer(ours, logger=CSVLogger(tmp_path, name="", version=0), log_every_n_steps=1).fit(bad(4), loader())
    assert [a.name for a in ours[1].report.alerts if not a.cause] == ["loss_nonfinite at loss"]
    verdict = judge(read_run(tmp_path / "version_0/lightning_hooks"))
    assert verdict.headline.startswith("Mul of nan at loss, since epoch 0, batch 4.")
    assert "nonfinite" in (tmp_path / "version_0/lightning_hooks/report.md").read_text()


def test_a_fault_of_ours_in_a_check_does_not_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(StepChecks, "stepping", broken)
    model = bad(-1)
    with pytest.warns(UserWarning, match=r"optimizer step \(on_update\).* raised KeyError: 'oops'"):
        trainer([GradientFlowMonitor(check_every_n_steps=1, summary=False)]).fit(model, loader())
    assert len(model.losses) == 7


def test_checks_go_on_where_what_is_measured_of_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("lightning_hooks.diagnostics.gradients.sampled_steps.MeasuredStep", broken)
    model, ours = bad(3), quiet(every_n_steps=1)
    with pytest.warns(UserWarning, match=r"optimizer step \(what is measured\).* raised KeyError: 'oops'"):
        trainer(ours).fit(model, loader())
    assert len(model.losses) == 4
    assert next(alert.name for alert in ours[1].report.alerts) == "loss_nonfinite at loss"


def test_a_rank_that_cannot_read_its_gradients_takes_part_in_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for it."""
    shared: list[torch.Tensor] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, op: shared.append(tensor.clone()))
    faults = Faults()
    checks = StepChecks(EarlyChecks(1, set()), ["a", "b"], 2, lambda: False, on_fault=faults)

    class UnreadableError(nn.Parameter):
        @property
        def grad(self) -> None:  # type: ignore[override]
            raise ZeroDivisionError

    for parameter in (UnreadableError(torch.ones(2)), nn.Parameter(torch.ones(2))):
        checks.gradients(Step(0, 2, [0], [], [parameter], None, False, False, 0))
    assert [tensor.tolist() for tensor in shared] == [[0.0, 0.0]] * 2
    assert faults.errors == {"optimizer step (norms for checks)": "ZeroDivisionError: "}


def test_a_resumed_epoch_holds_what_it_reported(tmp_path: Path) -> None:
    class Keeps(BadBatch):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            pass

    def fit(callbacks: Any, path: Path | None = None) -> tuple[list[Alert], list[Any]]:
        seen: list[Alert] = []
        torch.manual_seed(0)
        ours = quiet(on_alert="log", every_n_steps=100)
        ours[1].subscribe(seen.append)
        run = trainer([*ours, *callbacks], use_distributed_sampler=False)
        run.fit(Keeps(mlp(), math.nan, 2), Batches((8,)), ckpt_path=path, weights_only=True if path else None)
        return seen, ours

    with pytest.raises(SystemExit):
        fit([SaveAt(tmp_path / "mid.ckpt", 0, 4)])
    seen, ours = fit([], tmp_path / "mid.ckpt")
    assert seen == []
    assert [(a.name, a.batch, a.since_step) for a in ours[1].report.alerts if not a.cause] == [("loss_nonfinite at loss", 2, 2)]


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

    def post(self, values: Tensor) -> tuple[Tensor, Any]:
        return values.clone(), Event(self.looks)


class Event:
    waited = 0

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def query(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def synchronize(self) -> None:
        Event.waited += 1


@pytest.mark.parametrize(("every", "looks"), [(1, 0), (1, 1), (1, 9), (3, 0), (3, 1), (3, 9), (50, 2)])
@pytest.mark.parametrize("polls", [True, False])
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


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("later", [False, True])
def test_on_equals_off_bit_for_bit_and_no_value_is_read_in_a_step(net: str, later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    build, shape = NETS[net]
    if later:
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


def test_a_compiled_model_is_checked_as_any_other() -> None:
    model = bad(3)
    model.net = torch.compile(model.net, backend="eager")
    seen: list[Alert] = []
    ours = quiet(every_n_steps=1)
    for monitor in ours:
        monitor.subscribe(seen.append)
    trainer(ours).fit(model, loader())
    torch.compiler.reset()
    assert len(model.losses) == 4
    assert [(alert.kind, alert.batch) for alert in seen] == [("loss_nonfinite", 3)]


# How to ask for it.


@pytest.mark.parametrize(
    ("given", "error"), [(0, ValueError), (-3, ValueError), (True, TypeError), (2.0, TypeError), ("5", TypeError)]
)
@pytest.mark.parametrize("kind", [GradientFlowMonitor, FeatureStatsMonitor, monitors])
def test_bad_input_is_rejected_with_what_was_expected(kind: Any, given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"check_every_n_steps must be None .* or an integer of at least 1; got") as raised:
        kind(check_every_n_steps=given)
    assert repr(given) in str(raised.value)


def test_a_monitor_with_nothing_urgent_refuses() -> None:
    with pytest.raises(ValueError, match=r"Own has nothing to check within a window; got check_every_n_steps=5. Give it to Grad"):
        Member("Own", ClipCollector, Settings(check_every_n_steps=5))
    assert Member("Own", ClipCollector, Settings()).early is None
    with pytest.raises(TypeError, match="check_every_n_steps"):
        GradientClipMonitor(check_every_n_steps=5)


def test_the_environment_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hooks.yaml").write_text("check_every_n_steps: 5\non_alert: stop\n")
    monkeypatch.setenv("LIGHTNING_HOOKS", str(tmp_path / "hooks.yaml"))
    (monitor,) = callbacks_from_environment()
    assert [member.settings.check_every_n_steps for member in monitor.members] == [
        5,
        None,
        None,
        5,
        None,
    ]  # attention and routers have nothing urgent


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
    assert line.startswith(f"[critical] id_out_of_range at net.0 (epoch 0, step {bad}, since batch {bad}): {seen}\n")
    assert [(alert.name, alert.batch) for alert in monitor.features.alerts] == [("id_out_of_range at net.0", bad)]
