"""The plugin as TensorBoard asks it, and the server that stands alone."""

import http.client
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from werkzeug.test import Client

from lightning_hooks.__main__ import main
from lightning_hooks.sinks.tab.answers import HealthServer
from lightning_hooks.sinks.tab.plugin import HealthPlugin

ROOT = Path(__file__).parents[2]
BUDGET_SECONDS = 0.05
TRIES = 5


def plugin(logdir):
    return HealthPlugin(types.SimpleNamespace(logdir=str(logdir)))


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


@pytest.mark.parametrize("logdir", ["gs://bucket/logs", "", None])
def test_without_a_directory_on_this_machine_there_are_no_runs(logdir):
    runs = HealthPlugin(types.SimpleNamespace(logdir=logdir, flags=None)).runs
    assert not runs.ask(patience=30)
    assert runs.listing()["notes"] == []


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


def test_it_listens_on_the_loopback_address_only(served):
    assert served.server_address[0] == "127.0.0.1"


def test_the_command_serves_until_it_is_interrupted(make_run, tmp_path, monkeypatch, capsys):
    make_run("a")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(HealthServer, "serve_forever", interrupted)
    assert main(["serve", str(tmp_path / "logs"), "--port", "0"]) == 0
    assert "http://127.0.0.1:" in capsys.readouterr().out
    assert main(["serve", str(tmp_path / "nothing")]) == 2
    assert "there is no directory" in capsys.readouterr().err
