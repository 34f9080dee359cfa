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
Where = Callable[[Training], Iterable[Any]]

OPERATORS: dict[str, Fault] = {}
"""All, by name, in the order in which they are declared."""


@dataclass(frozen=True)
class Fault:
    """One fault, as people make it: an :class:`~tests.evidence.population.training.Operator`.

    Attributes:
        name: In tables.
        group: ``"data"``, ``"model"``, ``"loss"``, ``"optimizer"``, ``"schedule"`` or ``"training"``.
        cause: What is wrong, in the package's name where it has one.
        stage: After which stage it changes the training.
        undo: What undoes it, in a sentence.
        where: What of a training it may change: it takes one of these. Of a training that is built up to its stage.
        turn: Changes it, given one of them; returns the sites at fault, or None where no layer is.
        also: Other names of causes that are right.
        code: A line of code that undoes it, where one does.
        harmless_reason: Why it may do no harm, where that is known.
    """

    name: str
    group: str
    cause: str
    stage: str
    undo: str
    where: Where
    turn: Callable[[Training, Any], Sites]
    also: tuple[str, ...] = ()
    code: str = ""
    harmless_reason: str = ""

    @property
    def causes(self) -> tuple[str, ...]:
        """All names of causes that are right."""
        return (self.cause, *self.also)

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


def fault(
    group: str, cause: str, undo: str, *, where: Where = always, stage: str = "", also: tuple[str, ...] = (), code: str = "",
    harmless: str = "",
) -> Callable[[Callable[[Training, Any], Sites]], Callable[[Training, Any], Sites]]:  # fmt: skip
    """Enter a function among the operators, under its name; of the stage of its group unless another is given."""

    def enter(turn: Callable[[Training, Any], Sites]) -> Callable[[Training, Any], Sites]:
        OPERATORS[turn.__name__] = Fault(turn.__name__, group, cause, stage or group, undo, where, turn, also, code, harmless)
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

    def names(training: Training) -> list[str]:
        return [name for name, module in training.model.named_modules() if isinstance(module, kinds) and _trains(name, module)]

    return names


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
    return [name for name in ("head", "scorer.head") if isinstance(_found(training.model, name), nn.Linear)]


def _found(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


class After(nn.Module):
    """A module, and a function of what it puts out."""

    def __init__(self, module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        return self.function(self.module(*inputs, **options))


class Around(nn.Module):
    """A module whose input and output go through a function each."""

    def __init__(self, module: nn.Module, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.before, self.after = module, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.module(self.before(x)))
