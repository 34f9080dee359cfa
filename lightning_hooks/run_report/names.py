"""Names in a run's file: each is written once, in the first line that has it, and later lines say its number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

LONG = 60
"""Characters from which a list of texts is written by numbers, and a value that has not changed is left out."""
MOST = 1_000_000
"""Names in a list; what is longer is damaged."""
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?|\*(\d{1,9}))?")


class Names:
    """The names that the lines of a file hold so far, by number.

    A list of names is written by the spans of its numbers, as ``{"names": "0-12,14"}``, a mapping by names as
    ``{"names": "0-12,14", "values": [...]}``.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._written = 0

    def coded(self, texts: Sequence[str]) -> str:
        """The numbers of texts, as spans."""
        return ",".join(_spans([self._numbers.setdefault(text, len(self._numbers)) for text in texts]))

    def new(self) -> dict[str, Any]:
        """The names that no line holds yet, with the number of the first, as a field of the next line; no field without any."""
        first, self._written = self._written, len(self._numbers)
        return {"new_names": {"at": first, "name": list(self._numbers)[first:]}} if first < self._written else {}

    def of_plain(self, value: Any) -> Any:
        """Plain data with the long lists of texts in it, and the long mappings, by the numbers of their names."""
        if isinstance(value, dict):
            if _long(value) and not any(isinstance(entry, (dict, list)) for entry in value.values()):
                return {"names": self.coded(list(value)), "values": self.of_plain(list(value.values()))}
            return {key: self.of_plain(entry) for key, entry in value.items()}
        return {"names": self.coded(value)} if isinstance(value, list) and _long(value) else value


def _spans(numbers: Sequence[int]) -> Iterator[str]:
    """Numbers as spans: ``3``, ``3-9``, ``9-3``, every second ``3-9:2``, the same again ``3*4``."""
    start = 0
    while start < len(numbers):
        first, end = numbers[start], start + 1
        step = numbers[end] - first if end < len(numbers) else 0
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        if end - start < 3:
            end = start + 1
            yield f"{first}"
        elif not step:
            yield f"{first}*{end - start}"
        else:
            yield f"{first}-{numbers[end - 1]}" + (f":{abs(step)}" if abs(step) > 1 else "")
        start = end


def _long(texts: Iterable[Any]) -> bool:
    length = 0
    for text in texts:
        if not isinstance(text, str):
            return False
        length += len(text)
    return length > LONG


class KnownNames:
    """The names that the lines read so far hold."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._of_tables: dict[tuple[str, str, str, int], list[str]] = {}  # of version 2: monitor, modules, table and number

    def add(self, at: int, names: Sequence[str]) -> None:
        """Take the names of a line, the first of which has the number ``at``; a writer that begins again begins at 0."""
        self._names.update(enumerate(names, at))

    def whole(self, value: Any) -> Any:
        """What :meth:`Names.of_plain` made of plain data, as it was.

        Raises:
            TypeError, ValueError: If it was not made so.
        """
        if not isinstance(value, dict):
            return value
        spans = value.get("names")
        if not isinstance(spans, str) or not set(value) <= {"names", "values"}:
            return {key: self.whole(entry) for key, entry in value.items()}
        names: list[str] = []
        for text in spans.split(","):
            names += self._span(text, MOST - len(names))
        if "values" not in value:
            return names
        values = self.whole(value["values"])
        return dict(zip(names, values if isinstance(values, list) else [values] * len(names), strict=True))

    def _span(self, text: str, most: int) -> list[str]:
        found = SPAN.fullmatch(text)
        if found is None:
            raise ValueError(f"no numbers of names: {text!r:.60}")
        first, last, step, times = (None if part is None else int(part) for part in found.groups())
        assert first is not None
        end = first if last is None else last
        stride = (step or 1) * (1 if end >= first else -1)
        numbers = range(first, end + stride, stride)
        if len(numbers) * (times or 1) > most:
            raise ValueError(f"no such number of names: {text!r:.60}")
        return [self._names.get(number, f"name {number}, lost") for number in numbers] * (1 if times is None else times)

    def whole_tables(self, monitor: str, modules: str, report: dict[str, Any]) -> None:
        """Give the tables of a report their names, which up to version 2 had a number by table and were left out later.

        Raises:
            KeyError: If the line that held them was lost.
        """
        for table, columns in report.items():
            number = columns.pop("names", None) if isinstance(columns, dict) else None
            if type(number) is int:
                mark = (monitor, modules, table, number)
                if "name" in columns:
                    self._of_tables[mark] = columns["name"]
                else:
                    columns["name"] = self._of_tables[mark]
