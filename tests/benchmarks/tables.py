"""The tables of README.md and docs/about/cost.md, made of one run's results.

python -m tests.benchmarks.tables            # write them, between <!-- benchmark: NAME --> and <!-- /benchmark -->
python -m tests.benchmarks.tables --check    # fail where the code that was measured has changed since, or a table was edited
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.capabilities import CAPABILITIES
from tests.benchmarks.rows import ROWS
from tests.benchmarks.workloads import NAMES

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "cpu.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "about" / "cost.md")
MEASURED = ("hooks", "session", "hosts", "declare", "diagnostics", "statistics", "clipping", "callbacks")
"""The folders of the package whose code runs in a training step."""
IN_SHORT = ("default", "every", "nothing", "five-items", "fastai", "wandb")
"""The rows of the README's table."""
_BLOCK = re.compile(r"(<!-- benchmark: ([\w-]+) -->\n)(.*?)(<!-- /benchmark -->)", re.DOTALL)

Results = Mapping[str, Any]


def code_hash(package: Path = ROOT / "lightning_hooks") -> str:
    """A hash of the code that is measured."""
    files = [path for folder in MEASURED for path in (package / folder).rglob("*") if path.suffix in (".py", ".c")]
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def commit() -> str:
    """The commit under test, with a + where the package differs from it; empty where that is not known."""
    try:
        head, changes = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", "lightning_hooks")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + "+" * bool(changes)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


# Rendering.


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.0f}" if abs(value) >= 10 else f"{value:+.1f}"


def measured_at(results: Results) -> str:
    machine, at = results["machine"], results["commit"] or "unknown"
    return f"Measured at commit `{at}` ({machine['date']}, {machine['processor']}, torch {machine['torch']})"


def _of(results: Results, part: str) -> list[Mapping[str, Any]]:
    return [result for result in results["results"] if result.get(part)]


