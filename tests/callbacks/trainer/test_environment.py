"""LIGHTNING_HOOKS in the environment: the monitors without a change of code, through the entry point that Lightning reads."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks import FeatureStatsMonitor, GradientClipper, monitors
from lightning_hooks.alerts import Dead
from lightning_hooks.callbacks.monitor import SessionCallback
from lightning_hooks.callbacks.training_monitor import MonitorsFromEnvironment
from lightning_hooks.environment import callbacks_from_environment
from lightning_hooks.run_report import read_run
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer

ROOT = Path(__file__).parents[3]
GROUPS = (
    "lightning.pytorch.callbacks_factory",
    "pytorch_lightning.callbacks_factory",
    "lightning.fabric.callbacks_factory",
    "lightning_fabric.callbacks_factory",
)


def entry_points() -> str:
    """What pyproject.toml says of the groups, as an installed package has it."""
    sections = (ROOT / "pyproject.toml").read_text().split("\n[")
    lines = []
    for group in GROUPS:
        (section,) = [section for section in sections if section.startswith(f'project.entry-points."{group}"]')]
        lines += [f"[{group}]", section.splitlines()[1].replace('"', "")]
    return "\n".join(lines)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package as if it were installed with its entry points: what lies first on the path counts."""
    info = tmp_path / "site" / "lightning_hooks-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lightning-hooks\nVersion: 0\n")
    (info / "entry_points.txt").write_text(entry_points() + "\n")
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.delenv("LIGHTNING_HOOKS", raising=False)
    return info.parent


def present(run: Any) -> list[str]:
    """The parts that observed the last fit."""
    ours = [callback for callback in run.callbacks if isinstance(callback, SessionCallback)]
    return [
        member.kind.prefix
        for callback in ours
        for member in callback.members
        if member.report is not None and not member.live.unused
    ]


TRIO = ["features", "gradient_flow", "gradient_clip"]


def test_an_installed_package_has_them() -> None:
    """As pip left it, in the environment that these tests run in."""
    try:
        installed = distribution("lightning-hooks")
    except PackageNotFoundError:
        pytest.skip("lightning-hooks is on the path, and not installed")
    found = [entry for entry in installed.entry_points if entry.group in GROUPS]
    if not found:
        pytest.skip("lightning-hooks was installed before it had entry points")
    assert sorted(entry.group for entry in found) == sorted(GROUPS)
    assert {entry.load() for entry in found} == {callbacks_from_environment}


@pytest.mark.parametrize("value", [None, "0", " no "])
def test_unset_nothing_happens(installed: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("LIGHTNING_HOOKS", value)
    run = trainer()
    run.fit(Classifier(mlp()), loader())
    assert present(run) == []
    assert not any(isinstance(callback, MonitorsFromEnvironment) for callback in run.callbacks)


def test_unset_nothing_is_imported(installed: Path) -> None:
    """In a fresh process, with a Trainer that asked: neither the callbacks nor, by this package, torch."""
    code = """
import sys
import lightning_hooks.environment as environment
assert environment.callbacks_from_environment() == []
assert not {"torch", "lightning", "numpy", "yaml"} & set(sys.modules), "heavy"
from lightning.pytorch import Trainer
Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
ours = {name for name in sys.modules if name.startswith("lightning_hooks")}
assert ours == {"lightning_hooks", "lightning_hooks.environment"}, ours
"""
    environment = {key: value for key, value in os.environ.items() if key != "LIGHTNING_HOOKS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(installed), str(ROOT)])
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)


def test_a_script_gets_the_trio_without_an_edit(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from lightning.pytorch import Trainer\n"
        "from lightning.pytorch.demos.boring_classes import BoringModel\n"
        "Trainer(max_epochs=1, accelerator='cpu', limit_train_batches=3, limit_val_batches=0, enable_progress_bar=False, "
        "enable_model_summary=False).fit(BoringModel())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)]), "LIGHTNING_HOOKS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Monitors: 1 epoch, " in done.stdout
    assert "Health report: " in done.stdout
    assert [recorded.prefix for recorded in read_run(tmp_path / "lightning_logs").monitors] == TRIO


def test_set_every_fit_has_the_trio_once(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    run = trainer(max_epochs=1)
    run.fit(Classifier(mlp()), loader())
    assert present(run) == TRIO
    run.fit_loop.max_epochs = 2
    run.fit(Classifier(mlp()), loader())
    assert present(run) == TRIO
    assert run.callbacks[0].features.epoch == 1


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (lambda: monitors(summary=False), TRIO),
        (lambda: [GradientClipper(summary=False)], ["gradient_clip", "features", "gradient_flow"]),
        (lambda: [FeatureStatsMonitor(modules="net.0", summary=False)], ["features", "gradient_flow", "gradient_clip"]),
    ],
)
def test_what_the_user_has_is_not_doubled(installed: Path, monkeypatch: pytest.MonkeyPatch, own: Any, expected: list[str]) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    run = trainer(own())
    run.fit(Classifier(mlp()), loader())
    assert present(run) == expected


def test_a_file_says_their_arguments(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text("modules: [net.0, net.1]\nevery_n_steps: 3\non_alert: stop\nsummary: false\nrules: ['-silent']\n")
    monkeypatch.setenv("LIGHTNING_HOOKS", str(path))
    run = trainer()
    run.fit(Classifier(mlp()), loader())
    monitor = next(callback for callback in run.callbacks if isinstance(callback, MonitorsFromEnvironment))
    assert list(monitor.features.sites) == ["net.0", "net.1"]
    assert [(member.settings.every_n_steps, member.settings.on_alert) for member in monitor.members[:2]] == [(3, "stop")] * 2
    path.write_text("")
    assert callbacks_from_environment()[0].members[0].settings.every_n_steps == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"FileNotFoundError: .*No such file .*hooks\.yaml"),
        ("modules: [", r"ParserError: .*expected"),
        ("every: 3", r"TypeError: .*unexpected keyword argument 'every'"),
        ("just text", r"TypeError: .* must be a mapping, not str"),
        ("every_n_steps: 0", r"ValueError: every_n_steps must be at least 1"),
    ],
)
def test_a_wrong_file_is_one_warning_and_no_monitors(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, message: str
) -> None:
    """The script is somebody else's: it runs as it does without us."""
    path = tmp_path / "hooks.yaml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("LIGHTNING_HOOKS", str(path))
    with pytest.warns(UserWarning, match=rf"(?s)no monitors, because of {message}.* must be 1, 0, or the path of a YAML"):
        run = trainer()
    again = trainer()  # warnings are errors here
    for each in (run, again):
        each.fit(Classifier(mlp()), loader())
        assert present(each) == []


