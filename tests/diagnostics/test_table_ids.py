"""The id that a lookup failed for is read from the exception, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks.diagnostics.batches.inputs import MissedRow, id_out_of_range


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"words": nn.Embedding(9, 4), "bag": nn.EmbeddingBag(9, 4)})
        self.table = torch.zeros(5, 2)


def raised(function: Any) -> BaseException:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        function()
    return caught.value


IDS = torch.tensor([[0, 8, 3], [2, 9, -1]])


@pytest.mark.parametrize(
    ("call", "batch", "found"),
    [
        (lambda net: net.body["words"](IDS), (IDS.float(), IDS), MissedRow("body.words", 9, 9, (1, 1), "[1]", 7)),
        (lambda net: net.body["words"](IDS[1:, 1:]), {"w": IDS}, MissedRow("body.words", 9, 9, (1, 1), "['w']", 7)),
        (lambda net: net.body["words"](IDS + 1), (IDS,), MissedRow("body.words", 9, 9, (1, 1), "[0]", 7)),
        (lambda net: net.body["words"](IDS * 2), (IDS,), MissedRow("body.words", 16, 9, (0, 1), "", 7)),
        (lambda net: net.body["words"](IDS[1, 2:]), None, MissedRow("body.words", -1, 9, (0,), "", 7)),
        (lambda net: net.body["bag"](IDS), IDS, MissedRow("body.bag", 9, 9, (1, 1), "batch", 7)),
        (lambda net: F.embedding(IDS, net.table), IDS, MissedRow("embedding", 8, 5, (0, 1), "batch", 7)),
        (lambda net: net.table[IDS], IDS, None),  # no lookup of an embedding: its numbers are nowhere
        (lambda net: list(net.children())[3], IDS, None),
    ],
)
def test_what_a_lookup_failed_for(call: Any, batch: Any, found: MissedRow | None) -> None:
    net = Net()
    assert id_out_of_range(raised(lambda: call(net)), net, batch, 7) == found
