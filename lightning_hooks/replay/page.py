"""The page of a step that was run again, next to the run's report."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from lightning_hooks.replay.blame import Blame
from lightning_hooks.replay.capsule import Capsule
from lightning_hooks.run_report.lines import write_whole
from lightning_hooks.run_report.page import render


def write_page(capsule: Capsule, found: Blame, output: Path | None = None) -> Path:
    """Write the page.

    Args:
        capsule: The capsule.
        found: What running its step again has shown.
        output: The file; None for next to the run's report, or in a capsule that stands alone.

    Returns:
        The file.
    """
    within = capsule.path.parent.parent if capsule.path.parent.name == "capsules" else capsule.path
    failure = found.failure
    place = None if failure is None else failure.place
    facts = (
        {}
        if place is None or failure is None
        else {
            "Module": f"{place.module or 'training_step'}{f' ({found.kind})' if found.kind else ''}",
            "Operation": f"{place.operation} ({failure.phase})",
            "Line": f"{place.where} {place.code}",
            "Inputs": place.inputs,
            "First value": failure.value,
            "Rows of the batch": "all" if found.all_rows else ", ".join(map(str, found.rows)),
            "Samples": ", ".join(map(str, found.samples)),
        }
    )
    view = SimpleNamespace(
        title=f"{capsule.record.get('kind')} at step {capsule.record.get('step')}",
        text=found.text,
        reproduced=found.reproduced,
        facts={name: text for name, text in facts.items() if text},
        left_out=capsule.record.get("left_out", []),
        trace=str(found.trace or ""),
    )
    return write_whole(output or within / f"replay-{capsule.path.name}.html", render("replay.html.j2", view))
