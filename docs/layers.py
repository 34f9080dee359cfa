"""The diagram of docs/about/architecture.md: the parts of the package in layers, from what they import.

    python -m docs.layers

writes it again; tests/test_docs.py compares.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.test_floors import FILES, PACKAGE, PASSES_ON, imported, part_of

PAGE = Path(__file__).parent / "about/architecture.md"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)
OUTSIDE = ("__init__", "__main__")
TOP, LOOPS = "callbacks", "hosts"
"""The highest folder; and the one that needs all others on the way of the data, of which the toolbox is no part."""


def imports() -> dict[str, set[str]]:
    """The parts, folders or modules, that each part imports from."""
    found: dict[str, set[str]] = {part_of(path): set() for path in FILES if part_of(path) not in OUTSIDE}
    for path in FILES:
        if path.relative_to(PACKAGE) in PASSES_ON:
            continue
        for name in imported(path.read_text(encoding="utf-8")):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if package == "lightning_hooks" and part_of(path) in found and other in found:
                found[part_of(path)].add(other)
    return {folder: others - {folder} for folder, others in found.items()}


def diagram() -> str:
    """A folder on each line, with what its docstring begins with; an arrow between layers, the highest first."""
    below = imports()

    @cache
    def layer(folder: str) -> int:
        return 1 + max(map(layer, below[folder]), default=-1)

    needed = {LOOPS}
    while others := set().union(*(below[folder] for folder in needed)) - needed:
        needed |= others
    layers = [sorted(folder for folder in needed | {TOP} if layer(folder) == height) for height in range(layer(TOP), -1, -1)]
    return "    ↑\n".join("".join(f"{folder:14}{_about(folder)}\n" for folder in folders) for folders in layers)


def _about(folder: str) -> str:
    path = PACKAGE / folder / "__init__.py"
    source = (path if path.exists() else PACKAGE / f"{folder}.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return re.split(r"[:.]", docstring, maxsplit=1)[0]


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda _: diagram(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
