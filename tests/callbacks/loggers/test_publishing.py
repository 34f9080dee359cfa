"""What a fit writes to its trackers next to scalars: charts, sites, histograms, pictures, alerts; and what it leaves out."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from lightning_hooks import FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, TrainingMonitor, monitors
from lightning_hooks.alerts import Alert
from lightning_hooks.session.tracker_sink import TrackerSink
from lightning_hooks.statistics.histograms import N_SIDE, bin_edges
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer


def fit(net: nn.Module, folder: Path, callbacks: Any, shape: tuple[int, ...] = (8,), **kwargs: Any) -> EventAccumulator:
    torch.manual_seed(0)
    logger = TensorBoardLogger(folder, name="tb", version=0)
    trainer(callbacks, logger=logger, gradient_clip_val=0.5, **{"max_epochs": 2, **kwargs}).fit(Classifier(net), loader(shape))
    return read(folder / "tb/version_0")


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance=dict.fromkeys(("scalars", "images", "histograms", "tensors"), 0)).Reload()


def text(events: EventAccumulator, tag: str) -> str:
    return events.Tensors(f"{tag}/text_summary")[0].tensor_proto.string_val[0].decode()


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


def verdicts(events: EventAccumulator) -> list[tuple[int, str]]:
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors("Verdict/text_summary")]


def test_the_verdict_is_the_first_text_and_is_written_when_it_changes(tmp_path: Path) -> None:
    class Kills(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                torch.nn.init.constant_(pl_module.net[0].bias, -100.0)

    monitor = TrainingMonitor(every_n_steps=1, summary=False, min_probability=0.5)
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
    sink = TrackerSink(host, [])
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
    assert {tag.rpartition("/")[2] for tag in tags if tag.startswith("gradient_flow")} == {"rms", "lr"}
    assert all(len(events.Scalars(tag)) == 3 for tag in tags)


def test_all_is_all(tmp_path: Path) -> None:
    events = fit(Deep(100), tmp_path, monitors(summary=False, logged="all"), max_epochs=1)
    n_modules, n_parameters = 100, 2 * 34
    n = sum(tag.startswith("gradient_flow/") for tag in events.Tags()["scalars"])
    # The total norm; the optimizer's rate; an alert: the net has no activation.
    assert n == 8 * n_modules + 10 * n_parameters + 1 + 1 + 1


@pytest.mark.parametrize(
    ("kind", "wrong", "error", "message"),
    [
        (
            FeatureStatsMonitor,
            "rsm",
            ValueError,
            r"logged must be 'auto', 'all', or some of .*dead_fraction, .*max, .*; got 'rsm'",
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
    log = FeatureStatsMonitor(logged="rms").member.log
    assert log.chosen({"features/a/rms": 1.0, "features/a/max": 2.0}, 1) == {"features/a/rms": 1.0}


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


def test_pictures_of_every_nth_epoch_and_all_at_the_end(tmp_path: Path) -> None:
    ours = monitors(every_n_steps=1, summary=False, histograms=True, figures=2)
    events = fit(ResidualCNN(), tmp_path, ours, (1, 6, 6), max_epochs=3)
    steps = {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]}
    each = {
        "features/figures/rms by epoch",
        "features/figures/dead units",
        "gradient_flow/figures/gradient flow",
        "gradient_flow/figures/update ratios",
        "gradient_flow/figures/rms of modules by epoch",
        "gradient_clip/figures/clip history",
    }
    assert {tag for tag, found in steps.items() if found == [13, 20]} == each
    late = {tag for tag, found in steps.items() if found == [20]}
    assert late | each == set(steps)
    assert {"features/figures/std by epoch", "gradient_flow/figures/update_ratio of parameters by epoch"} <= late
    for tag in each:
        drawn = np.asarray(Image.open(io.BytesIO(events.Images(tag)[-1].encoded_image_string)).convert("RGB"))
        assert drawn.std() > 5, tag  # not a blank sheet


# Pictures.


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
