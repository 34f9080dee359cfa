"""The edge of a run's file: what a line must hold to be read, whoever wrote it and whatever damaged it."""

from __future__ import annotations

from typing import Any

from lightning_hooks.declare.plain import from_plain
from lightning_hooks.run_report.names import KnownNames

_TEXTS = ("package", "torch", "lightning", "started", "ended", "model", "precision", "accelerator", "optimizers")
FIELDS: dict[str, Any] = {
    **dict.fromkeys((*_TEXTS, "monitor", "modules", "kind", "how", "error", "error_type", "error_text"), str),
    **dict.fromkeys(("version", "epoch", "step", "devices", "parameters"), int),
    **dict.fromkeys(("seconds", "bytes"), float),
    "at": int,
    "loss": float,
    "max_epochs": int | None,
    "watched": tuple[Any, ...],
    **dict.fromkeys(("site", "type"), str),
    **dict.fromkeys(("defined_at", "created_at"), str | None),
    "lr": dict[str, float],
    "layers": dict[str, tuple[Any, ...]],
    "alerts": tuple[Any, ...],
    "report": dict[str, Any],
}
"""Of all events; a field that is not known here is not looked at."""
LAYERS: dict[str, Any] = {**dict.fromkeys(("name", "type", "detail"), tuple[str, ...]), "parameters": tuple[int, ...]}
NEEDED = {"fit": ("epoch",), "report": ("epoch", "step", "monitor", "modules", "kind", "report"), "source": ("site", "type")}


def checked(event: Any, names: KnownNames) -> dict[str, Any]:
    """Check one line, and put in the names that have numbers in it.

    A report must be whole; of other events, what holds something else than it should is left out.

    Args:
        event: What the line says.
        names: Those of the lines before; gets those of this one.

    Returns:
        The event.

    Raises:
        TypeError, ValueError, KeyError: If it is no event, or what it needs is missing or of another kind.
    """
    if not isinstance(event, dict):
        raise TypeError(f"expected an object; got {event!r:.60}")
    kind = from_plain(str, event["event"])
    needed = NEEDED.get(kind, ())
    for field in needed:
        from_plain(FIELDS[field], event[field])
    new = event.get("new_names")
    if new is not None:
        names.add(from_plain(int, new["at"]), from_plain(tuple[str, ...], new["name"]))
    kept = {}
    for field, value in event.items():
        if field == "new_names":
            continue
        try:
            kept[field] = _checked(field, value, names)
        except (TypeError, ValueError, KeyError):
            if kind == "report":
                raise
    if kind == "report":
        names.whole_tables(kept["monitor"], kept["modules"], kept["report"])
        for table in kept["report"].values():
            _check_table(table)
    return kept


def _checked(field: str, value: Any, names: KnownNames) -> Any:
    value = names.whole(value)
    if field in FIELDS:
        from_plain(FIELDS[field], value)
    if field == "layers":
        for column, expected in LAYERS.items():
            from_plain(expected, value[column])
    return value


def _check_table(table: Any) -> None:
    """Check that the columns of a table are as long as its names."""
    if not isinstance(table, dict) or not isinstance(table.get("name"), list):
        return
    names = from_plain(tuple[str, ...], table["name"])
    for column in table.values():
        if isinstance(column, list) and len(column) != len(names):
            raise ValueError(f"{len(column)} values for {len(names)} names")
