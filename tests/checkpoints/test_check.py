"""What is wrong in a checkpoint; one that needs more than tensors and plain types is not loaded."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor

from lightning_hooks import TrainingMonitor
from lightning_hooks.checkpoints import CheckedCheckpoint, check_checkpoint, read_numbers
from tests.support.models import Classifier, loader, mlp, trainer

Check = Callable[[Any], CheckedCheckpoint]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Save something and check the file."""

    def save_and_check(content: Any, **kwargs: Any) -> CheckedCheckpoint:
        torch.save(content, tmp_path / "last.ckpt", **kwargs)
        return check_checkpoint(tmp_path / "last.ckpt")

    return save_and_check


def found(checked: CheckedCheckpoint) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.name, problem.text) for problem in checked.problems]


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def changed(tensor: Tensor, index: Any, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


@pytest.mark.filterwarnings("ignore:.*validation_step.*")
def test_lightnings_checkpoint(tmp_path: Path) -> None:
    """With the state of a monitor in it, whose tables hold NaN, and of EarlyStopping, whose best score starts at infinity."""
    model = Classifier(mlp(), optimizer=torch.optim.AdamW, lr=1e-3)
    run = trainer([TrainingMonitor(summary=False), EarlyStopping("never", strict=False, check_on_train_epoch_end=False)])
    run.fit(model, loader())
    run.save_checkpoint(tmp_path / "good.ckpt", weights_only=False)
    good = check_checkpoint(tmp_path / "good.ckpt")
    assert (good.wrong, good.problems) == (False, ())
    assert good.lines() == [
        "good.ckpt: epoch 1, global_step 7, 6 tensors with 467 numbers, 1 optimizer.",
        "Nothing wrong was found.",
    ]
    net: Any = model.net
    net[0].weight.data.fill_(0.5)
    net[2].weight.data[3, 4] = math.nan
    net[4].weight.data[:2] = 0.0
    state = run.optimizers[0].state
    state[net[0].bias]["exp_avg"][5] = -math.inf
    state[net[0].weight]["exp_avg_sq"].zero_()
    run.save_checkpoint(tmp_path / "bad.ckpt", weights_only=False)
    assert found(check_checkpoint(tmp_path / "bad.ckpt")) == [
        ("critical", "net.2.weight", "1 of its 256 numbers is NaN, the first at [3, 4]"),
        ("critical", "optimizer_states: exp_avg of parameter 1", "1 of its 16 numbers is infinite, the first at [5]"),
        ("warning", "net.0.weight", "all its 128 numbers are 0.5"),
        ("warning", "net.4.weight", "2 of its 3 rows are zero"),
        (
            "warning",
            "optimizer_states: exp_avg_sq of parameter 0",
            "it is zero: the parameter never had a gradient other than zero",
        ),
    ]


@pytest.mark.parametrize(
    ("name", "tensor", "severity"),
    [
        ("fc.weight", weights(4, 3), None),
        ("fc.weight", changed(weights(4, 3), (1, 2), math.inf), "critical"),
        ("fc.bias", changed(weights(4), 1, -math.inf), "critical"),
        ("mask", torch.full((4, 4), -math.inf).triu(1), "info"),
        ("mask", changed(weights(4), 1, math.nan), "critical"),
        ("norm.weight", torch.ones(8), None),
        ("fc.weight", torch.zeros(4, 3), "warning"),
        ("conv.weight", torch.full((2, 2, 3, 3), 0.1), "warning"),
        ("table", torch.ones(4, 4), "info"),
        ("scale.weight", torch.ones(1, 1), None),
        ("embed.weight", changed(weights(9, 3), 0, 0.0), "info"),
        ("embed.weight", changed(weights(9, 3), slice(2), 0.0), "warning"),
        ("lstm.weight_hh_l0", changed(weights(9, 3), slice(2), 0.0), "warning"),
        ("running_mean", torch.zeros(9), None),
        ("steps", torch.tensor(0), None),
        ("ids", torch.zeros(4, 4, dtype=torch.long), None),
        ("fc.weight", torch.empty(0, 3), None),
        ("scalar", torch.tensor(math.nan), "critical"),
        ("fc.weight", changed(weights(4, 3).bfloat16(), (1, 2), math.nan), "critical"),
        ("fc.weight", weights(4, 3).to(torch.float8_e4m3fn), None),
        ("fc.weight", torch.complex(weights(2, 2), changed(weights(2, 2), (1, 1), -math.inf)), "critical"),
        ("fc.weight", torch.eye(4).to_sparse(), "info"),
        ("fc.weight", torch.ones(1).expand(10**6, 10**6), "info"),
        ("fc.weight", weights(3, 4).t(), None),
        ("n" * 500, torch.tensor(math.nan), "critical"),
    ],
)
def test_weights(name: str, tensor: Tensor, severity: str | None, check: Check) -> None:
    checked = check({"state_dict": {name: tensor, "other.weight": weights(2, 2)}})
    assert [problem.severity for problem in checked.problems] == [severity] * (severity is not None)
    assert checked.wrong == (severity in ("warning", "critical"))
    assert all(len(line) < 300 for line in checked.lines())


@pytest.mark.parametrize("shape", [(5,), (7, 3), (3, 2, 2), (2, 5), ()])
@pytest.mark.parametrize("chunk", [1, 4, 7, 1 << 22])
def test_numbers_are_those_of_numpy_in_any_parts(shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.checkpoints.CHUNK", chunk)
    generator = np.random.default_rng(0)
    for share in (0.0, 0.2):
        values = generator.normal(size=shape)
        values = np.where(generator.random(shape) < share, generator.choice([math.nan, math.inf, -math.inf], shape), values)
        values = np.asarray(values)
        if len(shape) > 1:
            values[1] = 0.0
        read = read_numbers(torch.from_numpy(values))
        bad = np.argwhere(~np.isfinite(values))
        assert (read.nans, read.infinite) == (np.isnan(values).sum(), np.isinf(values).sum())
        assert read.first == (tuple(bad[0].tolist()) if len(bad) else None)
        assert read.zero_rows == (len(shape) > 1)
        assert read.constant is None


class Own:
    """A class of the user's own."""


class Attack:
    """What runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_what_needs_more_is_not_loaded(tmp_path: Path, check: Check) -> None:
    with pytest.raises(ValueError, match=r"last\.ckpt is not loaded: .* it holds [\w.]*test_check\.Own, .* can run any code"):
        check({"state_dict": {"fc.weight": weights(2, 2)}, "hyper_parameters": {"own": Own()}})
    for protocol in (2, 4):
        for zipped in (True, False):
            with pytest.raises(ValueError, match=r"is not loaded|cannot be read"):
                check({"a": Attack(tmp_path / "ran")}, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)  # type: ignore[call-arg]
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(Attack(tmp_path / "ran")))
    with pytest.raises(ValueError, match=r"bare\.pkl (is not loaded|cannot be read)"):
        check_checkpoint(tmp_path / "bare.pkl")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path, check: Check) -> None:
    whole = tmp_path / "whole.ckpt"
    torch.save({"fc.weight": weights(50, 50)}, whole)
    content = whole.read_bytes()
    junk = {"empty": b"", "junk": os.urandom(1000), "text": b"{}", "half": content[: len(content) // 2], "no end": content[:-30]}
    for name, data in junk.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} cannot be read as a checkpoint: .*Expected a file that torch.save wrote"):
            check_checkpoint(tmp_path / name)
    for empty in ([1, 2], {"a": 1}, 5, {}):
        with pytest.raises(ValueError, match="holds no weights"):
            check(empty)
    with pytest.raises(ValueError, match=r"is a folder\. A sharded checkpoint"):
        check_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        check_checkpoint(tmp_path / "nothing")
