"""How much is masked when."""

from __future__ import annotations

SCHEDULES = ("cubic", "linear")
"""The courses of the share that is masked, from none to all of ``amount``."""


def target_at(epoch: int, amount: float, start_epoch: int, end_epoch: int, schedule: str = "cubic") -> float:
    """Return the share of units to mask at the end of an epoch.

    With p the part of the way that is gone, from ``1 / (end_epoch - start_epoch + 1)`` at the end of ``start_epoch`` to 1 at the
    end of ``end_epoch``: ``linear`` is ``amount * p``, and ``cubic``, ``amount * (1 - (1 - p) ** 3)``, masks most at first, when
    there are many units to spare (Zhu and Gupta 2017, "To prune, or not to prune", equation 1, starting from none).

    Args:
        epoch: The epoch that ends.
        amount: The share at the end, 0 to 1.
        start_epoch: At the end of this epoch the first units go.
        end_epoch: At the end of this one the last.
        schedule: One of ``SCHEDULES``.

    Returns:
        Between 0 and ``amount``; 0 before ``start_epoch``.
    """
    if epoch < start_epoch:
        return 0.0
    part = min(1.0, (epoch - start_epoch + 1) / (end_epoch - start_epoch + 1))
    return amount * (part if schedule == "linear" else 1.0 - (1.0 - part) ** 3)
