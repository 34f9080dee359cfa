"""Names made safe: nothing escapes, nothing collides, and what was safe stays as it is."""

from __future__ import annotations

import string
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lightning_hooks.trackers.console import markdown_text, metric_name, safe_path
from tests.support.made_reports import HOSTILE

NAMES = st.text(max_size=120) | st.sampled_from(HOSTILE) | st.text(alphabet="./\\ab", max_size=12)


@given(NAMES)
@example("../../etc/passwd")
@example("/absolute")
@example("C:\\windows")
@example("..")
@example("")
def test_a_safe_path_stays_below_its_folder(name: str) -> None:
    path = PurePosixPath(safe_path(name))
    assert not path.is_absolute()
    assert path.parts
    assert not {".", ".."} & set(path.parts)
    assert set(str(path)) <= set(string.ascii_letters + string.digits + "_.-/ ")
    assert all(part == part.strip() for part in path.parts), "Windows drops a space at the end"
    assert all(len(part) <= 100 for part in path.parts)
    assert Path("/base", path).resolve().is_relative_to("/base")


@given(st.lists(NAMES, min_size=2, max_size=8, unique_by=lambda name: tuple(part for part in name.split("/") if part)))
def test_different_names_have_different_paths_and_metrics(names: list[str]) -> None:
    assert len({safe_path(name) for name in names}) == len(names)
    assert len({metric_name(name) for name in set(names)}) == len(set(names))


@pytest.mark.parametrize(
    "name", ["features/net.layer1.0.conv1/rms", "gradient_clip/0-Adam/rate", "a_b.c-d", "features/figures/dead units"]
)
def test_ordinary_names_stay(name: str) -> None:
    assert safe_path(name) == metric_name(name) == name


def test_mlflow_takes_every_metric_name() -> None:
    validation = pytest.importorskip("mlflow.utils.validation", reason="mlflow is of the trackers extra, and is not installed")

    @settings(deadline=None)  # other tests run at the same time
    @given(NAMES)
    def check(name: str) -> None:
        legal = metric_name(f"features/{name}/rms")
        validation._validate_metric_name(legal)
        assert len(legal) <= 250

    check()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("a|b", "a\\|b"),
        ("**bold** _it_ `code` [x](y)", "\\*\\*bold\\*\\* \\_it\\_ \\`code\\` \\[x\\](y)"),
        ("two\nlines\tand tabs", "two lines and tabs"),
        ("a & b", "a &amp; b"),
        ("net.0", "net.0"),
    ],
)
def test_markdown_text(text: str, escaped: str) -> None:
    assert markdown_text(text) == escaped
