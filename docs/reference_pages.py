"""The API reference: a page for the names of `lightning_hooks`, in groups, and one for each public package below it."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules

import lightning_hooks

GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "monitors": (
        "Monitors: callbacks that observe",
        (
            *("TrainingMonitor", "monitors", "FeatureStatsMonitor", "GradientFlowMonitor", "GradientClipMonitor"),
            *("AttentionMonitor", "RouterMonitor", "watch", "Alert"),
        ),
    ),
    "altering": ("Callbacks that alter training", ("GradientClipper", "InputNormalizer", "GradientTransform", "ActivationPruner")),
    "tools": (
        "Toolbox",
        ("FeatureExtractor", "FeatureMapVisualizer", "GradCAM", "LayerProfiler", "ActivationRangeObserver", "HookDebugger"),
    ),
    "building": ("Building blocks", ()),  # every other public name
}
"""The pages for the names of `lightning_hooks`; a name that does not exist yet is left out."""


def groups() -> dict[str, tuple[str, list[str]]]:
    """Page to its title and names: every public name once."""
    listed = {name for _, names in GROUPS.values() for name in names}
    found = {page: (title, [name for name in names if name in lightning_hooks.__all__]) for page, (title, names) in GROUPS.items()}
    found["building"][1].extend(sorted(set(lightning_hooks.__all__) - listed))
    return found


def packages() -> dict[str, list[str]]:
    """The public packages, and the names of each that `lightning_hooks` does not export itself."""
    found = {}
    for module in iter_modules(lightning_hooks.__path__):
        if module.ispkg and not module.name.startswith("_"):
            names = [*getattr(import_module(f"lightning_hooks.{module.name}"), "__all__", [])]
            found[module.name] = [name for name in names if name not in lightning_hooks.__all__]
    return {name: names for name, names in sorted(found.items()) if names}


def paths() -> list[str]:
    """The pages, in order."""
    return [f"reference/{name}.md" for name in (*GROUPS, *packages())]


def pages() -> dict[str, str]:
    """Path to text."""
    made = {"reference/index.md": _index()}
    for page, (title, names) in groups().items():
        made[f"reference/{page}.md"] = _page(title, "lightning_hooks", names)
    for package, names in packages().items():
        made[f"reference/{package}.md"] = _page(f"lightning_hooks.{package}", f"lightning_hooks.{package}", names)
    return made


def path_of(package: str, name: str) -> str:
    """Where the reference finds a name: at its package, or, if its module has the same name, in that module."""
    found = getattr(import_module(package), name)
    if inspect.isfunction(found) and found.__module__.endswith(f".{name}"):
        return f"{found.__module__}.{name}"
    return f"{package}.{name}"


def _page(title: str, package: str, names: list[str]) -> str:
    about = (import_module(package).__doc__ or "").strip() if package != "lightning_hooks" else ""
    line = f"Import these names from `{package}`."
    return "\n\n".join([f"# {title}", about, line, *(f"::: {path_of(package, name)}" for name in names)]) + "\n"


def _index() -> str:
    rows = ["# Reference", "Every public name, from the docstrings of the code.", "| page | names |\n|---|---|"]
    for page, (title, names) in groups().items():
        rows[-1] += f"\n| [{title}]({page}.md) | {', '.join(f'`{name}`' for name in names)} |"
    for package, names in packages().items():
        rows[-1] += f"\n| [lightning_hooks.{package}]({package}.md) | {', '.join(f'`{name}`' for name in names)} |"
    return "\n\n".join(rows) + "\n"
