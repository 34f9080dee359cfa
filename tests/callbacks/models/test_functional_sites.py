"""Calls of functions as sites: values, names, choice, and what the training does not notice."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import FeatureStatsMonitor, TrainingMonitor, monitors
from lightning_hooks.declare.functional_calls import FunctionalCalls
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, loader, trainer
from tests.support.reference import assert_same, assert_stats, reference_stats, same_state


class Keeps(nn.Module):
    """Keeps what functions put out, where it is told to."""

    kept: dict[str, list[np.ndarray]]

    def keep(self, name: str, output: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.kept[name].append(output.detach().double().numpy().copy())
        return output


class Attention(Keeps):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.kept = defaultdict(list)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).chunk(3, -1)
        return self.out(self.keep("sdpa", F.scaled_dot_product_attention(query, key, value, is_causal=True)))


class Block(Keeps):
    p = 0.1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kept = defaultdict(list)
        self.attn, self.up, self.down = Attention(width), nn.Linear(width, 16), nn.Linear(16, width)
        self.gate, self.again = nn.Linear(width, 16), False

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.keep("layer_norm", F.layer_norm(x, x.shape[-1:])))
        h = self.keep("relu", F.relu(self.up(x))) * self.keep("silu", F.silu(self.gate(x)))
        return x + F.dropout(self.keep("relu_1", torch.relu(self.down(h))), self.p, self.training)


class Net(Keeps):
    """A block twice, and what the model calls itself."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.blocks, self.head, self.recompute = nn.ModuleList(Block(8) for _ in range(2)), nn.Linear(8, 3), recompute

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x.mean(1))


NAMES = ["layer_norm", "sdpa", "relu", "silu", "relu_1"]
SITES = [f"net.blocks.{i}{'.attn' if name == 'sdpa' else ''}/{name}" for i in range(2) for name in NAMES]


def kept(net: Net, site: str) -> list[np.ndarray]:
    owner, _, name = site.removeprefix("net.").rpartition("/")
    return dict(net.named_modules())[owner].kept[name]  # type: ignore[union-attr,no-any-return]


def fit(net: Net, monitor: Any, **settings: Any) -> Classifier:
    model = Classifier(net)
    trainer([monitor], **settings).fit(model, loader((5, 8)))
    return model


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_values_are_those_of_the_concatenated_outputs(every: int, precision: Any) -> None:
    torch.manual_seed(0)
    net, monitor = Net(), FeatureStatsMonitor(every_n_steps=every, summary=False)
    fit(net, monitor, precision=precision)
    report = monitor.report
    assert set(SITES) < set(report.sites)
    assert {site: function for site, function in report.functions.items() if site in SITES} == {
        site: site.rpartition("/")[2].removesuffix("_1") for site in SITES
    }
    for site in SITES:
        chunks = kept(net, site)[::every]
        assert_stats(report.sites[site], reference_stats(chunks), rel=1e-5, context=site)
        if "relu" in site:
            units = np.concatenate([chunk.reshape(-1, chunk.shape[-1]) for chunk in chunks])
            assert report.sites[site].dead_fraction == pytest.approx((units == 0).all(0).mean())
    assert report.sites[SITES[3]].saturated_fraction is not None


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_is_the_same_bit_by_bit(recompute: bool, accumulation: int) -> None:
    models, losses = [], []
    for callback in (TrainingMonitor(every_n_steps=2, summary=False), None):
        torch.manual_seed(0)
        net = Net(recompute)
        model = Classifier(net)
        callbacks = [] if callback is None else [callback]
        trainer(callbacks, accumulate_grad_batches=accumulation).fit(model, loader((5, 8)))
        models.append(model)
        losses.append((model.losses, torch.get_rng_state().tolist()))
        if callback is not None:
            assert callback.features is not None
            assert {callback.features.sites[site].calls for site in SITES} == {4}  # what is recomputed does not count
    assert same_state(*models)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("modules", "chosen"),
    [
        ("*/sdpa", ["net.blocks.0.attn/sdpa", "net.blocks.1.attn/sdpa"]),
        (
            ["net.head", "net.blocks.0/*"],
            ["net.blocks.0/layer_norm", "net.blocks.0/relu", "net.blocks.0/relu_1", "net.blocks.0/silu"],
        ),
        (Attention, ["net.blocks.0.attn/sdpa", "net.blocks.1.attn/sdpa"]),
        ("net.blocks.1.attn", ["net.blocks.1.attn/sdpa"]),
        (lambda name, module: name == "net.blocks.0.attn", ["net.blocks.0.attn/sdpa"]),
        (nn.Linear, []),
    ],
)
def test_patterns_choose_calls_by_their_names_or_with_their_module(modules: Any, chosen: list[str]) -> None:
    monitor = FeatureStatsMonitor(modules=modules, summary=False)
    fit(Net(), monitor)
    assert sorted(site for site in monitor.report.sites if "/" in site) == chosen


def test_functional_false_leaves_them_out() -> None:
    monitor = FeatureStatsMonitor(functional=False, summary=False)
    fit(Net(), monitor)
    assert not [site for site in monitor.report.sites if "/" in site]
    assert not monitor.report.functions


