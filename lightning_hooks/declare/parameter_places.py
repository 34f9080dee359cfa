"""The optimizers and the parameters of a training, each with a place that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from lightning_hooks.declare.step import groups_of
from lightning_hooks.hooks.selection import cleaned
from lightning_hooks.hooks.tensors import is_distributed
from lightning_hooks.statistics.weight_sample import Shards


class ParameterPlaces:
    """Gives each parameter of a model and of its optimizers a place, in order; one that comes later gets the next.

    A parameter keeps its place and its name while it lives, wherever it moves in the model. One that replaces another under its
    name takes over its place.

    Attributes:
        names: The name of each place.
        optimizers: The optimizers.
        optimizer_names: Their names.
        shards: Where the parts are that each rank holds; None where it holds whole parameters.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.names: list[str] = []
        self.optimizers: list[Any] = []
        self.optimizer_names: list[str] = []
        self.shards: Shards | None = None
        self._parameters: list[Callable[[], Tensor | None]] = []
        self._index: dict[int, int] = {}

    def update(self, model: nn.Module, optimizers: Sequence[Any]) -> bool:
        """Look at the parameters as they are now; return whether there are new places.

        Those of the model come first, in its order; others are named after their optimizers.
        """
        n_before, self.optimizers = len(self.names), [*optimizers]
        of_optimizers = groups_of(optimizers)
        self.optimizer_names = [label for label, _ in of_optimizers]
        current: dict[int, tuple[str, Tensor]] = {}
        for named in cleaned(model.named_parameters()):
            current[id(named[1])] = named
        for label, groups in of_optimizers:
            for group, settings in enumerate(groups):
                for number, parameter in enumerate(settings["params"]):
                    if id(parameter) not in current:
                        current[id(parameter)] = f"{label}.group{group}.{number}", parameter
        index = {}
        for number, kept in enumerate(self._parameters):
            if id(kept()) in current:
                index[id(kept())] = number
        taken = {*index.values()}
        free = {name: place for place, name in enumerate(self.names) if place not in taken}
        for key, (name, parameter) in current.items():
            if key in index:
                continue
            place = free.pop(name, None)
            if place is None:
                place = len(self.names)
                self.names.append(name if name not in self.names else f"{name}:{place}")
                self._parameters.append(ref(parameter))
            self._parameters[place] = ref(parameter)
            index[key] = place
        self._index = index
        if len(self.names) == n_before:
            return False
        in_order = self.tensors()
        spread = any(parameter is not None and is_distributed(parameter) for parameter in in_order)
        self.shards = Shards(in_order, self._device) if spread else None
        return True

    def release(self) -> None:
        """Let the parameters go until the next :meth:`update`: torch exchanges no contents of what has a weak reference."""
        self._parameters, self._index, self.optimizers = [lambda: None] * len(self._parameters), {}, []

    def index_of(self, parameter: Tensor) -> int | None:
        """The parameter's place; None if it was not there at the last :meth:`update`."""
        return self._index.get(id(parameter))

    def holders(self) -> dict[int, set[int]]:
        """By its id, which optimizers hold a parameter."""
        found: dict[int, set[int]] = {}
        for position, (_, groups) in enumerate(groups_of(self.optimizers)):
            for group in groups:
                for parameter in group["params"]:
                    found.setdefault(id(parameter), set()).add(position)
        return found

    def members(self, groups: Iterable[dict[str, Any]]) -> dict[int, Tensor]:
        """The parameters in an optimizer's groups, each once, by their places."""
        found: dict[int, Tensor] = {}
        for group in groups:
            for parameter in group["params"]:
                index = self._index.get(id(parameter))
                if index is not None:
                    found.setdefault(index, parameter)
        return found

    def tensors(self) -> list[Tensor | None]:
        """The parameter at each place; None where it is gone."""
        return [found() for found in self._parameters]
