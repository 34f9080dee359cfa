"""Parts of a library's model without a gradient: branches that are not used, and a body that was cut off."""

from __future__ import annotations

import torchmetrics
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


def test_a_branch_that_runs_after_what_trains_is_not_used() -> None:
    assert spare("pooler") == {"pooler"}
    assert spare("pooler", calls=(*CALLS[:4], "net.head", "net.pooler")) == {"pooler"}


def test_what_a_library_s_class_holds() -> None:
    root = nn.Module()
    root.net, root.head = Classifier(), nn.Linear(2, 2)
    found = of_libraries(root, ["net.body.2", "net.stem.weight", "head", "head.bias"])
    assert list(found) == ["net.body.2", "net.stem.weight"]
    assert found["net.body.2"] == "a part of Classifier (from torchmetrics) that this task does not use"


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