def test_where_gradients_are_sharded_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise RuntimeError("needs whole gradients")

    monkeypatch.setattr("lightning_hooks.declare.host.TrainingSetup.check_gradients", refuse)
    run = trainer([MonitorsFromEnvironment(summary=False)])
    with pytest.warns(
        UserWarning, match="LIGHTNING_HOOKS: .* without .*, because of RuntimeError: needs whole gradients"
    ) as reported:
        run.fit(Classifier(mlp()), loader())
    assert present(run) == ["features"]
    assert left_out(reported) == ["GradientFlowMonitor", "GradientClipMonitor"]


def left_out(reported: Any) -> list[str]:
    """The monitors that warnings say a fit goes on without."""
    found = (re.search(r"this fit runs without (\w+),", str(warning.message)) for warning in reported)
    return [match[1] for match in found if match]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ({"modules": "encoder.*"}, ["gradient_clip"]),
        ({"histograms": "encoder.*"}, ["gradient_clip"]),
        ({"rules": [Dead(sites="encoder.*")]}, ["gradient_flow", "gradient_clip"]),
    ],
)
def test_a_pattern_for_another_model_leaves_its_monitors_out(arguments: dict[str, Any], left: list[str]) -> None:
    model = Classifier(mlp())
    before = hook_counts(model)
    run = trainer([copy.deepcopy(MonitorsFromEnvironment(summary=False, **arguments))])
    with pytest.warns(
        UserWarning, match=r"LIGHTNING_HOOKS: this fit runs without .*'encoder\.\*'.* Training goes on\.$"
    ) as reported:
        run.fit(model, loader())
    assert present(run) == left
    assert left_out(reported) == ["FeatureStatsMonitor", "GradientFlowMonitor"][: 3 - len(left)]
    assert hook_counts(model) == before


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_their_state_is_in_checkpoints(tmp_path: Path) -> None:
    def dying() -> Classifier:
        model = Classifier(mlp())
        torch.nn.init.constant_(model.net[0].bias, -20.0)
        return model

    first = trainer([MonitorsFromEnvironment(summary=False)], max_epochs=1)
    first.fit(dying(), loader())
    first.save_checkpoint(tmp_path / "last.ckpt")
    reported: list[Any] = []
    again = trainer([MonitorsFromEnvironment(summary=False, on_alert=reported.append)], max_epochs=2)
    again.fit(dying(), loader(), ckpt_path=tmp_path / "last.ckpt")
    assert [alert.kind for alert in again.callbacks[0].features.alerts] == ["dead"]
    assert reported == []  # it was reported before
