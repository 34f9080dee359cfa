"""How each parameter is set up: whether it trains and which optimizers hold it; copies that none holds; bodies not loaded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import nn

from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.step import EarlierOptimizers, OptimizerGroups, Step, groups_of
from lightning_hooks.diagnostics.setup.initial import is_known, starting_at_zero
from lightning_hooks.hooks.parameters import of_libraries, unused_parts
from lightning_hooks.hooks.selection import clean_name, cleaned, outwards
from lightning_hooks.hooks.tensors import as_number, is_computed

DECOUPLED = ("AdamW", "SGD", "Lion", "Muon", "NAdamW", "LAMB")
"""Optimizers whose weight decay takes ``lr * weight_decay`` of a weight at each step. In Adam's it goes through its moments."""

L2 = ("Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "RMSprop")
"""Optimizers of torch that add weight decay to the gradient, unless it is decoupled, and divide by its size."""


@dataclass(frozen=True, slots=True)
class ParameterSetup:
    """How a parameter is set up at the end of an epoch, and whether it had a gradient in it.

    Attributes:
        elements: How many numbers it has.
        dimensions: How many dimensions.
        trains: Whether it requires a gradient.
        has_gradient: Whether it had one at any step, sampled or not; where no optimizer holds it, at any sampled batch.
        optimizers: The optimizers that hold it (``0-Adam``), one name for each time it is held.
        steps: How many steps they took in the epoch, sampled or not; the most of any.
        lr: Its learning rate; the largest where several optimizers hold it; None where none does.
        lr_peak: The largest learning rate that its schedule is known to have had or to be going to have; None as for ``lr``.
        unzeroed_steps: How many of these steps were taken with gradients that had not been zeroed since the step before.
        starts_at_zero: Whether training started with all its numbers at zero, or next to it.
        spare: Of one without a gradient, or with a gradient of exact zeros: why that may be meant, such as ``a part of BertModel
            (from transformers) that this task does not use``; empty if no reason is known.
        decay: The share of itself that decoupled weight decay (AdamW's, SGD's) takes of it at each step; 0 without.
        l2: The weight decay that an optimizer adds to its gradient, as Adam does; 0 without.
        stepped: Whether it was frozen when training went on from a checkpoint, though an optimizer had taken steps with it.
    """

    elements: int
    dimensions: int
    trains: bool
    has_gradient: bool
    optimizers: tuple[str, ...] = ()
    steps: int = 0
    lr: float | None = None
    lr_peak: float | None = None
    decay: float = 0.0
    unzeroed_steps: int = 0
    starts_at_zero: bool = False
    spare: str = ""
    l2: float = 0.0
    stepped: bool = False

    @property
    def learns(self) -> bool:
        """Whether it requires a gradient and had one."""
        return self.trains and self.has_gradient

    def has_rate(self, share: float) -> bool:
        """Whether its learning rate is above 0 and at least this share of its peak: not low on purpose, by its schedule."""
        return bool(self.lr) and (self.lr or 0.0) >= share * (self.lr_peak or 0.0)


class SetupWatch:
    """Follows, over a window, what is done with the parameters. Reads lists on the host only.

    Of a model that starts, and is not ``resumed`` from a checkpoint, the weights at zero are noted.

    Attributes:
        setups: How every parameter of the model was set up in the last window, by its name; a tied one once.
    """

    def __init__(self, names: Sequence[str], model: nn.Module, optimizers: Sequence[Any], resumed: bool) -> None:
        self._names, self.setups = names, dict[str, ParameterSetup]()

        named = cleaned(model.named_parameters())
        self._at_zero: Set[str] = starting_at_zero([] if resumed else named)
        states = [getattr(optimizer, "state", ()) for optimizer in optimizers]
        self._stepped = {name for name, p in named if not p.requires_grad and any(p in state for state in states)}
        self._peaks: dict[int, float] = {}  # of each parameter group, by number, the largest learning rate so far
        self._unheld: dict[str, nn.Parameter] | None = None
        self._reached: set[str] = set()
        self._steps: Counter[str] = Counter()
        self._unzeroed: Counter[str] = Counter()
        self._never: dict[int, set[int]] = {}  # optimizer -> parameters without a gradient at any step so far

    def batch_start(self, optimizers: OptimizerGroups, model: nn.Module) -> None:
        """A sampled batch starts: note the learning rates in force and those that schedulers leave in the groups."""
        for number, group in enumerate(chain.from_iterable(map(itemgetter(1), optimizers))):
            for name in ("lr", "initial_lr", "max_lr"):
                rate = group.get(name)
                if rate is not None and type(rate) is not float:
                    rate = as_number(rate)
                if rate is not None:
                    self._peaks[number] = max(rate, self._peaks.get(number, rate))
        if self._unheld is None:
            held = held_by(optimizers)
            unheld = [(name, p) for name, p in model.named_parameters() if p.requires_grad and id(p) not in held]
            self._unheld = dict(cleaned(unheld)) if unheld else {}

    def follow(self, kept: EarlierOptimizers) -> None:
        """There are new parameters, or other optimizers than before."""
        self._unheld = None
        if kept != [*range(len(kept))]:
            self._peaks = {}  # those were others' schedules
            self._never = {now: self._never[old] for now, old in enumerate(kept) if old in self._never}

    @property
    def follows_backward(self) -> bool:
        """Whether there are, or may be, parameters that no optimizer holds, of which is noted whether they get a gradient."""
        return self._unheld != {}

    def after_backward(self) -> None:
        """Gradients are there now; at the window's end they are not, since validation zeroes them."""
        self._reached.update(name for name, parameter in (self._unheld or {}).items() if parameter.grad is not None)

    def step_taken(self, step: Step, optimizer: str) -> None:
        """An optimizer has stepped, sampled or not."""
        self._steps[optimizer] += 1
        self._unzeroed[optimizer] += step.unzeroed
        self._never.setdefault(step.optimizer, {*step.missing}).intersection_update(step.missing)

    def state(self) -> dict[str, Any]:
        """What a resumed fit goes on from, in plain types."""
        return {
            "peaks": dict(self._peaks),
            "reached": sorted(self._reached),
            "steps": dict(self._steps),
            "unzeroed": dict(self._unzeroed),
            "at_zero": sorted(self._at_zero),
            "never": {place: sorted(missing) for place, missing in self._never.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the :meth:`state` of an earlier run."""
        self._peaks, self._reached = dict(state.get("peaks", {})), set(state.get("reached", ()))
        self._steps, self._unzeroed = Counter(state.get("steps", {})), Counter(state.get("unzeroed", {}))
        self._at_zero = {*self._at_zero, *state.get("at_zero", ())}
        self._never = {place: set(missing) for place, missing in state.get("never", {}).items()}

    def window_end(self, optimizers: Sequence[Any], parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Note how every parameter is set up, as this rank knows it, without reasons: see :meth:`merge`. Starts a new window."""
        groups = [(optimizer, group) for optimizer, groups in groups_of(optimizers) for group in groups]
        held = grouped((id(parameter), number) for number, (_, group) in enumerate(groups) for parameter in group["params"])
        never = {self._names[index] for missing in self._never.values() for index in missing}
        setups = dict[str, ParameterSetup]()
        of_holders = cache(lambda numbers: self._of_holders([(*groups[number], self._peaks.get(number)) for number in numbers]))
        make: Any = ParameterSetup
        made = cache(lambda own, numbers, **more: make(*own, **more, **of_holders(numbers)))  # most are like others
        for name, parameter in cleaned(parameters):
            holders = tuple(held.get(id(parameter), ()))
            own = (
                0 if nn.parameter.is_lazy(parameter) else parameter.numel(),
                parameter.dim() if is_computed(parameter) else 0,
                parameter.requires_grad,
                name not in never and of_holders(holders)["steps"] > 0 if holders else name in self._reached,
            )
            setups[name] = made(own, holders, starts_at_zero=name in self._at_zero, stepped=name in self._stepped)
        self.setups, self._unheld = setups, None
        self._reached, self._steps, self._unzeroed, self._never = set(), Counter(), Counter(), {}

    def flags(self) -> list[float]:
        """1 for each parameter that had a gradient in the window."""
        return [float(name in self.setups and self.setups[name].has_gradient) for name in self._names]

    def merge(
        self, flags: Sequence[float], model: nn.Module, called: Sequence[str], recording: Set[str], zeros: Sequence[str]
    ) -> None:
        """Take from all ranks together whether a parameter had a gradient, and why it may be meant to have none, or one of zeros.

        From one rank's flags alone, one rank could warn where another gives an info. Of the modules ``called``, in that order,
        ``recording`` are those whose output required a gradient.
        """
        found = {name: had for name, had in zip(self._names, map(bool, flags), strict=True) if name in self.setups}
        changed = [name for name, had in found.items() if had != self.setups[name].has_gradient]
        setups = self.setups | {name: dataclasses.replace(self.setups[name], has_gradient=found[name]) for name in changed}
        silent = {name for name, setup in setups.items() if setup.trains and not setup.has_gradient}
        reasons = of_libraries(model, [name for name in zeros if name in setups])
        reasons |= unused_parts(model, silent, called, recording)
        self.setups = setups | {name: dataclasses.replace(setups[name], spare=why) for name, why in reasons.items()}

    def _of_holders(self, holders: Sequence[tuple[str, Mapping[str, Any], float | None]]) -> dict[str, Any]:
        """What the optimizers that hold a parameter make of it; of each its name, the parameter group and the rate's peak."""
        rates = [as_number(group.get("lr")) for _, group, _ in holders]
        decays = [_weight_decay(optimizer, group) for optimizer, group, _ in holders]
        return {
            "optimizers": tuple(optimizer for optimizer, *_ in holders),
            "steps": max((self._steps[optimizer] for optimizer, *_ in holders), default=0),
            "lr": max((rate for rate in rates if rate is not None), default=None),
            "lr_peak": max((peak for *_, peak in holders if peak is not None), default=None),
            "decay": max((decay for decay, _ in decays), default=0.0),
            "l2": max((l2 for _, l2 in decays), default=0.0),
            "unzeroed_steps": max((self._unzeroed[optimizer] for optimizer, *_ in holders), default=0),
        }


def _weight_decay(optimizer: str, group: Mapping[str, Any]) -> tuple[float, float]:
    """The share of a weight that a step takes, and the factor of the weight that is added to its gradient."""
    kind, value = optimizer.partition("-")[2], as_number(group.get("weight_decay")) or 0.0
    decoupled = kind in DECOUPLED or group.get("decoupled_weight_decay") is True
    return ((as_number(group.get("lr")) or 0.0) * value, 0.0) if decoupled else (0.0, value * (kind in L2))


def held_by(optimizers: OptimizerGroups) -> set[int]:
    """The identities of the parameters that optimizers hold."""
    return {id(parameter) for _, groups in optimizers for group in groups for parameter in group["params"]}


def copies_in(model: nn.Module, optimizers: Iterable[Any]) -> dict[str, str]:
    """Find the modules that are copies of one that an optimizer holds, and that no optimizer holds themselves.

    Compared are modules of one class whose parameters have the same names and shapes, with a weight of two dimensions or more. A
    frozen parameter does not count as held. Where all are, as they usually are, nothing is read; else some numbers of such pairs.

    Returns:
        The name of each copy to that of its original.
    """
    held = held_by(groups_of(optimizers)) - {id(parameter) for parameter in model.parameters() if not parameter.requires_grad}
    if all(id(parameter) in held for parameter in model.parameters()):
        return {}
    known = [(clean_name(name), module, [*module.parameters()]) for name, module in model.named_modules()]
    whole = [one for one in known if all(map(is_known, one[2])) and any(p.dim() > 1 for p in one[2])]
    kinds = grouped((frozenset(id(p) in held for p in parameters), (name, module)) for name, module, parameters in whole)
    originals = grouped((_form(module), (name, module)) for name, module in kinds.get(frozenset({True}), ()))
    found: dict[str, str] = {}
    for name, module in kinds.get(frozenset({False}), ()):
        if found.keys().isdisjoint(outwards(name)):  # else it is a part of a copy
            for original, other in originals.get(_form(module), ()):
                pairs = zip(other.parameters(), module.parameters(), strict=True)
                if all(a.device == b.device and torch.equal(a, b) for a, b in pairs):
                    found[name] = original
                    break
    return found


SLOW = 0.1  # rate of a body over the largest one of its optimizer up to which it is fine-tuned
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


def unloaded(model: nn.Module, optimizers: Iterable[Any], made: Mapping[str, str]) -> Unloaded | None:
    """Find a body that a recipe of fine-tuning does not train, or trains slowly, and that is as it was initialised.

    It comes before what trains. A frozen module of which another one, of the same class and shapes, trains is the target of that
    one and no body: a target network, the random net that a second one is to predict. ``made``: layer to how it was initialised,
    where its weights show that.
    """
    rates: dict[int, tuple[str, float]] = {}
    for optimizer, groups in groups_of(optimizers):
        for group in groups:
            rate = as_number(group.get("initial_lr", group.get("lr"))) or 0.0
            rates |= {id(parameter): (optimizer, rate) for parameter in group["params"] if parameter.requires_grad}
    parameters = {name: p for name, p in cleaned(model.named_parameters()) if is_known(p) and p.numel()}
    matrices = {name.rpartition(".")[0]: parameter for name, parameter in parameters.items() if parameter.dim() > 1}
    trained = {name.rpartition(".")[0]: rates[id(parameter)] for name, parameter in parameters.items() if id(parameter) in rates}
    highest = {of: max(rate for other, rate in rates.values() if other == of) for of, _ in rates.values()}
    learning = {_form(module) for module in model.modules() if all(id(p) in rates for p in module.parameters())}
    modules = [(clean_name(name), module, [p.requires_grad for p in module.parameters()]) for name, module in model.named_modules()]
    frozen = {name: module for name, module, trains in modules if trains and not any(trains)}
    copies = {name: module for name, module in frozen.items() if _form(module) in learning and any(True for _ in module.children())}
    targets = {clean_name(f"{name}.{inner}") for name, module in copies.items() for inner, _ in module.named_modules()}
    body = [name for name in made if name in frozen.keys() - targets]
    first = next((name for name in trained if name in matrices), "")
    tables = {name for name, module, _ in modules if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    inputs = matrices[first].shape[1] if first and first not in tables else 0
    fed = inputs and any(inputs % len(matrices[name]) == 0 for name in frozen.keys() - targets if name in matrices)
    found = _as_made(body, made) if fed else None
    for of, rate in highest.items():
        slow = [name for name, (other, own) in trained.items() if other == of and own <= SLOW * rate]
        if 0 < len(slow) < len(trained) and slow == [*trained][: len(slow)]:
            found = found or _as_made([name for name in made if name in slow], made, max(trained[name][1] for name in slow) / rate)
    return found


def _form(module: nn.Module) -> tuple[Any, ...]:
    return type(module), *((name, parameter.shape) for name, parameter in module.named_parameters() if is_known(parameter))


def _as_made(body: list[str], made: Mapping[str, str], rate: float = 0.0) -> Unloaded | None:
    layers = tuple(name for name in body if made[name])
    return Unloaded(layers, len(body), rate) if len(body) >= FEWEST and len(layers) >= NEARLY_ALL * len(body) else None
