"""What changes between steps: weights that something other than an optimizer sets, and how far copies of modules are behind."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor

from lightning_hooks.declare.collector import EPOCH_END, VALIDATION
from lightning_hooks.declare.context import Context
from lightning_hooks.diagnostics.setup.initial import is_known
from lightning_hooks.diagnostics.setup.parameters import ParameterSetup
from lightning_hooks.hooks.selection import clean_name, cleaned

VALUES = 16  # values of each parameter that are compared
FEW, MOMENTS = 4, 24  # parameters at which is looked in more batches, and the most of these in a window
STILL = 4  # steps from whose start on it says something that all are the same
MANY = 20  # steps after which weights are farther away than a step or two takes them
ROUNDING = 1e-5
"""Change of a value over the root mean square of its parameter up to which it is rounding, as of a merge that is taken back."""
UNDONE = 0.5  # share of what was learned, and of the trained elements, from which on it counts as undone
PAUSES = 4  # the last pauses of training of which it is known whether they undid what was learned
ALONG, NEARLY, HARD = 0.99, 0.9, 0.95
"""Cosine of a copy's change and of the way to its original above which a step updates an average, and a window does; the share of
the way that it goes at most, and that a plain copy goes."""


@dataclass(frozen=True, slots=True)
class WeightsSet:
    """Weights that are not, when training goes on, what the last step before a validation or an epoch's end left.

    Attributes:
        step: The global step.
        parameters: Those that an optimizer trains and whose values are others.
        share: The share of the trained elements that they hold.
        undone: The share of what they had learned that is gone, by their distance from where that began, before and after. Below 0
            where they are farther away.
        restored: The share of the trained elements that are what training started with again.
        undone_pauses: At how many of the last four pauses half or more of what half or more of the elements had learned was undone.
        source: Another module that has the same values; empty for none.
        moment: When it happened: ``in validation`` or ``at the end of the epoch``.
    """

    step: int
    parameters: tuple[str, ...]
    share: float
    undone: float
    restored: float = 0.0
    undone_pauses: int = 0
    source: str = ""
    moment: str = ""


@dataclass(frozen=True, slots=True)
class CopyStats:
    """A module that had the weights of another one when training started, and that no optimizer holds.

    Attributes:
        original: The module that it is a copy of.
        distance: The norm of their difference over that of the original's weights, at the window's end.
        changed: Whether it has changed since training started.
        toward: Cosine of its change over the window and of the way to where the original is at its end; NaN without a change.
        decay: What a step keeps of it, where it is an average that is updated at each step; None where that is not measured, and
            where it is a plain copy.
        shares_memory: Whether its weights are those of the original themselves.
    """

    original: str
    distance: float
    changed: bool
    toward: float = math.nan
    decay: float | None = None
    shares_memory: bool = False

    def given_up(self, steps: int) -> float | None:
        """Share of its first weights that an average no longer has after so many steps; None where it is no average."""
        return None if self.decay is None else 1 - self.decay**steps


_Pause = tuple[str, int, Tensor, Tensor, Tensor]
"""A moment, the global step, and the values before the pause, at a window's end within it (else those before), and after it."""


