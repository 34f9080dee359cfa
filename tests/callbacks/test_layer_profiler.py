"""LayerProfiler inside fits: what is measured, when, and what comes of it."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import GradientFlowMonitor, LayerProfiler
from lightning_hooks.callbacks.layer_profiler import SITE_STATS, STEP_STATS
from tests.support.ledger import LEDGER, Leaf, Work, assert_agrees, name_sites, sites
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer
from tests.support.reference import assert_same, same_state


class Opaque:
    def __init__(self, value: Tensor) -> None:
        self.value = value


class Ledgered(Classifier):
    """Work in modules and outside of them; the last module's output is nothing a hook can look into."""

    def __init__(self) -> None:
        class Last(Leaf):
            def run(self, x: Tensor) -> Any:
                return Opaque(super().run(x))

        super().__init__(nn.ModuleDict({"a": Leaf(1, 2), "b": Leaf(3, 4), "c": Last(5, 6)}))
        self.glue = Work(100, 200)
        name_sites(self)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        y = self.net["a"](batch[0])
        y = checkpoint(self.net["b"], self.glue.forward(y), use_reentrant=False)
        y = self.glue.forward(self.net["c"](y).value)
        LEDGER.backward = True
        return y.sum()

    def on_after_backward(self) -> None:
        LEDGER.backward = False

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        LEDGER.spend("other", "", 1000)


