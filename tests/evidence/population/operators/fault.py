"""What an operator is made of: what it is called, where it applies, what it changes, and what undoes it."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.population.recipe import Recipe
from tests.evidence.population.training import Training, build

Sites = tuple[str, ...] | None
Function = Callable[[Tensor], Tensor]
Where = Callable[[Training], Iterable[Any]]
Turn = Callable[[Training, Any], Sites]

OPERATORS: dict[str, Fault] = {}
"""All, by name, in the order in which they are declared."""


@dataclass(frozen=True)
class Fault:
    """One fault, as people make it.

    Attributes:
        name: In tables.
        group: ``"data"``, ``"model"``, ``"loss"``, ``"optimizer"``, ``"schedule"`` or ``"training"``.
        causes: The names of causes that are right, the package's where it has one.
        stage: After which stage it changes the training.
        undo: What undoes it, in a sentence.
        where: What of a training it may change: it takes one of these. Of a training that is built up to its stage.
        turn: Changes it, given one of them; returns the sites at fault, or None where no layer is.
    """

    name: str
    group: str
    causes: tuple[str, ...]
    stage: str
    undo: str
    where: Where
    turn: Turn

    def applies(self, recipe: Recipe) -> bool:
        """Whether the recipe has what is changed."""
        return any(True for _ in self.where(_healthy(recipe)))

    def change(self, training: Training) -> Sites:
        """Change the training in place, and return the sites at fault."""
        places = list(self.where(training))
        if not places:
            raise LookupError(f"{self.name} finds nothing to change: another operator took it.")
        return self.turn(training, training.pick(places))


@functools.lru_cache(maxsize=2)
def _healthy(recipe: Recipe) -> Training:
    """The training without operators, to look at; what it was trained on before does not matter here."""
    state = torch.get_rng_state()
    try:
        training = build(replace(recipe, pretrained=0))[0]
        training.recipe = recipe
        return training
    finally:
        torch.set_rng_state(state)


def always(_: Training) -> Iterable[None]:
    """Wherever."""
    return [None]


class Group:
    """Enters the operators of a group, which is their stage unless another is given.

    As a decorator it enters a function under its name. ``by(…, name=turn)`` enters short ones; they all have the same causes.
    """

    def __init__(self, name: str, stage: str = "") -> None:
        self.name, self.stage = name, stage or name

    def by(self, causes: str, undo: str, where: Where = always, stage: str = "", **turns: Turn) -> None:
        """Enter these functions."""
        for name, turn in turns.items():
            OPERATORS[name] = Fault(name, self.name, tuple(causes.split()), stage or self.stage, undo, where, turn)

    def __call__(self, causes: str, undo: str, where: Where = always, stage: str = "") -> Callable[[Turn], Turn]:
        def enter(turn: Turn) -> Turn:
            self.by(causes, undo, where, stage, **{turn.__name__: turn})
            return turn

        return enter


def between(training: Training, low: float, high: float) -> float:
    """A number between two, drawn evenly on a logarithmic scale."""
    share = torch.rand((), generator=training.generator).item()
    return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def shuffled(training: Training, n: int) -> Tensor:
    """An order of n things."""
    return torch.randperm(n, generator=training.generator)


# Places of a model.


def layers(*kinds: type[nn.Module]) -> Where:
    """The names of the modules of these classes that train, in the order of their definition."""
    return lambda t: [name for name, module in t.model.named_modules() if isinstance(module, kinds) and _trains(name, module)]


def _trains(name: str, module: nn.Module) -> bool:
    own = list(module.parameters())
    return any(parameter.requires_grad for parameter in own) if own else name.partition(".")[0] not in ("target", "teacher")


def whole(where: Where, least: int = 1) -> Where:
    """All of these places at once, if there are so many."""
    return lambda training: [found] if len(found := list(where(training))) >= least else []


def both(*conditions: Where) -> Where:
    """The places of the last one, where the others have some."""
    return lambda training: conditions[-1](training) if all(any(True for _ in c(training)) for c in conditions) else []


def when(condition: Callable[[Training], bool]) -> Where:
    """Wherever this holds."""
    return lambda training: [None] if condition(training) else []


validating = when(lambda training: training.recipe.validate)
"""Where a fault that only shows in validation can be seen."""


def swap(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put another module in the place of one."""
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    if name.startswith("online."):  # whose slow copy is made of it
        model.target = copy.deepcopy(model.online).requires_grad_(False)


def of(names: Iterable[str]) -> tuple[str, ...]:
    """Patterns of modules and of what is in them."""
    return tuple(pattern for name in names for pattern in (name, f"{name}.*"))


def head(training: Training) -> list[str]:
    """The last linear layer, where the answer is what it puts out."""
    modules = dict(training.model.named_modules())
    return [name for name in ("head", "scorer.head") if isinstance(modules.get(name), nn.Linear)]


class Around(nn.Module):
    """A module, a function of what it puts out, and one of what it takes."""

    def __init__(self, module: nn.Module, after: Function, before: Function | None = None) -> None:
        super().__init__()
        self.module, self.after, self.before = module, after, before

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        inputs = tuple(map(self.before, inputs)) if self.before else inputs
        return self.after(self.module(*inputs, **options))
