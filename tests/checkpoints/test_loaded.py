"""Which names of a checkpoint fit a model, and what prefix makes the others fit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_hooks import check_loaded
from lightning_hooks.__main__ import main

State = dict[str, Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)


def named(rename: Callable[[str], str]) -> State:
    return {rename(name): tensor for name, tensor in Net().state_dict().items()}


def test_all_names_fit() -> None:
    found = check_loaded(Net(), Net().state_dict())
    assert (len(found.fits), found.missing, found.unexpected, found.shapes, found.prefix, found.wrong) == (
        11,
        (),
        (),
        {},
        None,
        False,
    )
    assert found.lines() == ["11 of the model's 11 names fit."]


@pytest.mark.parametrize(
    ("rename", "prefix", "renamed", "text"),
    [
        (lambda name: f"module.{name}", ("module.", ""), 11, "'module.' is too much. {name.removeprefix('module.'): "),
        (lambda name: name.removeprefix("encoder."), ("", "encoder."), 9, "'encoder.' is missing. {'encoder.' + name"),
        (
            lambda name: name.replace("encoder.", "model.backbone."),
            ("model.backbone.", "encoder."),
            9,
            "'model.backbone.' is to be 'encoder.'. {'encoder.' + name.removeprefix('model.backbone.'): ",
        ),
    ],
)
def test_the_prefix_is_named(rename: Callable[[str], str], prefix: tuple[str, str], renamed: int, text: str) -> None:
    state = named(rename)
    found = check_loaded(Net(), state)
    assert (found.prefix, found.renamed, found.wrong) == (prefix, renamed, True)
    assert text in found.lines()[-1]
    old, new = prefix
    renames = {name: new + name.removeprefix(old) for name in found.unexpected}
    assert not check_loaded(Net(), {renames.get(name, name): tensor for name, tensor in state.items()}).wrong


def test_a_head_of_another_size_and_a_body_without_a_counterpart() -> None:
    state = {name: tensor for name, tensor in Net().state_dict().items() if "2" not in name}
    state |= {"head.weight": torch.ones(5, 8), "decoder.weight": torch.ones(3)}
    found = check_loaded(Net(), state)
    assert found.lines() == [
        "8 of the model's 11 names fit.",
        "Missing (2): encoder.2.weight, encoder.2.bias.",
        "Passed over (1): decoder.weight.",
        "head.weight is [3, 8] in the model and [5, 8] here.",
    ]
    assert found.prefix is None


def test_a_whole_checkpoint_of_lightning_s() -> None:
    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

    checkpoint: dict[str, Any] = {"epoch": 3, "state_dict": Module().state_dict(), "optimizer_states": []}
    assert not check_loaded(Module(), checkpoint).wrong
    found = check_loaded(Net(), checkpoint)
    assert (found.prefix, found.renamed, found.fits) == (("net.", ""), 11, ())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nets_of_test_loaded.py").write_text(
        "from torch import nn\ndef net():\n    return nn.ModuleDict({'body': nn.Linear(2, 2)})\n"
    )
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    torch.save({"module.body.weight": torch.randn(2, 2), "module.body.bias": torch.randn(2)}, tmp_path / "last.ckpt")
    try:
        assert main(["check", "last.ckpt", "--model", "nets_of_test_loaded:net"]) == 1
    finally:
        sys.modules.pop("nets_of_test_loaded", None)
    assert capsys.readouterr().out.splitlines() == [
        "last.ckpt: 2 tensors with 6 numbers, 0 optimizers.",
        "Nothing wrong was found.",
        "0 of the model's 2 names fit.",
        "Missing (2): body.weight, body.bias.",
        "Passed over (2): module.body.weight, module.body.bias.",
        "2 more fit if names begin otherwise: 'module.' is too much. {name.removeprefix('module.'): value for name, value in …}",
    ]
    assert main(["check", "last.ckpt", "--model", "nowhere"]) == 2
    assert capsys.readouterr().err == "error: --model must be package.module:name; got 'nowhere'.\n"
