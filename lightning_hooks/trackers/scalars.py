"""Scalars: what every logger can show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol


class ScalarLogger(Protocol):
    """What we need of a Lightning logger, whichever package it is from."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Write the metrics at a step."""

    def save(self) -> None:
        """Write what is buffered."""


def write_scalars(
    loggers: Iterable[ScalarLogger],
    scalars: Mapping[str, float],
    step: int,
    on_fault: Callable[[str, Exception], None],
) -> None:
    """Write scalars to every logger; one that raises is told to ``on_fault`` and stops neither the others nor training.

    Args:
        loggers: The trainer's loggers.
        scalars: Tag to value.
        step: The step on the x axis.
        on_fault: Called with (logger's class name, error).
    """
    for logger in loggers:
        try:
            logger.log_metrics(dict(scalars), step=step)
            logger.save()
        except Exception as error:  # noqa: BLE001  a tracker's trouble is not the training's
            on_fault(type(logger).__name__, error)
