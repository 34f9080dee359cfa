"""Lines printed in the middle of training, each on a line of its own above a progress bar."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from lightning.pytorch import Trainer


@contextmanager
def printing(trainer: Trainer) -> Iterator[None]:
    """Take the progress bar away while lines are printed, or print them through it.

    tqdm's bars are wiped and drawn again after. Rich's redirects standard error, which log handlers that were made before do not
    know of: they get it for as long.
    """
    with ExitStack() as stack:
        if trainer.progress_bar_callback is not None:
            stack.enter_context(_without_tqdm())
            stack.enter_context(_redirected(logging.getLogger("lightning.pytorch")))
        yield


@contextmanager
def _without_tqdm() -> Iterator[None]:
    tqdm = sys.modules.get("tqdm")
    if tqdm is None:
        yield
        return
    with tqdm.tqdm.external_write_mode(file=sys.stderr):
        yield


@contextmanager
def _redirected(logger: logging.Logger) -> Iterator[None]:
    handlers: list[logging.StreamHandler[Any]] = []
    at: logging.Logger | None = logger
    while at is not None:
        handlers += [handler for handler in at.handlers if isinstance(handler, logging.StreamHandler)]
        at = at.parent if at.propagate else None
    moved = [(handler, handler.stream) for handler in handlers if handler.stream is sys.__stderr__ is not sys.stderr]
    for handler, _ in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)
