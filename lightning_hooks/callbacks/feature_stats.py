"""FeatureStatsMonitor: what every layer puts out."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning_hooks.alerts import FeatureReport
from lightning_hooks.callbacks.monitor import SiteMonitor
from lightning_hooks.collectors.collector import Collector
from lightning_hooks.collectors.features import FeatureCollector


class FeatureStatsMonitor(SiteMonitor[FeatureReport]):
    """Logs exact epoch statistics of module outputs, and finds dead, saturated, constant and non-finite layers.

    Statistics pool every value of the sampled batches, of all calls and all ranks: they are those of the concatenated data, not
    means of batch means. A unit of a rectifier counts as dead if it fired in no sampled batch of the epoch, on any rank.

    Each epoch ``callback_metrics`` gets ``features/<module>/<stat>`` with stat one of mean, std, min, max, rms, zero_fraction,
    nonfinite_fraction, and where they apply dead_fraction and saturated_fraction (NaN while a module is silent);
    ``features/model/<stat>_median`` and ``features/model/<stat>_worst``, over all modules; and ``features/alerts/<kind>``, the
    number of alerts. Loggers get what ``logged`` says.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, for outputs of modules alone. ``report`` is the last
    epoch's :class:`~lightning_hooks.alerts.FeatureReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import FeatureStatsMonitor
        >>> trainer = Trainer(callbacks=[FeatureStatsMonitor(modules="encoder.*", every_n_steps=1)], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = FeatureCollector
