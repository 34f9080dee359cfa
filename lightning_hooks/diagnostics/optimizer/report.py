"""What each optimizer does, and how it is set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of one parameter group at the end of a window. None for what the optimizer does not have.

    Attributes:
        lr: Its learning rate.
        lr_peak: The largest since training started, as it was at the start of sampled batches and at the ends of windows.
        lr_initial: What its scheduler starts from (``initial_lr``), or the largest rate of its cycle (``max_lr``).
        low_steps: Optimizer steps since its rate fell below 1e-4 of that peak; 0 where it is not below.
        eps: What is added to the denominator.
        betas: The decay rates of the moments.
        momentum: Momentum.
        weight_decay: Weight decay.
        maximize: Whether it climbs the loss instead of descending.
    """

    lr: float | None = None
    lr_peak: float | None = None
    lr_initial: float | None = None
    low_steps: int = 0
    eps: float | None = None
    betas: tuple[float, ...] = ()
    momentum: float | None = None
    weight_decay: float | None = None
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerStats:
    """What an optimizer did in a window, at measured steps, and how it is set.

    Attributes:
        lr: The learning rate of each parameter group at the window's end; NaN where it is not known.
        lr_peak: The largest since training started.
        update_rms: Root mean square of the elements of its updates; None where none was measured.
        instability: Mean over measured steps of the root mean square of ``g / max(sqrt(v), eps)`` over all elements, where ``g`` is
            the gradient that the update sees and ``v`` Adam's second moment after it, corrected for its bias: about 1 where ``v``
            follows the gradient, much larger where it lags behind (RMS_t of StableAdamW, Wortsman et al. 2023, arXiv 2304.13013).
            None for an optimizer that keeps no second moments as torch's Adam, AdamW, NAdam and RAdam do.
        stale_fraction: Share of the second moments below eps² where the gradient is not 0, in [0, 1]: there eps decides the step.
            None as for ``instability``.
        groups: The settings of each parameter group.
    """

    lr: tuple[float, ...] = ()
    lr_peak: tuple[float, ...] = ()
    update_rms: float | None = None
    instability: float | None = None
    stale_fraction: float | None = None
    groups: tuple[GroupSettings, ...] = ()
