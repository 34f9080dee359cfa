"""AttentionMonitor in fits: every way to write attention, accumulation, recomputation, half precision, two ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import AttentionMonitor
from lightning_hooks.alerts import AttentionReport
from tests.support.architectures import ARCHITECTURES, ArchitectureModule, batches_of
from tests.support.attention import LAYERS, Checkpointed, Transformer, assert_stats, pooled
from tests.support.host_reads import CountSyncs
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, trainer
from tests.support.reference import same_state


def data(samples: int = 16, batch_size: int = 4, scale: float = 1.0) -> DataLoader[Any]:
    """Samples of 8 positions: 4 of them are 32 query rows, which are all taken."""
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(samples, 8, 16) * scale, torch.randint(3, (samples,))), batch_size=batch_size)


def fit(
    net: nn.Module, loader: Any = None, monitor: AttentionMonitor | None = None, more: Sequence[Callback] = (), **options: Any
) -> tuple[AttentionMonitor, Any]:
    monitor = AttentionMonitor(every_n_steps=1, summary=False) if monitor is None else monitor
    run = trainer([monitor, *more], **options)
    run.fit(Classifier(net, lr=0.05), data() if loader is None else loader)
    return monitor, run


def transformer(*names: str) -> Transformer:
    torch.manual_seed(0)
    return Transformer(names)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_every_way_to_write_attention_is_exact_in_half_precision(precision: str) -> None:
    net = transformer(*LAYERS)
    monitor, run = fit(net, data(scale=3.0), precision=precision)
    assert isinstance(monitor.report, AttentionReport)
    for (site, stats), calls in zip(monitor.report.sites.items(), net.kept.values(), strict=True):
        assert stats.calls == len(calls) == 4
        assert stats.half_precision
        if "weights" not in site:  # its queries are not seen in half precision
            assert_stats(stats, pooled(calls))
        assert run.callback_metrics[f"attention/{site}/entropy"] == pytest.approx(stats.entropy)


def test_every_way_to_write_attention_is_exact() -> None:
    net = transformer(*LAYERS)
    monitor, run = fit(net)
    report = monitor.report
    assert report is not None
    assert list(report.sites) == [f"net.layers.{name}" for name in LAYERS]
    for stats, calls in zip(report.sites.values(), net.kept.values(), strict=True):
        assert_stats(stats, pooled(calls))
    entropies = sorted(stats.entropy for stats in report.sites.values())
    assert run.callback_metrics["attention/model/entropy_worst"] == pytest.approx(entropies[0])
    assert run.callback_metrics["attention/model/entropy_median"] == pytest.approx((entropies[4] + entropies[5]) / 2)
    assert run.callback_metrics["attention/model/max_logit_worst"] == pytest.approx(max(s.max_logit for s in report.sites.values()))
    (alert,) = report.alerts  # rows of padding before the first token
    assert (alert.kind, alert.site, alert.severity) == ("masked_rows", "net.layers.padded/sdpa", "info")
    assert AttentionReport.from_dict(report.to_dict()) == report


def test_what_is_computed_again_in_backward_does_not_count() -> None:
    net = transformer()
    net.layers["again"] = Checkpointed()
    monitor, _ = fit(net)
    assert monitor.report is not None
    stats = monitor.report["net.layers.again/sdpa"]
    assert stats.calls == len(net.kept["again"]) == 4
    assert_stats(stats, pooled(net.kept["again"]))


def test_sampled_batches_alone_count_and_windows_are_separate() -> None:
    net = transformer("causal/sdpa")
    monitor, _ = fit(net, data(32), AttentionMonitor(every_n_steps=2, report_every_n_steps=4, summary=False))
    first, second = list(monitor.history)[:2]
    calls = net.kept["causal"]
    assert_stats(first["net.layers.causal/sdpa"], pooled([calls[0], calls[2]]))
    assert_stats(second["net.layers.causal/sdpa"], pooled([calls[4], calls[6]]))
    assert monitor.report is not None
    assert_stats(monitor.report["net.layers.causal/sdpa"], pooled(calls[::2]))  # the epoch's
    assert first["net.layers.causal/sdpa"].begin_max_logit == pytest.approx(max(pooled(calls[:1])[9]), rel=1e-5)
    assert first["net.layers.causal/sdpa"].end_max_logit == pytest.approx(max(pooled(calls[2:3])[9]), rel=1e-5)


def test_training_is_unaltered() -> None:
    def run(callbacks: list[Any]) -> tuple[Classifier, torch.Tensor]:
        seed_everything(7, verbose=False)
        model = Classifier(nn.Sequential(Transformer(list(LAYERS)), nn.Dropout(0.1)), optimizer=torch.optim.Adam, lr=0.01)
        trainer(callbacks, max_epochs=2).fit(model, data())
        return model, torch.get_rng_state()

    without, rng_without = run([])
    observed, rng_with = run([AttentionMonitor(every_n_steps=1, summary=False)])
    assert observed.losses == without.losses
    assert same_state(observed, without)
    assert torch.equal(rng_with, rng_without)


def test_no_host_sync_in_a_batch() -> None:
    counts = []
    for callbacks in ([], [AttentionMonitor(every_n_steps=1, summary=False)]):
        counter, net = CountSyncs(), transformer("causal/sdpa", "padded/sdpa", "eager/softmax", "no_weights.layer/sdpa")
        trainer([counter, *callbacks]).fit(Classifier(net), data(80))
        counts.append(counter.mode.syncs)
    assert counts[0] >= 20  # the counter counts: the model itself reads its loss
    assert counts[1] == counts[0]


def test_softmaxes_that_are_not_attention_are_left_out() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.head = nn.Linear(16, 8), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            experts = self.gate(x).softmax(-1)  # as many as positions
            return self.head(x.mean(1)) + experts.mean() + torch.softmax(self.head(x), -1).sum()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = Router()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.router(x) + torch.softmax(self.router(x), 1)

    with pytest.warns(UserWarning, match="seen no attention"):
        monitor, _ = fit(Model())
    assert monitor.report is not None
    assert monitor.report.sites == {}


def test_a_mask_with_the_opposite_meaning_gives_nan() -> None:
    class Inverted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            valid = torch.ones(x.shape[:2], dtype=torch.bool)
            return self.head(self.layer(x, x, x, key_padding_mask=valid)[0].mean(1))

    monitor, _ = fit(Inverted(), monitor=AttentionMonitor(every_n_steps=1, summary=False, on_alert=lambda alert: None))
    assert monitor.report is not None
    (alert,) = monitor.report.alerts
    assert (alert.kind, alert.severity, alert.value) == ("masked_rows", "warning", 0.25)  # of four batches; then weights are NaN


def test_a_window_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def run(more: Sequence[Callback] = (), path: Path | None = None) -> AttentionMonitor:
        monitor = AttentionMonitor(every_n_steps=1, summary=False)
        kwargs: dict[str, Any] = {"ckpt_path": path, "weights_only": True} if path else {}
        model = Classifier(transformer("causal/sdpa", "eager/softmax"), lr=0.05)
        trainer([monitor, *more]).fit(model, Batches((8, 16)), **kwargs)
        return monitor

    whole = run()
    with pytest.raises(SystemExit):
        run([SaveAt(tmp_path / "middle.ckpt", 0, 2)])
    resumed = run(path=tmp_path / "middle.ckpt")
    assert whole.report is not None
    assert resumed.report is not None
    assert resumed.report.sites == whole.report.sites
    assert whole.report["net.layers.causal/sdpa"].calls > 3


@pytest.mark.parametrize("name", ["Llama", "BERT", "T5"])
def test_attention_that_is_written_out_has_the_same_probabilities(name: str) -> None:
    found = []
    for written in ("sdpa", "eager"):
        monitor, model = AttentionMonitor(every_n_steps=1, summary=False, report_dir=None), ArchitectureModule(ARCHITECTURES[name])
        model.net.set_attn_implementation(written)
        trainer([monitor]).fit(model, batches_of(ARCHITECTURES[name], 2))
        assert monitor.report is not None
        assert not monitor.report.alerts
        found.append(monitor.report.sites)
    called, written_out = found
    assert [site.replace("/sdpa", "/softmax") for site in called] == list(written_out)
    for one, other in zip(called.values(), written_out.values(), strict=True):
        assert one.rows == other.rows
        for head, same in zip(one.heads, other.heads, strict=True):
            assert head.entropy == pytest.approx(same.entropy, rel=1e-4)
            assert head.first_token_share == pytest.approx(same.first_token_share, rel=1e-4)
