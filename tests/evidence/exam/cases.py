"""What the exam is made of: trainings of the models of others, by their own recipes, in two halves of families.

Rules and thresholds may be chosen by looking at the families of the half for calibration, never by those of the other half, the
report: those that say ``learned_from=False``. Once a report has led to a change of the rules it is seen, and the next one needs new
families.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from tests.evidence.faults.zoo import Build, Built, Expected

__all__ = ["CASES", "Built", "Case", "Expected", "Recipe", "fault", "healthy"]


@dataclass(frozen=True)
class Case:
    """One family of trainings.

    Attributes:
        name: Its name in the table.
        build: ``build()``; of a fault ``build(planted)``, where ``build(False)`` is its twin: the same training without the fault.
        library: The name by which the library is imported; of several with "and" between them.
        story: One sentence for the table.
        healthy: Whether nothing is planted.
        missed: Why it cannot be found, if it cannot.
        learned_from: Whether rules may be chosen by looking at it; otherwise it belongs to the report.
    """

    name: str
    build: Build
    library: str
    story: str
    healthy: bool
    missed: str = ""
    learned_from: bool = True

    @property
    def libraries(self) -> list[str]:
        """Each of its libraries."""
        return self.library.split(" and ")

    @property
    def installed(self) -> bool:
        """Whether its libraries are."""
        return all(find_spec(library) is not None for library in self.libraries)


CASES: dict[str, Case] = {}


def healthy(library: str, story: str, *, learned_from: bool = True) -> Callable[[Build], Build]:
    """Enter a function ``build() -> Built`` among the healthy families, under its name."""

    def enter(build: Build) -> Build:
        _enter(Case(build.__name__, build, library, story, healthy=True, learned_from=learned_from))
        return build

    return enter


def fault(library: str, story: str, missed: str = "", *, learned_from: bool = True) -> Callable[[Build], Build]:
    """Enter a function ``build(planted=True) -> Built`` among the faults, under its name."""

    def enter(build: Build) -> Build:
        _enter(Case(build.__name__, build, library, story, healthy=False, missed=missed, learned_from=learned_from))
        return build

    return enter


def _enter(case: Case) -> None:
    assert case.name not in CASES, f"two families are called {case.name}"
    CASES[case.name] = case


class Recipe(LightningModule):
    """A net, the loss of a batch, and the optimizers as Lightning takes them.

    Args:
        net: The library's model.
        loss: From the net and a batch to the loss.
        optimizers: From this module to what ``configure_optimizers`` returns.
    """

    def __init__(self, net: nn.Module, loss: Callable[[Any, Any], Tensor], optimizers: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net = net
        self.loss_of_batch, self.optimizers_of = loss, optimizers

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss_of_batch(self.net, batch)

    def configure_optimizers(self) -> Any:
        return self.optimizers_of(self)
