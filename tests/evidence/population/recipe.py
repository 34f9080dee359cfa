"""The plain values that a training is drawn as. :func:`draw` is in :mod:`tests.evidence.population.grammar`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training. Every choice is a field; "" or 0 where a choice has no meaning for the task or the architecture.

    The names say what they are, and :mod:`~tests.evidence.population.grammar` what is drawn. ``inputs`` are standard (mean 0,
    deviation 1), unit (0 to 1) or raw; ``imbalance`` is the share of its samples that the rarest class keeps, ``offset`` what is
    added to the targets of a regression, in deviations; ``bias`` whether layers before a norm have one; ``tied`` whether a language
    model's head is its embedding; ``beta`` the weight of a second term; ``warmup`` a share of the steps; ``pretrained`` the
    steps of a training before, also of a teacher; ``watched`` the arguments of ``TrainingMonitor``, as pairs.
    """

    seed: int
    task: str
    source: str
    samples: int
    inputs: str
    label_noise: float
    imbalance: float
    offset: float
    augment: str
    model: str
    width: int
    depth: int
    heads: int
    kernel: int
    attention: str
    activation: str
    norm: str
    pre_norm: bool
    dropout: float
    init: str
    bias: bool
    tied: bool
    position: str
    loss: str
    smoothing: float
    beta: float
    optimizer: str
    rate: float
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    eps: float
    decay: float
    groups: str
    optimizers: int
    schedule: str
    warmup: float
    interval: str
    steps: int
    batch_size: int
    accumulation: int
    precision: str
    clip: float
    clip_by: str
    ema: float
    manual: bool
    frozen: str
    adapt: str
    pretrained: int
    shuffle: bool
    drop_last: bool
    logged: tuple[str, ...]
    validate: bool
    watched: tuple[tuple[str, Any], ...]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
