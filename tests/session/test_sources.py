"""Where modules come from: class, file and line."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from lightning_hooks.session.sources import Sources

HERE = Path(__file__).relative_to(Path(__file__).parents[2]).as_posix()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


class Everything(nn.Module):
    """Each way in which a source shows what creates a module or its container; the comment on a line is the module's name."""

    def __init__(self, given: nn.Module, layers: list[nn.Module]) -> None:
        super().__init__()
        self.plain = nn.Linear(2, 2)  # plain
        self.listed = nn.Sequential(  # listed listed.0 listed.1.0
            nn.Linear(2, 2),
            nn.Sequential(nn.ReLU()),
        )
        self.blocks = nn.ModuleList([Block() for _ in range(2)])  # blocks.0 blocks.1
        self.parts = nn.ModuleDict({"x": nn.ReLU()})  # parts.x
        self.typed: nn.Module = nn.SiLU()  # typed
        self.spread = nn.Sequential(*layers)  # spread.0
        # Below is what no single line shows.
        self.one, self.two = nn.ReLU(), nn.Tanh()
        self.add_module("added", nn.GELU())
        self.given = given
        if layers:
            self.either = nn.ReLU()
        else:
            self.either = nn.Tanh()
        self.replaced = nn.Linear(2, 2)
        self.replaced = nn.Identity()


def everything() -> Everything:
    return Everything(nn.Linear(2, 2), [nn.ReLU()])


def test_the_line_that_creates_a_module_is_that_of_the_source() -> None:
    sources, model = Sources(everything()), everything()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = {
        name: number
        for number, line in enumerate(lines, 1)
        for name in re.findall(r"[\w.]+", line.partition("  # ")[2])
        if name in dict(model.named_modules())
    }
    assert {"plain", "listed.1.0", "blocks.1", "parts.x", "typed", "spread.0"} <= marked.keys()
    for name, number in marked.items():
        source = sources.of(name)
        assert source is not None
        assert source.created_at == f"{HERE}:{number}", name


@pytest.mark.parametrize("name", ["one", "two", "added", "given", "either", "replaced", ""])
def test_what_the_source_does_not_show_is_none(name: str) -> None:
    source = Sources(everything()).of(name)
    assert source is not None
    assert source.created_at is None


def loaded(path: Path, name: str = "made_up_model") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CODE = """from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "train.py").write_text(CODE)
    monkeypatch.setitem(sys.modules, "made_up_model", None)
    return loaded(tmp_path / "train.py")


@pytest.mark.parametrize("changed", ["class Net(:", "", "\0", "x" * 3_000_000])
def test_a_file_that_does_not_hold_the_class_any_more_shows_nothing(module: Any, tmp_path: Path, changed: str) -> None:
    net = module.Net()
    (tmp_path / "train.py").write_text(changed)
    source = Sources(net).of("fc")
    assert source is not None
    assert (source.type, source.created_at) == ("torch.nn.modules.linear.Linear", None)


def test_no_code_of_the_user_is_called() -> None:
    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.watching = True

        def __getattr__(self, name: str) -> Any:
            if self.__dict__.get("watching"):
                raise AssertionError(name)
            return super().__getattr__(name)

        @property
        def weight(self) -> Any:
            raise AssertionError("weight")

        def __repr__(self) -> str:
            raise AssertionError("repr")

    source = Sources(Hostile()).of("fc")
    assert source is not None
    assert source.created_at is not None
