"""What a user sees of a run while it goes on: alerts as ``on_alert`` says, the progress bar, and the closing lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import REARM
from lightning_hooks.declare.warn import Once, info, warn
from lightning_hooks.session.closing import print_closing
from lightning_hooks.session.member import Member
from lightning_hooks.sinks import Notice, Sink
from lightning_hooks.trackers import coloured
from lightning_hooks.trackers.console import readable


class Terminal(Sink):
    """Calls the observers of alerts, and shows text.

    Args:
        host: The training loop.
        members: Returns all members.
    """

    def __init__(self, host: Host, members: Callable[[], Sequence[Member]]) -> None:
        self._host, self._members = host, members
        self._warn_once = Once()  # of each observer that raised

    @override
    def alerts(self, notices: Sequence[Notice]) -> None:
        with self._host.console.printing():
            for notice in notices:
                if notice.over is None:
                    self._notify(notice)
                elif notice.alert.severity != "info":
                    alert, unit = notice.alert, notice.member.report.unit
                    where = f"{alert.kind} at {readable(alert.site)} (epoch {alert.epoch}, step {alert.step})"
                    info(f"[ended] {where}: not in the last {REARM} {'epochs' if unit == 'epoch' else 'windows'}.")

    def _notify(self, notice: Notice) -> None:
        """Call the observers, and show the text: as ``on_alert`` says, and where a function of it fails."""
        alert, member, actions, _ = notice
        failed: list[Any] = []

        def fault(observer: Any, error: Exception) -> None:
            failed.append(observer)
            self._warn_once(
                f"{observer!r}, which is called with alerts, raised {type(error).__name__}: {error}; training goes on, and "
                "this warning is shown once.",
                about=id(observer),
            )

        member.alerting.observers.notify(alert, fault)
        if alert.severity == "info":
            return
        own = member.settings.actions
        unseen = any(observer is function for observer in failed for function in member.settings.functions)
        if "warn" in own:
            warn(str(alert))
        if "raise" not in actions and ("log" in own or ("warn" not in own and ("stop" in own or unseen))):
            what, *rest = str(alert).splitlines()
            info("\n".join([coloured(what, alert.severity), *rest]), logging.WARNING)

    @override
    def window_end(self, members: Sequence[Member]) -> None:
        everyone = self._members()
        if any(member.settings.progress_bar for member in everyone):
            self._host.console.show_progress(in_short(everyone))

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """Print the closing lines of members without a record, which has its own."""
        if self._host.setup.is_global_zero:
            with self._host.console.printing():
                print_closing([member for member in self._members() if member.folder is None])


def in_short(members: Iterable[Member]) -> dict[str, Any]:
    """How many alerts there are, and what collectors show in a progress bar."""
    known = [member for member in members if member.report is not None]
    alerts = {(alert.kind, alert.site) for member in known for alert in member.report.alerts if alert.severity != "info"}
    shown: dict[str, Any] = {"alerts": _Count(len(alerts))}
    for name, value in (entry for member in known for entry in member.live.progress(member.report).items()):
        shown[name] = max(value, shown.get(name, value))
    return shown


class _Count(int):
    """A whole number that stays one in a progress bar, whichever format the bar has for numbers."""

    def __format__(self, form: str) -> str:
        return str(int(self))
