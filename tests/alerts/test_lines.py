"""The lines of an alert in the terminal: what does not fit moves on, and is left out last."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hooks import Alert

SENTENCE = "It has forty characters of text, say so."


def lines(**given: Any) -> list[str]:
    return str(Alert("dead", "net.1", 1.0, 0.5, 0, 9, "critical", **given)).split("\n")


@pytest.mark.parametrize("sentences", [1, 2, 3, 4, 9])
def test_whole_sentences_fill_lines_of_160_characters(sentences: int) -> None:
    head, *rest = lines(diagnosis=" ".join([SENTENCE] * sentences), message="Seen.", consequences=("zero at a",))
    start = "[critical] dead at net.1 (epoch 0, step 9):"
    first = min(sentences, (160 - len(start)) // (len(SENTENCE) + 1))
    assert head == " ".join([start, *[SENTENCE] * first])
    moved = sentences - first
    assert rest == ["  seen: " + " ".join([*[SENTENCE] * moved, "Seen.", "Consequences: zero at a."][: 5 if moved < 3 else 3])]
    assert all(len(line) <= 162 for line in (head, *rest))


def test_a_sentence_is_never_cut() -> None:
    long = f"It {'goes ' * 40}on."
    assert lines(message=long) == [f"[critical] dead at net.1 (epoch 0, step 9): {long}"]
    assert lines(message="1 of 2.5 units, e.g. the first, is dead.")[0].endswith("1 of 2.5 units, e.g. the first, is dead.")
