"""When an alert is news."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_hooks.alerts.alert import Alert


class AlertWindow:
    """Tells new alerts from those that were already told.

    An alert is told when it appears, holds silently while it lasts, and is told again only after ``rearm`` epochs without
    it.

    Args:
        rearm: Epochs without an alert after which it would be news again; at least 1.
    """

    def __init__(self, rearm: int = 2) -> None:
        if rearm < 1:
            raise ValueError(f"rearm must be at least 1; got {rearm!r}.")
        self.rearm = rearm
        self._absent: dict[tuple[str, str], int] = {}  # (kind, site) -> epochs since it was last seen

    def news(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Take the alerts of one epoch and return those to tell."""
        current = {(alert.kind, alert.site): alert for alert in alerts}
        new = [alert for key, alert in current.items() if key not in self._absent]
        for key in list(self._absent):
            self._absent[key] += 1
            if self._absent[key] >= self.rearm:
                del self._absent[key]
        self._absent.update(dict.fromkeys(current, 0))
        return new

    def state_dict(self) -> dict[str, list[list[str | int]]]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {"absent": [[kind, site, age] for (kind, site), age in self._absent.items()]}

    def load_state_dict(self, state: dict[str, list[list[str | int]]]) -> None:
        """Take up the state of an earlier run."""
        self._absent = {(str(kind), str(site)): int(age) for kind, site, age in state["absent"]}
