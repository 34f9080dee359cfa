"""Objects of a training that its loop hands to no callback, found among all objects of the process, once when training starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TypeVar

from torch import nn
from torch.optim import Optimizer

T = TypeVar("T")


def instances(kind: type[T]) -> Iterator[T]:
    """Yield the objects of a class. No attribute of an object is read: it may be a proxy that does something then."""
    return (each for each in gc.get_objects() if issubclass(type(each), kind))


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Return the optimizers that hold parameters of a model, in the order of these."""
    places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    found = []
    for each in instances(Optimizer):
        if "_optimizer" not in vars(each) and "param_groups" in vars(each):  # no wrapper of Fabric's
            held = [places[id(p)] for group in each.param_groups for p in group["params"] if id(p) in places]
            if held:
                found.append((min(held), each))
    return [optimizer for _, optimizer in sorted(found, key=lambda entry: entry[0])]
