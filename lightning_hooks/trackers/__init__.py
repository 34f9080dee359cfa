"""Where results go."""

from lightning_hooks.trackers.console import table_lines
from lightning_hooks.trackers.scalars import write_scalars

__all__ = ["table_lines", "write_scalars"]
