"""The plugin as TensorBoard asks it, and the server that stands alone."""

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from werkzeug.test import Client

from lightning_hooks.__main__ import main
from lightning_hooks.sinks.tab import answers as serving
from lightning_hooks.sinks.tab import plugin as plugin_module
from lightning_hooks.sinks.tab.answers import HealthServer
from lightning_hooks.sinks.tab.plugin import HealthPlugin, log_directories

ROOT = Path(__file__).parents[2]
BUDGET_SECONDS = 0.05
TRIES = 5


def plugin(logdir, spec=""):
    return HealthPlugin(types.SimpleNamespace(logdir=str(logdir), flags=types.SimpleNamespace(logdir_spec=spec)))


def test_the_entry_point_names_the_plugin():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    entry = lines[lines.index("[project.entry-points.tensorboard_plugins]") + 1]
    assert entry == f'lightning_hooks = "{HealthPlugin.__module__}:{HealthPlugin.__qualname__}"'


def test_importing_the_plugin_is_fast_and_brings_little():
    code = """
import time, sys
import tensorboard.plugins.base_plugin
before = set(sys.modules)
start = time.process_time()
import lightning_hooks.sinks.tab.plugin
took = time.process_time() - start
ours = {name.partition(".")[0] for name in set(sys.modules) - before}
assert not ours & {"torch", "lightning", "numpy", "jsonargparse", "werkzeug"}, ours
print(took)
"""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(TRIES):
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        if float(done.stdout) < BUDGET_SECONDS:
            return
    pytest.fail(f"importing the plugin took {done.stdout.strip()} s")


def test_the_plugin_is_active_where_there_are_runs(make_run, tmp_path):
    make_run("a")
    found = plugin(tmp_path / "logs")
    found.get_plugin_apps()
    found.runs.ask(patience=30)
    assert found.is_active()
    (tmp_path / "none").mkdir()
    none = plugin(tmp_path / "none")
    none.runs.ask(patience=30)
    assert not none.is_active()


def test_whether_it_is_active_waits_for_no_disk(tmp_path, monkeypatch):
    found = plugin(tmp_path)
    monkeypatch.setattr(found.runs, "_runs", lambda: iter(lambda: time.sleep(60), 0))
    asked = threading.Event()
    threading.Thread(target=lambda: (found.is_active(), asked.set()), daemon=True).start()
    assert asked.wait(30)


def test_the_apps_answer(make_run, tmp_path):
    make_run("a")
    apps = plugin(tmp_path / "logs").get_plugin_apps()
    assert all(path.startswith("/") for path in apps)
    answer = Client(apps["/index.js"]).get("/")
    assert answer.status_code == 200
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.mimetype == "text/javascript"
    runs = Client(apps["/runs"]).get("/").get_json()
    assert [run["id"] for run in runs["runs"]] == ["a"]
    assert Client(apps["/run"]).get("/?run=../a").status_code == 404
    assert Client(apps["/run"]).post("/?run=a").status_code == 405


@pytest.mark.parametrize(
    ("logdir", "spec", "expected"),
    [
        ("/logs", "", {"": "/logs"}),
        ("", "a:/x,b:/y", {"a": "/x", "b": "/y"}),
        ("", "/x", {"": "/x"}),
        ("", "a:/x,/y", {"a": "/x", "y": "/y"}),
        ("gs://bucket/logs", "", {}),
        ("", "a:gs://bucket,b:/y", {"b": "/y"}),
        (None, None, {}),
    ],
)
def test_log_directories(logdir, spec, expected):
    assert log_directories(logdir, spec) == {name: Path(path) for name, path in expected.items()}


def test_the_metadata_names_a_route():
    found = HealthPlugin(types.SimpleNamespace(logdir="", flags=None))
    assert found.frontend_metadata().es_module_path in found.get_plugin_apps()
    assert found.frontend_metadata().tab_name == "Health"
    assert plugin_module.HealthPlugin.plugin_name == "health"


# lightning-hooks serve


@pytest.fixture
def served(make_run, tmp_path):
    make_run("a")
    with HealthServer(tmp_path / "logs", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_port}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def test_the_page_is_served(served):
    status, headers, content = get(served, "/")
    assert status == 200
    assert b"page.js" in content
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert get(served, "/page.js")[1]["Content-Type"] == "text/javascript; charset=utf-8"
    assert json.loads(get(served, "/run?run=a")[2])["status"] == "warning"
    assert get(served, "/", host=f"localhost:{served.server_port}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/a/lightning_hooks/reports.jsonl", "/%2e%2e/x", "//etc/passwd", "/health.js"]
)
def test_nothing_else_is_served(served, path):
    assert get(served, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6007", "", "127.0.0.1", "127.0.0.1.evil.example:80"])
def test_another_host_gets_nothing(served, host):
    """DNS rebinding: a name of somebody else that leads to this machine."""
    assert get(served, "/runs", host=host)[0] == 403


def test_it_listens_on_the_loopback_address_only(served):
    assert served.server_address[0] == "127.0.0.1"


def test_a_client_that_is_broken_prints_nothing(served, capfd):
    for request in (b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"GET /index.js HTTP/1.1\r\n\r\n"):
        with socket.create_connection(served.server_address) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it resets the connection
            client.sendall(request)
            client.settimeout(5)
            client.recv(1)
    assert get(served, "/")[0] == 200
    assert capfd.readouterr().err == ""


def test_it_takes_no_other_method(served):
    assert get(served, "/", method="POST")[0] == 501


def test_the_command_serves_until_it_is_interrupted(make_run, tmp_path, monkeypatch, capsys):
    make_run("a")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(HealthServer, "serve_forever", interrupted)
    assert main(["serve", str(tmp_path / "logs"), "--port", "0"]) == 0
    assert "http://127.0.0.1:" in capsys.readouterr().out
    assert main(["serve", str(tmp_path / "nothing")]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_a_port_in_use_is_an_error(served, tmp_path, capsys):
    for port, why in ((served.server_port, "Address already in use"), (70_000, "must be 0-65535"), (-1, "must be 0-65535")):
        assert main(["serve", str(tmp_path), "--port", str(port)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: port {port} cannot be used (")
        assert why in error
        assert error.endswith("); name another with --port, or 0 for any that is free.\n")
    assert serving.PORT == 6007
