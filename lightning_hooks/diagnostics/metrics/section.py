"""What the health report shows of the user's metrics of modules."""

from lightning_hooks.declare.section import Panel, Section

_VALUES = Panel({"value": ("value", "")}, kind="linear")
SECTION = Section("Metrics", "metrics", "metrics", ("value",), (_VALUES,), lambda *_: ([], ""), {"value": "value"})