def _headings(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{NAMES.get(result['workload'], result['workload'])}, {_ms(result['step_ms'])} a step" for result in found]


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def in_short(results: Results) -> str:
    """The README's table."""
    found = [result for result in _of(results, "fits") if "every" in result["fits"] and result["workload"] in list(NAMES)[:3]]
    keys = [key for key in IN_SHORT if any(key in result["fits"] for result in found)]
    lines = []
    for key in keys:
        cells = [percent(result["fits"].get(key, {}).get("percent")) for result in found]
        bold = "**" if key == "default" else ""
        lines.append([f"{bold}{ROWS[key].label}{bold}", *(f"{bold}{cell}{bold}" for cell in cells)])
    every = "" if len(keys) < 2 else " All rows but the first record at every step."
    return (
        "Additional CPU time of a step, in percent, from whole trainings with and without callbacks on one thread (`make bench`)."
        f"{every} "
        f"{measured_at(results)}. Spread, wall time and details: [cost](docs/about/cost.md).\n\n"
        + table(["", *_headings(found)], lines)
    )


def whole_fits(results: Results, part: str = "fits") -> str:
    """Percent, and the quartiles of the pairs, of each row."""
    found = _of(results, part)
    keys = [key for key in ROWS if any(key in result[part] for result in found)]
    lines = []
    for key in keys:
        cells = []
        for result in found:
            entry = result[part].get(key)
            cells.append("" if entry is None else f"{percent(entry['percent'])} ({_spread(entry['quartiles'])})")
        lines.append([ROWS[key].label, *cells])
    threads = results["machine"]["threads"]
    what = "CPU time of a step on one thread" if part == "fits" else f"wall time of a step on {threads} threads"
    headings = _headings(found) if part == "fits" else [NAMES.get(result["workload"], result["workload"]) for result in found]
    caption = f"{measured_at(results)}. Additional {what}, in percent; in brackets the quartiles over pairs of fits."
    return f"{caption}\n\n{table(['', *headings], lines)}"


def _spread(quartiles: Sequence[float]) -> str:
    return f"{percent(quartiles[0])} … {percent(quartiles[-1])}"


def inside(results: Results) -> str:
    """Microseconds inside the package."""
    lines = []
    for result in _of(results, "own"):
        for key, entry in result["own"].items():
            lines.append(
                [
                    NAMES.get(result["workload"], result["workload"]) + ("" if key == "c" else ", without the C library"),
                    *(f"{entry[of]:.0f}" for of in ("sampled", "other", "first_looks")),
                    *(percent(entry["percent"][of]) for of in ("every", "default")),
                    *(f"{entry[of]:.0f}" for of in ("start_ms", "end_ms")),
                ]
            )
    header = [
        "",
        "a sampled step, µs",
        "a step that is not sampled, µs",
        "one of the first steps, µs",
        "every step, %",
        "default, %",
        "start, ms",
        "end, ms",
    ]
    return f"{measured_at(results)}. CPU time inside the package's own code.\n\n" + table(header, lines)


def reads(results: Results) -> str:
    """What reading tensors takes of a sampled step, next to PyTorch's own sum."""
    lines = []
    for result in _of(results, "reads"):
        entry, own = result["reads"], result.get("own", {}).get("c", {}).get("sampled")
        name = NAMES.get(result["workload"], result["workload"])
        whole = "" if own is None else f"{own / 1e3:.3g}"
        lines.append([name, f"{entry['tensors']:.0f}", *(f"{entry[of]:.3g}" for of in ("mb", "sum_ms", "ms")), whole])
    header = ["", "tensors", "MB", "torch's sum of them, ms", "reading them, ms", "everything the package does in the step, ms"]
    return f"{measured_at(results)}. What a sampled step reads of outputs, gradients and their norms.\n\n" + table(header, lines)


def capabilities(results: Results) -> str:
    """What each capability takes of a sampled step."""
    found = _of(results, "capabilities")
    header = [""]
    for result in found:
        name = NAMES.get(result["workload"], result["workload"])
        header += [f"{name}, µs", "%"]
    lines = []
    for key, capability in CAPABILITIES.items():
        cells = []
        for result in found:
            entry = result["capabilities"].get(key)
            if entry is None:
                cells += ["", ""]
                continue
            value = entry["saved"] if entry["inside"] is None else entry["inside"]
            cells += ["" if value is None else f"{value:.0f}", "" if entry["percent"] is None else f"{entry['percent']:.2f}"]
        lines.append([capability.label, *cells])
    return f"{measured_at(results)}. What each capability takes of a sampled step.\n\n" + table(header, lines)


def counts(results: Results) -> str:
    """Operations and waits of a step."""
    lines = []
    for result in _of(results, "counts"):
        for key, label in (("sampled", "a sampled step"), ("other", "a step that is not sampled")):
            entry = result["counts"][key]
            name = NAMES.get(result["workload"], result["workload"])
            lines.append(
                [f"{name}, {label}", *(f"{entry[of]:.0f}" for of in ("operations", "syncs", "dispatches", "own_dispatches"))]
            )
    header = ["", "operations", "host syncs", "calls of our function mode", "of these by our own code"]
    return f"{measured_at(results)}.\n\n" + table(header, lines)


def limits(results: Results) -> str:
    """What is limited apart from a step's cost."""
    entries = list(results.get("limits", {}).values())
    for result in _of(results, "fits"):
        if result["workload"] == "tiny":
            for key, limit in (("default", 8), ("every", None)):
                entry = result["fits"].get(key)
                if entry is not None:
                    label = f"{NAMES['tiny']}, {key if key == 'default' else 'every step'}"
                    entries.append({"label": label, "value": entry["percent"], "unit": "%", "limit": limit})
    lines = [
        [
            entry["label"],
            f"{entry['value']:.3g} {entry['unit']}",
            "" if entry["limit"] is None else f"{entry['limit']} {entry['unit']}",
        ]
        for entry in entries
    ]
    return f"{measured_at(results)}.\n\n" + table(["", "measured", "goal"], lines)


TABLES: dict[str, Callable[[Results], str]] = {
    "in-short": in_short,
    "fits": whole_fits,
    "wall": lambda results: whole_fits(results, "wall"),
    "inside": inside,
    "reads": reads,
    "capabilities": capabilities,
    "counts": counts,
    "limits": limits,
}


PART_OF = {"in-short": "fits", "inside": "own"}
"""The part of a run that a table is of, where they are not called the same."""


def filled(page: str, results: Results) -> str:
    """A page with its tables; those that the run has no numbers for stay as they are."""

    def fill(block: re.Match[str]) -> str:
        part = PART_OF.get(block[2], block[2])
        known = part in results or _of(results, part)
        return f"{block[1]}\n{TABLES[block[2]](results)}\n\n{block[4]}" if known else block[0]

    return _BLOCK.sub(fill, page)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--pages", type=Path, nargs="*", default=PAGES)
    options = parser.parse_args(arguments)
    if not options.results.is_file():
        print(f"{options.results} is not there: run `make bench`.")
        return 1
    results, code = json.loads(options.results.read_text(encoding="utf-8")), 0
    if results["quick"] and options.pages is PAGES:
        print(f"{options.results} is of a quick run: run `make bench`.")
        return 1
    for page in options.pages:
        before = page.read_text(encoding="utf-8")
        after = filled(before, results)
        if not options.check:
            page.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"{page}: its tables are not those of {options.results.name}: run `python -m tests.benchmarks.tables`.")
            code = 1
    if options.check and results["code"] != code_hash():
        print(
            f"The tables are of commit {results['commit']}, and {', '.join(MEASURED)} have changed since: run `make bench`, then "
            "`python -m tests.benchmarks.tables`."
        )
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
