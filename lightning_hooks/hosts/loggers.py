"""Loggers of plain loops, with what trackers ask of a Lightning logger, and the warning of one that raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks.checks import brief


class LoopLogger:
    """What trackers ask of a Lightning logger.

    Args:
        experiment: What it writes to; None for a function.
        write: Writes (values by tag, step).
        save: Writes what is buffered.
        run_id: Of a run of MLflow's; None for others.
    """

    def __init__(
        self,
        experiment: Any,
        write: Callable[[dict[str, Any], int], Any],
        save: Callable[[], Any] = lambda: None,
        run_id: str | None = None,
    ) -> None:
        self.experiment, self.save, self.run_id, self._write = experiment, save, run_id, write

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write values."""
        self._write(dict(metrics), step)


def as_loggers(given: Any) -> list[Any]:
    """Return loggers that trackers write to.

    Args:
        given: One or several of: a ``SummaryWriter``, a run of W&B's or MLflow's, a function of (values, step), a logger of
            Lightning's; or None.

    Raises:
        TypeError: If one is something else.
    """
    if given is None:
        return []
    if isinstance(given, list | tuple):  # a run of MLflow's is iterable, too
        return [logger for one in given for logger in as_loggers(one)]
    return [_as_logger(given)]


def _as_logger(given: Any) -> Any:
    if hasattr(given, "log_metrics") and hasattr(given, "save"):
        return given
    if hasattr(given, "add_scalar") and hasattr(given, "flush"):
        return LoopLogger(given, lambda values, step: [given.add_scalar(*entry, step) for entry in values.items()], given.flush)
    if hasattr(given, "log_artifact") and hasattr(given, "define_metric"):  # W&B's, which counts its own steps
        return LoopLogger(given, lambda values, step: given.log({**values, "trainer/global_step": step}))
    if hasattr(getattr(given, "info", None), "run_id"):
        from mlflow.tracking import MlflowClient

        client, run = MlflowClient(), str(given.info.run_id)
        return LoopLogger(
            client, lambda values, step: [client.log_metric(run, *each, step=step) for each in values.items()], run_id=run
        )
    if callable(given):
        return LoopLogger(None, given)
    raise TypeError(
        "loggers must be TensorBoard's SummaryWriter, a run of W&B's or MLflow's, a function of (values, step), a logger of "
        f"Lightning's, or several of these; got {brief(given)}."
    )


def warn_of_logger(tracker: str, error: Exception) -> None:
    """Warn that a logger has raised; training goes on."""
    warn(
        f"{tracker} raised {type(error).__name__}: {error}. What lightning_hooks writes may be missing there; training goes "
        "on, and this warning is shown once."
    )
