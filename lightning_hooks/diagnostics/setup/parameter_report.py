"""How each parameter is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParameterSetup:
    """How a parameter is set up at the end of an epoch, and whether it had a gradient in it.

    Attributes:
        elements: How many numbers it has.
        dimensions: How many dimensions.
        trains: Whether it requires a gradient.
        has_gradient: Whether it had one at any step, sampled or not; where no optimizer holds it, at any sampled batch.
        optimizers: The optimizers that hold it (``0-Adam``), one name for each time it is held.
        steps: How many steps they took in the epoch, sampled or not; the most of any.
        lr: Its learning rate; the largest where several optimizers hold it; None where none does.
        lr_peak: The largest learning rate that its schedule is known to have had or to be going to have; None as for ``lr``.
        unzeroed_steps: How many of these steps were taken with gradients that had not been zeroed since the step before.
        starts_at_zero: Whether training started with all its numbers at zero, or next to it.
        spare: Of one without a gradient, or with a gradient of exact zeros: why that may be meant, such as ``a part of BertModel
            (from transformers) that this task does not use``; empty if no reason is known.
        decay: The share of itself that decoupled weight decay (AdamW's, SGD's) takes of it at each step; 0 without.
        l2: The weight decay that an optimizer adds to its gradient, as Adam does; 0 without.
    """

    elements: int
    dimensions: int
    trains: bool
    has_gradient: bool
    optimizers: tuple[str, ...] = ()
    steps: int = 0
    lr: float | None = None
    lr_peak: float | None = None
    decay: float = 0.0
    unzeroed_steps: int = 0
    starts_at_zero: bool = False
    spare: str = ""
    l2: float = 0.0
