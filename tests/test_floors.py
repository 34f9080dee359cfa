"""Imports go down only: hooks < statistics < declare < diagnostics < alerts < trackers, plots < session < callbacks.

Hosts lie between session and callbacks; what a session asks of them, ``hosts/host.py``, lies below declare.
"""

import ast
from pathlib import Path

import pytest

import lightning_hooks

PACKAGE = Path(lightning_hooks.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# What a part may import. A part that is not named here fails, so that a new one gets its floor.
BELOW = {
    "hooks": set(),
    "statistics": {"hooks"},
    "clipping": {"hooks"},
    "extraction": {"hooks"},
    "transforms": {"hooks", "statistics", "extraction"},
    "debugging": {"hooks", "statistics"},
    "reports": {"hooks", "statistics", "clipping", "quantization"},
    "alerts": {"hooks", "statistics", "clipping", "reports"},
    "quantization": {"hooks", "statistics"},
    "profiling": {"hooks", "reports"},
    "pruning": {"hooks", "statistics", "reports", "extraction"},
}
BELOW["declare"] = {"hooks", "statistics", "clipping", "trackers", "host"}
BELOW["diagnostics"] = {"hooks", "statistics", "clipping", "quantization", "declare", "trackers", "plots", "host"}
BELOW["alerts"] = {"hooks", "statistics", "clipping", "declare", "diagnostics"}
BELOW |= {
    "profiling": {"hooks", "declare"},
    "checkpoints": {"hooks", "declare"},
    "pruning": {"hooks", "statistics", "declare", "extraction"},
}
FLOOR_1 = set(BELOW)
BELOW |= {part: FLOOR_1 | {"trackers", "plots"} - {part} for part in ("trackers", "plots")}  # of diagnostics they read reports
BELOW["run_report"] = FLOOR_1 | {"trackers", "plots"}
BELOW["host"] = {"trackers"}
BELOW["replay"] = FLOOR_1 | {"trackers", "plots", "run_report", "host"}
BELOW["sinks"] = {"declare", "trackers", "plots", "run_report"}
BELOW["session"] = FLOOR_1 | {"trackers", "plots", "run_report", "host", "replay", "sinks"}
BELOW["hosts"] = FLOOR_1 | {"trackers", "plots", "run_report", "session", "host", "replay", "sinks"}
BELOW["callbacks"] = set(BELOW) - {"callbacks"}
BELOW["lazy"] = set()
BELOW["__init__"] = {"hooks", "statistics", "alerts", "hosts", "callbacks"}
BELOW["demo"] = {"callbacks", "declare", "diagnostics"}
BELOW["__main__"] = {"run_report", "sinks", "demo", "replay"}
BELOW["environment"] = {"callbacks"}
LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}
KNOW_LIGHTNING = {"callbacks", "environment", "demo", "lightning", "fabric"}
"""The parts that may import Lightning, two of them modules of hosts."""


def part_of(path):
    """The folder or module of the package that a file belongs to; the protocol of hosts is a part of its own."""
    found = path.relative_to(PACKAGE)
    return "host" if found.parts == ("hosts", "host.py") else found.parts[0].removesuffix(".py")


def part_named(name):
    """The part that a dotted name below the package belongs to."""
    first, _, rest = name.partition(".")
    return "host" if first == "hosts" and rest.split(".")[0] == "host" else first


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
        inner = part_named(rest)
        if top == "lightning_hooks" and inner not in {part, "lazy"} | BELOW[part]:
            yield f"{part} imports {name}, which is not below it"
        if top in LIGHTNING and not may_import_lightning(part, module):
            yield f"{part} imports {name}; only callbacks and their hosts may, and the demo, which is a training"
        if part in FLOOR_1 - {"declare", "diagnostics"} and top in {"torchmetrics", "matplotlib", "tensorboard", "wandb", "mlflow"}:
            yield f"{part} imports {name}; floor 1 is plain torch"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    part = part_of(path)
    assert part in BELOW, f"give {part} a floor in {__file__}"
    assert list(violations(part, path.read_text(), path.stem)) == []


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
        ("host", "from lightning_hooks.session.session import Session"),
    ],
)
def test_an_import_that_goes_up_is_found(part, source):
    assert len(list(violations(part, source))) == 1


def test_floor_1_has_no_cycle():
    """The graph of what is really imported has an order, file by file."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    graph = {}
    for name, path in modules.items():
        if part_of(path) in FLOOR_1 and path.name != "__init__.py":
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
    assert path == PACKAGE / "plots" / "__init__.py" or not capabilities_in(path.read_text())


def test_a_capability_in_what_draws_is_found():
    assert capabilities_in("from lightning_hooks.diagnostics.attention.table import AttentionReport") == {"attention"}
