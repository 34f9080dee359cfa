"""The files of one run, one record for each folder that its members write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lightning_hooks.declare.warn import warn
from lightning_hooks.hosts.host import Host
from lightning_hooks.session.closing import print_closing
from lightning_hooks.session.member import Member
from lightning_hooks.session.run_record import RunRecord


class RunRecords:
    """The records of one run.

    Args:
        host: The training loop.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._records: dict[Path, RunRecord] = {}

    def open(self, member: Member) -> None:
        """Record the reports of a member from now on, in the folder of its settings, if it has one."""
        member.folder = None
        if not self._host.setup.is_global_zero:
            return
        try:
            member.folder = folder = self._host.files.folder(member.settings.report_dir or None)
            if folder is not None:
                if folder not in self._records:
                    self._records[folder] = RunRecord(self._host, folder)
                self._records[folder].members.append(member)
        except Exception as error:  # noqa: BLE001  a logger's error is not the training's
            warn(f"There will be no health report: {type(error).__name__}: {error}. Training goes on.")

    def epoch_start(self) -> None:
        """An epoch starts."""
        for record in self._records.values():
            record.epoch_start()

    def write(self) -> None:
        """Windows have ended: write their reports."""
        for record in self._records.values():
            record.write()

    def close(self, members: Sequence[Member], end: Mapping[str, Any], guard: Callable[[], AbstractContextManager[None]]) -> None:
        """Training is over: write the health reports, and print the closing lines of members without one.

        Args:
            members: All of the run.
            end: From :func:`~lightning_hooks.session.closing.ending`.
            guard: Around each record.
        """
        for record in self._records.values():
            with guard():
                record.close(end)
        recorded = [member for record in self._records.values() for member in record.members]
        if self._host.setup.is_global_zero:
            with self._host.console.printing():
                print_closing([member for member in members if not any(member is other for other in recorded)])
