"""Runs on disk, made of made-up reports; a conftest imports the fixture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.recorded import UNREADABLE, TableNames, named
from tests.support.made_reports import FIT, clips, features, flow, layer_names


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read events one by one, without the lines that hold none."""
    names: TableNames = {}
    for text in path.read_text(errors="replace").splitlines():
        with suppress(*UNREADABLE):
            yield named(json.loads(text), names)


@pytest.fixture
def make_run(tmp_path):
    """Write a run's file; returns its log directory."""

    def make(name="run", names=None, epochs=5, broken=lambda epoch: False, healthy=False, end="finished", fit=FIT, **changes):
        names = layer_names(9) if names is None else names
        folder = tmp_path / "logs" / name
        file = folder / FOLDER / REPORTS
        append(file, line("fit", fit))
        quiet = {"alerts": ()} if healthy else {}
        for epoch in range(fit["epoch"], epochs):
            for prefix, report in (
                ("features", features(epoch, names, broken=broken(epoch), **quiet, **changes)),
                ("gradient_flow", flow(epoch, names, broken=broken(epoch), **quiet)),
                ("gradient_clip", clips(epoch, broken=broken(epoch))),
            ):
                append(file, report_line(prefix, "every leaf", report, 0.01))
            append(file, line("epoch", {"epoch": epoch, "seconds": 2.0, "bytes": 5000}))
        if end:
            append(file, line("end", {"how": end, "error": "ValueError: <b>bad</b>", "error_type": "ValueError"}))
        return folder

    return make
