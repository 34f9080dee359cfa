"""Where results go."""

from lightning_hooks.trackers.console import some, table_lines
from lightning_hooks.trackers.scalars import write_scalars

__all__ = ["some", "table_lines", "write_scalars"]
