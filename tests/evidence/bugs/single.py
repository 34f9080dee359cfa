"""One training of the table in this process: ``python -m tests.evidence.bugs.single FOLDER``; the environment says how many ranks.

The folder has ``job.json``, the name and whether the bug is planted; the row goes into ``<rank>.pickle`` there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.evidence.bugs.catalogue import CASES
from tests.evidence.exam.run import observed
from tests.support.two_processes import hand_over

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    name, planted = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(1)
    hand_over(folder, {"row": observed(CASES[name], planted)})
