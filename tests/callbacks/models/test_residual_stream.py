"""FeatureReport.residual of real fits, against what the blocks were seen to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import FeatureStatsMonitor
from lightning_hooks.diagnostics.reports import FeatureReport
from tests.support.models import Classifier, TinyTransformer, loader, trainer
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