def test_dead_functional_units_are_an_alert() -> None:
    torch.manual_seed(0)
    net = Net()
    nn.init.constant_(net.blocks[1].up.bias, -100.0)
    monitor = TrainingMonitor(summary=False)
    fit(net, monitor)
    assert [(alert.kind, alert.site) for alert in monitor.alerts] == [("dead", "net.blocks.1/relu")]
    assert monitor.alerts[0].severity == "critical"


@pytest.mark.parametrize("batch", [2, 5])
def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "p", 0.0)  # a checkpoint has no random state

    def run(**kwargs: Any) -> Any:
        torch.manual_seed(0)
        ours = monitors(every_n_steps=2, summary=False)
        fitted = trainer([*ours, *kwargs.pop("callbacks", [])], max_epochs=1)
        fitted.fit(Classifier(Net()), Batches((5, 8)), **kwargs)
        return ours[0].report

    expected = run()
    path = tmp_path / "last.ckpt"
    with pytest.raises(SystemExit):
        run(callbacks=[SaveAt(path, 0, batch)])
    found = run(ckpt_path=path)
    for site in SITES:
        assert_same(found.sites[site], expected.sites[site], site, rel=1e-4, tiny=1e-6)


def test_windows_of_an_epoch_merge_though_functions_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.declare.functional_calls.FULL_EVERY", 1)

    class Later(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.batches = getattr(self, "batches", 0) + 1
            y = super().forward(x)
            return F.relu(y) if self.batches > 4 else y

    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, report_every_n_steps=2, summary=False)
    fit(Later(), monitor)
    assert [("net/relu" in report.sites) for report in monitor.history] == [False, False, True, True]
    assert monitor.report.window is None
    assert monitor.report.sites["net/relu"].calls == 3
    assert monitor.report.sites["net.blocks.0/relu"].calls == 7


def test_more_sites_than_there_is_room_for_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.declare.functional_calls.SPARE_SITES", 1)
    monkeypatch.setattr("lightning_hooks.declare.functional_calls.SITES_PER_CALLER", 0)
    monitor = FeatureStatsMonitor(summary=False)
    fit(Net(), monitor)
    assert list(monitor.report.functions) == SITES[:1]


def test_a_recorder_that_raises_disables_its_site_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_hooks.diagnostics.features.table import FeatureTable

    add = FeatureTable.add

    def fails(self: FeatureTable, index: int, args: Any, output: Any) -> None:
        if self.named[index].endswith("0.attn/sdpa"):
            raise ArithmeticError("planted")
        add(self, index, args, output)

    monkeypatch.setattr(FeatureTable, "add", fails)
    monitor = FeatureStatsMonitor(summary=False)
    with pytest.warns(UserWarning, match=r"the hook at 'net.blocks.0.attn/sdpa' raised ArithmeticError: planted"):
        fit(Net(), monitor)
    assert SITES[1] not in monitor.report.sites
    assert monitor.report.sites[SITES[6]].calls == 1
    assert not math.isnan(monitor.report.sites[SITES[6]].rms)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, from within its compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_a_compiled_model_gets_one_message(caplog: pytest.LogCaptureFixture) -> None:
    torch.compiler.reset()
    net = Net()
    net.blocks[0].compile(backend="eager")
    with caplog.at_level("INFO"):
        monitor = FeatureStatsMonitor(summary=False)
        fit(net, monitor)
    torch.compiler.reset()
    told = [record.message for record in caplog.records if "calls of functions" in record.message]
    assert len(told) == 1
    assert "torch.compile is used for net.blocks.0" in told[0]
    assert not monitor.report.functions


def test_nothing_is_done_in_batches_that_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = FunctionalCalls.start

    def counted(self: FunctionalCalls) -> None:
        start(self)
        started.append(bool(self.observer._hooked))

    monkeypatch.setattr(FunctionalCalls, "start", counted)
    fit(Net(), FeatureStatsMonitor(every_n_steps=3, summary=False))
    assert started == [True] * 3  # of seven batches


class Changes(Net):
    """From its second batch on a block calls a function, and from a later one on it is in eval mode, or its head is frozen."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change, self.batches = change, 0
        self.late = Late()

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        if self.batches == 6:
            if self.change == "mode":
                self.blocks[1].eval()
            elif self.change == "frozen":
                self.blocks[1].requires_grad_(False)
        self.late.on = self.batches > 4
        return super().forward(self.late(x))


class Late(nn.Module):
    on = False

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x) if self.on else x


@pytest.mark.parametrize(("change", "calls"), [("", 3), ("mode", 6), ("frozen", 6)])
@pytest.mark.filterwarnings("ignore:Found .* module.s. in eval mode")
def test_a_module_that_first_calls_later_is_found(change: str, calls: int) -> None:
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(Changes(change)), loader((5, 8), n=12 * 4, batch_size=4))
    assert monitor.report.sampled_batches == 12
    assert monitor.report.sites["net.late/gelu"].calls == calls  # from the tenth batch, or from the one after the change
    assert monitor.report.sites["net.blocks.0/relu"].calls == 12
