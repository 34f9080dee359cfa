"""Checks between the ends of windows: values that are not finite are found, and passed on, within ``check_every_n_steps``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import from_plain


@dataclass(slots=True)
class Early:
    """One monitor's part in the checks within a window.

    Attributes:
        every: ``check_every_n_steps``.
        found: What checks of this window found, by kind and site.
        reported: The kinds that a check of this window passed on: further sites of the same kind can wait for the window's end.
    """

    every: int
    found: dict[tuple[str, str], Alert] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)

    def reset(self) -> None:
        """A new window starts."""
        self.found.clear()
        self.reported.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {"found": [alert.record() for alert in self.found.values()], "reported": sorted(self.reported)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of an epoch that a checkpoint interrupted."""
        alerts = [from_plain(Alert, plain) for plain in state.get("found", [])]
        self.found = {(alert.kind, alert.site): alert for alert in alerts}
        self.reported = set(state.get("reported", []))


def checked(every: Any, monitor: str, can: bool) -> Early | None:
    """Return a monitor's part in the checks, or None without them.

    Raises:
        TypeError: If ``check_every_n_steps`` is not None and not an integer.
        ValueError: If it is below 1, or the monitor finds nothing that is urgent.
    """
    if every is None:
        return None
    expected = f"check_every_n_steps must be None (alerts at the end of each window) or an integer of at least 1; got {every!r}."
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(expected)
    if every < 1:
        raise ValueError(expected)
    if not can:
        raise ValueError(
            f"{monitor} has nothing to check within a window; got check_every_n_steps={every!r}. Give it to "
            "GradientFlowMonitor or FeatureStatsMonitor, or to monitors()."
        )
    return Early(every)
