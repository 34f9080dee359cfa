"""Reports as plain data, and back: what JSON can say, and nothing lost."""

from __future__ import annotations

import dataclasses
import difflib
import html
import math
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning_hooks.declare.kinds import gravity

T = TypeVar("T", bound="PlainReport")

# The tables of reports, and what their rows are
TABLES = {
    "sites": "module",
    "modules": "module",
    "parameters": "parameter",
    "optimizers": "optimizer",
    "routers": "router",
    "codebooks": "codebook",
}
# JSON has no numbers for these; the words are those of JavaScript and of the JSON form of protocol buffers
NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class PlainReport:
    """What every report can do: be shown in a few lines, become plain data, and be made of it again.

    ``report["net.0"]`` is what it holds of a module, a parameter or an optimizer; a KeyError names the closest ones.
    """

    __slots__ = ()

    epoch: int
    step: int

    def __getitem__(self, name: str) -> Any:
        held = {key: stats for table in reversed(self._tables().values()) for key, stats in table.items()}
        if name in held:
            return held[name]
        near = difflib.get_close_matches(str(name), held, 3, 0.3) or list(held)[:3]
        closest = f"; the closest are {', '.join(map(repr, near))}" if near else ", which is empty"
        raise KeyError(f"{name!r} is not in this {type(self).__name__}{closest}.")

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return lines_html(self._lines())

    def _tables(self) -> dict[str, Mapping[str, Any]]:
        return {name: table for name in TABLES if (table := getattr(self, name, None))}

    def _lines(self) -> list[str]:
        """The window, how much was measured, and the alerts."""
        counts = [f"{len(table)} {name if len(table) != 1 else name[:-1]}" for name, table in self._tables().items()]
        silent, batches = len(getattr(self, "silent", ())), getattr(self, "batches", 0)
        measured = f"{', '.join(counts) or 'nothing'} measured" + (f", {silent} silent" if silent else "")
        sampled = f"; {getattr(self, 'sampled_batches', 0)} of {batches} batches sampled" if batches else ""
        alerts = sorted(getattr(self, "alerts", ()), key=lambda alert: gravity(alert.severity))
        found = ", ".join(f"{count} {severity}" for severity, count in Counter(alert.severity for alert in alerts).items())
        first = f"{found} ({alerts[0].name}{', …' if len(alerts) > 1 else ''})" if alerts else "none"
        return [f"{type(self).__name__}: epoch {self.epoch}, step {self.step}", f"  {measured}{sampled}", f"  alerts: {first}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the report in plain JSON types: dictionaries, lists, texts, numbers, None.

        Numbers that are not finite become the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which strict JSON has no
        numbers for; ``float()`` reads them. None means that a number does not apply.
        """
        return dict(to_plain(self))

    @property
    def at(self) -> int:
        """Where the report belongs on an axis: its epoch, or its step where windows are shorter than epochs."""
        return self.epoch if self.unit == "epoch" else self.step

    @property
    def unit(self) -> str:
        """What :attr:`at` counts: ``epoch`` or ``step``."""
        return "epoch" if getattr(self, "window", None) is None else "step"

    @property
    def when(self) -> str:
        """The window in words: ``epoch 3``, or ``epoch 3, window 2 (to step 1200)``."""
        window = getattr(self, "window", None)
        return f"epoch {self.epoch}" if window is None else f"epoch {self.epoch}, window {window} (to step {self.step})"

    @classmethod
    def from_dict(cls: type[T], plain: Mapping[str, Any]) -> T:
        """Make the report that :meth:`to_dict` gave.

        A field that is not known is left out. One that is missing gets its default, or NaN, so that what another version
        wrote can still be read.

        Raises:
            TypeError: If ``plain`` is not a mapping, or a field holds something of another kind.
        """
        report: T = from_plain(cls, plain)
        return report


_PLAIN = (int, str, bool, type(None))


def lines_html(lines: Sequence[str]) -> str:
    """Lines for a notebook, the first one bold."""
    first, *rest = map(html.escape, lines)
    return f"<pre>{chr(10).join([f'<b>{first}</b>', *rest])}</pre>"


def to_plain(value: Any) -> Any:
    """Turn dataclasses, mappings, sequences and numbers into plain JSON types."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if hasattr(kind, "__dataclass_fields__"):
        return {key: to_plain(getattr(value, name)) for name, key in _keys(kind)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    return [to_plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def from_plain(kind: Any, plain: Any) -> Any:
    """Make a value of a type, as annotations say it, of what :func:`to_plain` gave.

    Raises:
        TypeError: If it cannot be made of that.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return plain
    if origin in (Union, types.UnionType):
        kinds = [one for one in inner if one is not type(None)]
        return None if plain is None else from_plain(next((one for one in kinds if one is type(plain)), kinds[0]), plain)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(plain, Mapping):
        hints = _hints(kind)
        values = {name: from_plain(hints[name], plain[key_of(name)]) for name in hints if key_of(name) in plain}
        required = (f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING)
        return kind(**({name: _nothing(hints[name]) for name in required} | values))
    if origin is dict and isinstance(plain, Mapping):
        return {key: from_plain(inner[1], value) for key, value in plain.items()}
    if origin is tuple and isinstance(plain, (list, tuple)):
        each = inner[:1] * len(plain) if inner[1:] == (...,) else inner
        return tuple(from_plain(one, value) for one, value in zip(each, plain, strict=True))
    if kind is float and isinstance(plain, str) and plain in NONFINITE:
        return NONFINITE[plain]
    if kind is float and (type(plain) is float or _is_count(plain)):
        return float(plain)
    if _is_count(plain) if kind is int else (kind in (str, bool) and type(plain) is kind) or (origin is Literal and plain in inner):
        return plain
    raise TypeError(f"expected {kind}; got {plain!r}. Was this written by to_dict()?")


def key_of(field: str) -> str:
    """The key of a field: its name, without the underscore behind a word of Python (``from_``)."""
    return field.removesuffix("_")


def _is_count(plain: Any) -> bool:
    """Whether a value is an integer that 64 bits hold, as all are that are counted."""
    return type(plain) is int and -(1 << 63) <= plain < 1 << 63


@cache
def _keys(kind: Any) -> list[tuple[str, str]]:
    """The names of a dataclass's fields, with the key of each."""
    return [(field.name, key_of(field.name)) for field in dataclasses.fields(kind)]


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _nothing(kind: Any) -> Any:
    """The value of a field that is missing."""
    origin = get_origin(kind)
    empty = get_args(kind)[0] if origin is Literal else origin() if origin in (dict, tuple) else None
    return {float: math.nan, int: 0, str: ""}.get(kind, empty)
