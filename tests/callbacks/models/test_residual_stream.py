"""FeatureReport.residual of real fits, against what the blocks were seen to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import FeatureStatsMonitor
from lightning_hooks.diagnostics.reports import FeatureReport
from tests.evidence.faults import data, nets, tasks
from tests.support.models import Classifier, TinyTransformer, hook_counts, loader, mlp, trainer
from tests.support.stacks import ConvStack, Stack, Streams, assert_stream, reference

TOKENS, IMAGES = (5, 6), (1, 6, 6)


def fit(net: nn.Module, shape: tuple[int, ...], names: list[str], every: int = 1, **kwargs: Any) -> tuple[FeatureReport, Streams]:
    streams, monitor = Streams(names, every), FeatureStatsMonitor(every_n_steps=every, summary=False)
    trainer([streams, monitor], **kwargs).fit(Classifier(net), loader(shape))
    return monitor.report, streams


@pytest.mark.parametrize(
    ("options", "kwargs"),
    [
        ({}, {}),
        ({}, {"precision": "bf16-true"}),
        ({}, {"accumulate_grad_batches": 3}),
        ({"recompute": "plain"}, {}),
        ({"recompute": "reentrant"}, {}),
    ],
    ids=["float32", "bfloat16", "accumulation", "checkpointing", "reentrant checkpointing"],
)
@pytest.mark.parametrize("every", [1, 3])
def test_a_stack_of_blocks(options: dict[str, Any], kwargs: dict[str, Any], every: int) -> None:
    torch.manual_seed(0)
    names = [f"net.blocks.{number}" for number in range(3)]
    report, streams = fit(Stack(**options), TOKENS, names, every, **kwargs)
    assert list(report.residual) == names
    for name in names:
        assert_stream(report.residual[name], reference(streams.calls[name]))
        assert report.residual[name].stream == "net.blocks"
    assert FeatureReport.from_dict(report.to_dict()) == report


def test_blocks_of_convolutions_without_those_that_change_the_shape() -> None:
    torch.manual_seed(0)
    names = ["net.one.0", "net.one.1", "net.two.1"]
    report, streams = fit(ConvStack(), IMAGES, names)
    assert list(report.residual) == names
    for name in names:
        assert_stream(report.residual[name], reference(streams.calls[name], dim=1))


def test_the_layers_of_torch() -> None:
    torch.manual_seed(0)
    names = ["net.encoder.layers.0", "net.encoder.layers.1"]
    report, streams = fit(TinyTransformer(), TOKENS, names)
    for name in names:
        assert_stream(report.residual[name], reference(streams.calls[name]))


def test_an_input_by_keyword_is_not_known() -> None:
    torch.manual_seed(0)
    report, streams = fit(Stack(keyword=True), TOKENS, ["net.blocks.0"])
    expected = reference(streams.calls["net.blocks.0"])
    known = {name: expected[name] for name in ("calls", "rms", "largest", "channel_rms", "median_channel_rms", "channel")}
    assert_stream(report.residual["net.blocks.0"], known)
    assert report.residual["net.blocks.0"].write_ratio is None


def test_no_blocks_no_stream() -> None:
    assert fit(mlp(), (8,), [])[0].residual == {}


def test_blocks_without_a_selected_module_are_left_alone() -> None:
    for modules, expected in (("net.head", []), ("net.blocks.1.*", ["net.blocks.1"]), ("net.blocks.2", ["net.blocks.2"])):
        monitor, model = FeatureStatsMonitor(modules=modules, summary=False), Classifier(Stack())
        before = hook_counts(model)
        trainer([monitor], limit_train_batches=2).fit(model, loader(TOKENS))
        assert list(monitor.report.residual) == expected
        assert hook_counts(model) == before


def test_windows_add_up_to_the_epoch() -> None:
    torch.manual_seed(0)
    names = [f"net.blocks.{number}" for number in range(3)]
    streams = Streams(names)
    monitor = FeatureStatsMonitor(every_n_steps=1, report_every_n_steps=2, summary=False)
    trainer([streams, monitor]).fit(Classifier(Stack()), loader(TOKENS))
    assert monitor.report.window is None
    for name in names:
        assert_stream(monitor.report.residual[name], reference(streams.calls[name]))


@pytest.mark.parametrize("options", [{}, {"recompute": "plain"}])
def test_training_is_the_same_to_the_bit(options: dict[str, Any]) -> None:
    weights = []
    for on in (True, False):
        torch.manual_seed(0)
        model = Classifier(Stack(**options))
        trainer([FeatureStatsMonitor(every_n_steps=1, summary=False)] if on else []).fit(model, loader(TOKENS))
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_model_has_the_same_stream() -> None:
    found = []
    for compiled in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        model, monitor = Classifier(Stack()), FeatureStatsMonitor(every_n_steps=1, summary=False)
        if compiled:
            model.net.compile(backend="aot_eager")
        trainer([monitor]).fit(model, loader(TOKENS, n=48))
        found.append(monitor.report.residual)
    plain, graph = found
    assert list(plain) == list(graph)
    for name, stats in plain.items():
        for stat in ("rms", "kurtosis", "channel_rms", "median_channel_rms", "write_ratio", "carried"):
            assert getattr(graph[name], stat) == pytest.approx(getattr(stats, stat), rel=1e-4), (name, stat)
    torch.compiler.reset()


HEALTHY = {
    "ResNet": (lambda: nets.ResNet(), (1, 8, 8), 3),
    "MLP": (lambda: mlp(), (8,), 0),
    "GPT": (lambda: nets.Transformer(layers=3), None, 3),
    "ViT": (lambda: TinyTransformer(), TOKENS, 2),
    "deep pre-norm": (lambda: Stack(width=32, depth=24), TOKENS, 24),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_healthy_nets_have_no_alert_of_their_stream(name: str, precision: Any) -> None:
    build, shape, blocks = HEALTHY[name]
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    if shape is None:
        module, batches = tasks.Supervised(build(), tasks.adam()), data.loaders(data.text(), 32, 0)["train_dataloaders"]
    else:
        module, batches = Classifier(build()), loader(shape)
    trainer([monitor], precision=precision, limit_train_batches=7, limit_val_batches=0).fit(module, batches)
    assert len(monitor.report.residual) == blocks
    assert not [alert for alert in monitor.report.alerts if alert.kind in ("activation_outliers", "residual_growth")]
    assert all(stats.channel_ratio < 10 and (stats.carried or 1.0) > 0.5 for stats in monitor.report.residual.values())
