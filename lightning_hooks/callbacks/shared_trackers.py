"""The loggers of a fit: all of its callbacks write through the same, so that one which raises is reported once, not by each."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_hooks.trackers import Trackers

_SHARED: WeakKeyDictionary[Trainer, Trackers] = WeakKeyDictionary()


def trackers_of(trainer: Trainer) -> Trackers:
    """Return the trainer's loggers behind one face; on ranks other than 0 it is empty."""
    shared = _SHARED.get(trainer)
    if shared is None:
        shared = _SHARED[trainer] = Trackers(trainer.loggers if trainer.is_global_zero else (), _fault)
    return shared


def forget_trackers(trainer: Trainer) -> None:
    """A fit is over: the next one starts anew."""
    _SHARED.pop(trainer, None)


def _fault(tracker: str, error: Exception) -> None:
    rank_zero_warn(
        f"{tracker} raised {type(error).__name__}: {error}. What lightning_hooks writes may be missing there; training goes "
        "on, and this is said once."
    )
