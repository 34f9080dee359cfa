"""Where modules come from: class, file and line."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.session.sources import Sources
from tests.support.models import Classifier, ResidualCNN

HERE = Path(__file__).relative_to(Path(__file__).parents[2]).as_posix()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)


class Everything(nn.Module):
    """Each way in which a source shows what creates a module; the comment on a line is the module's name."""

    def __init__(self, given: nn.Module, layers: list[nn.Module]) -> None:
        super().__init__()
        self.plain = nn.Linear(2, 2)  # plain
        self.one, self.two = nn.ReLU(), nn.Tanh()  # one two
        self.listed = nn.Sequential(  # listed
            nn.Linear(2, 2),  # listed.0
            nn.Sequential(
                nn.ReLU(),  # listed.1.0
            ),
        )
        self.named = nn.Sequential(
            OrderedDict(
                first=nn.ReLU(),  # named.first
            )
        )
        self.pairs = nn.Sequential(
            OrderedDict(
                [
                    ("a", nn.ReLU()),  # pairs.a
                    ("b", nn.Tanh()),  # pairs.b
                ]
            )
        )
        self.blocks = nn.ModuleList(
            [
                Block()  # blocks.0 blocks.1
                for _ in range(2)
            ]
        )
        self.parts = nn.ModuleDict(
            {
                "x": nn.ReLU(),  # parts.x
            }
        )
        self.add_module("added", nn.GELU())  # added
        self.typed: nn.Module = nn.SiLU()  # typed
        # Below is what no line shows for certain.
        self.given = given
        self.spread = nn.Sequential(*layers)
        if layers:
            self.either = nn.ReLU()
        else:
            self.either = nn.Tanh()
        self.replaced = nn.Linear(2, 2)
        self.replaced = nn.Identity()
        self.other = nn.Linear(2, 2)


def everything() -> Everything:
    model = Everything(nn.Linear(2, 2), [nn.ReLU()])
    model.other = nn.ReLU()
    return model


def test_the_line_that_creates_a_module_is_that_of_the_source() -> None:
    sources, model = Sources(everything()), everything()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = {
        name: number
        for number, line in enumerate(lines, 1)
        for name in re.findall(r"[\w.]+", line.partition("  # ")[2])
        if name in dict(model.named_modules())
    }
    assert {"plain", "two", "listed.1.0", "named.first", "pairs.b", "blocks.1", "parts.x", "added", "typed"} <= marked.keys()
    for name, number in marked.items():
        source = sources.of(name)
        assert source is not None
        assert source.created_at == f"{HERE}:{number}", name


@pytest.mark.parametrize("name", ["given", "spread.0", "either", "replaced", "other", ""])
def test_what_the_source_does_not_show_is_none(name: str) -> None:
    source = Sources(everything()).of(name)
    assert source is not None
    assert source.created_at is None


def test_a_class_is_found_where_inspect_finds_it() -> None:
    sources = Sources(Classifier(ResidualCNN()))
    for site, kind in (("net", ResidualCNN), ("net.bn", nn.BatchNorm2d), ("net.conv.weight", nn.Conv2d), ("net/relu", ResidualCNN)):
        source = sources.of(site)
        assert source is not None
        assert source.type == f"{kind.__module__}.{kind.__qualname__}"
        assert source.defined_at is not None
        path, _, number = source.defined_at.rpartition(":")
        assert int(number) == inspect.getsourcelines(kind)[1]
        assert Path(inspect.getsourcefile(kind) or "").as_posix().endswith(f"/{path}")
        assert path.startswith("torch/nn/") or path == "tests/support/models.py"


@pytest.mark.parametrize("site", ["loss", "0-SGD", "net.nothing", "validation loss"])
def test_a_site_of_no_module_has_no_source(site: str) -> None:
    assert Sources(Classifier(ResidualCNN())).of(site) is None


def test_a_parameter_of_the_model_itself_has_the_models_class() -> None:
    class Scaled(nn.Linear):
        pass

    source = Sources(Scaled(2, 2)).of("weight")
    assert source is not None
    assert source.type.endswith("<locals>.Scaled")
    assert source.defined_at == f"{HERE}:{inspect.getsourcelines(Scaled)[1]}"


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


def test_a_script_elsewhere_is_named_without_its_folder(module: Any) -> None:
    source = Sources(module.Net()).of("fc")
    assert source is not None
    assert source.created_at == "train.py:7"


def test_below_the_working_directory_the_path_is_relative_to_it(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    source = Sources(module.Net()).of("fc")
    assert source is not None
    assert source.created_at == f"{tmp_path.name}/train.py:7"


@pytest.mark.parametrize("changed", ["# one line more\n" + CODE, "class Net(:", "", "\0", "x" * 3_000_000])
def test_a_file_that_has_changed_since_shows_nothing(module: Any, tmp_path: Path, changed: str) -> None:
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


def test_nothing_but_classes_is_kept() -> None:
    sources = Sources(everything())
    kept = list(vars(sources).values())
    for _ in range(3):
        kept = [inner for value in kept for inner in (value.values() if isinstance(value, dict) else [value])]
    assert not any(isinstance(value, nn.Module | torch.Tensor) for value in kept)
