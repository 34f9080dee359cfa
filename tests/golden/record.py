"""Record the outcomes again: ``python -m tests.golden.record [NAME ...]``. A commit that changes them says why."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.golden.trainings import TRAININGS, normalised

OUTCOMES = Path(__file__).parent / "outcomes"


def main(names: list[str]) -> None:
    OUTCOMES.mkdir(exist_ok=True)
    for name in names or TRAININGS:
        with tempfile.TemporaryDirectory() as folder:
            found = normalised(TRAININGS[name](Path(folder)))
        (OUTCOMES / f"{name}.json").write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
