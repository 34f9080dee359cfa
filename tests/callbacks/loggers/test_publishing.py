"""What a fit writes to its trackers next to scalars: charts, sites, histograms, pictures, alerts; and what it leaves out."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import re
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from torch import nn

from lightning_hooks import FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, TrainingMonitor, monitors
from lightning_hooks.alerts import Alert, AlertError
from lightning_hooks.diagnostics.clipping_events import collector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.session.logged import MOST_HISTOGRAMS, MOST_PICTURED, MemberLog, evenly
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.tracker_sink import TrackerSink
from lightning_hooks.statistics.histograms import N_SIDE, bin_edges
from tests.support.interruptions import Batches, SaveAt
from tests.support.made_reports import features as made_features
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer
from tests.support.reference import assert_same
from tests.support.trainings import Gan


def fit(net: nn.Module, folder: Path, callbacks: Any, shape: tuple[int, ...] = (8,), **kwargs: Any) -> EventAccumulator:
    torch.manual_seed(0)
    logger = TensorBoardLogger(folder, name="tb", version=0)
    trainer(callbacks, logger=logger, gradient_clip_val=0.5, **{"max_epochs": 2, **kwargs}).fit(Classifier(net), loader(shape))
    return read(folder / "tb/version_0")


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance=dict.fromkeys(("scalars", "images", "histograms", "tensors"), 0)).Reload()


def text(events: EventAccumulator, tag: str) -> str:
    return events.Tensors(f"{tag}/text_summary")[0].tensor_proto.string_val[0].decode()


def layout(events: EventAccumulator) -> dict[str, dict[str, Any]]:
    (written,) = events.Tensors("custom_scalars__config__")
    return {
        category.title: {chart.title: chart for chart in category.chart}
        for category in Layout.FromString(written.tensor_proto.string_val[0]).category
    }


class Deep(nn.Module):
    """Many leaves on the same input."""

    def __init__(self, n_sites: int) -> None:
        super().__init__()
        kinds = (lambda: nn.Linear(8, 8), nn.ReLU, nn.Tanh)
        self.blocks = nn.ModuleDict({f"encoder_block_{i}": kinds[i % 3]() for i in range(n_sites - 1)})
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + 0.01 * sum(block(x) for block in self.blocks.values()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> EventAccumulator:
    return fit(ResidualCNN(), tmp_path_factory.mktemp("run"), monitors(every_n_steps=1, summary=False, logged="all"), (1, 6, 6))


def assert_curves(charts: dict[str, dict[str, Any]], tags: list[str]) -> None:
    """Each chart has a tag for each of its lines."""
    for category in charts.values():
        for chart in category.values():
            if chart.HasField("margin"):
                (series,) = chart.margin.series
                assert {series.value, series.lower, series.upper} <= set(tags)
            else:
                assert all(any(re.match(pattern, tag) for tag in tags) for pattern in chart.multiline.tag), chart.title


def test_every_chart_of_the_layout_has_curves(run: EventAccumulator) -> None:
    tags = run.Tags()["scalars"]
    charts = layout(run)
    parts = ["Features", "Gradient flow", "Gradient: mean, least and largest value", "Clipping"]
    assert list(charts) == ["Training", "Alerts", *parts]
    del charts["Alerts"]  # none in this run
    assert_curves(charts, tags)


@pytest.mark.parametrize(
    ("category", "title", "curves"),
    [
        ("Features", "rms", [f"features/net.{site}/rms" for site in ("stem", "bn", "act", "conv", "act2", "head")]),
        ("Features", "dead_fraction", ["features/net.act/dead_fraction", "features/net.act2/dead_fraction"]),
        (
            "Gradient flow",
            "rms of modules",
            [f"gradient_flow/net.{site}/rms" for site in ("stem", "bn", "act", "conv", "act2", "head")],
        ),
        (
            "Gradient flow",
            "rms of parameters",
            [f"gradient_flow/net.{site}.{kind}/rms" for site in ("stem", "bn", "conv", "head") for kind in ("weight", "bias")],
        ),
        ("Clipping", "rate and norms", [f"gradient_clip/{stat}" for stat in ("rate", "norm_before", "norm_after")]),
    ],
)
def test_a_chart_has_all_its_layers_and_no_other(run: EventAccumulator, category: str, title: str, curves: list[str]) -> None:
    (pattern,) = layout(run)[category][title].multiline.tag
    assert sorted(tag for tag in run.Tags()["scalars"] if re.match(pattern, tag)) == sorted(curves)


def test_the_table_of_sites(run: EventAccumulator) -> None:
    rows = [line.strip("| ").split(" | ") for line in text(run, "sites").splitlines()]
    assert rows[0] == ["site", "type", "elements of its parameters", "observed by"]
    assert ["net.stem", "Conv2d", "40", "features, gradient\\_flow"] in rows
    assert ["net.stem.weight", "parameter", "36", "gradient\\_flow, gradient\\_clip"] in rows
    assert len(rows) == 2 + 6 + 8


def test_two_optimizers_have_a_chart_each(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    trainer([GradientClipMonitor(summary=False)], logger=logger).fit(Gan(), loader())
    events = read(tmp_path / "tb/version_0")
    charts = layout(events)["Clipping"]
    assert list(charts) == ["0-Adam", "1-SGD"]
    (pattern,) = charts["1-SGD"].multiline.tag
    found = {tag for tag in events.Tags()["scalars"] if re.match(pattern, tag)}
    assert found == {f"gradient_clip/1-SGD/{stat}" for stat in ("rate", "norm_before", "norm_after")}


# Alerts.


def test_alerts_are_a_table(tmp_path: Path) -> None:
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    events = fit(net, tmp_path, monitors(summary=False))
    rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in text(events, "alerts").splitlines()]
    assert rows[0][:6] == ["severity", "kind", "site", "value", "threshold", "epoch"]
    assert ["critical", "dead", "net.1", "1", "0.8", "0"] in [row[:6] for row in rows]
    assert len(events.Tensors("alerts/text_summary")) == 1  # what lasts is reported once


def test_alerts_and_charts_are_written_though_an_alert_raises(tmp_path: Path) -> None:
    net = mlp()
    net[0].bias.data.fill_(-100.0)

    with pytest.raises(AlertError, match=r"dead at net\.1"):
        fit(net, tmp_path, monitors(summary=False, on_alert="raise"))
    events = read(tmp_path / "tb/version_0")
    assert "net.1" in text(events, "alerts")
    assert "Features" in layout(events)


# What is logged by default.


class LogsItsLoss(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


@pytest.mark.parametrize("n_sites", [13, 101, 301])
def test_by_default_a_model_of_any_size_has_at_most_100_tags(tmp_path: Path, n_sites: int) -> None:
    torch.manual_seed(0)
    ours = monitors(every_n_steps=1, summary=False)
    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    net = Deep(n_sites)
    with torch.no_grad():
        net.blocks["encoder_block_0"].bias.fill_(float("nan"))  # nearly everything goes wrong
    run = trainer(ours, logger=logger, max_epochs=2, gradient_clip_val=0.5)
    run.fit(LogsItsLoss(net), loader())
    events = read(tmp_path / "tb/version_0")
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith(("features", "gradient"))]
    assert 40 < len(tags) <= 100
    assert "features/net.blocks.encoder_block_0/nonfinite_fraction" in tags  # it has an alert
    assert "features/net.blocks.encoder_block_4/rms" not in tags
    assert "features/net.blocks.encoder_block_4/rms" in run.callback_metrics
    alerts = {tag for tag in tags if "/alerts/" in tag}
    assert alerts
    assert all(any(event.value > 0 for event in events.Scalars(tag)) for tag in alerts)
    charts = layout(events)
    assert list(charts)[:2] == ["Training", "Alerts"]
    assert re.match(charts["Training"]["loss"].multiline.tag[0], "train_loss")
    assert_curves(charts, events.Tags()["scalars"])


def test_a_large_models_faults_are_written_from_the_first_that_is_not_zero(tmp_path: Path) -> None:
    class Breaks(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                torch.nn.init.constant_(pl_module.net.blocks["encoder_block_0"].bias, float("nan"))

    net = Deep(30)
    watches = EarlyStopping("features/model/saturated_fraction_worst", patience=9)  # what is watched is written in any case
    run = trainer(
        [*monitors(every_n_steps=1, summary=False), Breaks(), watches],
        logger=TensorBoardLogger(tmp_path, name="tb", version=0),
        max_epochs=3,
    )
    run.fit(Classifier(net), loader())
    events = read(tmp_path / "tb/version_0")
    written = {tag: [event.step for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert written["features/model/nonfinite_fraction_worst"] == [13, 20]
    assert written["loss/nonfinite_steps"] == [13, 20]
    assert written["features/model/saturated_fraction_worst"] == [6, 13, 20]
    assert written["features/model/rms_worst"] == written["gradient_clip/rate"] == [6, 13, 20]
    never = {"features/model/mean_worst", "gradient_clip/skipped_steps"}
    assert not never & {*written}
    assert never <= {*run.callback_metrics}


def verdicts(events: EventAccumulator) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors("Verdict/text_summary")]


def test_the_verdict_is_the_first_text_and_is_written_when_it_changes(tmp_path: Path) -> None:
    class Kills(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                torch.nn.init.constant_(pl_module.net[0].bias, -100.0)

    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    events = fit(mlp(), tmp_path, [monitor, Kills()], max_epochs=4)
    (at_first, healthy), (then, dead), *last = verdicts(events)
    assert (at_first, then) == (6, 20)
    assert len(last) <= 1
    assert [dead, *(text for _, text in last)][-1].splitlines()[0] == f"**{monitor.verdict}**"
    assert "\n- \\[critical\\] dead at net.1" in dead
    assert "100% of its units" in dead
    assert healthy != dead
    assert "dead" not in healthy
    assert sorted(tag for tag in events.Tags()["tensors"] if tag.endswith("text_summary"))[0] == "Verdict/text_summary"


def test_a_verdict_that_always_changes_is_written_a_bounded_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    alerts = (Alert(f"kind_{number}", "net", 1.0, 0.0, 0, number, "warning", "It is so.") for number in itertools.count())
    monkeypatch.setattr("lightning_hooks.session.tracker_sink.open_alerts", lambda members: [next(alerts)])
    trackers = SimpleNamespace(text=lambda tag, text, step: written.append(text))
    host: Any = SimpleNamespace(metrics=SimpleNamespace(trackers=trackers, step=0))
    sink = TrackerSink(host, list)
    for _ in range(200):
        sink.write_verdict()
    sink.write_verdict(last=True)
    assert len(written) == 51
    assert ["kind_0 " in written[0].replace("\\", ""), "kind_200 " in written[-1].replace("\\", "")] == [True, True]


def test_the_model_level_values_are_the_median_and_the_worst_of_the_sites() -> None:
    torch.manual_seed(0)
    ours = monitors(every_n_steps=1, summary=False)
    run = trainer(ours, logger=False)
    run.fit(Classifier(Deep(12)), loader())
    sites, parameters = ours[0].report.sites.values(), ours[1].report.parameters.values()
    dead = sorted(stats.dead_fraction for stats in sites if stats.dead_fraction is not None)
    assert float(run.callback_metrics["features/model/dead_fraction_worst"]) == dead[-1]
    assert float(run.callback_metrics["features/model/dead_fraction_median"]) == float(np.median(dead))
    means = [stats.mean for stats in sites]
    assert float(run.callback_metrics["features/model/mean_worst"]) == max(means, key=abs)
    ratios = np.array([stats.update_ratio for stats in parameters])
    farthest = ratios[np.abs(np.log(ratios / np.median(ratios))).argmax()]
    assert float(run.callback_metrics["gradient_flow/model/update_ratio_worst"]) == pytest.approx(farthest)


def test_a_key_that_the_model_logs_is_not_overwritten(tmp_path: Path) -> None:
    class Own(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.log("gradient_flow/total_norm", 42.0, on_step=False, on_epoch=True)
            self.log("alerts", 7.0, on_step=False, on_epoch=True, prog_bar=True)
            return super().training_step(batch, batch_idx)

    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    run = trainer(monitors(every_n_steps=1, summary=False, progress_bar=True), logger=logger, max_epochs=2)
    with pytest.warns(UserWarning, match="does not log 'gradient_flow/total_norm': these keys are logged by the model") as reported:
        run.fit(Own(mlp()), loader())
    assert sum("does not log" in str(warning.message) for warning in reported) == 1
    assert float(run.callback_metrics["gradient_flow/total_norm"]) == 42.0
    assert float(run.callback_metrics["alerts"]) == 7.0
    assert float(run.progress_bar_metrics["alerts"]) == 7.0
    events = read(tmp_path / "tb/version_0")
    assert {event.value for event in events.Scalars("gradient_flow/total_norm")} == {42.0}


def test_what_is_logged_is_the_same_every_epoch_everywhere(tmp_path: Path) -> None:
    callbacks = [*monitors(summary=False, logged=["rms", "dead_fraction"]), EarlyStopping("features/net.head/max", patience=9)]
    events = fit(Deep(12), tmp_path, callbacks, max_epochs=3)
    tags = {tag for tag in events.Tags()["scalars"] if tag.count("/") == 2 and "/alerts/" not in tag}
    features = {f"features/net.blocks.encoder_block_{i}" for i in range(11)} | {"features/net.head"}
    expected = {f"{site}/rms" for site in features} | {
        f"{site}/dead_fraction" for site in sorted(features) if site[-2:] in ("_1", "_4", "_7", "10")
    }
    assert {tag for tag in tags if tag.startswith("features")} == expected | {"features/net.head/max"}
    assert {tag.rpartition("/")[2] for tag in tags if tag.startswith("gradient_flow")} == {"rms", "lr", "update_rms"}
    assert all(len(events.Scalars(tag)) == 3 for tag in tags)


def test_all_is_all(tmp_path: Path) -> None:
    events = fit(Deep(100), tmp_path, monitors(summary=False, logged="all"), max_epochs=1)
    n_modules, n_parameters = 100, 2 * 34
    n = sum(tag.startswith("gradient_flow/") for tag in events.Tags()["scalars"])
    # The total norm; the optimizer's rate and updates; an alert: the net has no activation.
    assert n == 8 * n_modules + 10 * n_parameters + 1 + 2 + 1


@pytest.mark.parametrize(
    ("kind", "wrong", "error", "message"),
    [
        (
            FeatureStatsMonitor,
            "rsm",
            ValueError,
            r"logged must be 'auto', 'all', or some of .*dead_fraction, .*kurtosis, .*; got 'rsm'",
        ),
        (FeatureStatsMonitor, ["update_ratio"], ValueError, r"got \['update_ratio'\]"),
        (monitors, ["rms", "nothing"], ValueError, r"logged must be .*update_ratio.*; got \['rms', 'nothing'\]"),
        (GradientFlowMonitor, 3, TypeError, r"logged must be 'auto', 'all', or names of statistics; got 3"),
        (monitors, {"rms": 1}, TypeError, "logged must be"),
    ],
)
def test_bad_logged(kind: Any, wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        kind(logged=wrong)


def test_a_statistic_that_no_site_has_is_no_tag_of_the_model() -> None:
    run = trainer([FeatureStatsMonitor(every_n_steps=1, summary=False)], logger=False)
    run.fit(Classifier(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))), loader())
    found = {tag.rpartition("/")[2].rpartition("_")[0] for tag in run.callback_metrics if tag.startswith("features/model/")}
    assert found == {"mean", "std", "rms", "zero_fraction", "nonfinite_fraction", "dead_fraction"}


def test_one_statistic_may_be_named_without_a_list() -> None:
    scalars = FeatureStatsMonitor(logged="rms").member.log.scalars
    assert scalars.chosen({"features/a/rms": 1.0, "features/a/max": 2.0}, "features", 1) == {"features/a/rms": 1.0}


# Histograms.


class Keeping(Callback):
    """Keeps every output, and the gradient there, of every training batch of the last epoch."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.outputs: dict[str, list[Any]] = {}
        self.gradients: dict[str, list[Any]] = {}
        self.handles = []
        for name, module in pl_module.net.named_modules():
            if name and not list(module.children()) and not isinstance(module, nn.Dropout):
                self.handles.append(module.register_forward_hook(lambda m, a, out, name=name: self.keep(f"net.{name}", out)))

    def keep(self, name: str, out: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            self.outputs.setdefault(name, []).append(out.detach().double().flatten().clone().numpy())
            out.register_hook(lambda g: self.gradients.setdefault(name, []).append(g.double().flatten().clone().numpy()))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.outputs.clear()
        self.gradients.clear()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        for handle in self.handles:
            handle.remove()


def counted(values: np.ndarray, factor: float = 1.0) -> tuple[list[float], list[int]]:
    """The slow reference: each value looked up among the edges by its magnitude, trimmed to the bins that are occupied."""
    edges = bin_edges()
    magnitudes = edges[N_SIDE + 1 :]
    counts = np.zeros(len(edges) - 1, dtype=int)
    for value in values[np.isfinite(values)]:
        place = np.clip(np.searchsorted(magnitudes, abs(value), side="right"), 0, N_SIDE)
        counts[N_SIDE + int(np.sign(value)) * place] += 1
    occupied = np.flatnonzero(counts)
    return (edges[occupied[0] : occupied[-1] + 2] * factor).tolist(), counts[occupied[0] : occupied[-1] + 1].tolist()


def test_histograms_are_those_of_the_epochs_values(tmp_path: Path) -> None:
    keeping, ours = Keeping(), monitors(every_n_steps=1, summary=False, histograms=True)
    events = fit(ResidualCNN(), tmp_path, [keeping, *ours], (1, 6, 6))
    features, flow, _ = ours
    sites = ["net.stem", "net.bn", "net.act", "net.conv", "net.act2", "net.head"]
    assert list(features.histograms) == list(flow.histograms) == sites
    for site in sites:
        assert features.histograms[site] == counted(np.concatenate(keeping.outputs[site])), site
        assert flow.histograms[site] == counted(np.concatenate(keeping.gradients[site])), site
        assert sum(features.histograms[site][1]) == features.report.sites[site].count
    assert set(events.Tags()["histograms"]) == {
        f"{system}/{site}/histogram" for system in ("features", "gradient_flow") for site in sites
    }
    written = events.Histograms("features/net.head/histogram")
    assert [entry.step for entry in written] == [6, 13]
    value = written[-1].histogram_value
    edges, counts = features.histograms["net.head"]
    assert (value.num, value.min, value.max) == (sum(counts), edges[0], edges[-1])
    assert set(value.bucket_limit) <= set(edges)
    stats = features.report.sites["net.head"]
    assert value.sum / value.num == pytest.approx(stats.mean, abs=0.15 * stats.rms)


def test_histograms_of_chosen_sites_only(tmp_path: Path) -> None:
    ours = monitors(every_n_steps=1, summary=False, histograms=["net.act*", "net.head"])
    fit(ResidualCNN(), tmp_path, ours, (1, 6, 6), max_epochs=1)
    assert list(ours[0].histograms) == list(ours[1].histograms) == ["net.act", "net.act2", "net.head"]


def test_histograms_survive_nan_and_infinity(tmp_path: Path) -> None:
    class Affected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.worse, self.head = nn.Tanh(), nn.Tanh(), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.worse(x * math.nan)
            x = x.clone()
            x[0, 0], x[0, 1] = math.nan, math.inf
            return self.head(self.bad(x).nan_to_num())

    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False, histograms=True)
    events = fit(Affected(), tmp_path, [monitor], max_epochs=1)
    assert set(monitor.histograms) == {"net.bad", "net.head"}
    assert sum(monitor.histograms["net.bad"][1]) == monitor.report.sites["net.bad"].count == 50 * 8 - 7
    assert set(events.Tags()["histograms"]) == {"features/net.bad/histogram", "features/net.head/histogram"}


