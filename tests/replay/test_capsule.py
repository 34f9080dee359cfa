"""A capsule: what is in it, what it does with bad ones, and the command."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks import TrainingMonitor
from lightning_hooks.__main__ import main
from lightning_hooks.replay.capsule import read_capsule
from tests.replay.planted import BAD, Net, capsule, data, fit

MODEL, DATA = "tests.replay.test_capsule:made", "tests.replay.planted:data"


def made() -> Net:
    return Net()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return capsule(tmp_path_factory.mktemp("capsules"))


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """A copy of the capsule, to be damaged."""
    target = tmp_path / written.name
    target.mkdir()
    for file in written.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def change(path: Path, **fields: Any) -> None:
    record = json.loads((path / "capsule.json").read_text())
    (path / "capsule.json").write_text(json.dumps({**record, **fields}))


def change_tensors(path: Path, **parts: Any) -> None:
    torch.save({**torch.load(path / "tensors.pt"), **parts}, path / "tensors.pt")


def test_what_is_in_it(written: Path) -> None:
    record = json.loads((written / "capsule.json").read_text())
    assert stat.S_IMODE(written.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in written.iterdir()} == {0o600}
    assert {file.suffix for file in written.iterdir()} == {".json", ".pt"}
    assert (record["kind"], record["version"], record["accumulation"], record["loss_scale"]) == ("nonfinite", 4, 1, None)
    assert record["bad_samples"] == [BAD]
    assert record["loop"]["precision"] == "32-true"
    assert record["left_out"] == []
    whole = read_capsule(written)
    expected = data().tensors  # type: ignore[attr-defined]
    for stored, column in zip(whole.batch, expected, strict=True):
        assert torch.equal(stored, column[record["samples"]])
    assert all(torch.isfinite(value.float()).all() for value in whole.state.values())  # the weights before the update


def test_the_state_is_the_one_before_the_update(tmp_path: Path) -> None:
    from lightning.pytorch import Callback

    class States(Callback):
        def __init__(self) -> None:
            self.model: list[Any] = []

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.model.append({name: value.clone() for name, value in pl_module.named_parameters()})

    states = States()
    fit([states, TrainingMonitor(summary=False, capsule=tmp_path)])
    [path] = tmp_path.iterdir()
    step = json.loads((path / "capsule.json").read_text())["step"]
    stored = torch.load(path / "state.pt")
    for name, value in states.model[step].items():
        assert torch.equal(stored[name], value)


def test_the_command_reproduces_it(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(written), "--model", MODEL]) == 0
    printed = capsys.readouterr().out
    assert "log of 0 gives -inf in Net.training_step, planted.py" in printed
    assert f"Samples: {BAD}." in printed
    assert "Inputs: float32[" in printed
    assert "BatchNorm1d" in printed


def test_a_capsule_without_its_batch_takes_it_from_the_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit([TrainingMonitor(summary=False, capsule="rows", report_dir=tmp_path)])
    [path] = (tmp_path / "lightning_hooks" / "capsules").iterdir()
    assert main(["replay", str(path), "--model", MODEL, "--data", DATA]) == 0
    assert f"Samples: {BAD}." in capsys.readouterr().out
    for more, message in (
        ([], "--data package.module:dataset makes it."),
        (["--data", "tests.replay.planted"], "--data must be package.module:name; got 'tests.replay.planted'."),
        (["--data", "tests.replay.planted:BAD"], "--data is no map-style data set."),
    ):
        assert main(["replay", str(path), "--model", MODEL, *more]) == 2
        assert message in capsys.readouterr().err


def test_a_step_that_does_not_reproduce_exits_with_1(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = torch.load(copied / "tensors.pt")
    batch = tensors["given"]["batch"]
    tensors["given"]["batch"] = type(batch)(torch.ones_like(part) if part.is_floating_point() else part for part in batch)
    torch.save(tensors, copied / "tensors.pt")
    assert main(["replay", str(copied), "--model", MODEL]) == 1
    assert "was finite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "capsule.json").unlink(), "expected the folder of a capsule"),
        (lambda path: (path / "capsule.json").write_text('{"format": "lightning_hooks capsule", "ver'), "Was it cut off"),
        (lambda path: (path / "capsule.json").write_text("[" * 100_000), "cannot be read"),
        (lambda path: (path / "capsule.json").write_text("{}"), "not that of a capsule"),
        (lambda path: change(path, version=7), "of version 7; this lightning_hooks reads version 4"),
        (
            lambda path: (path / "tensors.pt").write_bytes((path / "tensors.pt").read_bytes()[:300]),
            "cannot be read",
        ),
        (lambda path: (path / "tensors.pt").write_bytes(b"\x80\x04cos\nsystem\n"), "cannot be read"),
        (lambda path: (path / "state.pt").write_bytes(b"\xff" * 64), "cannot be read"),
        (lambda path: torch.save({"a": Path("b")}, path / "state.pt"), "cannot be read"),
        (lambda path: torch.save({"a": 1}, path / "state.pt"), "something other than tensors by name"),
        (lambda path: torch.save({"a": torch.ones(1)}, path / "state.pt", _use_new_zipfile_serialization=False), "cannot be read"),
        (lambda path: change_tensors(path, given={"batch": 1}), "cannot be read: 'args'"),
        (lambda path: change_tensors(path, given={"__fields__": ["__class__"], "__entries__": [1]}), "cannot be read: Field names"),
        (lambda path: change_tensors(path, given=["list"]), "cannot be read"),
        (lambda path: change_tensors(path, generators={"numpy": None, "python": None}), "cannot be read"),
    ],
)
def test_a_bad_capsule_is_a_clear_error(damage: Any, message: str, copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(copied)
    assert main(["replay", str(copied), "--model", MODEL]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"capsule": 3}, TypeError),
        ({"max_capsule_mb": 0}, ValueError),
        ({"keep_batches": -1}, ValueError),
        ({"keep_batches": "x"}, TypeError),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        TrainingMonitor(**arguments)
