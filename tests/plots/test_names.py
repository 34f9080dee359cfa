"""What is written along an axis of layers."""

import pytest

from lightning_hooks.plots.canvas import name_layers, round_numbers, single
from lightning_hooks.trackers.console import shared_prefix
from tests.support.made_reports import layer_names


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["net.0", "net.1"], "net."),
        (["model.a.x", "model.a.y", "model.a.b.z"], "model.a."),
        (["a", "b"], ""),
        (["net", "net.0"], ""),
        (["net.0"], ""),
        ([], ""),
    ],
)
def test_what_all_names_share_is_left_out(names, prefix):
    assert shared_prefix(names) == prefix


@pytest.mark.parametrize(
    ("names", "texts", "label"),
    [
        (layer_names(5)[:3], ["embed", "encoder.layers.0.ln_1", "encoder.layers.0.attn.q"], "layer in model"),
        ([f"net.{i}" for i in range(500)], [str(i) for i in range(0, 500, 10)], "layer in net (1 in 10 is named)"),
    ],
)
def test_all_layers_are_named_or_every_so_many(names, texts, label):
    _, axes = single(4, 4)
    name_layers(axes, names, "y", "layer")
    assert [text.get_text() for text in axes.get_yticklabels()] == texts
    assert axes.get_ylabel() == label


def test_steps_people_count_in():
    steps = round_numbers()
    assert [next(steps) for _ in range(7)] == [1, 2, 5, 10, 20, 50, 100]
