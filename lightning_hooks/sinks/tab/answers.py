"""What the tab's page asks for, answered: the same for TensorBoard, for ``lightning-hooks serve`` and for a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, NamedTuple

from lightning_hooks.sinks.tab.runs import Runs

VERSION = 1
"""Of the answers."""
STATIC = {
    "/index.js": ("lightning_hooks.sinks.tab", "health.js", "text/javascript"),
    "/style.css": ("lightning_hooks.run_report", "templates/style.css", "text/css"),
}
Query = Mapping[str, str]


class Answer(NamedTuple):
    """An answer: its status, the type of its content, the content."""

    status: int
    kind: str
    content: bytes


def answer(runs: Runs, path: str, query: Query) -> Answer:
    """Answer a request. It never raises: what cannot be answered is a status and a sentence.

    Args:
        runs: All runs.
        path: One of :data:`PATHS`; nothing that comes from a browser is ever opened.
        query: Its parameters.
    """
    try:
        if path in STATIC:
            package, name, kind = STATIC[path]
            return Answer(200, kind, files(package).joinpath(name).read_bytes())
        return _json(200, ANSWERS[path](runs, query))
    except (LookupError, ValueError) as error:
        text = str(error) if isinstance(error, ValueError) else "There is no such run or statistic."
        return _json(404, {"error": text[:300]})
    except Exception as error:  # noqa: BLE001  a damaged run harms nothing but its own page
        return _json(500, {"error": f"The run cannot be shown: {type(error).__name__}."})


def _json(status: int, value: Any) -> Answer:
    return Answer(status, "application/json", json.dumps({"version": VERSION, **value}, allow_nan=False).encode())


def _listing(runs: Runs, query: Query) -> dict[str, Any]:
    return runs.listing(int(query.get("known", "-1")))


def _run(runs: Runs, query: Query) -> dict[str, Any]:
    from lightning_hooks.sinks.tab.view import whole

    return whole(*runs.run(query["run"]))


def _heat(runs: Runs, query: Query) -> dict[str, Any]:
    from lightning_hooks.sinks.tab.view import heat

    return heat(runs.run(query["run"])[0], int(query["monitor"]), query["table"], query["stat"])


def _curve(runs: Runs, query: Query) -> dict[str, Any]:
    from lightning_hooks.sinks.tab.view import curve

    return curve(runs.run(query["run"])[0], int(query["monitor"]), query["table"], query["stat"], int(query["row"]))


def _names(runs: Runs, query: Query) -> dict[str, Any]:
    from lightning_hooks.sinks.tab.view import names

    return {"names": names(runs.run(query["run"])[0], int(query["monitor"]), query["table"], query["stat"])}


def _both(runs: Runs, query: Query) -> dict[str, Any]:
    from lightning_hooks.sinks.tab.view import both

    return both(runs.run(query["a"])[0], runs.run(query["b"])[0])


ANSWERS: dict[str, Callable[[Runs, Query], dict[str, Any]]] = {
    "/runs": _listing,
    "/run": _run,
    "/heat": _heat,
    "/curve": _curve,
    "/names": _names,
    "/compare": _both,
}
PATHS = (*STATIC, *ANSWERS)
