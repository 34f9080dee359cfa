"""The monitors without a change of code: ``LIGHTNING_HOOKS=1 python train.py``.

Lightning asks every installed package that has an entry point ``lightning.pytorch.callbacks_factory`` for callbacks, for each
Trainer. With the variable unset this module answers with none, and imports nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback

VARIABLE = "LIGHTNING_HOOKS"
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def callbacks_from_environment() -> list[Callback]:
    """Return what the environment asks for: nothing, or one callback that gives each fit the monitors it lacks.

    ``LIGHTNING_HOOKS`` is ``1`` for :func:`lightning_hooks.monitors` as they are, or the path of a YAML file with their
    arguments::

        modules: "encoder.*"
        every_n_steps: 50
        on_alert: warn

    Raises:
        ValueError: If it is neither, or the file does not hold arguments of ``monitors``.
    """
    value = os.environ.get(VARIABLE, "").strip()
    if value.lower() in OFF:
        return []
    from lightning_hooks.callbacks.stand_in import StandIn

    return [StandIn(**({} if value.lower() in ON else _arguments(value)))]


def _arguments(path: str) -> dict[str, Any]:
    import inspect

    import yaml

    from lightning_hooks.callbacks.trio import monitors

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  the path is text, and this module imports little
            found = yaml.safe_load(file)
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(
            f"{VARIABLE} must be 1, 0, or the path of a YAML file with arguments of lightning_hooks.monitors(); "
            f"got {path!r}: {error}"
        ) from error
    known = list(inspect.signature(monitors).parameters)
    found = {} if found is None else found
    unknown = [key for key in found if key not in known] if isinstance(found, dict) else [found]
    if unknown:
        raise ValueError(
            f"{VARIABLE}={path}: the file must hold arguments of lightning_hooks.monitors(), which are {', '.join(known)}; "
            f"got {unknown[0]!r}."
        )
    return dict(found)
