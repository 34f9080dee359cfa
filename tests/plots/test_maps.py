"""Pictures of feature maps and Grad-CAM: the right pixels in the right places."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from lightning_hooks.plots.maps import (
    CONSTANT,
    array_of,
    as_images,
    cam_figure,
    coloured,
    feature_map,
    kind_of,
    overlaid,
    resized,
    tiled,
)
from tests.support.made_reports import HOSTILE

RANDOM = np.random.default_rng(0)
VIRIDIS_ENDS = [(68, 1, 84), (253, 231, 37)]


def drawn(figure: Any) -> np.ndarray:
    """Draw a figure as a tracker would; every warning is an error here."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return np.asarray(Image.open(buffer).convert("RGB"))


def whole(figure: Any) -> np.ndarray:
    """The one image of a tiled figure."""
    return np.asarray(figure.axes[0].images[0].get_array())


def test_each_map_is_scaled_by_itself() -> None:
    for scale, offset in ((1, 0), (1e-9, 5e-9), (1e30, -1e30)):
        picture = coloured(np.array([[0.0, 1.0]]) * scale + offset)
        assert [tuple(pixel) for pixel in picture[0]] == VIRIDIS_ENDS
    assert tuple(coloured(np.array([[0.5, 1.0]]), low=0.0)[0, 0]) not in VIRIDIS_ENDS
    assert (coloured(np.full((2, 3), 4.0)) == CONSTANT).all()
    broken = coloured(np.array([[0.0, np.nan, np.inf, 1.0]]))
    assert [tuple(pixel) for pixel in broken[0]] == [VIRIDIS_ENDS[0], (213, 94, 0), (213, 94, 0), VIRIDIS_ENDS[1]]
    assert tuple(coloured(np.full((1, 1), np.nan))[0, 0]) == (213, 94, 0)


def test_tiles_stand_in_rows_and_columns() -> None:
    red, blue = np.zeros((50, 50, 3), np.uint8), np.zeros((25, 25, 3), np.uint8)
    red[..., 0], blue[..., 2] = 255, 255
    figure = tiled("title", "line", [[red, blue], [None, red]], row_names=["a", "b"], column_names=["x", "y"])
    picture = whole(figure)
    assert picture.shape == (103, 103, 3)
    assert (picture[:50, :50] == (255, 0, 0)).all()
    assert (picture[:50, 53:] == (0, 0, 255)).all()
    assert (picture[53:, :50] == 255).all()
    assert (picture[53:, 53:] == (255, 0, 0)).all()
    drawn(figure)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "channels_first", "kind"),
    [
        ((2, 3, 4, 5), False, "maps"),
        ((2, 3, 4, 5, 6), False, "maps"),
        ((2, 7, 4), False, "tokens"),
        ((2, 7, 4), True, "signals"),
        ((2, 9), False, "vectors"),
        ((2,), False, None),
        ((2, 0, 3, 3), False, None),
        ((1, 2, 3, 4, 5, 6), False, None),
    ],
)
def test_kinds_and_that_each_can_be_drawn(shape: tuple[int, ...], channels_first: bool, kind: Any) -> None:
    values = RANDOM.normal(size=shape)
    assert kind_of(values, channels_first) == kind
    for name, shown in zip(("net.conv", *HOSTILE[:3]), (values, np.full(shape, np.nan), np.zeros(shape), values), strict=True):
        assert drawn(feature_map(name, shown, kind, when="epoch 3")).std() > 1


def test_attention_is_known_by_its_sums() -> None:
    shares = RANDOM.dirichlet(np.ones(6), size=(2, 4, 5)).astype(np.float32)
    assert kind_of(shares, False) == "attention"
    assert kind_of(shares[:, 0], False) == "attention"
    assert kind_of(shares.astype(np.float16), False) == "attention"
    assert kind_of(shares * 1.1, False) == "maps"
    assert kind_of(np.ones((2, 3, 4, 1)), False) == "maps"
    picture = whole(feature_map("attn#weights", shares, "attention", max_maps=3))
    assert np.array_equal(picture[:48, :57], resized(coloured(shares[0, 0], 0.0), 48, 57))


def test_the_grid_holds_the_input_and_the_first_maps() -> None:
    values = RANDOM.normal(size=(2, 9, 48, 48))
    images = RANDOM.integers(0, 255, (2, 48, 48, 3), dtype=np.uint8)
    figure = feature_map("net.conv", values, "maps", images=images, max_maps=4, when="epoch 3")
    picture = whole(figure)
    assert picture.shape == (48 * 2 + 3, 48 * 5 + 3 * 4, 3)
    assert np.array_equal(picture[51:, :48], images[1])
    for j in range(4):
        assert np.array_equal(picture[:48, 51 * (j + 1) : 51 * (j + 1) + 48], coloured(values[0, j]))
    axes = figure.axes[0]
    assert axes.get_title(loc="left").strip() == "net.conv, epoch 3"
    assert "channels 0 to 3 of 9 (9x48x48)" in " ".join(text.get_text().replace("\n", " ") for text in axes.texts)
    volume = RANDOM.normal(size=(1, 1, 5, 48, 48))
    assert np.array_equal(whole(feature_map("v", volume, "maps"))[:48, :48], coloured(volume[0, 0, 2]))


def test_inputs_become_images() -> None:
    grey = np.array([[[[0.0, 0.5], [1.0, 0.25]]]])
    assert as_images(grey)[0, :, :, 0].tolist() == [[0, 128], [255, 64]]
    assert as_images((grey * 255).astype(np.uint8))[0, :, :, 2].tolist() == [[0, 127], [255, 63]]
    normalised = np.concatenate([grey * 4 - 2, grey * 100 - 3])
    assert np.array_equal(as_images(normalised)[0], as_images(grey)[0])
    assert np.array_equal(as_images(normalised)[1], as_images(grey)[0])
    colour = RANDOM.random((1, 3, 4, 5))
    assert np.array_equal(as_images(colour)[0], (colour[0].transpose(1, 2, 0) * 255).round().astype(np.uint8))
    assert as_images(np.zeros((1, 7, 2, 2))).shape == (1, 2, 2, 3)
    assert not as_images(np.full((1, 1, 2, 2), np.nan)).any()
    assert array_of(torch.ones(2, dtype=torch.bfloat16)).dtype == np.float32


def test_an_overlay_colours_where_the_map_is_and_greys_the_rest() -> None:
    image = np.full((1, 3, 3), (200, 100, 0), dtype=np.uint8)
    picture = overlaid(image, np.array([[0.0, 1.0, 4.0]]))
    assert picture[0, 0].tolist() == [100, 100, 100]
    distance = np.abs(picture.astype(int) - 100).sum(-1)[0]
    assert 0 == distance[0] < distance[1] < distance[2]
    assert overlaid(image, np.zeros((1, 3))).tolist() == np.full((1, 3, 3), 100).tolist()
    images = RANDOM.integers(0, 255, (2, 64, 64, 3), dtype=np.uint8)
    maps = RANDOM.random((2, 64, 64))
    assert np.array_equal(whole(cam_figure("t", "l", maps, images, ["a", "b"]))[:64, :64], images[0])
    assert np.array_equal(whole(cam_figure("t", "l", maps, images, ["a", "b"]))[-64:, :64], overlaid(images[0], maps[0]))
    assert drawn(cam_figure("t", "l", maps, None, ["a", "b"])).std() > 1
