"""Attention that shows each token its target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks.callbacks.single_monitors import AttentionMonitor
from lightning_hooks.diagnostics.attention.table import NextColumn, NextTokens
from tests.support.calls import call_table
from tests.support.models import Classifier, trainer

SQUARE = torch.ones(10, 10, dtype=torch.bool)
LOWER = SQUARE.tril()


def counted(table: NextTokens, index: int = 1) -> list[float]:
    return table.lines(table.pack())[index]


@pytest.mark.parametrize(
    ("mask", "causal", "shown"),
    [
        (None, False, True),
        (None, True, False),
        (LOWER, False, False),
        (~LOWER | torch.eye(10, dtype=torch.bool), False, True),
        (LOWER.expand(4, 2, 10, 10), False, False),
        (torch.zeros(10, 10).masked_fill(~LOWER, -torch.inf), False, False),
        (torch.zeros(4, 1, 10, 10).masked_fill(~LOWER, -1e9), False, False),
        (torch.zeros(10, 10), False, True),
        (torch.ones(1, 10, dtype=torch.bool), False, True),  # of keys alone
        (torch.ones(10, dtype=torch.bool), False, True),
    ],
)
def test_whether_the_next_token_is_shown(mask: Tensor | None, causal: bool, shown: bool) -> None:
    table = call_table(NextTokens)
    table.add_attention(1, mask, causal)
    assert counted(table) == [1, shown, 1]


TOKENS = torch.randint(0, 9, (4, 11), generator=torch.Generator().manual_seed(0))
PADDED = torch.cat((TOKENS[:, 1:], torch.full((4, 1), -100)), 1)


@pytest.mark.parametrize(
    ("target", "ignored", "found"),
    [
        (TOKENS[:, 1:].flatten(), -100, [1, 1]),
        (TOKENS[:, 1:], -100, [1, 1]),
        (PADDED.flatten(), -100, [1, 1]),
        (TOKENS[:, 1:].masked_fill(TOKENS[:, 1:] == 3, -100).flatten(), -100, [1, 1]),
        (TOKENS[:, :-1].flatten(), -100, [1, 0]),
        (TOKENS.flatten(), -100, [1, 0]),
        (torch.full((44,), -100), -100, [1, 0]),
        (TOKENS[:, 0], -100, [0, 0]),
    ],
)
def test_whether_targets_are_the_next_tokens(target: Tensor, ignored: int, found: list[int]) -> None:
    table = call_table(NextTokens)
    table.add_loss(1, target, [torch.zeros(2, 11, dtype=torch.int64), TOKENS], ignored)
    assert counted(table) == [*found, 0]


def test_a_model_that_hides_the_target_somewhere_is_not_judged() -> None:
    table = call_table(NextTokens, capacity=4)
    names = ("encoder/sdpa", "decoder/softmax", "cross_entropy")
    table._sites = SimpleNamespace(names=names)  # type: ignore[assignment]
    lines = torch.tensor([[2.0, 2.0, 2.0], [2.0, 0.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]], dtype=table.rows.dtype)
    assert table.read(lines.flatten()) == ()
    lines[1, NextColumn.FOUND] = 2
    assert table.read(lines.flatten()) == ("encoder/sdpa",)
    lines[2, NextColumn.FOUND] = 1
    assert table.read(lines.flatten()) == ()


class Writer(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.head = nn.Embedding(9, 16), nn.Linear(16, 48), nn.Linear(16, 9)
        self.causal, self.written_out = True, False

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embedding(ids)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if self.written_out:
            hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1) & self.causal
            mixed = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.head(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("written_out", [True, False])
@pytest.mark.parametrize("classifies", [True, False])
def test_a_language_model(causal: bool, written_out: bool, classifies: bool) -> None:
    class Writes(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            ids = batch[0]
            target = (ids[:, :-1] + 1) % 9 if classifies else ids[:, 1:]
            return F.cross_entropy(self.net(ids[:, :-1]).flatten(0, 1), target.flatten())

    net = Writer()
    net.causal, net.written_out = causal, written_out
    monitor = AttentionMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Writes(net), DataLoader(TensorDataset(TOKENS.repeat(4, 1)), 4))
    shown = [alert for alert in monitor.report.alerts if alert.kind == "masked_rows"]
    assert [(alert.site, alert.severity) for alert in shown] == (
        [] if causal or classifies else [(f"net/{'softmax' if written_out else 'sdpa'}", "warning")]
    )
