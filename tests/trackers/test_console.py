"""What is printed reaches any stream, that of a live progress bar in a notebook too."""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

import pytest
from torch import nn

from lightning_hooks import monitors
from lightning_hooks.trackers import Table, coloured, show
from tests.support.models import Classifier, loader, trainer


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


def ascii_stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)


def closed() -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    stream.close()
    return stream


class Broken(io.StringIO):
    """The other end of a pipe is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return True


def test_what_an_encoding_lacks_is_escaped() -> None:
    stream = ascii_stream()
    show(["", Table(("layer", "rms"), [("größe", 0.5)]), "größe\U0001f525"], stream)
    text = stream.buffer.getvalue().decode()
    assert text.splitlines() == ["", "  layer  rms", "  gr\\xf6\\xdfe  0.5", "gr\\xf6\\xdfe\\U0001f525"]


@pytest.mark.parametrize("stream", [closed, Broken])
def test_a_stream_that_takes_nothing_gets_nothing(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(["", Table(("layer", "rms"), [("net.0", 0.5)])], stream())
    assert coloured("text", "critical", closed()) == "text"


@pytest.mark.parametrize("stream", [ascii_stream, closed, Broken])
@pytest.mark.parametrize("summary", [True, "full"])
def test_a_fit_ends_well_whatever_its_standard_output_is(stream: Any, summary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    net = nn.Sequential(OrderedDict({"größe": nn.Linear(8, 8), "relu": nn.ReLU(), "kopf": nn.Linear(8, 3)}))
    ours = monitors(every_n_steps=1, summary=summary)
    run = trainer(ours)
    out = stream()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", out)
        run.fit(Classifier(net), loader())
    assert run.state.finished
    if stream is ascii_stream:
        text = out.buffer.getvalue().decode()
        assert "Monitors: " in text
        assert ("net.gr\\xf6\\xdfe" in text) is (summary == "full")
