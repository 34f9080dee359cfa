"""Adapters for loggers: one per kind of logger, chosen by what the logger can do."""

from lightning_hooks.trackers.adapters import Trackers
from lightning_hooks.trackers.console import Table, coloured, show, some, table_lines
from lightning_hooks.trackers.tracker import Tracker

__all__ = ["Table", "Tracker", "Trackers", "coloured", "show", "some", "table_lines"]
