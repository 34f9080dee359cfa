"""Notifications reach a server, and no server harms training."""

import json
import socket
import time

import pytest

from lightning_hooks import Alert
from lightning_hooks.sinks import Notice, webhook
from lightning_hooks.sinks.webhook import Address, Webhook, post
from tests.support.tensorboard_server import wait_for
from tests.support.web_server import answers, web_server

END = {"how": "finished", "epoch": 2, "step": 30}
DEAD = Alert("dead", "net.1", 0.9, 0.7, 1, 10, "warning")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def hook(sent):
    warnings = []
    return Webhook(Address(sent.address), "Net", warnings.append), warnings


def events(sent):
    return [
        (found["event"], found["kind"], found["site"], found["more"]) for _, _, body in sent.requests if (found := json.loads(body))
    ]


def test_alerts_and_the_end_are_sent():
    with web_server() as sent:
        mine, warnings = hook(sent)
        mine.alerts(
            list(map(Notice, [DEAD, Alert("dead", "net.3", 0.9, 0.7, 1, 10, "warning"), Alert("silent", "a", 0, 0, 0, 0, "info")]))
        )
        wait_for(lambda: sent.requests, "the alert")
        mine.end(END, "Dead units.")
        assert events(sent) == [("alert", "dead", "net.1", 1), ("finished", "end", "", 0)]
        assert sent.requests[0][0] == "POST /services/T0SECRET/B0SECRET HTTP/1.1"
        assert warnings == []


def never(client):
    time.sleep(2)


def flood(client):
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(b"x" * 1_000_000)


@pytest.mark.parametrize(
    ("behaviour", "fault"),
    [
        (answers("204 No Content"), ""),
        (answers("500 No"), "it answered 500"),
        (answers("429 Slow down"), "it answered 429"),
        (answers("302 Found\r\nLocation: http://127.0.0.1:1/elsewhere"), "it answered 302, and redirects are not followed"),
        (lambda client: client.sendall(b"\xff\x00 nonsense\r\n\r\n"), "BadStatusLine"),
        (lambda client: None, "RemoteDisconnected"),
        (never, "no answer within 0.4 s"),
        (flood, ""),
    ],
)
def test_whatever_a_server_answers_is_a_word(behaviour, fault):
    with web_server(behaviour) as sent:
        assert post(sent.address, b"{}", {}, seconds=0.4) == fault
        assert len(sent.requests) == 1


def test_a_server_that_is_not_there_is_a_word():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert post(f"http://127.0.0.1:{port}/x", b"{}", {}) == "ConnectionRefusedError"


def test_the_end_is_sent_while_alerts_wait_and_does_not_wait_long(monkeypatch):
    monkeypatch.setattr(webhook, "LAST_SECONDS", 0.2)
    with web_server(never) as sent:
        mine, warnings = hook(sent)
        for kind in ("dead", "zero", "missing"):
            mine.alerts([Notice(Alert(kind, "a", 0, 0, 0, 0, "warning"))])
        wait_for(lambda: sent.requests, "the first")
        mine.end(END, "")
        wait_for(lambda: any(event == "finished" for event, *_ in events(sent)), "the end")
        (text,) = warnings
        assert "no answer within" in text
        assert "SECRET" not in text


def test_a_fault_is_warned_of_once_without_the_address():
    with web_server(answers("404 Not Found")) as sent:
        mine, warnings = hook(sent)
        for kind in ("dead", "zero"):
            mine.alerts([Notice(Alert(kind, "a", 0, 0, 0, 0, "warning"))])
        mine.end(END, "")
    assert len(warnings) == 1
    assert warnings[0].startswith("A notification to http://127.0.0.1/… could not be sent: it answered 404.")


def test_a_secret_in_an_error_text_is_masked():
    with web_server() as sent:
        mine, _ = hook(sent)
        mine.end(END, f"Training ended with ValueError: cannot reach {sent.address}.")
        assert b"SECRET" not in sent.requests[0][2]


def test_threads_end_with_the_run():
    with web_server() as sent:
        mine, _ = hook(sent)
        mine.alerts([Notice(DEAD)])
        mine.end(END, "")
        assert not any(thread.is_alive() for thread in mine._threads)


def test_a_proxy_is_used(monkeypatch):
    with web_server() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address.removesuffix("/services/T0SECRET/B0SECRET"))
        monkeypatch.setenv("no_proxy", "")
        assert post("http://hooks.example.org/x?y=1", b"{}", {}) == ""
    first, *_ = proxy.requests[0]
    assert first == "POST http://hooks.example.org/x?y=1 HTTP/1.1"
