"""Adapters for loggers: one per kind of logger, chosen by what the logger can do."""

from lightning_hooks.trackers.console import Table, coloured, show, some, table_lines
from lightning_hooks.trackers.tracker import Tracker
from lightning_hooks.trackers.trackers import Trackers

__all__ = ["Table", "Tracker", "Trackers", "coloured", "show", "some", "table_lines"]
