"""The monitors without a change of code: ``LIGHTNING_HOOKS=1 python train.py``.

Lightning asks every installed package that has an entry point ``lightning.pytorch.callbacks_factory`` for callbacks, for each
Trainer. With the variable unset this module answers with none, and imports nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback

VARIABLE = "LIGHTNING_HOOKS"
ON, OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def callbacks_from_environment() -> list[Callback]:
    """Return what the environment asks for: nothing, or one callback that gives each fit the monitors it lacks.

    ``LIGHTNING_HOOKS`` is ``1`` for :class:`lightning_hooks.TrainingMonitor` as it is, or the path of a YAML file with their
    arguments::

        modules: "encoder.*"
        every_n_steps: 50
        on_alert: warn

    It never raises, since the script is somebody else's: where the variable or the file is wrong, or the monitors cannot be
    imported, it warns and returns nothing.
    """
    ours = sys.modules.get("lightning_hooks.hosts.lightning_adapter")
    if ours is not None:  # callbacks that were made before pytorch_lightning was imported
        ours.join()
    value = os.environ.get(VARIABLE, "").strip()
    if value.lower() in OFF:
        return []
    try:
        from lightning_hooks.callbacks.training_monitor import MonitorsFromEnvironment

        return [MonitorsFromEnvironment(**({} if value.lower() in ON else _arguments(value)))]
    except Exception as error:  # noqa: BLE001  any error: the script must run as it does without us
        _warn_once(
            f"{VARIABLE}={value}: this run has no monitors, because of {type(error).__name__}: {error} The variable must be 1, 0, "
            "or the path of a YAML file with arguments of lightning_hooks.TrainingMonitor. Correct it or the file, or unset it."
        )
        return []


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _arguments(path: str) -> dict[str, Any]:
    import yaml

    with open(path, encoding="utf-8") as file:  # noqa: PTH123  the path is text, and this module imports little
        found: dict[str, Any] = yaml.safe_load(file) or {}
    return found
