"""The calls of functions in a run's sampled batches: their sites, numbered alike on every rank, and who records them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from lightning_hooks.collectors.collector import Collector
from lightning_hooks.collectors.functional import FunctionalCall, FunctionalSite
from lightning_hooks.collectors.host import Host
from lightning_hooks.hooks import Gate, guarded
from lightning_hooks.hooks.functional import FunctionCall, FunctionMode, is_calling_layer
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.session.rank_merge import merged
from lightning_hooks.statistics.reduction import Stretch, all_ranks, largest
from lightning_hooks.statistics.rows import row_dtype

SITES_PER_CALLER = 3
SPARE_SITES = 16


@dataclass(slots=True, eq=False)
class _Subscriber:
    """Who records the calls of some functions: each site by a function of its own, so that a fault disables one site."""

    owner: object
    functions: frozenset[str]
    gate: Gate
    new: Callable[[str], guarded]
    layers: bool
    of_sites: dict[int, guarded] = field(default_factory=dict)

    def wants(self, function: str) -> bool:
        return self.gate.open and function in self.functions

    def wants_of(self, call: FunctionCall) -> bool:
        return self.wants(call.function) and (self.layers or not is_calling_layer(call.module))

    def take(self, call: FunctionalCall) -> None:
        recorder = self.of_sites.get(call.site.index)
        if recorder is None:
            recorder = self.of_sites[call.site.index] = self.new(call.site.name)
        recorder(call)


class FunctionalCalls:
    """The calls of functions in one run.

    A site is known from its first call on. Ranks agree on the sites' numbers after the first sampled batch. A site that only comes
    later is recorded once they have agreed on it, at the end of the window in which the first rank called it.

    Args:
        host: The training loop.

    Attributes:
        sites: The sites, in the order of their numbers.
        capacity: The most there can be: tables have as many lines, the same on every rank.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.sites: list[FunctionalSite] = []
        self._mode = FunctionMode(host.model, self._record, self._is_wanted)
        self.capacity = SPARE_SITES + sum(map(_most_sites, self._mode.callers))
        self._among = all_ranks()
        self._subscribers: list[_Subscriber] = []
        self._numbers: dict[str, int] = {}
        self._waiting: dict[str, FunctionalSite] = {}  # called on this rank, and ranks have not agreed
        self._agreed = self._among is None
        self._running = self._explained = False
        self._changed: bool | None = None  # numbers, since collectors were notified

    def available(self) -> bool:
        """Whether calls can be seen: not under ``torch.compile``, of which one message says so."""
        regions = compiled_regions(self._host.model)
        if regions and not self._explained:
            self._explained = True
            self._host.info(compiled_message(type(self._host.model).__name__, regions))
        return not regions

    def add(self, owner: object, functions: Sequence[str], gate: Gate, new: Callable[[str], guarded], layers: bool = False) -> None:
        """Record each call of some functions while a gate is open.

        Args:
            owner: Who asks for it.
            functions: Their names.
            gate: When.
            new: Makes the recorder of a site, by its name.
            layers: Also the calls that layers such as ``nn.Softmax`` make, whose output is the function's.
        """
        self._subscribers.append(_Subscriber(owner, frozenset(functions), gate, new, layers))

    def release(self, owner: object) -> None:
        """Remove the recorders of one owner."""
        self._subscribers = [other for other in self._subscribers if other.owner is not owner]
        if not self._subscribers:
            self.stop()

    def start(self) -> None:
        """A training batch starts: record where somebody samples it."""
        self._running = any(subscriber.gate.sampled for subscriber in self._subscribers)
        if self._running:
            self._mode.start()

    def after_backward(self) -> None:
        """Backward is done."""
        self._mode.forget_callers()

    def batch_end(self, collectors: Iterable[Collector[Any]]) -> None:
        """The batch has ended: after the first sampled one ranks number its sites alike."""
        running, self._running = self._running, False
        self._mode.stop()
        if running and not self._agreed:
            self._agree()
            self.notify(collectors)

    def stop(self) -> None:
        """Whatever ran is over. Harmless when it was over before."""
        self._running = False
        self._mode.stop()

    def close(self) -> None:
        """The run is over: a report may still ask for the sites, and the model is let go."""
        self.stop()
        self._subscribers = []
        self._mode.close()
        del self._host

    def _is_wanted(self, function: str) -> bool:
        return any(subscriber.wants(function) for subscriber in self._subscribers)

    def _record(self, call: FunctionCall) -> None:
        takers = [subscriber for subscriber in self._subscribers if subscriber.wants_of(call)]
        site = self._site_of(call) if takers else None
        if site is not None:
            seen = FunctionalCall(site, call.function, call.arguments, call.output, call.module)
            for subscriber in takers:
                subscriber.take(seen)

    def _site_of(self, call: FunctionCall) -> FunctionalSite | None:
        """The site of a call; None where it has no number (yet)."""
        number = self._numbers.get(call.name)
        if number is not None:
            return self.sites[number]
        site = FunctionalSite(len(self.sites), call.name, call.function, call.caller)
        if self._agreed and self._among is not None:
            self._waiting.setdefault(call.name, site)
            return None
        return self._add(site)

    def _add(self, site: FunctionalSite) -> FunctionalSite | None:
        if len(self.sites) == self.capacity:
            return None
        self.sites.append(site)
        self._numbers[site.name] = site.index
        return site

    # Ranks.

    def merged(self, collectors: Sequence[Collector[Any]]) -> list[Tensor]:
        """The tables of all ranks; where one of them has called a function that is new, ranks number its site alike."""
        if self._among is None or not self._subscribers:
            return merged(*collectors)
        device = self._host.device
        waits = torch.tensor([float(bool(self._waiting))], dtype=row_dtype(device), device=device)
        *tables, waiting = merged(*collectors, others=[((Stretch(1, largest),), waits)])
        if waiting.item():
            self._agree()
        return tables

    def notify(self, collectors: Iterable[Collector[Any]]) -> None:
        """Where ranks have numbered sites since the last time, collectors take them up."""
        changed, self._changed = self._changed, None
        for collector in collectors if changed is not None else ():
            collector.calls_numbered(changed is True)

    def _agree(self) -> None:
        """Number the sites alike on all ranks, which all call this."""
        assert self._among is not None
        first, self._agreed = not self._agreed, True
        own = [(site.name, site.function, site.module) for site in (*self.sites, *self._waiting.values())]
        of_ranks: list[Any] = [None] * self._among.count
        torch.distributed.all_gather_object(of_ranks, own)
        known = [] if first else own[: len(self.sites)]
        self.sites, self._numbers, self._waiting = [], {}, {}
        for subscriber in self._subscribers if first else ():
            subscriber.of_sites.clear()
        for entry in dict.fromkeys((*known, *(entry for entries in of_ranks for entry in entries))):
            self._add(FunctionalSite(len(self.sites), *entry))
        self._changed = first and any(entries != of_ranks[0] for entries in of_ranks)

    # Checkpoints.

    def state(self) -> list[tuple[str, str, str]]:
        """The sites, in plain types."""
        return [(site.name, site.function, site.module) for site in self.sites]

    def restore(self, state: Sequence[Sequence[str]]) -> None:
        """Take up the sites of an earlier run, before any other is known."""
        for name, function, module in state:
            if name not in self._numbers:
                self._add(FunctionalSite(len(self.sites), name, function, module))


def _most_sites(module: nn.Module) -> int:
    """The most sites of a module that may call functions; of layers only those count that somebody wants."""
    if is_calling_layer(module):
        return int(isinstance(module, nn.Softmax | nn.Softmax2d | nn.LogSoftmax | nn.Dropout))
    return SITES_PER_CALLER


def compiled_message(model: str, regions: Sequence[str]) -> str:
    """Why calls are not recorded, of the names of the compiled modules."""
    named = ", ".join(region or model for region in regions[:3]) + ", …" * (len(regions) > 3)
    return (
        "lightning_hooks: calls of functions (attention, functional activations, cross_entropy) are not recorded, because "
        f"torch.compile is used for {named}: its graphs do not show them. Train a few steps without torch.compile to see them."
    )
