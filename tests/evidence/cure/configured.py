"""What remedies do to the optimizers and schedulers that a module configures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from lightning_hooks.declare.cause import Remedy
from tests.evidence.faults.zoo import Built

Configured = tuple[list[Any], list[Any]]
"""Optimizers, and the configurations of schedulers."""


def _configured(built: Built, change: Callable[[Configured], None]) -> Built:
    """Change what the module configures, once it has."""
    configure = built.module.configure_optimizers

    def changed() -> Any:
        optimizers, schedulers = _parts(configure())
        change((optimizers, schedulers))
        return (optimizers, schedulers) if schedulers else optimizers

    built.module.configure_optimizers = changed  # type: ignore[method-assign]
    return built


def _parts(given: Any) -> Configured:
    if isinstance(given, dict):
        config = given.get("lr_scheduler")
        config = config if config is None or isinstance(config, dict) else {"scheduler": config}
        return [given["optimizer"]], [] if config is None else [config]
    if isinstance(given, tuple) and given and isinstance(given[0], list):
        return list(given[0]), [config if isinstance(config, dict) else {"scheduler": config} for config in given[1]]
    return (list(given), []) if isinstance(given, list | tuple) else ([given], [])


def set_optimizer(remedy: Remedy, built: Built, place: str | None, group: str | None, setting: str) -> Built:
    def change(configured: Configured) -> None:
        optimizer = configured[0][int(place or 0)]
        groups = optimizer.param_groups if group is None else [optimizer.param_groups[int(group)]]
        for one in groups:
            if setting != "lr":
                one[setting] = (0.9, 0.999) if setting == "betas" else remedy.to
                continue
            factor = float(remedy.to) / float(remedy.from_)  # type: ignore[arg-type]
            for name in ("lr", "initial_lr", "max_lr", "min_lr"):
                if name in one:
                    one[name] *= factor
        if setting == "lr":
            for config in configured[1]:
                scheduler = config["scheduler"]
                if scheduler.optimizer is optimizer:
                    scheduler.base_lrs = [one.get("initial_lr", one["lr"]) for one in optimizer.param_groups]

    return _configured(built, change)


def set_rates(remedy: Remedy, built: Built, targets: str) -> Built:
    """Several groups get one rate, whatever theirs is."""

    def change(configured: Configured) -> None:
        for place, group in re.findall(r"optimizers?(?:\[(\d+)\])?\.param_groups\[(\d+)\]", targets):
            one = configured[0][int(place or 0)].param_groups[int(group)]
            for name in ("lr", "initial_lr"):
                if name in one:
                    one[name] = remedy.to
        for config in configured[1]:
            scheduler = config["scheduler"]
            scheduler.base_lrs = [one.get("initial_lr", one["lr"]) for one in scheduler.optimizer.param_groups]

    return _configured(built, change)


def set_scheduler(remedy: Remedy, built: Built, setting: str) -> Built:
    def change(configured: Configured) -> None:
        for config in configured[1]:
            if setting == "interval":
                config["interval"] = remedy.to
            else:
                setattr(config["scheduler"], setting, remedy.to)

    return _configured(built, change)


def remove_scheduler(_: Remedy, built: Built) -> Built:
    def change(configured: Configured) -> None:
        for group in (group for optimizer in configured[0] for group in optimizer.param_groups):
            group["lr"] = group.get("initial_lr", group["lr"])
        configured[1].clear()

    return _configured(built, change)


def add(remedy: Remedy, built: Built) -> Built:
    names = re.split(r", | and \d+ more", remedy.target)

    def change(configured: Configured) -> None:
        held = {id(p) for optimizer in configured[0] for group in optimizer.param_groups for p in group["params"]}
        wanted = [p for name, p in built.module.named_parameters() if id(p) not in held and _is_in(name, names)]
        if wanted:
            configured[0][0].add_param_group({"params": wanted})

    return _configured(built, change)


def unfreeze(_: Remedy, built: Built, names: str) -> Built:
    def change(configured: Configured) -> None:
        wanted = [p for name, p in built.module.named_parameters() if _is_in(name, names.split(", "))]
        held = {id(p) for optimizer in configured[0] for group in optimizer.param_groups for p in group["params"]}
        for parameter in wanted:
            parameter.requires_grad_(True)
        if new := [p for p in wanted if id(p) not in held]:
            configured[0][0].add_param_group({"params": new})

    return _configured(built, change)


def _is_in(name: str, modules: list[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in modules if one)


def zero_after_steps(_: Remedy, built: Built) -> Built:
    """Once after each step, and nowhere else."""

    def change(configured: Configured) -> None:
        for optimizer in configured[0]:
            kind = type(optimizer)
            optimizer.register_step_post_hook(lambda one, *_, kind=kind: kind.zero_grad(one))
            optimizer.__class__ = type(kind.__name__, (kind,), {"zero_grad": lambda *_, **__: None})  # Lightning wraps it

    return _configured(built, change)


def configure_later(_: Remedy, built: Built) -> Built:
    start = built.module.on_train_start

    def changed() -> None:
        start()
        built.module.trainer.strategy.setup_optimizers(built.module.trainer)

    built.module.on_train_start = changed  # type: ignore[method-assign]
    return built


TENTH = 0.1


def rates(built: Built) -> float:
    """The largest learning rate that a module configures, of its schedule's too."""
    found = [
        float(group.get(name, math.nan))
        for optimizer in _parts(built.module.configure_optimizers())[0]
        for group in optimizer.param_groups
        for name in ("lr", "initial_lr", "max_lr")
    ]
    return max((rate for rate in found if math.isfinite(rate)), default=0.0)


def tenth_of_rate(built: Built) -> Built:
    """A tenth of every learning rate."""
    count = len(_parts(built.module.configure_optimizers())[0])
    for place in range(count):
        built = set_optimizer(Remedy("set", "optimizer.lr", 1.0, TENTH), built, str(place), None, "lr")
    return built
