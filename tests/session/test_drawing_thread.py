"""Pictures next to training: in order, in one thread, one that fails is reported once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lightning_hooks.session.tracker_sink import DrawingThread
from lightning_hooks.trackers.tracker import Picture


class Kept:
    """What a tracker is given."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, Any]] = []

    def picture(self, tag: str, picture: Any, step: int) -> None:
        self.found.append((tag, step, threading.current_thread()))


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Picture, "of_figure", classmethod(lambda cls, figure: figure))
    thread = DrawingThread()
    yield thread
    thread.close()


def test_pictures_are_written_in_order_on_the_thread_that_writes(drawing: DrawingThread) -> None:
    gate, kept, drew = threading.Event(), Kept(), []

    def draw(name: str) -> Any:
        gate.wait(10)
        drew.append((name, threading.current_thread()))

    for step in range(5):
        drawing.ask(f"p{step}", lambda step=step: draw(f"p{step}"), step)
    drawing.write(kept)  # type: ignore[arg-type]
    assert kept.found == []  # nothing is ready, and nobody waits
    gate.set()
    drawing.write(kept, wait=True)  # type: ignore[arg-type]
    assert kept.found == [(f"p{step}", step, threading.current_thread()) for step in range(5)]
    assert [name for name, _ in drew] == [f"p{step}" for step in range(5)]
    assert len({thread for _, thread in drew}) == 1
    assert threading.current_thread() not in {thread for _, thread in drew}


def test_a_picture_that_fails_is_reported_once_and_the_others_are_written(drawing: DrawingThread) -> None:
    kept = Kept()
    for step in range(3):
        drawing.ask("bad", lambda: 1 / 0, step)  # type: ignore[arg-type, return-value]
        drawing.ask("good", lambda: None, step)  # type: ignore[arg-type, return-value]
    with pytest.warns(UserWarning, match="The picture bad could not be drawn: ZeroDivisionError: division by zero") as reported:
        drawing.write(kept, wait=True)  # type: ignore[arg-type]
    assert len(reported) == 1
    assert [(tag, step) for tag, step, _ in kept.found] == [("good", 0), ("good", 1), ("good", 2)]
