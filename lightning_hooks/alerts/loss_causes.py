"""How alerts on the loss follow from others, and others from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from lightning_hooks.reports.alert import Alert


class LinkedAlert(Protocol):
    """What is asked of a :class:`lightning_hooks.alerts.causes.Node`."""

    alert: Alert
    passing: int
    batch: float
    every: int
    held: bool


def _began(node: LinkedAlert) -> float:
    """The batch of the epoch at which an alert began; infinite if that is not known."""
    return node.batch if node.alert.batch is None else float(node.alert.batch)


def _not_later(effect: LinkedAlert, cause: LinkedAlert) -> bool:
    """At the same batch, or before; where one of the two is not known, it may be."""
    return _began(cause) <= _began(effect) or math.isinf(_began(cause))


def _earlier(effect: LinkedAlert, cause: LinkedAlert) -> bool:
    """At a batch before; both must be known."""
    return _began(cause) < _began(effect) < math.inf


def _loss_was_first(loss: LinkedAlert, other: LinkedAlert) -> bool:
    """Whether what is not finite began in the loss.

    The loss is seen at every batch, a module at sampled ones. A module that is found at a later batch may have been the first,
    unless it was sampled in between and finite.
    """
    if loss.held != other.held:
        return loss.held
    if other.passing == 0:
        return _began(loss) <= other.batch - other.every and math.isfinite(other.batch)
    return _began(loss) <= _began(other)


def _from_loss(effect: LinkedAlert, cause: LinkedAlert) -> bool:
    return _loss_was_first(cause, effect)


def _before_loss(effect: LinkedAlert, cause: LinkedAlert) -> bool:
    return not _loss_was_first(effect, cause)


LOSS_LINKS: Mapping[tuple[str, str], Callable[[LinkedAlert, LinkedAlert], bool]] = {
    # (cause, effect): whether this effect follows from this cause
    ("nonfinite", "loss_nonfinite"): _before_loss,
    ("loss_nonfinite", "nonfinite"): _from_loss,
    ("labels_ignored", "loss_nonfinite"): _not_later,
    ("update_too_large", "loss_spike"): _not_later,
    ("update_spike", "loss_spike"): _not_later,
    ("exploding", "loss_spike"): _not_later,
    ("spike", "loss_spike"): _not_later,
    ("loss_spike", "spike"): _earlier,
    ("update_too_large", "loss_diverging"): _not_later,
    ("weights_growing", "loss_diverging"): _not_later,
    ("exploding", "loss_diverging"): _not_later,
    ("spike", "loss_diverging"): _not_later,
    ("loss_spike", "loss_diverging"): _not_later,
}
