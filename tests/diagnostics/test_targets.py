"""What losses between numbers compare, against a slow reference."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_hooks import watch
from lightning_hooks.diagnostics.loss_inputs.targets import (
    BLANK,
    BOUNDS,
    KL_DIVERGENCE,
    VARIED,
    LossTargets,
    TargetStats,
    target_stats,
)
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows
from tests.support.calls import call_table
from tests.support.plain_loop import trained


def stats_of(table: LossTargets, line: int) -> TargetStats:
    return target_stats(table.lines(table.pack())[line])


def measured(*targets: Tensor) -> TargetStats:
    table = call_table(LossTargets)
    for target in targets:
        table.add(1, torch.zeros_like(target), target, reduced=True)
    assert not any(table.lines(table.pack())[0])
    return stats_of(table, 1)


@pytest.mark.parametrize(
    ("given", "target", "reduced", "paired"),
    [
        ((24, 1), (24,), True, (24, 24, 576)),
        ((24, 1), (7,), True, (24, 7, 168)),
        ((24,), (24, 1), True, (24, 24, 576)),
        ((6, 6, 1), (6, 6), True, (36, 36, 216)),
        ((24, 1), (24,), False, None),  # a matrix of costs
        ((24, 1), (1, 24), True, (24, 24, 576)),
        ((24, 1), (1, 24), False, None),
        ((24, 1), (24, 1), True, None),
        ((24, 3), (3,), True, None),  # one target for all samples
        ((24, 3), (), True, None),
        ((1, 1), (24,), True, None),
        ((1, 1), (1,), True, None),
    ],
)
def test_pairs(given: tuple[int, ...], target: tuple[int, ...], reduced: bool, paired: tuple[int, ...] | None) -> None:
    table = call_table(LossTargets)
    table.add(0, torch.zeros(given), torch.zeros(target), reduced)
    assert stats_of(table, 0) == TargetStats(1, paired is not None, *(paired or (0, 0, 0)), 0, 0)
    if paired is not None:
        assert torch.zeros(given).sub(torch.zeros(target)).numel() == paired[2]


def reference(targets: list[Tensor]) -> tuple[int, int]:
    """How many calls are compared, and how many of them have the same target for all samples and as before, by plain Python."""
    compared = constant = 0
    for before, target in pairwise(targets):
        samples, first = [sample.flatten().tolist() for sample in target], before[0].flatten().tolist()
        if len(samples) > 1 and target.dim() > 2 and len(set(samples[0])) >= VARIED:
            compared += 1
            constant += all(sample == first for sample in samples)
    return compared, constant


ONCE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
FEW = torch.arange(192).view(1, 3, 8, 8) % (VARIED - 1) * 1.0


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        ([ONCE.expand(12, 3, 8, 8)] * 4, (3, 3)),
        ([ONCE.expand(12, 3, 8, 8).contiguous(), ONCE.expand(5, 3, 8, 8), ONCE.repeat(2, 1, 1, 1)], (2, 2)),
        ([ONCE.expand(12, 3, 8, 8), 1.01 * ONCE.expand(12, 3, 8, 8)], (1, 0)),  # another one in each batch
        ([torch.cat((ONCE.expand(6, 3, 8, 8), ONCE + 1))] * 3, (2, 0)),
        ([torch.randn(12, 3, 8, 8)] * 3, (2, 0)),  # one batch again and again
        ([FEW.expand(12, 3, 8, 8)] * 3, (0, 0)),
        ([(FEW + FEW.roll(1, -1) / 64).expand(12, 3, 8, 8)] * 3, (2, 2)),
        ([torch.ones(12, 1, 8, 8)] * 3, (0, 0)),
        ([ONCE] * 3, (0, 0)),  # one sample
        ([ONCE.flatten(1).expand(12, -1)] * 3, (0, 0)),  # a centre
        ([torch.full((12, 3, 8, 8), torch.nan)] * 3, None),
        ([ONCE.expand(12, 3, 8, 8).bfloat16()] * 2, (1, 1)),
        ([(100 * ONCE).long().expand(12, 3, 8, 8)] * 3, None),
    ],
)
def test_whether_targets_differ(targets: list[Tensor], found: tuple[int, int] | None) -> None:
    stats = measured(*targets)
    assert stats.calls == len(targets)
    if found is None:
        assert not stats.constant
    else:
        assert (stats.compared, stats.constant) == found == reference(targets)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_targets_outside_of_what_an_output_can_be(bound: str, scale: float) -> None:
    low, high = BOUNDS[bound]
    target = scale * torch.randn(40, 7, generator=torch.Generator().manual_seed(0)) + 0.5
    table = call_table(LossTargets)
    for _ in range(2):
        inputs = (target, torch.zeros_like(target)) if bound == KL_DIVERGENCE else (torch.zeros_like(target), target)
        table.add(1, *inputs, True, bound)
    stats = stats_of(table, 1)
    near = 1e-6 if bound == KL_DIVERGENCE else 0.01
    outside = sum(value < low - near or value > high + near for value in target.flatten().tolist())
    assert (stats.bounded, stats.outside, stats.bound) == (2 * target.numel(), 2 * outside, bound)
    assert measured(target) == TargetStats(1, 0, 0, 0, 0, 0, 0)  # of an output without bounds


def test_tables_merge() -> None:
    tables = [call_table(LossTargets) for _ in range(3)]
    for number, table in enumerate(tables[:2]):
        table.add(1, torch.zeros(4 + number, 1), torch.full((4,), 2.0), True, "tanh" if number else "")
        for _ in range(3):
            table.add(1, ONCE.expand(4, 3, 8, 8), ONCE.expand(4, 3, 8, 8), reduced=True)
    packed = [table.pack() for table in tables]
    windows = merge_windows(tables[0].spans, merge_windows(tables[0].spans, packed[0], packed[1]), packed[2])
    for merged in (merge_ranks(tables[0].spans, packed), windows):
        assert target_stats(tables[0].lines(merged)[1]) == TargetStats(8, 2, 5, 4, 20, 4, 4, 4, 4, "tanh")
    back = call_table(LossTargets)
    back.unpack(packed[1])
    assert torch.equal(back.pack(), packed[1])
    back.add(1, torch.zeros(3), torch.zeros(3), reduced=True)
    assert stats_of(back, 1).calls == 5
    back.reset()
    assert not back.pack().any()


@pytest.mark.parametrize(
    ("last", "log_input", "found"),
    [(nn.Softplus(), True, 72), (nn.Softplus(), False, 0), (nn.Identity(), True, 0), (nn.ReLU(), True, 72)],
)
def test_rates_for_their_logarithms(last: nn.Module, log_input: bool, found: int) -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(8, 8), torch.ones(8, 3))] * 3
    model = nn.Sequential(nn.Linear(8, 3), last)
    report, alerts = trained(model, batches, lambda given, counts: F.poisson_nll_loss(given, counts, log_input), "output_range")
    outside = [(stats.outside, stats.bounded, stats.bound) for stats in report.targets.values()]
    assert outside == [(found, 72, "logarithm of a rate")] * bool(found)
    assert [alert.causes[0].name for alert in alerts] == ["rates_for_logarithms"] * bool(found)


class Aligned(nn.Module):
    """It puts out logits, or their logarithms of probabilities, for each place of a sequence."""

    def __init__(self, logarithms: bool) -> None:
        super().__init__()
        self.layer, self.logarithms = nn.Linear(8, 6), logarithms

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(inputs)
        return logits.log_softmax(-1) if self.logarithms else logits


@pytest.mark.parametrize(("logarithms", "blanks"), [(True, 0), (True, 3), (False, 0), (False, 3)])
def test_what_an_alignment_is_given(logarithms: bool, blanks: int) -> None:
    """The numbers above 0 of the input count, where there are any; else the labels that are the blank."""
    torch.manual_seed(0)
    model, inputs, labels = nn.Sequential(Aligned(logarithms)), torch.randn(5, 4, 8), torch.ones(4, 2, dtype=torch.int64)
    labels.view(-1)[:blanks] = 0
    optimizer, above = torch.optim.SGD(model.parameters(), lr=0.01), 0
    with watch(model, optimizer, every_n_steps=1, summary=False) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            given = model(inputs)
            loss = F.ctc_loss(given, labels, torch.full((4,), 5), torch.full((4,), 2))
            loss.backward()
            optimizer.step()
            monitor.step(loss)
            above += sum(value > 0 for value in given.flatten().tolist())
        monitor.end_window()
        assert monitor.features is not None
        (stats,) = monitor.features.targets.values()
        alerts = [(alert.kind, alert.causes[0].name) for alert in monitor.alerts if alert.kind == "output_range"]
    assert (stats.bounded, stats.outside, stats.bound) == ((24, 3 * blanks, BLANK) if logarithms else (360, above, "ctc_loss"))
    assert alerts == [("output_range", "no_logarithms")] * (not logarithms)  # few labels are not judged
