"""What a run's record says of the model and of training next to the reports: layers, and loss and learning rates by epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import FunctionType, SimpleNamespace
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from lightning_hooks.hooks.attributes import contents, stored
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.hooks.tensors import read_number

MOST_LAYERS = 2000
LONGEST_DETAIL = 90


def layers(model: nn.Module) -> dict[str, list[Any]]:
    """The leaves of a model by columns: name, type, what its ``repr`` says of its shape, number of its parameters."""
    table: dict[str, list[Any]] = {"name": [], "type": [], "detail": [], "parameters": []}
    for name, module in named_sites(model):
        if next(module.children(), None) is not None:
            continue
        if len(table["name"]) == MOST_LAYERS:
            break
        sizes = [parameter.numel() for parameter in module.parameters() if not is_lazy(parameter)]
        for column, value in zip(table.values(), (name, type(module).__name__, _detail(module), sum(sizes)), strict=True):
            column.append(value)
    return table


def _detail(module: nn.Module) -> str:
    """What torch's ``extra_repr`` says of what a module holds; one of a user's own is not called."""
    describe = next(vars(kind)["extra_repr"] for kind in type(module).__mro__ if "extra_repr" in vars(kind))
    if not (isinstance(describe, FunctionType) and describe.__module__.startswith("torch.")):
        return ""
    held = SimpleNamespace(**{"bias": stored(module, "bias"), **contents(module)})  # the module itself may compute its bias
    try:
        return str(describe(held))[:LONGEST_DETAIL]
    except Exception:  # noqa: BLE001  a subclass may lack what its base says
        return ""


def learning_rates(optimizers: Iterable[Any]) -> dict[str, float]:
    """The learning rate of each parameter group now, by the name that LearningRateMonitor gives it, numbered like the reports.

    A group whose ``lr`` is not one number is left out.
    """
    found = {}
    for number, optimizer in enumerate(optimizers):
        groups = optimizer.param_groups
        for place, group in enumerate(groups):
            rate = read_number(group.get("lr"))
            if rate is not None:
                name = f"{number}-{type(optimizer).__name__}"
                found[name if len(groups) == 1 else f"{name}/pg{place + 1}"] = rate
    return found


def mean_loss(reports: Iterable[Any]) -> float | None:
    """The mean loss of the window, from the report that has it; None where none has."""
    losses = [report.loss for report in reports if getattr(report, "loss", None) is not None]
    return next((loss.mean for loss in losses if math.isfinite(loss.mean)), None)
