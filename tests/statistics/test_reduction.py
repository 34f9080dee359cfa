"""Tables of many ranks, merged by a maximum and two sums, against references over all of their data."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.clipping.stats import ClipColumn, merge_tallies, tally
from lightning_hooks.clipping.watch import N_EVENT_COLUMNS, EventColumn, NormHistory
from lightning_hooks.diagnostics.clipping_events.collector import (
    MERGED_EVENTS,
    OVER_RANKS,
    OVER_WINDOWS,
    TALLY_START,
    ClipCollector,
)
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.diagnostics.gradients.tables import ParameterTable
from lightning_hooks.session.member import Member
from lightning_hooks.session.session import Session
from lightning_hooks.session.settings import Settings
from lightning_hooks.statistics.reduction import (
    REST,
    Span,
    Spans,
    TableIndex,
    by_columns,
    flagged,
    largest,
    latest,
    merge_ranks,
    merge_windows,
    over_ranks,
)
from lightning_hooks.statistics.rows import MOMENTS, N_COLUMNS, Column, ParameterColumn, empty_table, merge, parameter_rows
from tests.session.test_session import Loop

WORLD = 64


@pytest.fixture
def path() -> None:
    """No kernels here: one path is enough."""


def on_ranks(spans: Spans, tables: list[Tensor]) -> list[Tensor]:
    """What each rank gets, all of them under way at the same time, as with processes."""
    count, shared, results = len(tables), {}, {}
    barrier = threading.Barrier(count)

    def rank(number: int) -> None:
        def all_reduce(tensor: Tensor, reduction: str) -> None:
            shared[number] = tensor.clone()
            barrier.wait()
            stacked = torch.stack([shared[other] for other in range(count)])
            tensor.copy_(stacked.amax(0) if reduction == "max" else stacked.sum(0))
            barrier.wait()

        (results[number],) = over_ranks([(spans, tables[number])], TableIndex(number, count), all_reduce)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[number] for number in range(count)]


def row(values: np.ndarray) -> Tensor:
    """The row of some values, in float64; an identity for none."""
    found = empty_table(1)[0]
    if values.size:
        found[Column.CALLS], found[Column.COUNT] = 1, values.size
        found[Column.MEAN], found[Column.M2] = values.mean(), ((values - values.mean()) ** 2).sum()
        found[Column.MIN], found[Column.MAX], found[Column.ZEROS] = values.min(), values.max(), (values == 0).sum()
        found[Column.NORM] = found[Column.NORM_MAX] = np.linalg.norm(values)
        powers = [((values - values.mean()) ** power).sum() for power in (2, 3, 4)]
        found[MOMENTS] = torch.tensor([values.size, values.mean(), *powers], dtype=found.dtype)
        found[Column.UNITS], found[Column.FIRST_NONFINITE] = values.size % 7, values.size % 5
    return found


@pytest.mark.parametrize("world", [1, 2, 3, WORLD])
def test_rows_are_those_of_all_values(world: int) -> None:
    generator = np.random.default_rng(world)
    offsets = [0.0, 1e3, 1e8, -3.0, 0.0]
    shards = [[generator.normal(offset, 1.0, generator.integers(0, 40)) for offset in offsets] for _ in range(world)]
    for rank in range(world):  # a module that the last rank alone calls, and one that none does
        shards[rank][3], shards[rank][4] = shards[rank][3][: 40 * (rank == world - 1)], np.zeros(0)
    tables = [torch.stack([row(values) for values in shard]).flatten() for shard in shards]
    ranks = on_ranks((Span(REST, Column.merge()),), tables)
    assert all(torch.equal(found, ranks[0]) for found in ranks)
    before = merge(torch.stack([table.view(-1, N_COLUMNS) for table in tables]))
    for site, found in enumerate(ranks[0].view(-1, N_COLUMNS)):
        values = np.concatenate([shard[site] for shard in shards]).astype(np.longdouble)
        std = float(values.std()) if values.size else 0.0
        tiny = 1e-12 * max(abs(float(values.mean())), std) if values.size else 0.0
        mean, m2 = (found[Column.MEAN].item(), found[Column.M2].item())
        if values.size:
            assert mean == pytest.approx(float(values.mean()), rel=0, abs=tiny)
            assert math.sqrt(m2 / values.size) == pytest.approx(std, rel=1e-9, abs=tiny)
        assert mean == pytest.approx(before[site, Column.MEAN].item(), rel=0, abs=tiny)
        assert m2 == pytest.approx(before[site, Column.M2].item(), rel=1e-12)
        centred = values - (values.mean() if values.size else 0)
        m3, m4 = (float((centred**power).sum()) for power in (3, 4))
        assert found[Column.MOMENT_M3].item() == pytest.approx(m3, abs=1e-6 * values.size * std**3)
        assert found[Column.MOMENT_M4].item() == pytest.approx(m4, rel=1e-6)
        moved = (Column.MEAN, Column.M2, Column.NORM, *list(Column)[MOMENTS.start + 1 :])
        others = [column for column in Column if column not in moved]
        assert torch.equal(found[others], before[site, others])
    assert torch.equal(merge_ranks((Span(REST, Column.merge()),), tables)[Column.COUNT :: N_COLUMNS], before[:, Column.COUNT])


@pytest.mark.parametrize("n", [0, 1, 7, 1001])
@pytest.mark.parametrize("world", [1, 2, 3, 127, 300])
def test_flags_are_counted_exactly(n: int, world: int) -> None:
    generator = torch.Generator().manual_seed(n + world)
    tables = [(torch.rand(n, generator=generator) < 1.5 / world).double() for _ in range(world)]
    if n:
        tables[0][0] = 1.0
        for table in tables:
            table[n // 2] = 1.0  # on every rank
    expected = torch.stack(tables).amax(0)
    assert torch.equal(merge_ranks((Span(REST, flagged),), tables), expected)


def test_parameters_that_are_the_same_on_every_rank_count_once() -> None:
    generator = torch.Generator().manual_seed(0)
    spans = ParameterTable([str(index) for index in range(4)], 2).spans
    rows = []
    for _ in range(WORLD):
        norms = torch.rand(4, generator=generator, dtype=torch.float64)
        norms[:2] = torch.tensor([0.3, math.nan])  # as after DDP's reduction, the second never finite
        rows.append(parameter_rows(norms, torch.zeros(4), torch.full((4,), 9.0), global_step=7))
    rows[5][3, 1] = 123.0
    totals = [torch.tensor([1.0, 0.3, 1.0, float(rank)], dtype=torch.float64) for rank in range(WORLD)]
    tables = [torch.cat((row.flatten(), total)) for row, total in zip(rows, totals, strict=True)]
    found = on_ranks(spans, tables)[-1]
    together = ParameterColumn.merged(torch.stack(rows))
    merged = found[:-4].view(4, -1)
    assert torch.equal(merged[:2], rows[0][:2])
    torch.testing.assert_close(merged[2:], together[2:], rtol=1e-13, atol=0)
    assert found[-4:].tolist() == [1.0, 0.3, *torch.stack(totals).sum(0).tolist()[2:]]  # each optimizer for itself
    same = torch.cat((rows[0].flatten(), totals[0]))
    assert torch.equal(merge_ranks(spans, [same] * 3), same)
    twice = merge_windows(spans, same, same)  # other steps of the same parameters
    torch.testing.assert_close(twice[:-4].view(4, -1), ParameterColumn.merged(torch.stack((rows[0], rows[0]))))
    assert twice[-4:].tolist() == [2.0, 0.6, 2.0, 0.0]


def events(**numbers: float) -> Tensor:
    found = NormHistory().events[None]
    for name, value in numbers.items():
        found[0, EventColumn[name.upper()]] = value
    return found


def test_events_are_those_of_the_rank_that_had_them() -> None:
    tables = [events() for _ in range(WORLD)]
    tables[7] = events(jump=3.0, jump_sigmas=math.inf, jump_norm=8.0, jump_batch=4, jump_parameter=2, bad_batch=6, bad_first=1)
    tables[9] = events(jump=2.0, growth=5.0, growth_norm=1.5, growth_batch=9)
    tables[30] = events(bad_batch=3, bad_first=0, bad_last=5, bad_count=4, bad_of=6)
    tables[31] = events(bad_batch=3, bad_first=2, bad_last=2, bad_count=1, bad_of=6)
    expected = events(
        jump=3.0,
        jump_sigmas=math.inf,
        jump_norm=8.0,
        jump_batch=4,
        jump_parameter=2,
        growth=5.0,
        growth_norm=1.5,
        growth_batch=9,
        bad_batch=3,
        bad_first=0,
        bad_last=5,
        bad_count=4,
        bad_of=6,
    )
    spans = (Span(N_EVENT_COLUMNS, by_columns(MERGED_EVENTS)),)
    assert all(torch.equal(found, expected) for found in on_ranks(spans, tables))
    for alike in (events(), expected):
        assert torch.equal(merge_ranks(spans, [alike] * 3), alike)
    assert torch.equal(merge_windows(spans, events(), expected), expected)


def test_tallies_of_ranks_that_step_together() -> None:
    generator = torch.Generator().manual_seed(1)
    tables = []
    for _ in range(WORLD):
        before = torch.rand((5, 3), generator=generator, dtype=torch.float64)
        found = tally(before, before * 0.5, torch.rand(5, generator=generator) < 0.8)
        tables.append(torch.cat((NormHistory().events, torch.zeros(TALLY_START - N_EVENT_COLUMNS), found))[None])
    spans = (Span(tables[0].numel(), by_columns(OVER_RANKS), by_columns(OVER_WINDOWS)),)
    found = on_ranks(spans, tables)[0][:, TALLY_START:]
    stacked = torch.stack(tables)[..., TALLY_START:]
    counts = [ClipColumn.STEPS, ClipColumn.CLIPPED, ClipColumn.NONFINITE, ClipColumn.SKIPPED]
    assert torch.equal(found[:, counts], stacked.amax(0)[:, counts])
    rest = [column for column in range(found.shape[1]) if column not in counts]
    torch.testing.assert_close(found[:, rest], merge_tallies(stacked)[:, rest], rtol=1e-13, atol=0)
    torch.testing.assert_close(merge_windows(spans, tables[0], tables[1])[:, TALLY_START:], merge_tallies(stacked[:2]))


def test_an_order_is_the_same_on_every_rank() -> None:
    tables = [torch.full((5,), -1.0, dtype=torch.float64) for _ in range(WORLD)]
    for number, table in enumerate(tables):
        table[2], table[0] = 0, 1
        if number == 40:
            table[2], table[4], table[3], table[0] = 0, 1, 2, 3
    found = on_ranks((Span(5, largest, latest),), tables)
    assert all(numbers.tolist() == [3.0, -1.0, 0.0, 2.0, 1.0] for numbers in found)
    assert merge_windows((Span(5, largest, latest),), tables[0], found[0]).tolist() == found[0].tolist()


def sent(modules: int, world: int, alike: bool) -> list[int]:
    """Bytes of each collective of all monitors together, for so many modules and twice as many parameters.

    Args:
        modules: How many.
        world: The number of ranks.
        alike: Whether parameters have the same gradients on every rank.
    """
    run = Session(Loop(nn.Sequential(*(nn.Linear(1, 1) for _ in range(modules)))))
    for kind in (FeatureCollector, GradientCollector, ClipCollector):
        run.join(Member(kind.__name__, kind, Settings(summary=False)))
    tables = [(member.live.tables.spans, member.live.tables.pack()) for member in run.members]
    found: list[int] = []

    def all_reduce(tensor: Tensor, _: str) -> None:
        found.append(tensor.nbytes)
        tensor.add_(not alike)

    merged = over_ranks(tables, TableIndex(0, world), all_reduce)
    assert [table.shape for table in merged] == [table.shape for _, table in tables]
    run.close("finished")
    return found


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("world", [2, 64, 1024])
def test_what_is_sent_does_not_grow_with_the_ranks(world: int, alike: bool) -> None:
    """At most 6.2 MB under DDP for 10 000 modules and 20 000 parameters, without the flags of units, in three collectives."""
    few, many = sent(100, world, alike), sent(200, world, alike)
    assert len(few) == len(many) == 3
    assert sum(many) + 98 * (sum(many) - sum(few)) <= (6.2e6 if alike else 10e6)