def test_a_csv_has_a_column_per_quantile_and_one_row_for_all(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is of the files extra, and is not installed")
    keeping, monitor = Keeping(), FeatureStatsMonitor(every_n_steps=1, summary=False, histograms=True)
    logger = CSVLogger(tmp_path, name="csv", version=0)
    trainer([keeping, monitor], logger=logger).fit(Classifier(mlp()), loader())
    table = pandas.read_csv(tmp_path / "csv/version_0/metrics.csv")
    values = np.concatenate(keeping.outputs["net.0"])
    for share in (5, 25, 50, 75, 95):
        (found,) = table[f"features/net.0/histogram/q{share}"].dropna()
        assert found == pytest.approx(np.percentile(values, share), abs=0.15 * abs(values).max())
    assert table["features/net.4/histogram/q50"].notna().tolist() == table["features/net.0/histogram/q50"].notna().tolist()


def test_of_very_many_sites_some_get_a_histogram_and_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False, histograms=True)
    fit(Deep(300), tmp_path, [monitor], max_epochs=1)
    assert len(monitor.histograms) == 100 <= MOST_HISTOGRAMS
    reported = [record.message for record in caplog.records if "histogram" in record.message]
    assert len(reported) == 1
    assert reported[0].startswith(
        "FeatureStatsMonitor: of its 300 sites 1 in 3 gets a histogram, 100 in all. For others, name them"
    )


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (3, TypeError, "histograms must be True, False, or glob patterns on the names of sites; got 3"),
        ([1], TypeError, r"got \[1\]"),
        ("", ValueError, "histograms must be True, False, or glob patterns"),
        ([], ValueError, r"got \[\]"),
    ],
)
def test_bad_histograms(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        monitors(histograms=wrong)


def test_a_pattern_that_matches_no_site_names_the_closest() -> None:
    run = trainer([FeatureStatsMonitor(histograms="net.9", summary=False)])
    with pytest.raises(ValueError, match=r"histograms='net\.9' matches none of its 5 sites; the closest are 'net\.\d'"):
        run.fit(Classifier(mlp()), loader())


def test_a_resumed_epoch_keeps_its_histograms(tmp_path: Path) -> None:
    def ours() -> list[Any]:
        return monitors(every_n_steps=1, summary=False, histograms=True)

    torch.manual_seed(0)
    model, whole = Classifier(mlp()), ours()
    start = copy.deepcopy(model.state_dict())
    trainer(whole).fit(model, Batches((8,)))
    model.load_state_dict(start)
    with pytest.raises(SystemExit):
        trainer([*ours(), SaveAt(tmp_path / "middle.ckpt", 0, 3)]).fit(model, Batches((8,)))

    def resumed(callbacks: Any) -> list[Any]:
        run = trainer(callbacks, use_distributed_sampler=False)
        run.fit(Classifier(mlp()), Batches((8,)), ckpt_path=tmp_path / "middle.ckpt", weights_only=True)
        return callbacks

    for before, after in zip(whole, resumed(ours()), strict=True):
        assert before.histograms == after.histograms
    (other, *_) = resumed(monitors(every_n_steps=1, summary=False))  # a checkpoint with histograms, and no interest in them
    assert_same(other.report.sites, whole[0].report.sites)


def test_histograms_change_nothing_of_the_training() -> None:
    def losses(callbacks: Any) -> list[float]:
        torch.manual_seed(0)
        model = Classifier(ResidualCNN())
        trainer(callbacks, max_epochs=2).fit(model, loader((1, 6, 6)))
        return model.losses

    assert losses(monitors(every_n_steps=1, summary=False, histograms=True)) == losses([])


# Pictures.


def test_pictures_of_every_nth_epoch_and_all_at_the_end(tmp_path: Path) -> None:
    ours = monitors(every_n_steps=1, summary=False, histograms=True, figures=2)
    events = fit(ResidualCNN(), tmp_path, ours, (1, 6, 6), max_epochs=3)
    steps = {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]}
    each = {
        "features/figures/rms by epoch",
        "features/figures/dead units",
        "features/figures/colourful dimension",
        "gradient_flow/figures/gradient flow",
        "gradient_flow/figures/gradient flow of parameters",
        "gradient_flow/figures/update ratios",
        "gradient_flow/figures/rms of modules by epoch",
        "gradient_flow/figures/colourful dimension",
        "gradient_clip/figures/clip history",
    }
    assert {tag for tag, found in steps.items() if found == [13, 20]} == each
    late = {tag for tag, found in steps.items() if found == [20]}
    assert late | each == set(steps)
    assert {"features/figures/std by epoch", "gradient_flow/figures/update_ratio of parameters by epoch"} <= late
    for tag in each:
        drawn = np.asarray(Image.open(io.BytesIO(events.Images(tag)[-1].encoded_image_string)).convert("RGB"))
        assert drawn.std() > 5, tag  # not a blank sheet


