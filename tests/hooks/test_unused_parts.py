"""Parts of a library's model without a gradient: branches that are not used, and a body that was cut off."""

from __future__ import annotations

import sys
import sysconfig
from types import ModuleType

import pytest
import torchmetrics
import transformers.models.bart.modeling_bart
from torch import nn

from lightning_hooks.hooks.parameters import of_libraries, unused_parts


class Classifier(nn.Module):
    """A body, a pooler that nobody asks for, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.pooler, self.head = nn.Linear(8, 8), nn.Linear(8, 2)


Classifier.__module__ = torchmetrics.__name__  # as if it came from a library
CALLS = ("net.stem", "net.body.0", "net.body.1", "net.body.2", "net.pooler", "net.head")


def spare(*parts: str, calls: tuple[str, ...] = CALLS, under_no_grad: bool = False) -> set[str]:
    """The parts that pass as meant, where these have no gradient."""
    root = nn.Module()
    root.net = Classifier()
    without = {name for name, _ in root.named_parameters() if name.startswith(tuple(f"net.{part}." for part in parts))}
    found = unused_parts(root, without, calls, frozenset() if under_no_grad else {*calls})
    return {part for part in parts if any(name.startswith(f"net.{part}.") for name in found)}


def test_a_body_that_runs_before_all_that_trains_was_cut_off() -> None:
    assert spare("stem", "body", "pooler") == set()
    assert spare("stem", "body") == set()


def test_features_under_no_grad_are_meant() -> None:
    assert spare("stem", "body", under_no_grad=True) == {"stem", "body"}


def test_a_branch_that_runs_after_what_trains_is_not_used() -> None:
    assert spare("pooler") == {"pooler"}
    assert spare("pooler", calls=(*CALLS[:4], "net.head", "net.pooler")) == {"pooler"}


def test_a_branch_that_never_runs_is_not_used() -> None:
    assert spare("body", calls=("net.stem", "net.pooler", "net.head")) == {"body"}


def test_a_small_branch_that_runs_first_is_no_body() -> None:
    assert spare("stem") == {"stem"}


def test_what_a_library_s_class_holds() -> None:
    root = nn.Module()
    root.net, root.head = Classifier(), nn.Linear(2, 2)
    found = of_libraries(root, ["net.body.2", "net.stem.weight", "head", "head.bias"])
    assert list(found) == ["net.body.2", "net.stem.weight"]
    assert found["net.body.2"] == "a part of Classifier (from torchmetrics) that this task does not use"


def test_a_library_is_a_package_with_a_version_other_than_the_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it lies, and whatever its source is: a checkout that is installed as editable is as good as a wheel."""

    class Training(nn.Module):
        pass

    package = ModuleType("newlib")
    monkeypatch.setitem(sys.modules, "newlib", package)
    monkeypatch.setattr(Classifier, "__module__", "newlib.models")
    root = Training()
    root.net = Classifier()
    assert of_libraries(root, ["net.pooler.weight"]) == {}  # a folder of the user's own
    package.__version__ = "1.0"  # type: ignore[attr-defined]
    reason = "a part of Classifier (from newlib) that this task does not use"
    assert of_libraries(root, ["net.pooler.weight"]) == {"net.pooler.weight": reason}
    Training.__module__ = "newlib.training"
    assert of_libraries(root, ["net.pooler.weight"]) == {}  # the user's own package, with a version
    package.__file__ = f"{sysconfig.get_path('purelib')}/newlib/__init__.py"  # a whole recipe of a library, which nobody edits
    assert of_libraries(root, ["net.pooler.weight"]) == {"net.pooler.weight": reason}


def test_the_parameters_of_a_library_s_own_kind_of_layer_are_part_of_it() -> None:
    """PyTorch's class names them, not the library's."""
    root = nn.Module()
    root.net = transformers.models.bart.modeling_bart.BartScaledWordEmbedding(4, 8, 0)
    assert list(of_libraries(root, ["net.weight"])) == ["net.weight"]


class Blocks(Classifier):
    """A tower with a list of blocks, next to what trains."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])


Blocks.__module__ = torchmetrics.__name__


def test_blocks_that_a_library_runs_under_no_grad_are_meant() -> None:
    root = nn.Module()
    root.net = Blocks()
    without = {name for name, _ in root.named_parameters() if ".tower." in name}
    calls = [*CALLS, "net.tower.0", "net.tower.1"]
    assert unused_parts(root, without, calls, {*calls}) == {}
    assert unused_parts(root, without, calls, {*CALLS}).keys() == without


@pytest.mark.parametrize(
    ("wide", "calls", "found"),
    [(96, ("body",), {"spare.weight", "spare.bias"}), (96, ("body", "spare"), set()), (64, ("body",), set())],
)
def test_a_small_layer_of_ones_own_that_nothing_calls(wide: int, calls: tuple[str, ...], found: set[str]) -> None:
    root = nn.ModuleDict({"body": nn.Linear(wide, wide), "spare": nn.Linear(8, 8)})
    assert unused_parts(root, {"spare.weight", "spare.bias"}, calls).keys() == found
