"""Attributes that are exchanged on an object for a while."""

from __future__ import annotations

from lightning_hooks.hooks.attributes import exchange


class Loop:
    def step(self) -> str:
        return "own"


def test_what_was_there_comes_back_and_what_others_have_put_there_since_stays() -> None:
    loop = Loop()
    loop.name = "first"  # type: ignore[attr-defined]
    put_back = exchange(loop, step=lambda: "ours", name="second")
    assert (loop.step(), loop.name) == ("ours", "second")  # type: ignore[attr-defined]
    put_back()
    assert (loop.step(), vars(loop)) == ("own", {"name": "first"})
    put_back()
    assert vars(loop) == {"name": "first"}
    put_back = exchange(loop, step=lambda: "ours")
    exchange(loop, step=lambda: "theirs")
    put_back()
    assert loop.step() == "theirs"
