"""The calls of functions in a run's sampled batches, and who records them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from torch import nn

from lightning_hooks.declare.functional import FunctionalCall
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.warn import Once, info, warn
from lightning_hooks.hooks import Gate, guarded
from lightning_hooks.hooks.functional import CallObserver, FunctionCall
from lightning_hooks.hooks.functions import FUSED, is_calling_layer
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.hooks.tensors import UnreadableError
from lightning_hooks.hooks.wrappers import is_transformed, skipping
from lightning_hooks.session.numbered_sites import NumberedSites

SITES_PER_CALLER = 3
SPARE_SITES = 16

FIRST_FULL = 3
"""Sampled batches of a run, the first ones, in which the calls of all modules are seen."""
FULL_EVERY = 10
"""After them every so many sampled batches; in those between, only the calls of modules that are known to call a function."""


@dataclass(slots=True, eq=False)
class _Subscriber:
    """Who records the calls of some functions: each site by a function of its own, so that a fault disables one site."""

    owner: object
    functions: frozenset[str]
    gate: Gate
    new: Callable[[str], skipping]
    layers: bool
    in_validation: bool
    detailed: bool
    of_sites: dict[int, skipping] = field(default_factory=dict)


class FunctionalCalls(NumberedSites):
    """The calls of functions in one run.

    Args:
        host: The training loop.

    Attributes:
        running: Whether the calls of the training batch under way are seen.
        in_validation: Whether those of the validation batch under way are.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._observer = CallObserver(host.model, guarded(self._record, on_fault=_failed), self._is_wanted)
        super().__init__(SPARE_SITES + sum(map(_most_sites, self._observer.callers.values())))
        self._subscribers: list[_Subscriber] = []
        self._takers: dict[str, list[_Subscriber]] = {}  # by the function that they want
        self._open: list[_Subscriber] = []  # those that record the call under way
        self.running = self.in_validation = False
        self._info_once = Once(info)
        self._batches = 0  # sampled ones
        self._parameters = list(host.model.parameters())
        self._state: list[bool | None] = []

    @property
    def used(self) -> bool:
        """Whether somebody records calls."""
        return bool(self._subscribers)

    def available(self) -> bool:
        """Whether calls can be seen: not under ``torch.compile``, of which one message says so."""
        regions = compiled_regions(self._host.model)
        if regions or self._observer.compiled:
            name = type(self._host.model).__name__
            self._info_once(compiled_message(name, regions) if regions else compiled_calls_message(name, self._observer.compiled))
        return not regions

    def add(
        self,
        owner: object,
        functions: Sequence[str],
        gate: Gate,
        new: Callable[[str], skipping],
        layers: bool = False,
        in_validation: bool = False,
        detailed: bool = False,
    ) -> None:
        """Record each call of some functions while a gate is open.

        Args:
            owner: Who asks for it.
            functions: Their names.
            gate: When.
            new: Makes the recorder of a site, by its name.
            layers: Also the calls that layers such as ``nn.Softmax`` make, whose output is the function's.
            in_validation: Those of the first batch of each validation instead, at sites that are known from training.
            detailed: Only in the batches in which costly statistics are taken.
        """
        self._subscribers.append(_Subscriber(owner, frozenset(functions), gate, new, layers, in_validation, detailed))
        self._follow()

    def release(self, owner: object) -> None:
        """Remove the recorders of one owner."""
        self._subscribers = [other for other in self._subscribers if other.owner is not owner]
        self._follow()
        if not self._subscribers:
            self.stop()

    def _follow(self) -> None:
        """The subscribers are others."""
        self._takers = {}
        for subscriber in self._subscribers:
            for function in subscriber.functions:
                self._takers.setdefault(function, []).append(subscriber)

    def start(self) -> None:
        """A training batch starts that somebody samples who records calls."""
        wanted = set[str]()
        for subscriber in self._subscribers:
            if subscriber.gate.sampled and (subscriber.gate.in_detail or not subscriber.detailed):
                wanted |= subscriber.functions
        if wanted:
            self.running = True
            self._observer.start(None if self._is_full() else self._callers(wanted))

    def _is_full(self) -> bool:
        """Whether the calls of all modules are to be seen: those that call nothing so far may start to."""
        before, self._state = self._state, [module.__dict__.get("training") for module in self._observer.callers.values()]
        self._state += [parameter.requires_grad for parameter in self._parameters]
        self._batches += 1
        return self._batches <= FIRST_FULL or self._batches % FULL_EVERY == 0 or self._state != before

    def _callers(self, wanted: Collection[str]) -> set[str]:
        """The modules that are known to call one of these functions, on any rank."""
        found = set[str]()
        for site in (*self.sites, *self._waiting.values()):
            if site.function in wanted:
                found.add(site.module)
        return found

    def of(self, owner: object) -> bool:
        """Whether an owner records calls of training batches."""
        return any(subscriber.owner is owner and not subscriber.in_validation for subscriber in self._subscribers)

    def step(self) -> AbstractContextManager[None]:
        """A block in which the loop calls ``training_step`` or ``validation_step``."""
        return self._observer.step()

    @property
    def seen(self) -> bool:
        """Whether the mode that sees calls is on the stack of modes."""
        return self._observer.seen

    def begin_step(self) -> None:
        """The code of a loop starts that ends with the batch: the model's own calls are seen, as in :meth:`step`."""
        if self.running:
            self._observer.begin_step()

    def pause(self) -> None:
        """Backward or an optimizer's step starts: no call is seen before the next forward."""
        if self._observer.seen:
            self._observer.pause()

    def leave(self) -> None:
        """No further call is seen in the batch under way: the model runs for other purposes."""
        self._observer.stop()

    def validation_batch(self, index: int) -> None:
        """A validation batch starts: calls in the first one are seen, of modules that take no fused path."""
        self._observer.stop()
        self.in_validation = False
        if index:
            return
        wanted = {name for subscriber in self._subscribers if subscriber.in_validation for name in subscriber.functions}
        callers = {site.module for site in self.sites if site.function in wanted}
        modules = self._observer.callers
        callers = {name for name in callers if not (name in modules and _calls_for_itself(modules[name]))}
        self.in_validation = bool(callers)
        if callers:
            self._observer.start(callers)

    def batch_end(self) -> bool:
        """A batch whose calls were seen ends: after the first one ranks number its sites alike; return whether they have now."""
        self.running = False
        self._observer.stop()
        if self.agreed:
            return False
        self.agree()
        for subscriber in self._subscribers:
            subscriber.of_sites.clear()
        return True

    def stop(self) -> None:
        """Whatever ran is over. Harmless when it was over before."""
        self.running = self.in_validation = False
        self._observer.stop()

    def close(self) -> None:
        """The run is over: a report may still ask for the sites, and the model is let go."""
        self.stop()
        self._subscribers = []
        self._follow()
        self._observer.close()
        self._parameters.clear()
        del self._host

    def _is_wanted(self, function: str) -> bool:
        self._open = []
        for each in self._takers.get(function, ()):
            if self.in_validation if each.in_validation else each.gate.open and (each.gate.in_detail or not each.detailed):
                self._open.append(each)
        return bool(self._open)

    def _record(self, call: FunctionCall) -> None:
        takers = self._open
        if is_calling_layer(call.module):
            takers = [subscriber for subscriber in takers if subscriber.layers]
        number = self._numbers.get(call.name)
        site = None if number is None else self.sites[number]
        if site is None and takers and not self.in_validation:
            site = self.new_site(call.name, call.function, call.caller)
        if site is None or not takers:
            return
        seen = FunctionalCall(site, call.function, call.arguments, call.output, call.module)
        transformed = is_transformed()  # a table that is made there would be too
        for subscriber in takers:
            recorder = subscriber.of_sites.get(site.index)
            if recorder is None:
                recorder = subscriber.of_sites[site.index] = subscriber.new(site.name)
            if transformed:
                recorder.failed(UnreadableError(call.output))
            else:
                recorder(seen)


