"""The calls of functions, as a collector gets them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from lightning_hooks.hooks import DetailGate, Gate, guarded


@dataclass(frozen=True, slots=True)
class FunctionalSite:
    """A function as one module calls it, known from its first call on.

    Attributes:
        index: Its number, the same on every rank.
        name: ``blocks.3.attn/sdpa``: the calling module, the function, and from the second call in one forward on which call it
            is: ``relu_1``. The model's own calls have no module before them.
        function: Such as ``sdpa``: one of :data:`lightning_hooks.hooks.functions.FUNCTIONS`.
        module: The calling module's name; empty for the model itself.
    """

    index: int
    name: str
    function: str
    module: str


@dataclass(frozen=True, slots=True)
class FunctionalCall:
    """One call at a site.

    Attributes:
        site: Where.
        function: Which function.
        arguments: By the names of its parameters; those that were given.
        output: What it returned.
        module: The calling module; not to be kept.
    """

    site: FunctionalSite
    function: str
    arguments: Mapping[str, Any]
    output: Any
    module: nn.Module


class Functional(Protocol):
    """The calls of functions in one run."""

    sites: list[FunctionalSite]
    """In the order of their numbers."""
    capacity: int
    """The most there can be: tables have as many lines, the same on every rank."""

    @property
    def used(self) -> bool:
        """Whether somebody records calls."""

    def available(self) -> bool:
        """Whether calls can be seen: not under ``torch.compile``, of which one message says so."""

    def add(
        self,
        owner: object,
        functions: Sequence[str],
        gate: Gate | DetailGate,
        new: Callable[[str], guarded],
        layers: bool = False,
        in_validation: bool = False,
    ) -> None:
        """Record each call of some functions while a gate is open: as :meth:`Context.on_call`."""

    def state(self) -> list[tuple[str, str, str]]:
        """The sites, in plain types."""

    def restore(self, state: Sequence[Sequence[str]]) -> None:
        """Restore the sites of an earlier run, before any other is known."""
