"""The address of notifications is a secret."""

import copy
import pickle

import pytest
from jsonargparse import ArgumentParser

from lightning_hooks import TrainingMonitor
from lightning_hooks.sinks.webhook import Address

SECRET = "https://hooks.slack.com/services/T0SECRET/B0SECRET"


@pytest.mark.parametrize(
    ("url", "form"),
    [
        (SECRET, "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com/api/webhooks/1/x", "discord"),
        ("https://ntfy.sh/topic", "ntfy"),
        ("https://ntfy.example.org/topic", "ntfy"),
        ("http://example.org/hook", "json"),
        ("https://evil-discord.com/x", "json"),
    ],
)
def test_the_format_follows_from_the_host(url, form):
    assert Address(url).format == form


def test_the_secret_is_nowhere():
    address = Address(SECRET)
    again = pickle.loads(pickle.dumps(address))
    for text in (
        repr(address),
        str(address),
        f"{vars(TrainingMonitor(notify=SECRET).outlets)}",
        repr(pickle.dumps(address)),
        repr(again),
    ):
        assert "SECRET" not in text
    assert "hooks.slack.com" in repr(address)
    assert again.url() == "", "a mask is no address"
    assert repr(again) == repr(address)
    assert copy.deepcopy(address).url() == copy.copy(address).url() == SECRET, "within a process it stays"


def test_a_variable_is_read_when_it_is_needed(monkeypatch):
    address = Address("env:HOOK")
    assert (address.url(), str(address), address.format) == ("", "env:HOOK", "json")
    monkeypatch.setenv("HOOK", SECRET)
    assert (address.url(), str(address), address.format) == (SECRET, "env:HOOK", "slack")
    assert pickle.loads(pickle.dumps(address)).url() == SECRET
    monkeypatch.setenv("HOOK", "env:HOOK")
    assert address.url() == ""
    monkeypatch.setenv("HOOK", "file:///etc/passwd")
    assert address.url() == ""


@pytest.mark.parametrize(
    ("notify", "error", "text"),
    [
        ("ftp://example.org/SECRET", ValueError, "got '…', of which no more is shown"),
        ("https://example.org/SECRET\r\nX: y", ValueError, "got 'https://example.org/…'"),
        ("SECRET", ValueError, "recommended"),
        ("", ValueError, "notify must be"),
        ("env:not a name", ValueError, "notify must be"),
        ("https://", ValueError, "notify must be"),
        ("https://example.org:SECRET/", ValueError, "notify must be"),
        ({"url": SECRET}, TypeError, "got a dict"),
        (3, TypeError, "got a int"),
    ],
)
def test_what_is_no_address_is_refused_without_showing_it(notify, error, text):
    with pytest.raises(error) as caught:
        TrainingMonitor(notify=notify)
    assert text in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_configuration_that_is_saved_has_a_mask():
    """LightningCLI parses and saves by jsonargparse."""
    parser = ArgumentParser()
    parser.add_subclass_arguments(TrainingMonitor, "monitor")
    found = parser.parse_args(["--monitor=lightning_hooks.TrainingMonitor", f"--monitor.notify={SECRET}"])
    saved = parser.dump(found)
    assert "SECRET" not in saved
    assert "https://hooks.slack.com/…" in saved
    assert parser.instantiate_classes(found).monitor.outlets.notify.url() == SECRET
    masked = parser.parse_string(saved)
    assert parser.instantiate_classes(masked).monitor.outlets.notify.url() == "", "it can be loaded, and sends nothing"
