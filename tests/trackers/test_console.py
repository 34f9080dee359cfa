"""What is printed reaches any stream, that of a live progress bar in a notebook too."""

from __future__ import annotations

import io

import pytest

from lightning_hooks.trackers import Table, show


class Live(io.StringIO):
    """As rich's stand-in for standard output in a notebook: to print a line flushes, and to flush prints what is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.left = ""

    def write(self, text: str) -> int:
        *lines, self.left = (self.left + text).split("\n")
        for line in lines:
            super().write(f"{line}\n")
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self.left:
            self.write("\n" + self.left)


def test_a_table_is_printed_where_half_a_line_would_never_end() -> None:
    live, plain = Live(), io.StringIO()
    table = Table(("layer", "rms"), [("net.0", 0.5), ("net.1", 1.25)])
    with pytest.raises(RecursionError):
        print(table, file=live)
    live = Live()
    for stream in (live, plain):
        show(["", "Gradients:", table], stream)
    assert live.getvalue() == plain.getvalue() == "\nGradients:\n  layer   rms\n  net.0   0.5\n  net.1  1.25\n"


def test_without_a_console_nothing_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    show(["nobody reads this"])


def test_a_table_keeps_to_the_terminals_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "model.encoder.layers.11.attention.self.query_projection.with_a_long_name.relu"
    header = ("module", "mean", "std", "zeros", "dead", "saturated", "NaN, inf")
    lines = Table(header, [(name, -0.003439, 0.6391, 0.1234, 1.0, None, 0.0)]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:3] == ["module", "mean", "std"]
    assert ".relu " in lines[1]  # a name's end tells most
