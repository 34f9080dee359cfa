"""The report of the user's metrics of modules."""

from dataclasses import dataclass, field

from lightning_hooks.declare.window import Report


@dataclass(frozen=True, slots=True)
class MetricValue:
    """What a metric computed; ``value`` is NaN where a rank had no output for it, and once it has raised."""

    value: float


@dataclass(frozen=True, slots=True, repr=False)
class MetricReport(Report):
    """The user's metrics of modules in one window; of an epoch with several windows each has its own.

    Attributes:
        metrics: ``<module>/<metric>`` to its value.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
    """

    metrics: dict[str, MetricValue] = field(default_factory=dict)
    sampled_batches: int = 0
    batches: int = 0