def _most_sites(module: nn.Module) -> int:
    """The most sites of a module that may call functions; of layers only those count that somebody wants."""
    if is_calling_layer(module):
        return int(isinstance(module, nn.Softmax | nn.Softmax2d | nn.LogSoftmax | nn.Dropout))
    return SITES_PER_CALLER


def _calls_for_itself(module: nn.Module) -> bool:
    """Whether what a module does in validation follows from its mode, or must not be disturbed."""
    return is_calling_layer(module) or isinstance(module, FUSED)


def _failed(_: str, error: Exception) -> None:
    warn(f"Calls of functions are recorded no more: {type(error).__name__}: {error}. Training is not affected. Please report this.")


def compiled_calls_message(model: str, modules: Sequence[str]) -> str:
    """Why calls are not recorded in modules that call compiled functions, of the names of the modules."""
    named = ", ".join(module or f"the steps of {model}" for module in modules[:3]) + ", …" * (len(modules) > 3)
    return (
        f"lightning_hooks: calls of functions (attention, functional activations, cross_entropy) are not recorded in {named}: "
        "functions under torch.compile are called there, which would be compiled once more for the batches that are sampled."
    )


def compiled_message(model: str, regions: Sequence[str]) -> str:
    """Why calls are not recorded, of the names of the compiled modules."""
    named = ", ".join(region or model for region in regions[:3]) + ", …" * (len(regions) > 3)
    return (
        "lightning_hooks: calls of functions (attention, functional activations, cross_entropy) are not recorded, because "
        f"torch.compile is used for {named}: its graphs do not show them. Train a few steps without torch.compile to see them."
    )
