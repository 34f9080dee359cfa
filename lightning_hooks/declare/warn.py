"""What the user is notified of, once for all ranks: Python warnings, and messages of the logger ``lightning_hooks``."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed
from typing_extensions import override

from lightning_hooks.hooks import Faults

LOGGER = logging.getLogger("lightning_hooks")  # alerts are warnings of this logger, everything else is an info
LIGHTNINGS = logging.getLogger("lightning.pytorch")


class _HandlersOfLightning(logging.Handler):
    """Passes records to the handlers of Lightning's logger, whatever its level, unless ours has handlers of its own."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if LOGGER.handlers == [self]:
            LIGHTNINGS.callHandlers(record)  # ``handle`` would do nothing where that logger is disabled


if not LOGGER.handlers:
    LOGGER.addHandler(_HandlersOfLightning())
    LOGGER.propagate = False  # Lightning's logger decides whether the root's handlers get them
if LOGGER.level == logging.NOTSET:
    LOGGER.setLevel(logging.INFO)


def warn(message: str) -> None:
    """Warn on rank 0."""
    if _is_rank_zero():
        warnings.warn(message, UserWarning, stacklevel=4)


def info(message: str, level: int = logging.INFO) -> None:
    """Log a message on rank 0."""
    if _is_rank_zero():
        LOGGER.log(level, message, stacklevel=2)


class Once:
    """Notifies of each thing once.

    Args:
        notify: Takes a message: :func:`warn` or :func:`info`.
    """

    def __init__(self, notify: Callable[[str], None] = warn) -> None:
        self._notify = notify
        self._done: set[object] = set()

    def __call__(self, message: str, about: object = None) -> None:
        """Notify, unless there was a message about the same thing before."""
        if about not in self._done:
            self._done.add(about)
            self._notify(message)


def skipped_message(calls: int) -> str:
    """Say why calls were skipped."""
    return (
        f"{calls} calls so far are not recorded: they run under torch.func (vmap, grad, jvp, …) or torch.jit.trace, in the capture "
        "of a CUDA graph, or with fake or meta tensors: these have no values to read. All other calls are recorded."
    )


def _is_rank_zero() -> bool:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not distributed or torch.distributed.get_rank() == 0


@contextmanager
def loading_state(name: str) -> Iterator[None]:
    """Within this block an error warns that a monitor starts afresh: what a checkpoint holds harms no training."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  it may be from any version, or from another callback of the same name
        warn(
            f"{name}: its state in the checkpoint cannot be read ({type(error).__name__}: {error}), perhaps because another "
            "version wrote it. It starts afresh; training is not affected."
        )


def warn_of_faults(name: str, faults: Faults) -> None:
    """Warn, once each, of the hooks of a monitor that raised and are disabled since."""
    by_error: dict[str, list[str]] = {}
    for site, error in faults.take():
        by_error.setdefault(error, []).append(repr(site))
    for error, sites in by_error.items():
        where = ", ".join(sites)
        warn(
            f"{name}: the hook at {where} raised {error}; it is switched off and training goes on without it. "
            "Please report this with the model's code at that place."
        )


@functools.cache
def warn_of_tracing() -> None:
    """Warn, once in a process, that this version of torch has no operators by which compiled graphs record."""
    warn(
        f"torch {torch.__version__} has no operators by which compiled graphs record, so hooks are traced into the graphs: whether "
        "a batch is sampled is then decided when a graph is compiled, and with activation checkpointing or several graphs training "
        "may fail. Use another version of torch, or choose modules that are not compiled."
    )
