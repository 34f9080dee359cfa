"""Clipping policies against torch, slow loops, numpy and the papers in plain Python."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.clipping.policies import (
    AGC,
    POLICIES,
    AutoClip,
    GlobalNorm,
    PerTensor,
    Value,
    ZClip,
    agc_factor,
    make_policy,
    unit_norms,
)

DOUBLE = torch.float64
CPU = torch.device("cpu")
ADAPTIVE = [GlobalNorm(0.7), AGC(0.02), ZClip(z=1.5, warmup=3), AutoClip(percentile=30, window=4)]


def total(gradients):
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


def clip(policy, gradients, parameters=None, state=None):
    """Apply a policy to copies; returns the clipped gradients and the next state."""
    parameters = parameters if parameters is not None else [torch.ones_like(gradient) for gradient in gradients]
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]).to(DOUBLE)
    state = policy.initial(CPU, DOUBLE) if state is None else state
    factors, state = policy.factors(gradients, parameters, norms, state)
    return [gradient * factor.to(gradient.dtype) for gradient, factor in zip(gradients, factors, strict=True)], state


def run(policy, norms):
    """The norms after clipping of a sequence of one-element gradients, and the last state."""
    after, state = [], None
    for norm in norms:
        (clipped,), state = clip(policy, [torch.tensor([norm], dtype=DOUBLE)], state=state)
        after.append(clipped.abs().item())
    return after, state


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 5.0, 1e4])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_global_norm_equals_torch(max_norm, scale):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, dtype=DOUBLE)) for shape in [(3, 4), (5,), ()]]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * scale
    ours, _ = clip(GlobalNorm(max_norm), [parameter.grad.clone() for parameter in parameters], parameters)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    for clipped, parameter in zip(ours, parameters, strict=True):
        torch.testing.assert_close(clipped, parameter.grad, rtol=1e-14, atol=0)


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 2, 2), (7,), ()])
def test_agc_equals_a_loop_over_units(shape):
    torch.manual_seed(0)
    weight, gradient = torch.randn(shape, dtype=DOUBLE), torch.randn(shape, dtype=DOUBLE)
    if weight.dim() > 1:
        weight[0] = 0  # its norm counts as eps
        gradient[1] = 0
        gradient[2] *= 1e-3  # small enough
    expected = gradient.clone()
    units = range(shape[0]) if len(shape) > 1 else [...]
    for unit in units:
        allowed = 0.01 * max(np.linalg.norm(weight[unit].numpy().ravel()), 1e-3)
        norm = np.linalg.norm(gradient[unit].numpy().ravel())
        if norm > allowed:
            expected[unit] = gradient[unit] * (allowed / norm)
    (clipped,), _ = clip(AGC(), [gradient], [weight])
    torch.testing.assert_close(clipped, expected, rtol=1e-12, atol=1e-15)
    assert (clipped != gradient).any()


def test_agc_leaves_a_unit_that_is_not_finite_alone():
    gradient = torch.tensor([[math.inf, 1.0], [5.0, 0.0]])
    (clipped,), _ = clip(AGC(), [gradient], [torch.ones(2, 2)])
    assert torch.equal(clipped[0], gradient[0])
    assert clipped[1].norm().item() == pytest.approx(0.01 * math.sqrt(2))


def zclip_of_the_paper(norms, z_threshold, alpha, warmup):
    """Kumar et al. 2025 (arXiv:2504.02507), algorithm 1 with reciprocal clipping, for a list of norms."""
    after, seen, mean, variance = [], [], 0.0, 0.0
    for norm in norms:
        if not math.isfinite(norm):
            after.append(norm)
            continue
        if len(seen) < warmup:
            seen.append(norm)
            after.append(norm)
            mean, variance = float(np.mean(seen)), float(np.var(seen))
            continue
        z = (norm - mean) / (math.sqrt(variance) + 1e-6)
        kept = mean + z_threshold**2 / z * math.sqrt(variance) if z > z_threshold else norm
        mean = alpha * mean + (1 - alpha) * kept
        variance = alpha * variance + (1 - alpha) * (kept - mean) ** 2
        after.append(kept)
    return after, mean, variance


@pytest.mark.parametrize("scale", [1.0, 1e-7])
@pytest.mark.parametrize(("z", "alpha", "warmup"), [(2.5, 0.97, 25), (1.5, 0.8, 3), (3.0, 0.5, 1)])
def test_zclip_equals_the_paper(z, alpha, warmup, scale):
    generator = np.random.default_rng(0)
    norms = (generator.gamma(9.0, size=80) * scale).tolist()
    norms[40] *= 50
    norms[41], norms[60] = math.inf, math.nan
    norms[2] *= 20  # while warming up: not clipped
    expected, mean, variance = zclip_of_the_paper(norms, z, alpha, warmup)
    after, state = run(ZClip(z=z, alpha=alpha, warmup=warmup), norms)
    assert after == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert after[40] < norms[40]
    assert state["steps"] == 78
    assert [state["mean"].item(), state["variance"].item()] == pytest.approx([mean, variance], rel=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e-8])
@pytest.mark.parametrize(("percentile", "window"), [(10.0, 1000), (50.0, 5), (100.0, 7), (90.0, 1)])
def test_autoclip_equals_numpy_percentiles(percentile, window, scale):
    norms = (np.random.default_rng(0).gamma(2.0, size=40) * scale).tolist()
    norms[0], norms[13] = math.nan, math.inf
    history, expected = [], []
    for norm in norms:
        if math.isfinite(norm):
            history = [*history, norm][-window:]
            norm = min(norm, float(np.percentile(history, percentile)))
        expected.append(norm)
    after, state = run(AutoClip(percentile=percentile, window=window), norms)
    assert after == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert state["steps"] == 38
    assert sorted(state["history"][~state["history"].isnan()].tolist()) == pytest.approx(sorted(history))


@pytest.mark.parametrize("policy", ADAPTIVE, ids=lambda policy: policy.name)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_leaves_gradients_and_state_alone(policy, bad):
    _, state = clip(policy, [torch.tensor([3.0, 4.0])])
    gradient = torch.tensor([bad, 100.0])
    (clipped,), after = clip(policy, [gradient], state={key: value.clone() for key, value in state.items()})
    torch.testing.assert_close(clipped, gradient, rtol=0, atol=0, equal_nan=True)
    for key in state:
        torch.testing.assert_close(after[key], state[key], rtol=0, atol=0, equal_nan=True)


numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
gradient_lists = st.lists(st.lists(numbers, min_size=1, max_size=5), min_size=1, max_size=4)


@given(gradient_lists, st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_global_norm_holds_its_promise_and_is_idempotent(lists, max_norm):
    gradients = [torch.tensor(values, dtype=DOUBLE) for values in lists]
    policy = GlobalNorm(max_norm)
    once, _ = clip(policy, gradients)
    assert total(once) <= max_norm * (1 + 1e-9)
    twice, _ = clip(policy, once)
    assert total(twice) == pytest.approx(total(once), rel=2e-6 / max_norm + 1e-9)


@given(st.lists(gradient_lists, min_size=1, max_size=6), st.sampled_from(ADAPTIVE))
@settings(deadline=None)
def test_no_policy_ever_increases_or_turns_a_gradient(steps, policy):
    state = None
    for lists in steps:
        gradients = [torch.tensor(values, dtype=DOUBLE) for values in lists]
        parameters = [torch.full_like(gradient, 2.0) for gradient in gradients]
        clipped, state = clip(policy, gradients, parameters, state)
        for before, after in zip(gradients, clipped, strict=True):
            assert (after.abs() <= before.abs()).all()
            assert (after * before >= 0).all()


@given(st.lists(numbers, min_size=1, max_size=12), st.floats(1e-2, 1.0))
@settings(deadline=None)
def test_agc_holds_every_unit(values, clipping):
    gradient, parameter = torch.tensor([values, values[::-1]], dtype=DOUBLE), torch.ones(2, len(values), dtype=DOUBLE)
    after = gradient * agc_factor(gradient, parameter, clipping, 1e-3)
    assert (unit_norms(after) <= clipping * unit_norms(parameter) * (1 + 1e-9)).all()
    torch.testing.assert_close(after * agc_factor(after, parameter, clipping, 1e-3), after)


@pytest.mark.parametrize(
    ("name", "threshold", "policy"),
    [
        ("norm", 3.0, GlobalNorm(3.0)),
        ("norm", None, GlobalNorm(1.0)),
        ("value", 0.1, Value(0.1)),
        ("tensor", 2, PerTensor(2)),
        ("agc", 0.04, AGC(clipping=0.04)),
        ("zclip", None, ZClip(z=2.5, alpha=0.97, warmup=25)),
        ("zclip", 3, ZClip(z=3)),
        ("autoclip", 25, AutoClip(percentile=25)),
        (AGC(0.5), None, AGC(0.5)),
    ],
)
def test_make_policy(name, threshold, policy):
    made = make_policy(name, threshold)
    assert made == policy
    assert POLICIES[made.name] is type(policy)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: make_policy("nrom"), ValueError, "policy must be one of norm, value, tensor, agc, zclip, autoclip; got 'nrom'"),
        (lambda: make_policy(1.0), TypeError, "policy must be one of norm, .* or a policy object; got 1.0"),
        (lambda: make_policy(AGC(), 1.0), TypeError, r"threshold goes with a policy's name; AGC.* Remove threshold"),
        (lambda: make_policy("norm", 0.0), ValueError, "max_norm must be above 0; got 0.0"),
        (lambda: make_policy("value", -1), ValueError, "max_value must be above 0; got -1"),
        (lambda: make_policy("norm", "1"), TypeError, "max_norm must be a number above 0; got '1'"),
        (lambda: make_policy("agc", True), TypeError, "clipping must be a number above 0; got True"),
        (lambda: make_policy("tensor", math.nan), ValueError, "max_norm must be above 0; got nan"),
        (lambda: make_policy("autoclip", 101), ValueError, "percentile must be at most 100; got 101. The paper uses 10"),
        (lambda: AutoClip(window=0), ValueError, "window must be at least 1 step; got 0"),
        (lambda: AGC(eps=0.0), ValueError, "eps must be above 0; got 0.0"),
        (lambda: ZClip(alpha=1.0), ValueError, "alpha must be between 0 and 1; got 1.0. The paper uses 0.97"),
        (lambda: ZClip(warmup=0), ValueError, "warmup must be at least 1 step; got 0. The paper uses 25"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=message):
        make()
