"""What pyproject.toml promises to who installs the package."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()

WITHOUT_TENSORBOARD = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tensorboard", "tensorboardX"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import torch
import lightning_hooks
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger

Trainer(
    max_epochs=1, accelerator="cpu", limit_train_batches=3, limit_val_batches=0, logger=CSVLogger(".", name="run", version=0),
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    callbacks=lightning_hooks.monitors(every_n_steps=1, summary=False, histograms=True),
).fit(BoringModel())
assert not [name for name in sys.modules if name.startswith("tensorboard")]
"""


def listed(section: str, name: str) -> list[str]:
    """The names in one list of a section of pyproject.toml."""
    (body,) = re.findall(rf"^\[{re.escape(section)}\]\n(.*?)(?=^\[|\Z)", PYPROJECT, re.MULTILINE | re.DOTALL)
    (value,) = re.findall(rf"^{re.escape(name)} = (.*?)$", body, re.MULTILINE)
    return re.findall(r'"([^"]+)"', value)


def test_all_is_every_extra_that_a_user_may_want() -> None:
    assert listed("project.optional-dependencies", "all") == ["lightning-hooks[plots,trackers,files]"]
    for extra in ("plots", "trackers", "files"):
        assert listed("project.optional-dependencies", extra)


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "([\d.]+)"$', PYPROJECT, re.MULTILINE)
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert version in (ROOT / "CHANGELOG.md").read_text().partition("### ")[0]


def test_the_command_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    (target,) = listed("project.scripts", "lightning-hooks")
    module, _, function = target.partition(":")
    with pytest.raises(SystemExit):
        getattr(importlib.import_module(module), function)(["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: lightning-hooks ")
    assert re.search(r"^ +report +write report.html and report.md of a run", shown, re.MULTILINE)


def test_without_tensorboard_other_loggers_have_all_they_had(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_TENSORBOARD], cwd=tmp_path, env=environment, check=True)
    assert "features/layer/rms" in (tmp_path / "run/version_0/metrics.csv").read_text()
    assert (tmp_path / "run/version_0/lightning_hooks/report.html").exists()
