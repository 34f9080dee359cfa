"""Notifications as each service takes them."""

import json

import pytest

from lightning_hooks import Alert
from lightning_hooks.sinks.webhook import WRITERS, of_alert, of_end

HOSTILE = "<!channel> @everyone **x** [a](http://b)\u202e\x1b[31m & <script>"
ALERT = Alert(
    "dead", HOSTILE, 0.9, 0.7, 3, 120, "critical", "90 % of its units gave 0.", since_step=80, diagnosis="A large negative bias.",
    consequences=("zero at net.0",), advice=("Lower the learning rate", "Try GELU"),
)  # fmt: skip


def body(form, alert=ALERT):
    return WRITERS[form](of_alert(alert, "Net, logs/version_0"))


def test_plain_json_has_all_fields():
    content, headers = body("json")
    found = json.loads(content)
    assert headers == {"Content-Type": "application/json"}
    text = found.pop("text")
    assert found == {
        "version": 1,
        "event": "alert",
        "kind": "dead",
        "severity": "critical",
        "run": "Net, logs/version_0",
        "headline": f"Dead units at {HOSTILE}",
        "site": HOSTILE,
        "epoch": 3,
        "step": 80,
        "cause": "A large negative bias. 90 % of its units gave 0. Consequences: zero at net.0.",
        "remedy": ["Lower the learning rate", "Try GELU"],
        "more": 0,
    }
    assert text.splitlines()[1:] == [
        "Net, logs/version_0: epoch 3, step 80",
        "A large negative bias. 90 % of its units gave 0. Consequences: zero at net.0.",
        "try: lower the learning rate; GELU.",
    ]
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_slack_gets_no_links_and_no_mentions():
    found = json.loads(body("slack")[0])
    assert set(found) == {"text", "mrkdwn"}
    assert "<" not in found["text"]
    assert "&lt;!channel&gt;" in found["text"]
    assert found["mrkdwn"] is False


def test_ntfy_gets_text_and_a_priority():
    content, headers = body("ntfy", Alert("d\u00e9ad\n", "a", 0, 0, 0, 0, "critical"))
    assert headers["Title"] == "Training: alert (d?ad\\n)"
    assert headers["Priority"] == "urgent"
    assert content.decode().startswith("[critical]")
    assert body("ntfy", Alert("dead", "a", 0, 0, 0, 0, "warning"))[1]["Priority"] == "high"


@pytest.mark.parametrize(
    ("end", "event", "severity"),
    [
        ({"how": "finished"}, "finished", "info"),
        ({"how": "interrupted"}, "interrupted", "info"),
        ({"how": "finished", "stopped_by": "dead at a"}, "stopped", "warning"),
        ({"how": "exception", "error_type": "AlertError"}, "stopped", "warning"),
        ({"how": "exception", "error_type": "ValueError"}, "crashed", "critical"),
    ],
)
def test_an_end_is_named(end, event, severity):
    found = of_end({**end, "epoch": 2, "step": 9}, "All is well.", "Net")
    assert (found.event, found.severity, found.headline) == (event, severity, f"Training {event}. All is well.")
