"""The time inside this package's own code, step by step: what a whole fit is too noisy to show.

Every way in is wrapped: the methods that Lightning calls on our callbacks, our hooks on modules, tensors and optimizers, what runs
between clipping and the update, and the recording of functional calls. A call within another one counts once. What PyTorch and
Lightning do to get there (dispatch to a callback, the slow path of a module that has hooks, memory that no longer is in a cache) is
not in these figures; it is in those of whole fits.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from torch.overrides import TorchFunctionMode

from lightning_hooks.hooks import Listener, guarded
from lightning_hooks.hooks.functional import CallObserver
from lightning_hooks.hosts.lightning_adapter import EitherPackage
from lightning_hooks.session.step_probe import StepProbe
from tests.benchmarks.fits import FitTimes, fit
from tests.benchmarks.workloads import Workload


class Stopwatch:
    """Adds up the CPU time inside functions; a call within another one is part of that one."""

    def __init__(self) -> None:
        self._seconds, self._inside = 0.0, False
        self._calls = self._nested = 0

    @property
    def seconds(self) -> float:
        """Without what measuring takes."""
        outer, nested = _costs()
        return self._seconds - self._calls * outer - self._nested * nested

    @property
    def inside(self) -> bool:
        return self._inside

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.thread_time  # the machine may have other work

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                self._nested += 1
                return function(*args, **kwargs)
            self._inside, begin = True, clock()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds += clock() - begin
                self._inside = False
                self._calls += 1

        return call


@functools.cache
def _costs() -> tuple[float, float]:
    """Seconds that a call is measured too long for reading the clock, and that a call within another one takes to be passed on."""

    def nothing(*args: Any) -> None:
        return None

    watch, calls = Stopwatch(), 20_000
    passed_on = watch.around(nothing)
    taken = []
    for function, inside in ((nothing, True), (passed_on, True), (passed_on, False)):
        watch._inside, begin = inside, time.thread_time()
        for _ in range(calls):
            function(None, None)
        taken.append((time.thread_time() - begin) / calls)
    return watch._seconds / calls - taken[0], taken[1] - taken[0]


def entry_points() -> Iterator[tuple[type, str]]:
    """Class and method of every way into the package during a fit."""
    for kind in (guarded, *_kinds(Listener)):
        if "__call__" in vars(kind):
            yield kind, "__call__"
    for kind in _kinds(EitherPackage):
        for name, method in vars(kind).items():
            if callable(method) and (name.startswith("on_") or name in ("setup", "teardown")):
                yield kind, name
    yield StepProbe, "_starts"  # called by the closure that the optimizer's step is given
    for name in ("_shown", "enter", "leave"):  # of functional calls, and around training_step
        yield CallObserver, name


def _kinds(base: type) -> list[type]:
    """A class of this package and those derived from it."""
    derived = [kind for direct in base.__subclasses__() for kind in _kinds(direct)]
    return [kind for kind in dict.fromkeys([base, *derived]) if kind.__module__.startswith("lightning_hooks")]


@contextlib.contextmanager
def measured(watch: Stopwatch, points: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Within this block a stopwatch measures some functions, each an attribute of a class or a module."""
    with ExitStack() as stack:
        for owner, name in points:
            stack.enter_context(patch.object(owner, name, watch.around(getattr(owner, name))))
        yield


def own_time(workload: Workload, make: Callable[[], Sequence[Any]], steps: int, clip: float | None = 1.0) -> FitTimes:
    """Seconds inside the package, of a fit with some callbacks."""
    watch = Stopwatch()
    with measured(watch, list(entry_points())):
        return fit(workload, make, steps, lambda: watch.seconds, clip)


def dispatches(workload: Workload, make: Callable[[], Sequence[Any]], first: int, steps: int) -> tuple[float, float]:
    """How often function modes of this package are called at a step: in all, and by the package's own code."""
    watch, found, taken = Stopwatch(), [0, 0], []

    def note() -> float:
        taken.append(tuple(found))
        return 0.0

    with ExitStack() as stack:
        stack.enter_context(measured(watch, list(entry_points())))
        for kind in _modes():
            dispatch = kind.__torch_function__

            def counting(*args: Any, dispatch: Callable[..., Any] = dispatch, **kwargs: Any) -> Any:
                found[0] += 1
                found[1] += watch.inside
                return dispatch(*args, **kwargs)

            stack.enter_context(patch.object(kind, "__torch_function__", counting))
        fit(workload, make, first + steps, note)
    every, own = ((end - begin) / steps for begin, end in zip(taken[1 + first], taken[1 + first + steps], strict=True))
    return every, own


def _modes() -> list[type]:
    return [kind for kind in TorchFunctionMode.__subclasses__() if kind.__module__.startswith("lightning_hooks")]
