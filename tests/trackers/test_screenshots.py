"""The screenshots of README and docs: all there, all small, all made by the script."""

from __future__ import annotations

import re

import pytest

from tests.trackers.screenshots import HEALTH, REPORTS, ROOT, SAMPLE, SHOTS

IMAGES = ROOT / "docs" / "images"
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("name", [*SHOTS, *REPORTS])
def test_a_screenshot_is_there_and_small(name: str) -> None:
    path = IMAGES / f"{name}.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 100_000


def test_readme_and_docs_show_them_and_no_other() -> None:
    shown = set(re.findall(r"images/([\w-]+)\.png", TEXT))
    assert shown == {path.stem for path in IMAGES.glob("*.png")} == {*SHOTS, *REPORTS, SAMPLE, HEALTH, f"{HEALTH}-runs"}
    for image in re.findall(r"<img [^>]*>", TEXT):
        assert 'alt="' in image
