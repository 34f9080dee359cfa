"""What is written to each tracker in its test, and to all of them alike."""

from __future__ import annotations

import importlib
import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.tracker import Picture

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
SCALARS = {"features/net.0/rms": 1.5, "features/net.0/mean": math.nan, "gradient_clip/rate": 0.25}
HOSTILE_TAGS = (
    "features/<script>alert(1)</script>/rms",
    "features/../../x/rms",
    "features/sch\u00f6n \U0001f525/rms",
    "features/a|b*`c`/rms",
)
EDGES, COUNTS = [-1.0, 0.0, 0.5, 2.0], [3.0, 0.0, 5.0]
COLUMNS, ROWS = ["site", "value"], [["net.0", 0.5], ["<b>|evil", None]]
STEPS = (6, 13)


class Faults(list[tuple[str, Exception]]):
    """Keeps what trackers raised."""

    def __call__(self, name: str, error: Exception) -> None:
        self.append((name, error))


def loggers_of(package: str) -> Any:
    return importlib.import_module(f"{package}.loggers")


def image() -> np.ndarray:
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    pixels[1, 2] = (255, 0, 10)
    return pixels


def picture() -> Picture:
    buffer = BytesIO()
    Image.fromarray(image()).save(buffer, format="PNG")
    return Picture(buffer.getvalue(), 6, 4)


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(png)).convert("RGB"))


def figure() -> Figure:
    drawn = Figure((2, 1), dpi=50)
    drawn.subplots().plot([1, 3, 2])
    return drawn


def write_all(trackers: Trackers, folder: Path) -> None:
    """Everything a tracker can be asked to show, at two steps."""
    path = folder / "report.html"
    path.write_text("<p>fine</p>", encoding="utf-8")
    for step in STEPS:
        trackers.scalars({tag: value + step for tag, value in SCALARS.items()}, step)
        trackers.scalars(dict.fromkeys(HOSTILE_TAGS, 2.0), step)
        trackers.figure("features/figures/rms", figure(), step)
        trackers.picture("features/maps/net.0", picture(), step)
        trackers.histograms({"features/net.0/histogram": (EDGES, COUNTS)}, step)
        trackers.histograms({"features/empty/histogram": (EDGES, [0, 0, 0])}, step)
        trackers.text("notes", "**seen**", step)
        trackers.table("sites", COLUMNS, ROWS, step)
        trackers.embedding("features/net.0/space", np.arange(6.0).reshape(2, 3), ["a", "b"], step)
        trackers.file(path, step)
        trackers.picture("../../../escape/<i>", picture(), step)
        trackers.table("../../../escape/<i>", COLUMNS, ROWS, step)
        trackers.text("../../../escape/<i>", "x", step)
        trackers.save()


def outside(folder: Path, allowed: Path) -> list[Path]:
    """Files below ``folder`` that are not below ``allowed``."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(allowed)]
