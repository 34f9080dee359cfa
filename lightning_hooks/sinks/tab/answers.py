"""Answers of the Health tab, and its page without TensorBoard: ``lightning-hooks serve LOGDIR``, on the loopback address only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from lightning_hooks.sinks.tab.runs import Runs

VERSION = 1  # of the answers
STATIC = {"/index.js": ("page.js", "text/javascript"), "/style.css": ("page.css", "text/css")}
Query = Mapping[str, str]


class Answer(NamedTuple):
    """An answer: its status, the type of its content, the content."""

    status: int
    kind: str
    content: bytes


def answer(runs: Runs, path: str, query: Query) -> Answer:
    """Answer a request. It never raises: what cannot be answered is a status and a sentence.

    The path is one of :data:`PATHS`; nothing that comes from a browser is ever opened.
    """
    try:
        if path in STATIC:
            name, kind = STATIC[path]
            return Answer(200, kind, files("lightning_hooks.run_report").joinpath(name).read_bytes())
        return _json(200, ANSWERS[path](runs, query))
    except (LookupError, ValueError) as error:
        text = str(error) if isinstance(error, ValueError) else "There is no such run or statistic."
        return _json(404, {"error": text[:300]})
    except Exception as error:  # noqa: BLE001  a damaged run harms nothing but its own page
        return _json(500, {"error": f"The run cannot be shown: {type(error).__name__}."})


def _json(status: int, value: Any) -> Answer:
    return Answer(status, "application/json", json.dumps({"version": VERSION, **value}, allow_nan=False).encode())


def _of_report(name: str) -> Any:
    """A module of the report: with them comes numpy, which TensorBoard does without until somebody asks."""
    return import_module(f"lightning_hooks.run_report.{name}")


ANSWERS: dict[str, Callable[[Runs, Query], dict[str, Any]]] = {
    "/runs": lambda runs, query: runs.listing(int(query.get("known", "-1"))),
    "/run": lambda runs, query: _of_report("data").whole(*runs.run(query["run"])),
    "/heat": lambda runs, query: _of_report("data").heat(
        runs.run(query["run"])[0],
        int(query["monitor"]),
        query["table"],
        query["stat"],
        row=int(query["row"]) if "row" in query else None,
    ),
    "/compare": lambda runs, query: _of_report("compare").compare(runs.run(query["a"])[0], runs.run(query["b"])[0]),
}
PATHS = (*STATIC, *ANSWERS)


HOST = "127.0.0.1"
PORT = 6007
PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    '<title>Health</title><link rel="icon" href="data:,"></head><body><script type="module" src="page.js"></script></body></html>'
)
SCRIPT = 'import {render} from "./index.js";\nrender();\n'
OWN = {"/": Answer(200, "text/html", PAGE.encode()), "/page.js": Answer(200, "text/javascript", SCRIPT.encode())}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class HealthServer(ThreadingHTTPServer):
    """Serves the runs of a log directory to this machine, at a port; 0 for any that is free.

    Raises:
        OSError: If the port is in use.
    """

    daemon_threads = True

    def __init__(self, logdir: Path, port: int = PORT) -> None:
        self.runs = Runs(logdir)
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """What a client breaks off, or asks for in no address, is not printed."""

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: HealthServer
    timeout = 30

    def do_GET(self) -> None:
        """Answer a request that names this machine: a page elsewhere whose name leads here gets nothing."""
        names = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        parts = urlsplit(self.path)
        if self.headers.get("Host", "").lower() not in names:
            found = Answer(403, "text/plain", b"The Host header is not this machine's.")
        elif parts.path in OWN:
            found = OWN[parts.path]
        elif parts.path in PATHS:
            found = answer(self.server.runs, parts.path, dict(parse_qsl(parts.query)))
        else:
            found = Answer(404, "text/plain", b"There is nothing here.")
        self.send_response(found.status)
        kind = found.kind + "; charset=utf-8" * (found.kind != "application/json")
        for header, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(found.content))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(found.content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not printed."""


def serve(logdir: Path, port: int) -> Iterator[str]:
    """Yield the address of a log directory, then serve it until Ctrl-C.

    Raises:
        NotADirectoryError: If there is no such directory.
        ValueError: If the port is none, or is in use.
    """
    if not logdir.is_dir():
        raise NotADirectoryError(f"there is no directory {logdir}; name the log directory of your runs, such as lightning_logs.")
    try:
        server = HealthServer(logdir, port)
    except (OSError, OverflowError) as error:
        raise ValueError(f"port {port} cannot be used ({error}); name another with --port, or 0 for any that is free.") from None
    with server, suppress(KeyboardInterrupt):
        yield f"Health of the runs below {logdir}: {server.address} (Ctrl-C ends it)"
        server.serve_forever()
