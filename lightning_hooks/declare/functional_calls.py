"""The calls of functions in a run's sampled batches, and who records them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import Any

import torch.distributed
from torch import nn

from lightning_hooks.declare.host import Host
from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.warn import Once, info, warn
from lightning_hooks.hooks import Gate, guarded
from lightning_hooks.hooks.functional import CallObserver
from lightning_hooks.hooks.functions import FUSED, is_calling_layer
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.hooks.tensors import UnreadableError
from lightning_hooks.hooks.wrappers import is_transformed, skipping
from lightning_hooks.statistics.reduction import all_ranks
from lightning_hooks.trackers import some

SITES_PER_CALLER = 3
SPARE_SITES = 16

FIRST_FULL = 3  # sampled batches of a run, the first ones, in which the calls of all modules are seen
# After them every so many sampled batches; in those between, only the calls of modules that are known to call a function
FULL_EVERY = 10


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


@dataclass(slots=True, eq=False)
class CallSubscriber:
    """Who records the calls of some functions: each site by a function of its own, so that a fault disables one site.

    Attributes:
        owner: The part of the session that it belongs to.
        functions: By name.
        gate: Open in the batches that are recorded.
        new: Makes the recorder of a ``site``.
        layers: Whether calls that layers such as ``nn.Softmax`` make count too.
        in_validation: Whether those of validations are recorded instead.
        detailed: Whether only those of batches in which costly statistics are taken are.
        of_sites: The recorders by the number of the site.
    """

    owner: object
    functions: frozenset[str]
    gate: Gate
    new: Callable[..., skipping]
    layers: bool
    in_validation: bool
    detailed: bool
    of_sites: dict[int, skipping] = field(default_factory=dict)


class FunctionalCalls:
    """The calls of functions in one run, and their sites, each known from its first call on.

    Ranks agree on the numbers of the sites after the first sampled batch. Where there are several, calls at a site that only comes
    later are not recorded.

    Attributes:
        sites: Those with a number, in order.
        capacity: The most sites there can be: tables have as many lines, the same on every rank.
        agreed: Whether ranks have agreed once, or there is but one.
        observer: What sees them.
        running: Whether the calls of the training batch under way are seen.
        in_validation: Whether those of the validation batch under way are.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.observer = CallObserver(host.model, guarded(self._record, on_fault=_failed), self._is_wanted)
        self._layers = {name for name, module in {"": host.model, **self.observer.callers}.items() if is_calling_layer(module)}
        self.capacity = SPARE_SITES + sum(map(_most_sites, self.observer.callers.values()))
        self.sites: list[FunctionalSite] = []
        self._numbers: dict[str, int] = {}
        self._among = all_ranks()
        self.agreed = self._among is None
        self._subscribers: list[CallSubscriber] = []
        self._takers: dict[str, list[CallSubscriber]] = {}  # by the function that they want
        self._open: list[CallSubscriber] = []  # those that record the call under way
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
        if regions or self.observer.compiled:
            self._info_once(_why_not(type(self._host.model).__name__, regions, self.observer.compiled))
        return not regions

    def add(self, subscriber: CallSubscriber) -> None:
        """Record what a subscriber asks for."""
        self._subscribers.append(subscriber)
        self._follow()

    def release(self, owner: object) -> None:
        """Remove the recorders of one owner."""
        self._subscribers = [other for other in self._subscribers if other.owner is not owner]
        self._follow()
        if not self._subscribers:
            self.stop()

    def _follow(self) -> None:
        self._takers = grouped((function, subscriber) for subscriber in self._subscribers for function in subscriber.functions)

    def start(self) -> None:
        """A training batch starts that somebody samples who records calls."""
        wanted = set[str]()
        for subscriber in self._subscribers:
            if subscriber.gate.sampled and (subscriber.gate.in_detail or not subscriber.detailed):
                wanted |= subscriber.functions
        if wanted:
            self.running = True
            self.observer.start(None if self._is_full() else {site.module for site in self.sites if site.function in wanted})

    def _is_full(self) -> bool:
        """Whether the calls of all modules are to be seen: those that call nothing so far may start to."""
        before, self._state = self._state, [module.__dict__.get("training") for module in self.observer.callers.values()]
        self._state += map(attrgetter("requires_grad"), self._parameters)
        self._batches += 1
        return self._batches <= FIRST_FULL or self._batches % FULL_EVERY == 0 or self._state != before

    def of(self, owner: object) -> bool:
        """Whether an owner records calls of training batches."""
        return owner in [subscriber.owner for subscriber in self._subscribers if not subscriber.in_validation]

    def validation_batch(self, index: int) -> None:
        """A validation batch starts: calls in the first one are seen, of modules that take no fused path."""
        self.observer.stop()
        self.in_validation = False
        if index:
            return
        wanted = {name for subscriber in self._subscribers if subscriber.in_validation for name in subscriber.functions}
        fused = {name for name, module in self.observer.callers.items() if isinstance(module, FUSED) or is_calling_layer(module)}
        callers = {site.module for site in self.sites if site.function in wanted} - fused
        self.in_validation = bool(callers)
        if callers:
            self.observer.start(callers)

    def batch_end(self, numbered: Iterable[Callable[[bool], None]]) -> None:
        """A batch whose calls were seen ends: after the first one ranks number its sites alike.

        Args:
            numbered: Called then, with whether earlier sites have other numbers now.
        """
        self.running = False
        self.observer.stop()
        if self._among is None or self.agreed:
            return
        self.agreed = True
        own = [(site.name, site.function, site.module) for site in self.sites]
        of_ranks: list[Any] = [None] * self._among.count
        torch.distributed.all_gather_object(of_ranks, own)
        self.sites, self._numbers = [], {}
        for entry in dict.fromkeys(entry for entries in of_ranks for entry in entries):
            self._add(FunctionalSite(len(self.sites), *entry))
        for subscriber in self._subscribers:
            subscriber.of_sites.clear()
        for call in numbered:
            call(any(entries != of_ranks[0] for entries in of_ranks))

    def stop(self) -> None:
        """Whatever ran is over. Harmless when it was over before."""
        self.running = self.in_validation = False
        self.observer.stop()

    def close(self) -> None:
        """The run is over: a report may still ask for the sites, and the model is let go."""
        self.stop()
        self._subscribers, self._takers = [], {}
        self.observer.close()
        self._parameters.clear()
        del self._host

    def _is_wanted(self, function: str) -> bool:
        self._open = []
        for each in self._takers.get(function, ()):
            if self.in_validation if each.in_validation else each.gate.open and (each.gate.in_detail or not each.detailed):
                self._open.append(each)
        return bool(self._open)

    def _record(self, name: str, function: str, caller: str, module: nn.Module, arguments: Mapping[str, Any], output: Any) -> None:
        takers = self._open
        if caller in self._layers:
            takers = [*compress(takers, map(attrgetter("layers"), takers))]
        number = self._numbers.get(name)
        site = None if number is None else self.sites[number]
        if site is None and takers and not self.in_validation and (self._among is None or not self.agreed):
            site = self._add(FunctionalSite(len(self.sites), name, function, caller))
        if site is None or not takers:
            return
        seen = FunctionalCall(site, function, arguments, output, module)
        transformed = is_transformed()  # a table that is made there would be too
        for subscriber in takers:
            recorder = subscriber.of_sites.get(site.index)
            if recorder is None:
                recorder = subscriber.of_sites[site.index] = subscriber.new(site=site.name)
            if transformed:
                recorder.failed(UnreadableError(output))
            else:
                recorder(seen)

    def _add(self, site: FunctionalSite) -> FunctionalSite | None:
        if len(self.sites) == self.capacity:
            return None
        self.sites.append(site)
        self._numbers[site.name] = site.index
        return site

    def state(self) -> list[tuple[str, str, str]]:
        """The sites, in plain types."""
        return [(site.name, site.function, site.module) for site in self.sites]

    def restore(self, state: Sequence[Sequence[str]]) -> None:
        """Restore the sites of an earlier run, before any other is known."""
        for name, function, module in state:
            if name not in self._numbers:
                self._add(FunctionalSite(len(self.sites), name, function, module))


def _most_sites(module: nn.Module) -> int:
    """The most sites of a module that may call functions; of layers only those count that somebody wants."""
    wanted = isinstance(module, nn.Softmax | nn.Softmax2d | nn.LogSoftmax | nn.Dropout)
    return int(wanted) if is_calling_layer(module) else SITES_PER_CALLER


def _failed(_: str, error: Exception) -> None:
    warn(f"Calls of functions are recorded no more: {type(error).__name__}: {error}. Training is not affected. Please report this.")


def _why_not(model: str, regions: Sequence[str], callers: Sequence[str]) -> str:
    """Why calls are not recorded: of a model with compiled modules, or with modules that call compiled functions."""
    names = [region or model for region in regions] or [caller or f"the steps of {model}" for caller in callers]
    where = "" if regions else f" in {some(names, 3)}"
    return (
        f"lightning_hooks: calls of functions (attention, functional activations, cross_entropy) are not recorded{where}, because "
        f"torch.compile is used for {some(names, 3)}: its graphs do not show them. Train a few steps without torch.compile to see "
        "them."
    )
