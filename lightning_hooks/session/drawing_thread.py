"""Pictures are drawn next to training, by one thread, and written to the trackers where the training thread says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from lightning_hooks.declare.warn import warn
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.tracker import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_WAITING = 64
"""Pictures that may wait; above, an epoch's end waits for the oldest."""


class _Ordered(NamedTuple):
    tag: str
    step: int
    drawn: Future[Picture]


class DrawingThread:
    """Draws pictures one after the other in a thread, and writes them in the order in which they were asked for."""

    def __init__(self) -> None:
        # Here, and not in the thread: a process that is forked meanwhile must not find half an import.
        import matplotlib.backends.backend_agg  # noqa: F401
        import PIL.Image  # noqa: F401

        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lightning_hooks figures")
        self._waiting: deque[_Ordered] = deque()
        self._failed: set[str] = set()

    def ask(self, tag: str, draw: Callable[[], Figure], step: int) -> None:
        """Have a picture drawn; it is written under its tag and step by a later :meth:`write`."""
        self._waiting.append(_Ordered(tag, step, self._executor.submit(lambda: Picture.of_figure(draw()))))

    def write(self, trackers: Trackers, wait: bool = False) -> None:
        """Write what is drawn, the oldest first, on the thread that calls.

        Args:
            trackers: Where to.
            wait: Wait for all; else only where too many wait.
        """
        while self._waiting and (wait or self._waiting[0].drawn.done() or len(self._waiting) > MOST_WAITING):
            tag, step, drawn = self._waiting.popleft()
            try:
                picture = drawn.result()
            except Exception as error:  # noqa: BLE001  a picture's trouble is not the training's
                if tag not in self._failed:
                    self._failed.add(tag)
                    warn(f"The picture {tag} could not be drawn: {type(error).__name__}: {error}. Training goes on.")
            else:
                trackers.picture(tag, picture, step)

    def close(self) -> None:
        """End the thread; what was not drawn yet never is."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()
