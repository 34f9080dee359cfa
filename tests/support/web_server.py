"""A local server that answers as a test says, and keeps what it was sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Behaviour = Callable[[socket.socket], None]


@dataclass
class Sent:
    """What came."""

    address: str
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)  # first line, headers, body


def answers(text: str) -> Behaviour:
    """An answer with a status line, and nothing else."""
    return lambda client: client.sendall(f"HTTP/1.1 {text}\r\nContent-Length: 0\r\n\r\n".encode())


@contextmanager
def web_server(behaviour: Behaviour = answers("200 OK")) -> Iterator[Sent]:  # noqa: B008  a constant
    """Serve until the block ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sent = Sent(f"http://127.0.0.1:{listening.getsockname()[1]}/services/T0SECRET/B0SECRET")

        def handle(client: socket.socket) -> None:
            with client, suppress(OSError):
                data = b""
                while b"\r\n\r\n" not in data:
                    data += client.recv(65536)
                head, _, body = data.partition(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = dict(line.split(": ", 1) for line in lines)
                while len(body) < int(headers.get("Content-Length", "0")):
                    body += client.recv(65536)
                sent.requests.append((first, headers, body))
                behaviour(client)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=handle, args=(client,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield sent
