"""Loggers of plain loops, with what trackers ask of a Lightning logger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class WriterLogger:
    """A ``SummaryWriter`` of TensorBoard's."""

    def __init__(self, writer: Any) -> None:
        self.experiment = writer

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write scalars."""
        for tag, value in metrics.items():
            self.experiment.add_scalar(tag, value, step)

    def save(self) -> None:
        """Write what is buffered."""
        self.experiment.flush()


class RunLogger:
    """A run of W&B's. The step is a value, as Lightning logs it: the run counts its own."""

    def __init__(self, run: Any) -> None:
        self.experiment = run

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log values."""
        self.experiment.log({**metrics, "trainer/global_step": step})

    def save(self) -> None:
        """Nothing: the run writes by itself."""


class MLflowLogger:
    """A run of MLflow's, by its client."""

    def __init__(self, run: Any) -> None:
        from mlflow.tracking import MlflowClient

        self.experiment, self.run_id = MlflowClient(), str(run.info.run_id)

    def save(self) -> None:
        """Nothing: the client writes at once."""


class FunctionLogger:
    """A function that is called with (values by tag, step)."""

    experiment = None

    def __init__(self, function: Any) -> None:
        self._function = function

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Call it."""
        self._function(dict(metrics), step)

    def save(self) -> None:
        """Nothing."""


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
        return WriterLogger(given)
    if hasattr(given, "log_artifact") and hasattr(given, "define_metric"):
        return RunLogger(given)
    if hasattr(getattr(given, "info", None), "run_id"):
        return MLflowLogger(given)
    if callable(given):
        return FunctionLogger(given)
    raise TypeError(
        "loggers must be TensorBoard's SummaryWriter, a run of W&B's or MLflow's, a function of (values, step), a logger of "
        f"Lightning's, or several of these; got {given!r}."
    )
