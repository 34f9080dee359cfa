"""The table of features: dead units, saturation, silence, and the merge over ranks."""

from dataclasses import asdict

import pytest
import torch
from torch import nn

from lightning_hooks.diagnostics.features.table import FeatureTable
from lightning_hooks.statistics.reduction import merge_ranks
from tests.support.reference import assert_stats, reference_stats

pytestmark = pytest.mark.usefixtures("each_path")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Net(nn.Module):
    """Two rectifiers of different layouts, a bounded activation, and a branch."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 5, 1)
        self.act1 = nn.ReLU()
        self.linear = nn.Linear(4, 40)
        self.act2 = nn.ReLU()
        self.gelu = nn.GELU()
        self.gate = nn.Sigmoid()
        self.branch = nn.Linear(2, 2)

    def sites(self):
        return list(self.named_children())

    def calls(self, x, branch=True):
        """(site, args, output) of every module called."""
        for name in ("conv", "act1", "linear", "act2", "gelu", "gate", "branch"):
            if name == "branch" and not branch:
                return
            given = x if name != "branch" else x[..., :2]
            x_next = getattr(self, name)(given)
            yield name, (given,), x_next
            x = x_next


@pytest.fixture
def net():
    net = Net()
    with torch.no_grad():  # units seldom fire, some never
        net.conv.bias -= 1.5
        net.linear.bias -= torch.linspace(0, 2.5, 40)
        net.linear.weight *= 2
    return net


@torch.no_grad()
def fill(net, table, batches, branch=True):
    names = [name for name, _ in net.sites()]
    outputs = {name: [] for name in names}
    for batch in batches:
        for name, args, output in net.calls(batch, branch):
            table.add(names.index(name), args, output)
            outputs[name].append(output)
    return outputs


def dead(outputs, unit_dim):
    """The true share: units zero for every input of the epoch."""
    units = torch.cat(outputs).movedim(unit_dim, 0)
    return (units.flatten(1) == 0).all(1).double().mean().item()


def read(table):
    return table.read(table.pack())


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_dead_units_are_those_that_never_fired_whatever_the_batch_size(net, batch_size):
    data = torch.randn(64, 3, 4)
    table = FeatureTable(net.sites(), net)
    outputs = fill(net, table, data.split(batch_size))
    stats, silent = read(table)
    assert silent == ()
    for name, unit_dim in (("act1", 1), ("act2", 2)):  # a convolution, and a linear layer, came before
        assert 0 < stats[name].dead_fraction < 1
        assert stats[name].dead_fraction == pytest.approx(dead(outputs[name], unit_dim))
        assert stats[name].unit_samples == sum(out.numel() for out in outputs[name]) // outputs[name][0].shape[unit_dim]
    assert all(stats[name].dead_fraction is None for name in stats if not name.startswith("act"))


def test_named_numbers_equal_the_reference(net):
    data = torch.randn(30, 3, 4)
    table = FeatureTable(net.sites(), net)
    outputs = fill(net, table, data.split(7))
    stats, _ = read(table)
    for name, parts in outputs.items():
        assert_stats(stats[name], reference_stats([part.double().numpy() for part in parts]), rel=1e-5)
        assert all(type(value) in (int, float, type(None)) for value in asdict(stats[name]).values())


def test_saturation_reads_outputs_or_inputs(net):
    table = FeatureTable(net.sites(), net)
    x = torch.tensor([-9.0, -3.2, -3.0, 0.0, 2.0, 9.0])
    table.add(4, (x,), net.gelu(x))
    table.add(5, (x,), net.gate(x))
    stats, silent = read(table)
    assert stats["gelu"].saturated_fraction == pytest.approx(2 / 6)
    assert stats["gate"].saturated_fraction == pytest.approx(2 / 6)
    assert silent == ("conv", "act1", "linear", "act2", "branch")


def numbers(stats):
    return {key: value for key, value in asdict(stats).items() if value is not None}


def assert_same(one, two):
    (stats, silent), (expected, expected_silent) = one, two
    assert (list(stats), silent) == (list(expected), expected_silent)
    for name in expected:
        assert numbers(stats[name]) == pytest.approx(numbers(expected[name]), rel=1e-9, abs=1e-12)


def packed_for_ranks(table):
    table.reserved = table.capacity
    return table.pack()


def merged(tables):
    return merge_ranks(tables[0].spans, [packed_for_ranks(table) for table in tables])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_merge_to_the_table_of_all_data(net, world):
    batches = torch.randn(36, 3, 4).split(4)
    whole = FeatureTable(net.sites(), net)
    fill(net, whole, batches)
    ranks = [FeatureTable(net.sites(), net) for _ in range(world)]
    for rank, table in enumerate(ranks):
        fill(net, table, batches[rank::world])
    packed = merged(ranks)
    assert packed.shape == packed_for_ranks(whole).shape
    assert_same(ranks[-1].read(packed), read(whole))


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_missed_sites_neither_shifts_nor_silences_them(net, missing):
    batches = torch.randn(8, 3, 4).split(4)
    whole = FeatureTable(net.sites(), net)
    ranks = [FeatureTable(net.sites(), net) for _ in range(2)]
    for rank, (table, batch) in enumerate(zip(ranks, batches, strict=True)):
        fill(net, whole, [batch], branch=rank != missing)
        fill(net, table, [batch], branch=rank != missing)
    assert_same(ranks[0].read(merged(ranks)), read(whole))
    idle = FeatureTable(net.sites(), net)  # a rank without any batch
    assert_same(idle.read(merged([idle, *ranks])), read(whole))


@pytest.mark.parametrize(
    ("module", "units"),
    [
        (nn.Linear(2, 7), 7),
        (nn.Conv2d(2, 9, 3), 9),
        (nn.ConvTranspose2d(9, 4, 3), 4),
        (nn.Embedding(100, 6), 6),
        (nn.BatchNorm2d(8), 8),
        (nn.LazyLinear(7), 7),
        (nn.Identity(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_capacity_is_derived_from_the_parameters(module, units):
    root = nn.Sequential(module, nn.ReLU())
    if isinstance(module, nn.LazyLinear):
        units = 0  # not known yet, on any rank
    assert FeatureTable([("0", module)], root).capacity == units
