"""Messages of the logger ``lightning_hooks`` reach the handlers that a user expects."""

from __future__ import annotations

import io
import logging
import subprocess
import sys

import pytest

from lightning_hooks.declare.warn import LIGHTNINGS, LOGGER, info


def of_lightning(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What Lightning's handler writes, as where the root logger had none when Lightning was imported."""
    stream = io.StringIO()
    monkeypatch.setattr(LIGHTNINGS, "handlers", [logging.StreamHandler(stream)])
    monkeypatch.setattr(LIGHTNINGS, "propagate", False)
    monkeypatch.setattr(LOGGER, "handlers", LOGGER.handlers[:1])  # without pytest's, which it adds as the test begins
    return stream


def test_lightnings_handlers_write_what_its_level_would_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    written = of_lightning(monkeypatch)
    level = LIGHTNINGS.level
    LIGHTNINGS.setLevel(logging.ERROR)
    info("[critical] dead at a\n  why: 100% of it", logging.WARNING)
    info("on the way")
    LIGHTNINGS.setLevel(level)
    assert written.getvalue() == "[critical] dead at a\n  why: 100% of it\non the way\n"


def test_its_own_handlers_replace_lightnings(monkeypatch: pytest.MonkeyPatch) -> None:
    written = of_lightning(monkeypatch)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOGGER.addHandler(handler)
    try:
        info("mine")
    finally:
        LOGGER.removeHandler(handler)
    info("Lightning's again")
    assert (stream.getvalue(), written.getvalue()) == ("mine\n", "Lightning's again\n")


@pytest.mark.slow
def test_a_level_that_was_set_before_the_import_stays() -> None:
    code = (
        "import logging\nlogging.getLogger('lightning_hooks').setLevel(logging.ERROR)\n"
        "from lightning_hooks.declare.warn import LOGGER\nassert LOGGER.level == logging.ERROR"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ranks_other_than_0_log_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = of_lightning(monkeypatch)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    info("from rank 1")
    assert written.getvalue() == ""