class WeightsWatch:
    """Compares a few values of each parameter before and after each pause of training. No host sync before the window's end.

    Attributes:
        batches: How many batches after a pause are looked at when they start.
        set: What was set in the last window; None for nothing.
        copies: What is known of each copy at its end.
        returned: How many moments so far found a few parameters to the bit as at an earlier one, with others in between.
        still: These parameters, if all moments of the last window found them the same.
        away: Each of them to the root mean square of its change since the first moment, after many steps.
    """

    def __init__(self, context: Context, copies: Mapping[str, str]) -> None:
        self._context, self._of_copies, self.batches = context, copies, 2 if copies else 1
        self.look, self.follow, self.glance, self.window_end = (
            context.guard(call, "weights between steps") for call in (self._look, self._follow, self._glance, self._window_end)
        )
        self._undone: deque[bool] = deque(maxlen=PAUSES)
        self.set: WeightsSet | None = None
        self.copies: dict[str, CopyStats] = {}
        self.returned, self.still, self.away = 0, tuple[str, ...](), dict[str, float]()
        self.follow()

    def release(self) -> None:
        """The run is over: let go of the parameters."""
        self._known, self._few = dict[str, Tensor](), dict[str, Tensor]()

    def _follow(self) -> None:
        known = [] if self._context.steps.shards is not None else self._context.host.model.named_parameters()
        self._known = {name: p for name, p in cleaned(known) if is_known(p) and p.is_floating_point() and p.numel()}
        trained = [name for name, parameter in self._known.items() if parameter.requires_grad]
        self._few = {name: self._known[name] for name in trained[:: -(-len(trained) // FEW) or 1]}
        self._sizes = [min(VALUES, p.numel()) for p in self._few.values()]
        self._moments: list[Tensor] = []
        self._moment_steps: set[int] = set()  # the global steps at which these were taken
        self._earlier: list[Tensor] = []  # on the host
        self._before: tuple[str, Tensor] | None = None  # where training has paused: the moment, and the values
        self._between: Tensor | None = None  # the values at a window's end within the pause
        self._steps: list[Tensor] = []  # the values at the starts of the first batches after the last pause
        self._pauses: list[_Pause] = []
        self._first = self._base = self._start = self._taken(self._known.values())
        self._began = self._window_step = self._context.host.position.global_step
        self.glance()

    def _glance(self) -> None:
        """Take values of a few parameters when a sampled batch or the one after it starts."""
        if self._few and len(self._moments) < MOMENTS:
            self._moments.append(self._taken(self._few.values()))
            self._moment_steps.add(self._context.host.position.global_step)

    def _look(self, moment: str = "") -> None:
        """Take the values at a moment at which training pauses; without one, when one of the first batches after it starts."""
        now = self._taken(self._known.values())
        if moment:
            self._before, self._between = (moment, now), None
            return
        if self._before is not None:
            moment, before = self._before
            between = before if self._between is None else self._between
            pause = (moment, self._context.host.position.global_step, before, between, now)
            self._pauses, self._before, self._steps = [*self._pauses[1 - PAUSES :], pause], None, []
        self._steps.append(now)

    def _taken(self, parameters: Iterable[Tensor]) -> Tensor:
        """Some values of each parameter, none of one that was freed: vectors of other sizes are not compared."""
        device, parts = self._context.host.setup.device, []
        for parameter in parameters:
            if parameter.untyped_storage().nbytes():
                values = parameter.detach().reshape(-1)
                parts.append(values[:: max(1, len(values) // VALUES)][:VALUES].to(device, torch.float32))
        return torch.cat(parts) if parts else torch.zeros(0)

    def _window_end(self, setups: Mapping[str, ParameterSetup]) -> None:
        """Find out what was set in the window, and how far copies are behind. One copy from the device."""
        self.set, self._between = None, self._taken(self._known.values())
        end = self._between if self._before is None else self._before[1]
        taken = [self._first, self._base, self._start, end]
        for pause in self._pauses:
            taken += pause[2:]
        taken += self._steps
        if not self._known or len({*map(len, taken), len(self._between)}) > 1:
            self.follow()
            return
        first, base, start, last, *rest = torch.stack(taken).cpu().double()
        for pause, *values in zip(self._pauses, rest[::3], rest[1::3], rest[2::3], strict=False):
            found = None if torch.equal(values[0], values[2]) else self._set_at(pause, first, base, values, setups)
            self._undone.append(found is not None and found.share >= UNDONE <= found.undone)
            if found is not None:
                self.set, base, self._base = replace(found, undone_pauses=sum(self._undone)), values[2], pause[-1]
        steps = rest[3 * len(self._pauses) :]
        self._pauses, self._start = [], end
        self._compare_moments()
        self.copies = {copy: self._compared(copy, of, first, start, last, steps) for copy, of in self._of_copies.items()}
        self._window_step = self._context.host.position.global_step

    # On the host.

    def _compare_moments(self) -> None:
        moments, self._moments = self._moments, []
        taken = torch.stack(moments).cpu() if len({*map(len, moments)}) == 1 else torch.zeros(0, 1)
        values = [*taken[taken.isfinite().all(1)]]  # NaN differs from itself
        same = len(self._moment_steps) >= STILL and len({each.numpy().tobytes() for each in values}) == 1
        late = max(self._moment_steps, default=0) >= self._began + MANY and len(values) == len(taken)
        self.still, self._moment_steps = tuple(self._few) if same else (), set()
        known = [each for each in self._earlier if values and len(each) == len(values[0])] + values
        if self.set is None:  # else a pause explains it
            self.returned += returns(known, len(values))
        self._earlier = [*known[:1], *known[1:][-MOMENTS:]]
        changes = (known[-1] - known[0]).split(self._sizes) if known and late else ()
        self.away = {name: float(change.square().mean().sqrt()) for name, change in zip(self._few, changes, strict=False)}

    def _set_at(
        self, pause: _Pause, first: Tensor, base: Tensor, values: Sequence[Tensor], setups: Mapping[str, ParameterSetup]
    ) -> WeightsSet | None:
        began, origin, before, between, after = map(self._by_name, (first, base, *values))
        masks = {clean_name(name) for name, _ in self._context.host.model.named_buffers() if name.endswith("_mask")}
        sizes = {name: s.elements for name, s in setups.items() if s.trains and s.optimizers and name in after}
        found = [
            name
            for name in sizes
            if _differ(before[name], after[name])
            and not ((after[name] == 0) & (before[name] != 0)).any()  # pruned, by hand or behind a mask as of torch.nn.utils.prune
            and f"{name.removesuffix('_orig')}_mask" not in masks
        ]
        if not found:
            return None
        drawn = {name: size for name, size in sizes.items() if began[name].max() > began[name].min()}
        restored = sum(drawn[name] for name in drawn if name in found and torch.equal(after[name], began[name]))
        learned, left = (
            sum(float((each[name] - origin[name]).square().mean()) * sizes[name] for name in found) for each in (before, after)
        )
        others = {after[name].numpy().tobytes(): name for name in after if name not in sizes}
        same = [(name, others.get(after[name].numpy().tobytes(), "")) for name in found if name in drawn]
        in_validation = pause[2] is pause[3] or any(_differ(before[name], between[name]) for name in found)
        return WeightsSet(
            pause[1],
            tuple(found),
            sum(sizes[name] for name in found) / sum(sizes.values()),
            1 - math.sqrt(left / learned) if learned else 0.0,
            restored / max(sum(drawn.values()), 1),
            source=next((_apart(*names) for names in same if names[1]), ""),
            moment=VALIDATION if pause[0] == VALIDATION and in_validation else EPOCH_END,
        )

    def _by_name(self, values: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._known, torch.split(values, [min(VALUES, p.numel()) for p in self._known.values()]), strict=True))

    def _compared(self, copy: str, original: str, first: Tensor, start: Tensor, now: Tensor, steps: Sequence[Tensor]) -> CopyStats:
        ours = [name for name in self._known if name.startswith(f"{copy}.")]
        theirs = [f"{original}{name.removeprefix(copy)}" for name in ours]
        taken = [self._by_name(values) for values in (now, *steps, first, start)]
        now_here, *here, then, began = (torch.cat([values[name] for name in ours]) for values in taken)
        there, *originals = (torch.cat([values[name] for name in theirs]) for values in taken[:-2])
        size, decay = float(torch.linalg.vector_norm(there)), None
        if len(steps) > 1:
            change, ways = here[1] - here[0], [each - here[0] for each in originals]  # it is updated before the step, or after it
            way = max(ways, key=lambda each: _cosine(change, each))
            part = float(change @ way / (way @ way))
            decay = 1 - part if _cosine(change, way) > ALONG and part < HARD else None
        change, way, count = now_here - began, there - began, self._context.host.position.global_step - self._window_step
        toward = _cosine(change, way)
        if decay is None and count > 0 and toward > NEARLY and (part := float(change @ way / (way @ way))) < HARD:
            decay = 1 - part / count  # of a slow average the change at a single step may be lost in rounding
        return CopyStats(
            original,
            float(torch.linalg.vector_norm(now_here - there)) / size if size else math.nan,
            not torch.equal(now_here, then),
            toward,
            decay,
            all(self._known[one].data_ptr() == self._known[other].data_ptr() for one, other in zip(ours, theirs, strict=True)),
        )


def returns(moments: Sequence[Tensor], new: int) -> int:
    """How many of the ``new`` last of some moments are to the bit as an earlier one, with others in between.

    Values that stay, and those that a coarse precision moves between two numbers, are none: half of them must differ in between.
    """
    places: dict[bytes, int] = {}
    found = 0
    for place, values in enumerate(moments):
        earlier = places.get(key := values.numpy().tobytes())
        if earlier is not None and place >= len(moments) - new:
            found += any(int((values != each).sum()) * 2 >= values.numel() for each in moments[earlier + 1 : place])
        places[key] = place
    return found


def _differ(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) > ROUNDING * float(one.square().mean().sqrt())


def _apart(name: str, other: str) -> str:
    """The module that holds the second parameter, in place of the first one's: ``ema`` of ``net.0.weight`` and ``ema.0.weight``."""
    pairs = zip(name.split(".")[::-1], other.split(".")[::-1], strict=False)
    ends = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return ".".join(other.split(".")[:-ends]) or other


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other)))
