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
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger

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


def test_both_lightnings_are_reported() -> None:
    assert entry_points() == "\n".join(
        f"[{group}]\nlightning_hooks = lightning_hooks.environment:callbacks_from_environment" for group in GROUPS
    )


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


@pytest.mark.parametrize("value", [None, "", "0", "false", "Off", " no "])
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


def test_one_list_of_callbacks_for_two_trainers_is_not_filled_up(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch as pl

    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    mine: list[Any] = []
    for _ in range(2):
        run = pl.Trainer(
            callbacks=mine, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        run.fit(Classifier(mlp()), loader())
        assert present(run) == TRIO
    assert not any(isinstance(callback, SessionCallback) for callback in mine)


def test_a_list_with_a_callback_for_two_trainers_gives_each_its_own(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lightning extends a list that is not empty in place."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    mine: list[Any] = [ModelCheckpoint(dirpath=tmp_path)]
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    runs = [pl.Trainer(callbacks=mine, max_epochs=1, accelerator="cpu", **quiet) for _ in range(3)]
    for run in runs[::-1]:
        run.fit(Classifier(mlp()), loader())
        assert present(run) == TRIO
        assert [type(each).__name__ for each in run.callbacks] == ["MonitorsFromEnvironment", "ModelCheckpoint"]
    own = [run.callbacks[0] for run in runs]
    assert own == mine[1:]
    (key,) = torch.load(mine[0].best_model_path, weights_only=True)["callbacks"].keys() & {own[0].state_key}
    assert key == "MonitorsFromEnvironment{'modules': 'None'}"


def test_validation_alone_gets_none(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    run = trainer()
    run.validate(Classifier(mlp()), loader(), verbose=False)
    assert present(run) == []


def test_the_other_lightning_gets_them_too(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = pytest.importorskip("pytorch_lightning")
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    run = other.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    assert [type(callback).__name__ for callback in run.callbacks].count("MonitorsFromEnvironment") == 1


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
        (None, r"LIGHTNING_HOOKS must be 1, 0, or the path of a YAML file .* got '.*hooks\.yaml': .*No such file"),
        ("modules: [", r"LIGHTNING_HOOKS must be 1, 0, or the path of a YAML file"),
        ("every: 3", r"LIGHTNING_HOOKS=.*hooks\.yaml: the file must hold arguments of .*modules, every_n_steps, .*; got 'every'"),
        ("just text", r"the file must hold arguments of .*; got 'just text'"),
        ("every_n_steps: 0", r"every_n_steps must be at least 1"),
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
    with pytest.warns(UserWarning, match=rf"(?s)^LIGHTNING_HOOKS=.*: this run has no monitors, because of ValueError: .*{message}"):
        run = trainer()
    again = trainer()  # warnings are errors here
    for each in (run, again):
        each.fit(Classifier(mlp()), loader())
        assert present(each) == []


def test_monitors_that_cannot_be_imported_are_one_warning(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    monkeypatch.setitem(sys.modules, "lightning_hooks.callbacks.training_monitor", None)
    with pytest.warns(UserWarning, match="this run has no monitors, because of ModuleNotFoundError: .*training_monitor"):
        assert callbacks_from_environment() == []


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


class Bare(LightningModule):
    """A model without modules."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(batch[0] @ self.weight, batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_what_cannot_observe_a_model_is_left_out(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    run = trainer(default_root_dir=tmp_path, logger=CSVLogger(tmp_path))
    with pytest.warns(
        UserWarning, match=r"this fit runs without .*Monitor, because of ValueError: Bare has no submodules"
    ) as reported:
        run.fit(Bare(), loader())
    assert left_out(reported) == ["FeatureStatsMonitor", "GradientFlowMonitor"]
    assert present(run) == ["gradient_clip"]
    assert [recorded.prefix for recorded in read_run(tmp_path / "lightning_logs").monitors] == ["gradient_clip"]
    run.fit_loop.max_epochs = 2
    run.fit(Classifier(mlp()), loader())  # of which it can observe all
    assert present(run) == TRIO


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


def test_a_model_that_is_built_after_setup_is_observed() -> None:
    class Later(Classifier):
        def configure_model(self) -> None:
            self.net = mlp()

    run = trainer([MonitorsFromEnvironment(summary=False)])
    run.fit(Later(torch.nn.ParameterList()), loader())
    assert present(run) == TRIO


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("name", ["MonitorsFromEnvironment", "MissingMonitors"])  # now, and in earlier versions
def test_their_state_is_in_checkpoints(name: str, tmp_path: Path) -> None:
    def dying() -> Classifier:
        model = Classifier(mlp())
        torch.nn.init.constant_(model.net[0].bias, -20.0)
        return model

    first = trainer([MonitorsFromEnvironment(summary=False)], max_epochs=1)
    first.fit(dying(), loader())
    first.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    (key,) = (key for key in checkpoint["callbacks"] if "MonitorsFromEnvironment" in key)
    checkpoint["callbacks"][key.replace("MonitorsFromEnvironment", name)] = checkpoint["callbacks"].pop(key)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    reported: list[Any] = []
    again = trainer([MonitorsFromEnvironment(summary=False, on_alert=reported.append)], max_epochs=2)
    again.fit(dying(), loader(), ckpt_path=tmp_path / "last.ckpt")
    assert [alert.kind for alert in again.callbacks[0].features.alerts] == ["dead"]
    assert reported == []  # it was reported before
