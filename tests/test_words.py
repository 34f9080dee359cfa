"""One word for each thing: the package, README, documentation, notebooks and examples have none of the words that are replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REPLACED = {
    r"told|tell|tells|telling|said": "log, warn, notify, show",
    r"hear|hears|heard|unheard|(?<![.`])(?<!def )listen(?:s|ed|ing)?": "record, observe",
    r"ill|illness(?:es)?|sick|suffers?": "problem, affected, unhealthy",
    r"what follows": "consequence",
    r"beside|apart|aside": "next to, together with, separate",
    r"refused?|refuses|unheard of": "unsupported, raises",
    r"rests|resting|bed|asleep|wakes?": "disable, skip, ignore, detach, remove",
    r"spots?|(?<!in )(?<!in-)(?<!in its )(?<!takes )places?(?! of\b)": "site, where",
    r"news": "alert",
    r"becomes of|anew": "plain English",
}
"""Patterns of whole words, and what to write. "Word", "head", "say" and "look" have ordinary uses here and are not checked."""

TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py")]
}
CODE = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("lightning_hooks/**/*.py")}
TEXTS |= {path: (ROOT / path).read_text(encoding="utf-8") for path in CODE}
for notebook in ROOT.glob("notebooks/*.ipynb"):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    TEXTS[f"notebooks/{notebook.name}"] = "\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.parametrize("path", sorted(TEXTS))
def test_no_replaced_word(path: str) -> None:
    for pattern, instead in REPLACED.items():
        if path in CODE and "places?" in pattern:  # in code an index is the place of something
            continue
        found = [f"{match[0]!r} in {line.strip()[:90]!r}" for line in TEXTS[path].splitlines()
                 for match in re.finditer(rf"\b(?:{pattern})\b", line, re.IGNORECASE)]  # fmt: skip
        assert not found, f"write {instead}: {found}"