class Manual(Ledgered):
    """The same by hand, with backward calls that nobody announces, twice in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for _ in range(2):
            y = self.net["b"](self.net["a"](batch[0]))
            LEDGER.backward = True
            (y * 1.0).sum().backward()
            LEDGER.backward = False
            self.optimizers().step()


@pytest.mark.parametrize("kind", [Ledgered, Manual])
def test_every_nanosecond_of_a_step_goes_to_whom_it_belongs(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    LEDGER.__init__()
    LEDGER.patch(monkeypatch)
    profiler = LayerProfiler(modules=sites, every_n_steps=1, warmup_steps=0, summary=False)
    model = kind()
    trainer([profiler]).fit(model, loader())
    assert_agrees(profiler.report, steps=7)
    assert profiler.report.measured_steps == 7
    if kind is Ledgered:
        assert profiler.report.outside_backward.mean == pytest.approx(400e-6)
        assert profiler.report.other_time.mean == pytest.approx(1000e-6)
        assert profiler.report.sites["net.b"].recompute_self.mean == pytest.approx(3e-6)
    else:
        assert profiler.report.sites["net.a"].calls == 2


class Measured(Classifier):
    """Takes its own time of forward and backward."""

    def __init__(self) -> None:
        blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True)) for _ in range(3)]
        super().__init__(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(8 * 32 * 32, 3)))
        self.times: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.times.append(time.perf_counter() - start)
        return loss

    def backward(self, loss: Tensor) -> None:
        start = time.perf_counter()
        loss.backward()
        self.times[-1] += time.perf_counter() - start


def test_the_sum_agrees_with_the_measured_step() -> None:
    for _ in range(6):  # again where the machine was busy with something else in between
        model = Measured()
        profiler = LayerProfiler(every_n_steps=1, warmup_steps=1, summary=False)
        trainer([profiler]).fit(model, loader((1, 32, 32), n=128, batch_size=16))
        report, measured = profiler.report, statistics.median(model.times[1:]) * 1e3
        phases = report.forward_time.p50 + report.backward_time.p50
        net = report.sites["net"].total_time
        assert sum(times.self_time.mean for times in report.sites.values()) == pytest.approx(net.mean, rel=1e-9)
        found = (phases, net.p50)
        if all(value == pytest.approx(measured, rel=0.1) for value in found):
            return
    pytest.fail(f"training_step and backward took {measured:.4g} ms; found {found}")


class KeepReports(Callback):
    def __init__(self, profiler: LayerProfiler) -> None:
        self.profiler, self.reports, self.metrics = profiler, [], []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.reports.append(self.profiler.report)
        self.metrics.append({tag: float(value) for tag, value in trainer.callback_metrics.items()})


@pytest.mark.parametrize(
    ("every", "warmup", "expected"),
    [(1, 0, [7, 7, 7]), (1, 3, [4, 7, 7]), (2, 1, [3, 4, 4]), (2, 9, [0, 3, 4]), (3, 7, [0, 3, 3]), (10, 3, [1, 1, 1])],
)
def test_which_batches_are_measured(every: int, warmup: int, expected: list[int]) -> None:
    profiler = LayerProfiler(every_n_steps=every, warmup_steps=warmup, summary=False)
    keep = KeepReports(profiler)
    trainer([profiler, keep], max_epochs=3, limit_val_batches=1).fit(Classifier(mlp()), loader(), loader())
    assert [report.measured_steps for report in keep.reports] == expected
    assert [report.batches for report in keep.reports] == [7, 7, 7]
    assert all(report.sites["net.0"].calls == 1 for report in keep.reports if report.measured_steps)


def test_what_is_logged_has_the_same_tags_every_epoch(tmp_path: Any) -> None:
    profiler = LayerProfiler(modules=["net.0", "net.1"], every_n_steps=1, warmup_steps=7, summary=False)
    keep = KeepReports(profiler)
    logger = CSVLogger(tmp_path, name="", version="")
    trainer([profiler, keep], max_epochs=2, logger=logger, log_every_n_steps=1).fit(Classifier(mlp()), loader())
    tags = {f"profile/{site}/{stat}" for site in ("net.0", "net.1") for stat in SITE_STATS} | {f"profile/{s}" for s in STEP_STATS}
    unmeasured, measured = keep.metrics
    assert set(unmeasured) == set(measured) == tags
    assert all(math.isnan(value) for value in unmeasured.values())
    report, site = keep.reports[1], keep.reports[1].sites["net.0"]
    expected = (site.self_time.mean, site.total_time.mean, site.forward_self.mean, site.backward_self.mean, site.share)
    for stat, value in zip(SITE_STATS, expected, strict=True):
        assert measured[f"profile/net.0/{stat}"] == pytest.approx(value, rel=1e-6)
    times = report.step_time.mean, report.forward_time.mean, report.backward_time.mean, report.other_time.mean
    outside = report.outside_forward.mean + report.outside_backward.mean
    for stat, value in zip(STEP_STATS, (*times, outside, report.overhead), strict=True):
        assert measured[f"profile/{stat}"] == pytest.approx(value, rel=1e-6)
    text = (tmp_path / "metrics.csv").read_text()
    assert "profile/net.0/self_ms" in text.splitlines()[0]
    assert len([line for line in text.splitlines()[1:] if line.strip(",")]) == 2


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"warmup_steps": -1}, ValueError, r"warmup_steps must be at least 0; got -1\."),
        ({"warmup_steps": True}, TypeError, r"warmup_steps must be an integer of at least 0; got True\."),
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
        ({"summary": 1}, TypeError, r"summary must be True or False; got 1\."),
        ({"modules": 3}, TypeError, "modules must be a glob pattern"),
    ],
)
def test_bad_input_says_what_came(kwargs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        LayerProfiler(**kwargs)


class Checkpointed(ResidualCNN):
    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(nn.Sequential(self.stem, self.bn, self.act), x.requires_grad_(), use_reentrant=True)
        return self.head(self.drop(checkpoint(self.conv, x, use_reentrant=False).mean((2, 3))))


def test_on_equals_off_bit_for_bit_with_checkpointing_and_other_observers() -> None:
    def fit(callbacks: list[Any]) -> tuple[Classifier, Tensor, Any]:
        seed_everything(7, verbose=False)
        model = Classifier(Checkpointed(), optimizer=torch.optim.Adam, lr=0.01)
        flow = GradientFlowMonitor(every_n_steps=1, summary=False)
        trainer([*callbacks, flow], max_epochs=2, accumulate_grad_batches=2).fit(model, loader((1, 6, 6), shuffle=True))
        return model, torch.get_rng_state(), flow.report

    profiler = LayerProfiler(every_n_steps=1, summary=False)
    (off, rng_off, flow_off), (on, rng_on, flow_on) = fit([]), fit([profiler])
    assert on.losses == off.losses
    assert same_state(on, off)
    assert torch.equal(rng_on, rng_off)
    assert_same(flow_on, flow_off, skip={"overhead"}, rel=0)
    assert profiler.report.sites["net.conv"].recomputed_calls == 1
    assert "recompute ms" in LayerProfiler.table(profiler.report).splitlines()[1]
    assert not profiler.faults.errors
