"""Imports go down only, folder by folder, from callbacks to hooks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_hooks

PACKAGE = Path(lightning_hooks.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# What a part may import, each of them above it here. A part that is not named fails, so that a new one gets its floor.
BELOW: dict[str, set[str]] = {
    "hooks": set(),
    "clipping": set(),
    "trackers": set(),
    "extraction": {"hooks"},
    "statistics": {"hooks"},
    "debugging": {"hooks", "statistics"},
    "quantization": {"hooks", "statistics"},
    "transforms": {"hooks", "statistics", "extraction"},
    "declare": {"hooks", "statistics", "trackers"},
    "profiling": {"hooks", "trackers", "declare"},
    "pruning": {"hooks", "trackers", "statistics", "extraction", "declare"},
    "plots": {"hooks", "trackers", "declare"},
    "diagnostics": {"hooks", "clipping", "trackers", "statistics", "quantization", "declare", "plots"},
    "judge": {"hooks", "declare", "diagnostics"},
    "alerts": {"declare", "diagnostics", "judge"},
    "run_report": {"trackers", "declare", "plots", "diagnostics", "judge", "alerts"},
    "replay": {"hooks", "statistics", "debugging", "declare", "diagnostics", "run_report"},
    "sinks": {"trackers", "declare", "plots", "run_report"},
}
ENGINE = {"hooks", "trackers", "statistics", "declare", "plots", "diagnostics", "judge", "alerts", "run_report", "replay", "sinks"}
BELOW["metrics"] = {"hooks", "statistics"}
BELOW["session"] = ENGINE
BELOW["hosts"] = ENGINE | {"session"}
BELOW["callbacks"] = set(BELOW)
BELOW["__init__"] = {"hooks", "statistics", "alerts", "hosts", "callbacks"}
BELOW["demo"] = {"declare", "callbacks"}
BELOW["environment"] = {"callbacks"}
BELOW["__main__"] = {"trackers", "alerts", "run_report", "replay", "sinks", "demo"}
PASSES_ON = {Path("plots/__init__.py")}
"""Files that give names of parts above, which nothing in the package imports from there."""
PLAIN_TORCH = {
    *("hooks", "clipping", "extraction", "statistics", "debugging", "quantization", "transforms", "profiling"),
    *("pruning", "alerts"),
}
"""Parts that import no tracker and nothing that draws."""
LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}
KNOW_LIGHTNING = {"callbacks", "environment", "demo", "lightning", "fabric"}
"""The parts that may import Lightning, two of them modules of hosts."""


def part_of(path):
    """The folder or module of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def may_import_lightning(part, module=""):
    """Whether a module of a part may; of hosts those that are named for it."""
    return (module.partition("_")[0] if part == "hosts" else part) in KNOW_LIGHTNING


def imported(source):
    """The dotted names that a source imports, wherever in it, typing-only imports included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(part, source, module=""):
    """What a file of ``part`` imports and may not."""
    for name in imported(source):
        top, _, rest = name.partition(".")
        inner = rest.partition(".")[0]
        if top == "lightning_hooks" and inner not in {part} | BELOW[part]:
            yield f"{part} imports {name}, which is not below it"
        if top in LIGHTNING and not may_import_lightning(part, module):
            yield f"{part} imports {name}; only callbacks and their hosts may, and the demo, which is a training"
        if part in PLAIN_TORCH and top in {"torchmetrics", "matplotlib", "tensorboard", "wandb", "mlflow"}:
            yield f"{part} imports {name}; {part} is plain torch"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    part = part_of(path)
    assert part in BELOW, f"give {part} a floor in {__file__}"
    if path.relative_to(PACKAGE) not in PASSES_ON:
        assert list(violations(part, path.read_text(), path.stem)) == []


def test_each_part_is_above_all_that_it_imports():
    parts = list(BELOW)
    for place, part in enumerate(parts):
        assert BELOW[part] <= set(parts[:place]), part


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("hooks", "from lightning_hooks.statistics import merge"),
        ("statistics", "def f():\n    import lightning_hooks.alerts"),
        ("clipping", "from lightning_hooks.declare.alert import Alert"),
        ("clipping", "from lightning_hooks.statistics.rows import Column"),
        ("alerts", "from lightning_hooks import trackers"),
        ("trackers", "from lightning.pytorch import Trainer"),
        ("plots", "import pytorch_lightning as pl"),
        ("plots", "from lightning_hooks.callbacks.base import HookedCallback"),
        ("hooks", "import torchmetrics"),
        ("alerts", "from lightning_hooks import Alert"),
        ("hosts", "from lightning.pytorch import Trainer"),
        ("session", "from lightning_hooks.hosts.plain import PlainHost"),
        ("declare", "from lightning_hooks.hosts.plain import PlainHost"),
        ("plots", "from lightning_hooks.diagnostics.reports import FeatureReport"),
    ],
)
def test_an_import_that_goes_up_is_found(part, source):
    assert len(list(violations(part, source))) == 1


def test_no_file_imports_one_that_imports_it():
    """The graph of what is imported has an order, file by file."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    graph = {}
    for name, path in modules.items():
        if path.name != "__init__.py":
            found = set(imported(path.read_text()))
            parents = {entry.rpartition(".")[0] for entry in found}
            graph[name] = {other for other in found | parents if other in modules and other != name}
    done = set()
    while graph:
        ready = {name for name, needs in graph.items() if not (needs & graph.keys()) - done}
        assert ready, f"a cycle among {sorted(graph)}"
        done |= ready
        for name in ready:
            del graph[name]


CAPABILITIES = {path.parent.name for path in (PACKAGE / "diagnostics").glob("*/__init__.py")}
DRAW = [path for path in FILES if part_of(path) in ("plots", "run_report", "sinks", "trackers")]


def capabilities_in(source):
    """The folders of diagnostics that a source imports from."""
    names = (name.removeprefix("lightning_hooks.diagnostics.").split(".")[0] for name in imported(source))
    return CAPABILITIES & {*names}


@pytest.mark.parametrize("path", DRAW, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_draws_knows_no_capability(path):
    """A capability declares what is shown of it; the public figures are reached through their package."""
    assert path.relative_to(PACKAGE) in PASSES_ON or not capabilities_in(path.read_text())


def test_a_capability_in_what_draws_is_found():
    assert capabilities_in("from lightning_hooks.diagnostics.attention.table import AttentionReport") == {"attention"}


WITHOUT_TORCH = ["sinks.tab.plugin", "sinks.tab.answers", "run_report.page", "run_report.verdict", "run_report.compare"]


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_reads_logs_imports_no_torch(name):
    """TensorBoard's process may have no torch: a module that it needs may not get it by what it imports either."""
    out_of_reach = f"sys.modules.update(dict.fromkeys(('torch', 'torchmetrics', {', '.join(map(repr, sorted(LIGHTNING)))})))"
    code = f"import sys; {out_of_reach}; import lightning_hooks.{name}"
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)
