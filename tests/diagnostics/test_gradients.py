"""Gradient tables and multi-tensor passes, against loops in float64."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from lightning_hooks.diagnostics.gradients.tables import GradientArrival, GradientTable, ParameterTable, gradient_stats
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.kernels.host import CHUNK
from lightning_hooks.statistics.rows import Column
from lightning_hooks.statistics.weight_sample import WeightSample
from tests.support.reference import assert_stats

pytestmark = pytest.mark.usefixtures("each_path")


def read(gradients, zeros=False):
    return kernels_for("cpu").norms(gradients, zeros=zeros)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def norm(tensor):
    return float(np.linalg.norm(tensor.double().numpy().ravel()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(2 * CHUNK + 5),
        lambda: torch.randn(6, 8).t()[::2],
        lambda: torch.randn(50).bfloat16(),
        lambda: torch.full((100,), 6e4).half(),
        lambda: torch.randn(50, dtype=torch.float64) * 1e100,
        lambda: torch.randn(50) * 1e-25,
        lambda: torch.randn(50) * 1e25,
        lambda: torch.zeros(4),
        lambda: torch.tensor(-3.0),
        lambda: torch.empty(0),
    ],
)
def test_norms_and_zeros(make):
    gradient = make()
    kept = gradient.clone()
    norms = read([gradient, torch.ones(4)]).norms
    assert norms.dtype == torch.float64
    assert norms.tolist() == pytest.approx([norm(gradient), 2.0], rel=1e-6)
    assert read([gradient, torch.tensor([0.0, 1.0, -0.0])], zeros=True).zeros.tolist() == [(gradient == 0).sum().item(), 2]
    assert torch.equal(gradient, kept)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_norms_of_what_is_not_finite_are_not_finite(bad):
    norms = read([torch.tensor([1.0, bad]), torch.ones(1)]).norms
    assert not math.isfinite(norms[0])
    assert norms[1] == 1


class TestGradientTable:
    @pytest.mark.parametrize("scale", [None, 1024.0])
    def test_equals_the_reference(self, scale, assert_row):
        gradients = [torch.randn(5, 3), torch.randn(2, 3).relu(), torch.tensor([math.nan, 0.0, 2.0])]
        table = GradientTable(["a", "b"], loss_scaled=scale is not None)
        for gradient in gradients:
            GradientArrival(table, 0)(gradient * (scale or 1.0))
            table.commit(scale or 1.0)
        assert_row(table.rows[0], *gradients)
        found, silent = table.read(table.rows)
        assert (list(found), silent) == (["a"], ("b",))
        finite = [gradient[torch.isfinite(gradient)].double() for gradient in gradients]
        values = torch.cat(finite)
        expected = {
            "calls": 3, "count": 23, "mean": values.mean(), "std": values.std(correction=0), "min": values.min(),
            "max": values.max(), "rms": values.square().mean().sqrt(), "norm": np.mean([norm(part) for part in finite]),
            "norm_max": max(norm(part) for part in finite), "zero_fraction": (values == 0).sum() / 24,
            "nonfinite_fraction": 1 / 24,
        }  # fmt: skip
        assert_stats(found["a"], {key: float(value) for key, value in expected.items()})
        assert set(asdict(found["a"])) == {*expected, "first_nonfinite_batch"}
        assert found["a"].first_nonfinite_batch == 0

    def test_pending_gradients_count_only_when_the_step_is_taken(self, assert_row):
        kept, skipped, late = torch.randn(4), torch.randn(4), torch.randn(4)
        table = GradientTable(["a"], loss_scaled=True)
        for gradient, end in (
            (kept, lambda: table.commit(torch.tensor(8.0))),
            (skipped, table.discard),
            (skipped, lambda: table.commit(8.0, valid=torch.tensor(False))),
            (late, lambda: table.commit(8.0, valid=torch.tensor(True))),
        ):
            before = table.rows.clone()
            GradientArrival(table, 0)(gradient * 8)
            assert torch.equal(table.rows, before)
            end()
            table.commit(8.0)  # nothing is pending any more
        assert_row(table.rows[0], kept, late)

    def test_without_a_scaler_gradients_count_at_once(self, assert_row):
        table = GradientTable(["a"])
        GradientArrival(table, 0)(torch.ones(2))
        table.discard()
        table.commit(99.0)
        assert_row(table.rows[0], torch.ones(2))

    def test_not_listening(self):
        table = GradientTable(["a"])
        table.listening = False
        GradientArrival(table, 0)(torch.ones(2))
        assert table.read(table.rows) == ({}, ("a",))

    def test_reset_forgets_what_is_pending_too(self):
        table = GradientTable(["a"], loss_scaled=True)
        GradientArrival(table, 0)(torch.ones(2))
        table.reset()
        table.commit(1.0)
        assert table.read(table.rows) == ({}, ("a",))

    def test_gradients_that_were_never_finite(self):
        table = GradientTable(["a"])
        GradientArrival(table, 0)(torch.full((3,), math.nan))
        stats = gradient_stats(table.rows[0].tolist())
        assert (stats.calls, stats.count, stats.nonfinite_fraction) == (1, 0, 1.0)
        assert all(math.isnan(value) for value in (stats.norm, stats.norm_max, stats.rms, stats.mean))
        assert table.rows[0, Column.NORM] == 0


def step(table, optimizer, gradients, number=0):
    """Enter one optimizer step: {index: gradient}, None for a missing one."""
    present = {index: gradient for index, gradient in gradients.items() if gradient is not None}
    table.add_missing([index for index in gradients if index not in present])
    norms = read(list(present.values())).norms
    sizes = torch.tensor([gradient.numel() for gradient in present.values()], dtype=torch.float64)
    table.add(optimizer, torch.tensor(list(present)), norms, read(list(present.values()), zeros=True).zeros, sizes, number)


def test_parameter_table_equals_a_plain_loop():
    shapes, steps = [(3, 4), (4,), (2,)], 12
    history = [{i: torch.randn(shape).relu() for i, shape in enumerate(shapes)} for _ in range(steps)]
    history[2][1] = history[5][1] = None
    history[3][0][0, 0] = math.inf
    history[7][2][:] = math.nan
    table = ParameterTable(["a", "b", "c", "never"], n_optimizers=1)
    for number, gradients in enumerate(history):
        step(table, 0, gradients, number)
    stats, total_norm = table.read(table.pack())
    assert list(stats) == ["a", "b", "c"]
    for index, name in enumerate(stats):
        present = [gradients[index] for gradients in history if gradients[index] is not None]
        finite = [gradient for gradient in present if gradient.isfinite().all()]
        norms = [norm(gradient) for gradient in finite]
        of_updates = ("update_ratio", "update_ratio_max", "weight_norm", "weight_rms", "lost_fraction", "moved")
        values = asdict(stats[name])
        assert [values.pop(name) for name in of_updates] == [None] * 6
        assert values.pop("first_nonfinite_step") == {"a": 3, "b": None, "c": 7}[name]
        assert values == pytest.approx({
            "steps": len(finite), "norm": np.mean(norms), "norm_max": max(norms),
            "rms": np.sqrt(np.mean(torch.cat([gradient.flatten() for gradient in finite]).double().square().numpy())),
            "zero_fraction": np.mean(torch.cat([gradient.flatten() for gradient in present]).numpy() == 0),
            "nonfinite_steps": len(present) - len(finite), "missing_steps": steps - len(present),
        }, rel=1e-6)  # fmt: skip
    totals = [math.hypot(*(norm(g) for g in gradients.values() if g is not None)) for gradients in history]
    assert total_norm == pytest.approx(np.mean([total for total in totals if math.isfinite(total)]))


def test_total_norm_of_several_optimizers():
    table = ParameterTable(["a", "b"], n_optimizers=3)
    step(table, 0, {0: torch.tensor([3.0])})
    step(table, 0, {0: torch.tensor([5.0])})
    step(table, 1, {1: torch.tensor([3.0])})
    assert table.read(table.pack())[1] == pytest.approx(5.0)  # of means 4 and 3
    table.reset()
    stats, total = table.read(table.pack())
    assert stats == {}
    assert math.isnan(total)


def updates(*ratios):
    """Updates of these sizes, of weights of norm 1 with 4 elements."""
    return torch.tensor([ratios, [1.0] * len(ratios), [0.5] * len(ratios)], dtype=torch.float64)


def ratios_of(updates):
    return updates[0] / updates[1]


def test_update_ratios_average_over_finite_and_valid_steps():
    table = ParameterTable(["a", "b"], n_optimizers=1)
    both = torch.tensor([0, 1])
    table.add_updates(both, updates(0.1, math.nan))
    table.add_updates(both, updates(0.3, math.inf), valid=torch.tensor(True))
    table.add_updates(both, updates(9.0, 9.0), valid=torch.tensor(False))
    table.add_missing([1])
    stats, _ = table.read(table.pack())
    assert stats["a"].update_ratio == pytest.approx(0.2)
    assert stats["b"].update_ratio is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_update_ratios_are_exact_for_small_weights(dtype):
    before = [torch.randn(5, 4).to(dtype), torch.randn(7).to(dtype), torch.zeros(3, dtype=dtype)]
    after = [(weight + 0.1 * torch.randn_like(weight)).to(dtype) for weight in before]
    expected = [norm(new.double() - old.double()) / norm(old.double()) for new, old in zip(after[:2], before[:2], strict=True)]
    ratios = ratios_of(WeightSample(before).updates(after))
    assert ratios.dtype == torch.float64
    assert ratios[:2].tolist() == pytest.approx(expected, rel=1e-5)
    assert not torch.isfinite(ratios[2])


def test_update_ratio_of_a_large_weight_is_close():
    before = [torch.randn(1000, 1000), torch.randn(30, 3), torch.randn(64, 128, 3, 3).to(memory_format=torch.channels_last)]
    after = [weight + 1e-3 * torch.randn_like(weight) for weight in before]
    for ratio, new, old in zip(ratios_of(WeightSample(before).updates(after)).tolist(), after, before, strict=True):
        assert ratio == pytest.approx(norm(new - old) / norm(old), rel=0.08)


@pytest.mark.parametrize("when", ["before", "after", "always"])
def test_a_weight_whose_storage_is_freed_has_no_ratio_and_the_others_have_theirs(when, each_path):
    before = [torch.ones(4), torch.ones(3)]
    after = [torch.full((4,), 1.5), torch.ones(3)]
    if when != "after":
        before[1].untyped_storage().resize_(0)
    if when != "before":
        after[1].untyped_storage().resize_(0)
    ratios = ratios_of(WeightSample(before).updates(after))
    assert ratios.shape == (2,)
    assert math.isnan(ratios[1])
    assert ratios[0] == 0.5 or (when == "after" and each_path == "compiled")  # the kernels in C then measure none of them
