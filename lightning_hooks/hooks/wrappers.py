"""Small wrappers around a hook that compose: when it runs, how often it ran, what it cost, whether it may fail.

Each takes a hook of any kind and returns a hook of the same kind: arguments pass through and so does the result, by which a
hook may replace an output or a gradient. They compose by nesting, outermost first::

    hook = sampled(guarded(timed(read_output)), every=10)

A wrapper is picklable when the hook inside it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.hooks.listener import IN_GRAPHS, Gate, Listener, Recorder, no_hook, register
from lightning_hooks.hooks.modes import dispatch_modes, function_modes, is_captured, outside_modes
from lightning_hooks.hooks.tensors import UnreadableError

Hook = Callable[..., Any]


def _callable(hook: Hook) -> Hook:
    if not callable(hook):
        raise TypeError(f"hook must be callable; got {hook!r}.")
    return hook


class Meter:
    """Adds up what hooks take: ``seconds`` of host time."""

    seconds: float = 0.0


class sampled:  # noqa: N801  used as a function, like functools.partial
    """Run a hook on every n-th call: the first, then n later, ….

    Args:
        hook: The hook to wrap.
        every: Run on calls 0, ``every``, 2·``every``, …; at least 1.

    Raises:
        ValueError: If ``every`` is below 1.
        TypeError: If ``hook`` is not callable.
    """

    def __init__(self, hook: Hook, every: int = 1) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every must be an integer of at least 1; got {every!r}.")
        self.hook, self.every, self.calls = _callable(hook), every, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook if it is its turn; otherwise return None, which changes nothing."""
        turn = self.calls % self.every == 0
        self.calls += 1
        return self.hook(*args, **kwargs) if turn else None


class counted:  # noqa: N801
    """Count how often a hook is called, in ``calls``."""

    def __init__(self, hook: Hook) -> None:
        self.hook, self.calls = _callable(hook), 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count, then run the hook."""
        self.calls += 1
        return self.hook(*args, **kwargs)


class timed:  # noqa: N801
    """Measure what a hook itself costs: ``calls``, total ``seconds`` and ``mean_seconds`` of host time."""

    def __init__(self, hook: Hook) -> None:
        self.hook, self.calls, self.seconds = _callable(hook), 0, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook and add its time, also when it raises."""
        start = perf_counter()
        try:
            return self.hook(*args, **kwargs)
        finally:
            self.seconds += perf_counter() - start
            self.calls += 1

    @property
    def mean_seconds(self) -> float:
        """Mean host seconds per call; 0 before the first."""
        return self.seconds / self.calls if self.calls else 0.0


class synchronized:  # noqa: N801
    """Let one thread at a time into a hook, for models that run in several threads (``nn.DataParallel``, servers)."""

    def __init__(self, hook: Hook) -> None:
        self.hook, self.lock = _callable(hook), threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook while holding its lock."""
        with self.lock:
            return self.hook(*args, **kwargs)

    def __reduce__(self) -> tuple[type[synchronized], tuple[Hook]]:
        return (synchronized, (self.hook,))  # a lock cannot be pickled; the copy gets its own


class guarded:  # noqa: N801
    """Never let a hook's error reach the training: report it once, and disable the hook.

    In a graph of ``torch.compile`` a :class:`.Recorder` is one operator call, and gate, meter and faults are those of the
    moment at which the graph runs. Any other hook is traced into the graph, by torch's rules, if the gate is open then.

    Args:
        hook: The hook to wrap.
        site: The name to report with the error.
        on_fault: Called once with (site, error); None only remembers it in ``error``.
        passes: Errors that are meant for the training and go through.
        when: Run only while this gate is open.
        meter: What the hook takes is added to it.
        observes: Whether the hook runs outside of all torch-function and dispatch modes, as every :class:`.Recorder` does; what it
            computes is then not seen by a mode of the user's, and not slowed down.

    Attributes:
        error: The error that switched the hook off, or None.
    """

    def __init__(
        self,
        hook: Hook,
        site: str = "",
        on_fault: Callable[[str, Exception], None] | None = None,
        passes: tuple[type[Exception], ...] = (),
        when: Gate | None = None,
        meter: Meter | None = None,
        observes: bool = False,
    ) -> None:
        self.hook, self.site, self.on_fault, self.passes = hook if callable(hook) else _callable(hook), site, on_fault, passes
        self.when, self.meter = when, meter
        self.error: Exception | None = None
        self.observes = observes or isinstance(hook, Recorder)
        self.number = register(self) if IN_GRAPHS and isinstance(hook, Recorder) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook unless it has failed before."""
        hook, meter = self.hook, self.meter
        if torch.compiler.is_compiling():
            meter = None  # a graph has no clock
            if self.number is not None and isinstance(hook, Recorder):
                return self._trace(hook, self.number, *args)
        if self.error is not None or (self.when is not None and not self.when.open):
            return None
        begin = 0.0 if meter is None else perf_counter()
        try:
            if self.observes and (function_modes() or dispatch_modes()):
                with outside_modes() if dispatch_modes() else torch._C.DisableTorchFunction():
                    result = hook(*args, **kwargs)
            else:
                result = hook(*args, **kwargs)
            if meter is not None:
                meter.seconds += perf_counter() - begin
            return result
        except self.passes:
            raise
        except Exception as error:  # noqa: BLE001  whatever a hook raises, training must go on
            self.failed(error)
            return None

    def _trace(self, hook: Recorder, number: Tensor, *args: Any) -> None:
        try:
            hook.trace(number, *args)
        except Exception as error:  # noqa: BLE001
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Report the hook's error, and disable it."""
        # Without its traceback: that would keep the tensors of the failing frame alive.
        self.error = error.with_traceback(None)
        if self.on_fault is not None:
            self.on_fault(self.site, error)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy's gate never opens: with one, or around a hook that a copy does not keep, it would do nothing.
        return no_hook() if self.when is not None or isinstance(self.hook, Listener) else super().__reduce_ex__(protocol)


def is_transformed() -> bool:
    """Whether ``torch.func`` transforms, ``torch.jit`` traces or a CUDA graph captures what runs now: what a hook computes, too."""
    # Neither of the first two has a public name without a detour.
    if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._is_tracing():
        return True
    return torch.cuda.is_initialized() and is_captured()  # type: ignore[no-untyped-call]


class skipping(guarded):  # noqa: N801  as guarded
    """A guard that skips the calls whose tensors cannot be read: ``on_fault`` counts them, and the hook stays enabled."""

    def skip(self) -> None:
        """A call of this site is not recorded."""
        if isinstance(self.hook, Recorder):
            self.hook.skip()

    @override
    def failed(self, error: Exception) -> None:
        if not isinstance(error, UnreadableError):
            super().failed(error)
        else:
            self.skip()
            if self.on_fault is not None:
                self.on_fault(self.site, error)