def test_pictures_are_drawn_at_powers_of_two_and_at_the_end_once_each_off_the_training_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    small = Figure(figsize=(1, 1))  # what is drawn does not matter here
    monkeypatch.setattr(collector, "clip_history", lambda reports: threads.append(threading.current_thread()) or small)
    before = set(threading.enumerate())
    for epochs, steps in ((7, [7, 14, 21, 35, 49]), (9, [7, 14, 21, 35, 63])):
        threads.clear()
        events = fit(mlp(), tmp_path / str(epochs), [GradientClipMonitor(figures=True, summary=False)], max_epochs=epochs)
        assert [image.step + 1 for image in events.Images("gradient_clip/figures/clip history")] == steps
        assert len(threads) == len(steps)
        assert threading.main_thread() not in threads
    assert set(threading.enumerate()) <= before


def test_pictures_of_a_fit_that_raises_are_written(tmp_path: Path) -> None:
    class Raises(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.current_epoch == 2:
                raise RuntimeError("on purpose")
            return super().training_step(batch, batch_idx)

    logger = TensorBoardLogger(tmp_path, name="", version="")
    run = trainer([GradientClipMonitor(figures=True, summary=False)], logger=logger, max_epochs=4)
    with pytest.raises(RuntimeError, match="on purpose"):
        run.fit(Raises(mlp()), loader())
    events = EventAccumulator(str(tmp_path)).Reload()
    assert len(events.Images("gradient_clip/figures/clip history")) == 2


def test_no_picture_is_drawn_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.diagnostics.gradients.view.heatmap", lambda *a, **k: pytest.fail("drawn for nobody"))
    trainer(monitors(summary=False, figures=True)).fit(Classifier(mlp()), loader())


def test_a_picture_that_cannot_be_drawn_is_reported_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no ink")

    monkeypatch.setattr(collector, "clip_history", broken)
    with pytest.warns(
        UserWarning, match="picture gradient_clip/figures/clip history could not be drawn: ZeroDivisionError: no ink"
    ) as reported:
        fit(mlp(), tmp_path, [GradientClipMonitor(figures=True, summary=False)], max_epochs=3)
    assert len([w for w in reported if "no ink" in str(w.message)]) == 1


def test_two_monitors_of_a_kind_have_pictures_of_their_own(tmp_path: Path) -> None:
    first = FeatureStatsMonitor(modules="net.0", figures=True, summary=False, logged=["rms"])
    second = FeatureStatsMonitor(modules="net.1", figures=True, summary=False, logged=["rms"])
    events = fit(mlp(), tmp_path, [first, second], max_epochs=1)
    assert {"features/figures/rms by epoch", "features/figures-2/rms by epoch"} <= set(events.Tags()["images"])


def test_of_a_long_fit_pictures_show_epochs_spread_evenly_and_the_newest() -> None:
    for length in (1, 199, 200, 201, 999):
        found = evenly(list(range(length)), MOST_PICTURED)
        assert found[-1] == length - 1
        assert len(found) <= MOST_PICTURED
        assert len(found) > min(length, MOST_PICTURED) / 2
        assert len({b - a for a, b in pairwise(found)}) <= 1


def test_histograms_are_kept_for_pictures_only_of_some_sites_and_the_last_epochs() -> None:
    what = MemberLog("features", Settings(figures=True, histograms=True), FeatureCollector)
    for epoch in range(MOST_PICTURED + 5):
        what.remember(made_features(epoch, []), {f"net.{i}": ([0.0, 1.0], [epoch]) for i in range(100)})
    kept = what.colourful()
    assert kept["epochs"] == list(range(5, MOST_PICTURED + 5))
    assert list(kept["histograms"]) == [f"net.{i}" for i in range(100)][99::-9][::-1]
    assert [int(counts[0]) for _, counts in kept["histograms"]["net.99"]] == kept["epochs"]
    nothing = MemberLog("features", Settings(histograms=True), FeatureCollector)
    nothing.remember(made_features(0, []), {"net.0": ([0.0, 1.0], [1])})
    assert nothing.colourful() == {"histograms": {}, "epochs": [], "unit": "epoch"}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (-1, ValueError, "figures must be True, False, or a number of epochs of at least 1; got -1"),
        ("yes", TypeError, "figures must be True, False, or a number of epochs; got 'yes'"),
    ],
)
def test_bad_figures(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GradientClipMonitor(figures=wrong)


def test_figures_without_matplotlib_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.session.settings.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"figures=True needs matplotlib: pip install matplotlib\."):
        monitors(figures=True)
    monitors()


def test_copies_and_pickles_hold_nothing_of_the_fit() -> None:
    ours = monitors(every_n_steps=1, summary=False, histograms=True, figures=True)

    class Copying(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            self.copies = [pickle.loads(pickle.dumps(callback)) for callback in ours[:2]]

    copying = Copying()
    trainer([*ours, copying]).fit(Classifier(mlp()), loader())
    for one in copying.copies:
        assert one.member.collector is None
        trainer([one]).fit(Classifier(mlp()), loader())
        assert one.histograms
