"""What is written along an axis of layers."""

import pytest

from lightning_hooks.plots.canvas import MOST_BLOCKS, labels, round_numbers
from lightning_hooks.trackers.console import shared_prefix, shortened
from tests.support.made_reports import layer_names


def test_a_long_name_keeps_its_end():
    assert shortened("encoder.layer") == "encoder.layer"
    short = shortened("a" * 30 + ".self_attn.out_proj.weight")
    assert len(short) == 34
    assert short.endswith("attn.out_proj.weight")
    assert "…" in short


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


def test_few_layers_are_all_named():
    found = labels(layer_names(5))
    assert found.texts == ("embed", "encoder.layers.0.ln_1", "encoder.layers.0.attn.q", "encoder.layers.0.attn.k", "head")
    assert found.positions == (0, 1, 2, 3, 4)
    assert (found.prefix, found.edges) == ("model.", ())


def test_many_layers_are_named_by_blocks():
    found = labels(layer_names(500))
    assert found.texts[:3] == ("embed", "encoder.layers.0", "encoder.layers.1")
    assert found.positions[:3] == (0.0, 5.5, 15.5)
    assert found.edges[:3] == (-0.5, 0.5, 10.5)
    assert found.edges[-1] == 499.5
    assert len(found.texts) <= MOST_BLOCKS


def test_many_layers_without_blocks_are_named_by_round_steps():
    found = labels([f"net.{i}" for i in range(500)])
    assert found.positions == tuple(range(0, 500, 10))
    assert found.texts[1] == "10"


def test_steps_people_count_in():
    steps = round_numbers()
    assert [next(steps) for _ in range(7)] == [1, 2, 5, 10, 20, 50, 100]
