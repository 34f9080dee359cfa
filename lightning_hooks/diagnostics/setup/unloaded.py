"""Layers that a recipe of fine-tuning takes for trained, and that are as PyTorch initialised them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from lightning_hooks.declare.step import groups_of
from lightning_hooks.diagnostics.setup.initial import is_known
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import as_number

SLOW = 0.1
"""Rate of a body over the largest one of its optimizer up to which it is fine-tuned."""
FEWEST, NEARLY_ALL = 3, 0.8
"""Layers of which it must be known whether they are as they were initialised, and the share of them that must be."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A frozen, or slowly trained, body that is as it was initialised.

    Attributes:
        layers: Its layers that are as they were initialised.
        known: Of how many of its layers that is known.
        rate: Its learning rate over the largest one of its optimizer; 0 for a frozen one.
    """

    layers: tuple[str, ...]
    known: int
    rate: float = 0.0


def unloaded(model: nn.Module, optimizers: Iterable[Any], made: Mapping[str, bool]) -> Unloaded | None:
    """Find a body that a recipe of fine-tuning does not train, or trains slowly, and that is as it was initialised.

    It comes before what trains. A frozen module of which another one, of the same class and shapes, trains is the target of that
    one and no body: a target network, the random net that a second one is to predict.

    Args:
        model: The model when training starts.
        optimizers: The optimizers.
        made: Layer to whether it is as PyTorch initialises it, where its weights show that.
    """
    rates: dict[int, tuple[str, float]] = {}
    for optimizer, groups in groups_of(optimizers):
        for group in groups:
            rate = as_number(group.get("initial_lr", group.get("lr"))) or 0.0
            rates |= {id(parameter): (optimizer, rate) for parameter in group["params"] if parameter.requires_grad}
    parameters = {clean_name(name): p for name, p in model.named_parameters() if is_known(p) and p.numel()}
    matrices = {name.rpartition(".")[0]: parameter for name, parameter in parameters.items() if parameter.dim() > 1}
    trained = {name.rpartition(".")[0]: rates[id(parameter)] for name, parameter in parameters.items() if id(parameter) in rates}
    highest = {of: max(rate for other, rate in rates.values() if other == of) for of, _ in rates.values()}
    frozen, targets = set[str](), set[str]()
    learning = {_form(module) for module in model.modules() if all(id(p) in rates for p in module.parameters())}
    for name, module in model.named_modules():
        if any(True for _ in module.parameters()) and not any(p.requires_grad for p in module.parameters()):
            frozen.add(clean_name(name))
            if _form(module) in learning and any(True for _ in module.children()):
                targets.update(clean_name(f"{name}.{inner}") for inner, _ in module.named_modules())
    body = [name for name in made if name in frozen - targets]
    first = next((name for name in trained if name in matrices), "")
    tables = {clean_name(name) for name, module in model.named_modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    inputs = matrices[first].shape[1] if first and first not in tables else 0
    fed = inputs and any(inputs % len(matrices[name]) == 0 for name in frozen - targets if name in matrices)
    found = _as_made(body, made) if fed else None
    for of, rate in highest.items():
        slow = [name for name, (other, own) in trained.items() if other == of and own <= SLOW * rate]
        if 0 < len(slow) < len(trained) and slow == [*trained][: len(slow)]:
            found = found or _as_made([name for name in made if name in slow], made, max(trained[name][1] for name in slow) / rate)
    return found


def _form(module: nn.Module) -> tuple[Any, ...]:
    return type(module), *((name, parameter.shape) for name, parameter in module.named_parameters() if is_known(parameter))


def _as_made(body: list[str], made: Mapping[str, bool], rate: float = 0.0) -> Unloaded | None:
    layers = tuple(name for name in body if made[name])
    return Unloaded(layers, len(body), rate) if len(body) >= FEWEST and len(layers) >= NEARLY_ALL * len(body) else None
