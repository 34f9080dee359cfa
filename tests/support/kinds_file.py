"""What readers without torch know of the kinds of alerts, made of their declarations: ``python -m tests.support.kinds_file``."""

from __future__ import annotations

import json
from pathlib import Path

import lightning_hooks.alerts  # noqa: F401  it fills the registry
from lightning_hooks.declare.kinds import KINDS

FILE = Path(__file__).parents[2] / "lightning_hooks" / "declare" / "kinds.json"


def text() -> str:
    """The file as it should be."""
    lines = [f"  {json.dumps(name)}: {json.dumps([kind.measures, kind.limit])}" for name, kind in KINDS.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
