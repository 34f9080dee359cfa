"""What differs in the set-up of two runs: models, optimizers, learning rates, batches, clipping, monitors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lightning_hooks.run_report.lines import by_names, is_table
from lightning_hooks.run_report.numerals import number
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.training import layers, rates_by_group

NOT_SETTINGS = ("event", "version", "started", "epoch", "step", "monitors", "watched", "layers")
"""What a ``fit`` event says that is not a setting; layers are compared one by one."""
OF_OPTIMIZERS = ("weight_decay", "momentum", "betas", "eps", "maximize")
"""Settings of parameter groups that are compared; learning rates are compared over the whole run."""
MOST_LAYERS = 8


def setup_differences(a: Run, b: Run) -> list[tuple[str, Any, Any]]:
    """What differs, as (what, in the first, in the second), the optimizers and their learning rates first."""
    keys = dict.fromkeys(key for run in (a, b) for key in run.fit if key not in NOT_SETTINGS)
    pairs = [("optimizers", a.fit.get("optimizers"), b.fit.get("optimizers"))]
    pairs += _paired(_rates(a), _rates(b))
    pairs += _paired(_of_reports(a), _of_reports(b))
    pairs += [(key, a.fit.get(key), b.fit.get(key)) for key in keys if key != "optimizers"]
    pairs += [("monitors", _listed(a), _listed(b)), (f"{a.window}s", len(a.epochs), len(b.epochs))]
    different = [pair for pair in pairs if pair[1] != pair[2]]
    changed = [pair for pair in _paired(_layers(a), _layers(b)) if pair[1] != pair[2]]
    more = [("more layers that differ", len(changed) - MOST_LAYERS, None)] if len(changed) > MOST_LAYERS else []
    return [*different, *changed[:MOST_LAYERS], *more]


def _paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b))]


def _rates(run: Run) -> dict[str, str]:
    """The learning rate of each parameter group: one number where it stays, else its range and the last."""
    found = {}
    for group, rates in rates_by_group(run).items():
        known = [rate for rate in rates if not math.isnan(rate)]
        if known:
            low, high, last = (number(rate) for rate in (min(known), max(known), known[-1]))
            found[f"learning rate of {group}"] = low if low == high else f"{low} to {high}, last {last}"
    return found


def _of_reports(run: Run) -> dict[str, Any]:
    """What the last reports say of optimizers, clipping and batches."""
    found: dict[str, Any] = {}
    for record in run.monitors:
        report = {} if record.latest is None else record.latest["report"]  # as plain data: the reports' classes need torch
        optimizers: Any = report.get("optimizers")
        for name, stats in by_names(optimizers).items() if is_table(optimizers) else ():
            groups = [group for group in stats.get("groups") or () if isinstance(group, dict)]
            for place, group in enumerate(groups):
                suffix = f"/pg{place + 1}" if len(groups) > 1 else ""
                found |= {f"{key} of {name}{suffix}": group.get(key) for key in OF_OPTIMIZERS}
            if stats.get("limit"):
                found[f"clipping limit of {name}"] = stats["limit"]
        if report.get("batches"):
            found[f"batches of a {run.window}"] = report["batches"]
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return {key: number(value) if isinstance(value, float) else value for key, value in found.items()}


def _layers(run: Run) -> dict[str, str]:
    return {f"layer {name}": f"{kind}({detail})" for name, kind, detail, _ in layers(run)}


def _listed(run: Run) -> str:
    return ", ".join(f"{record.prefix} ({record.modules})" for record in run.monitors)
