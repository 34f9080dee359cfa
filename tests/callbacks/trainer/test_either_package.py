"""Our callbacks are callbacks of both packages, lightning.pytorch and pytorch_lightning."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

import lightning_hooks
from lightning_hooks import HookedCallback, monitors
from lightning_hooks.callbacks.training_monitor import MonitorsFromEnvironment

ROOT = Path(__file__).parents[3]
twin = pytest.importorskip("pytorch_lightning")

PUBLIC = [getattr(lightning_hooks, name) for name in lightning_hooks.__all__]
CALLBACKS = [kind for kind in PUBLIC if inspect.isclass(kind) and issubclass(kind, pl.Callback) and not inspect.isabstract(kind)]


class Own(HookedCallback):
    def attach(self, trainer: Any, pl_module: Any) -> None: ...


NEEDED: dict[str, dict[str, Any]] = {
    "GradientTransform": {"transform": "zero", "modules": "net"},
    "ActivationPruner": {"modules": "net"},
    "InputNormalizer": {"modules": "net"},
    "GradCAM": {"module": "net"},
}


@pytest.mark.parametrize("kind", [*CALLBACKS, MonitorsFromEnvironment, Own])
def test_a_callback_is_one_of_both(kind: Any) -> None:
    """What a Trainer of pytorch_lightning 2.4 and 2.5 asks of each callback raised "Expected a parent" there."""
    from pytorch_lightning.utilities.model_helpers import is_overridden

    callback = kind(**NEEDED.get(kind.__name__, {}))
    for each in (callback, copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert isinstance(each, pl.Callback)
        assert isinstance(each, twin.Callback)
        is_overridden("state_dict", instance=each)


def test_no_method_is_taken_from_the_other_package() -> None:
    monitors()
    names = [name for name, value in vars(twin.Callback).items() if callable(value) and not name.startswith("__")]
    for kind in (*CALLBACKS, MonitorsFromEnvironment):
        owners = [next(owner for owner in kind.__mro__ if name in vars(owner)) for name in names if hasattr(pl.Callback, name)]
        assert twin.Callback not in owners


def test_a_callback_made_before_the_other_package_is_imported_is_one_too(tmp_path: Path) -> None:
    """The factory that each Trainer asks for callbacks is our place to say so, also where LIGHTNING_HOOKS is not set."""
    code = """
import sys
from lightning_hooks import monitors
from lightning_hooks.environment import callbacks_from_environment
trio = monitors()
assert "pytorch_lightning" not in sys.modules
import pytorch_lightning
assert callbacks_from_environment() == []
assert all(isinstance(monitor, pytorch_lightning.Callback) for monitor in trio)
"""
    environment = {key: value for key, value in os.environ.items() if key != "LIGHTNING_HOOKS"} | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, cwd=tmp_path, check=True)
