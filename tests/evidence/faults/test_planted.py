"""The faults are there: what each training has that its twin has not, seen without any monitor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from lightning_hooks.alerts import ALERT_KINDS
from tests.evidence.faults.catalogue import CASES, FAULTS, HEALTHY
from tests.evidence.faults.recorder import Recorder
from tests.evidence.faults.training import build, train
from tests.evidence.faults.zoo import Built

# Kinds of faults for which no rule exists, and may never: they stay in the table.
KINDS_TO_COME = {
    "spike", "update_too_small", "update_too_large", "poor_init", "not_optimized", "not_zeroed", "oscillation", "shift",
    "validation_shift", "shared", "double_softmax",
}  # fmt: skip


def modules(built: Built) -> dict[str, nn.Module]:
    return dict(built.module.named_modules())


def batch(built: Built) -> Any:
    return next(iter(built.data["train_dataloaders"]))


def outputs(built: Built) -> dict[str, Tensor]:
    """What each module puts out for the first batch, before any training."""
    seen: dict[str, Tensor] = {}
    for name, module in built.module.named_modules():
        module.register_forward_hook(
            lambda m, a, out, name=name: seen.update({name: out.detach()}) if isinstance(out, Tensor) else None
        )
    built.module.net(batch(built)[0])
    return seen


def without_gradient(built: Built) -> set[str]:
    """The parameters that the loss of the first batch does not reach."""
    built.module.training_step(batch(built), 0).backward()
    return {name for name, p in built.module.named_parameters() if p.grad is None}


def scale_of(layer: str) -> Callable[[Built], float]:
    return lambda built: modules(built)[layer].weight.std().item()  # type: ignore[operator,union-attr]


def test_there_are_enough_of_all_kinds() -> None:
    assert len(FAULTS) >= 28
    assert len(HEALTHY) >= 18
    assert {case.family for case in FAULTS.values()} >= {"MLP", "CNN", "ResNet", "LSTM", "transformer", "VAE", "GAN"}


@pytest.mark.parametrize("name", CASES)
def test_expectations_are_sensible(name: str) -> None:
    for seed in range(5):
        built = build(CASES[name], seed)
        expected, names = built.expected, {*modules(built), *dict(built.module.named_parameters())}
        assert bool(expected.kinds) is not CASES[name].healthy
        assert set(expected.kinds) <= {*ALERT_KINDS, *KINDS_TO_COME}
        right = {site for site in names if expected.right_site(site)}
        assert bool(right) is (expected.sites is not None)
        assert len(names - right) >= 4, "a site that is everywhere says nothing"
        loader = built.data["train_dataloaders"]
        if not isinstance(getattr(loader, "dataset", None), IterableDataset):  # others have no length
            assert expected.batch is None or expected.batch // len(loader) == expected.epoch


def test_a_seed_decides_everything() -> None:
    one, two, other = (train(build(HEALTHY["dropout"], seed))[0] for seed in (0, 0, 1))
    assert one == two != other


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "layer", "factor"), [("init_times_10", "conv{}", 10), ("init_divided_by_10", "fc{}", 0.1)])
def test_initial_weights(name: str, layer: str, factor: float, seed: int) -> None:
    layer = "net." + layer.format(seed + (name == "init_divided_by_10"))
    faulty, clean = (scale_of(layer)(build(FAULTS[name], seed, planted)) for planted in (True, False))
    assert faulty == pytest.approx(factor * clean)
    assert build(FAULTS[name], seed).expected.right_site(layer)


@pytest.mark.parametrize("planted", [True, False])
def test_unnormalised_pixels_saturate_the_first_tanh(planted: bool) -> None:
    seen = outputs(build(FAULTS["unnormalised_tanh"], 0, planted))
    share = (seen["net.act0"].abs() > 0.99).float().mean()
    assert share > 0.7 if planted else share < 0.01


@pytest.mark.parametrize("planted", [True, False])
def test_large_queries_make_attention_choose_one(planted: bool) -> None:
    largest = outputs(build(FAULTS["attention_saturated"], 0, planted))["net.blocks.0.attention.softmax"][:, :, 8:].amax(-1)
    assert largest.mean() > 0.9 if planted else largest.mean() < 0.3


def test_logits_are_far_too_large() -> None:
    faulty, clean = (modules(build(FAULTS["large_queries_and_keys"], 0, planted)) for planted in (True, False))
    weights: Any = (found["net.blocks.0.attention.qkv"].weight for found in (faulty, clean))
    large, usual = weights
    assert torch.equal(large[:64], 10 * usual[:64])
    assert torch.equal(large[64:], usual[64:])
    scales: Any = (modules(build(FAULTS["wrong_scale"], 0, planted))["net.blocks.0.attention"].scale for planted in (True, False))
    assert tuple(scales) == (64, pytest.approx(8**-0.5))


@pytest.mark.parametrize("planted", [True, False])
def test_the_generator_s_layer_is_dead(planted: bool) -> None:
    built = build(FAULTS["gan_dead_generator"], 0, planted)
    alive = built.module.net["generator"][:4](torch.randn(256, 16)).amax() > 0  # type: ignore[index]
    assert bool(alive) is not planted


@pytest.mark.parametrize(("name", "cut"), [("detach_in_the_middle", "net.stem.weight"), ("unused_branch", "net.local.conv.weight")])
def test_the_path_is_cut(name: str, cut: str) -> None:
    found = without_gradient(build(FAULTS[name], 0))
    assert cut in found
    assert all(build(FAULTS[name], 0).expected.right_site(parameter) for parameter in found)
    assert not without_gradient(build(FAULTS[name], 0, planted=False))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_layer_is_in_no_optimizer(seed: int) -> None:
    for planted in (True, False):
        built = build(FAULTS["not_in_optimizer"], seed, planted)
        held = {id(p) for group in built.module.configure_optimizers().param_groups for p in group["params"]}  # type: ignore[union-attr]
        forgotten = [name for name, p in built.module.named_parameters() if id(p) not in held]
        assert bool(forgotten) is planted
        assert all(built.expected.right_site(name) for name in forgotten)


def test_four_layers_are_one() -> None:
    faulty, clean = (len(list(build(FAULTS["shared_weights"], 0, planted).module.parameters())) for planted in (True, False))
    assert clean - faulty == 2 * 3


@pytest.mark.parametrize("planted", [True, False])
def test_clipping_too_early_clips_nothing(planted: bool) -> None:
    taken: list[float] = []
    built, recorder = build(FAULTS["clip_in_training_step"], 0, planted), Recorder()
    configured = built.module.configure_optimizers

    def configure() -> Any:
        optimizer = configured()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]  # type: ignore[union-attr]
        optimizer.register_step_post_hook(  # type: ignore[union-attr]
            lambda *_: taken.append(torch.stack([p.grad.norm() for p in parameters]).norm().item())
        )
        return optimizer

    built.module.configure_optimizers = configure  # type: ignore[method-assign]
    train(built._replace(kwargs={**built.kwargs, "max_epochs": 1}), [recorder])
    assert max(taken) > 0.2 if planted else max(taken) < 0.1001


@pytest.mark.parametrize("planted", [True, False])
def test_modes_and_statistics_are_planted(planted: bool) -> None:
    assert modules(build(FAULTS["body_in_eval_mode"], 0, planted))["net.body.drop0"].training is not planted
    switched = build(FAULTS["never_back_in_train_mode"], 0, planted)
    train(switched._replace(kwargs={**switched.kwargs, "max_epochs": 2}))
    assert switched.module.net.training is not planted  # type: ignore[union-attr]
    for name in ("frozen_body_follows", "frozen_resnet_follows"):
        built = build(FAULTS[name], 0, planted)
        statistics = {key: value.clone() for key, value in built.module.net.state_dict().items() if "running_mean" in key}  # type: ignore[union-attr]
        train(built._replace(kwargs={**built.kwargs, "max_epochs": 1}))
        after = built.module.net.state_dict()  # type: ignore[union-attr]
        assert all(torch.equal(value, after[key]) is not planted for key, value in statistics.items())
        assert not any(p.requires_grad for key, p in built.module.named_parameters() if "head" not in key)


@pytest.mark.parametrize("planted", [True, False])
def test_settings_are_planted(planted: bool) -> None:
    assert len(batch(build(FAULTS["batchnorm_of_two"], 0, planted))[0]) == (2 if planted else 16)
    assert modules(build(FAULTS["layernorm_eps"], 1, planted))["net.blocks.1.norm0"].eps == (1e5 if planted else 1e-5)


@pytest.mark.parametrize(("name", "hidden"), [("blocks_in_a_list", "blocks"), ("heads_in_a_dictionary", "heads")])
def test_modules_are_in_plain_containers(name: str, hidden: str) -> None:
    faulty, clean = (build(FAULTS[name], 0, planted).module.state_dict() for planted in (True, False))
    assert {key for key in clean if key not in faulty} == {key for key in clean if key.startswith(f"net.{hidden}.")} != set()


@pytest.mark.parametrize("planted", [True, False])
def test_labels_are_ignored(planted: bool) -> None:
    masked = batch(build(FAULTS["labels_masked"], 0, planted))["labels"] == -100
    assert masked.float().mean() == (1.0 if planted else 0.5)
    sorted_by_class = [y for _, y in build(FAULTS["ignored_class"], 0, planted).data["train_dataloaders"]]
    assert any(bool((y == 0).all()) for y in sorted_by_class) is planted


@pytest.mark.parametrize("planted", [True, False])
@pytest.mark.parametrize(("name", "different"), [("workers_repeat", 22), ("buffer_not_filled", 1)])
def test_batches_come_again(name: str, different: int, planted: bool) -> None:
    seen = [x for x, _ in build(FAULTS[name], 0, planted).data["train_dataloaders"]]
    repeated = sum(torch.equal(one, other) for one, other in itertools.pairwise(seen))
    assert len({x.numpy().tobytes() for x in seen}) == (different if planted else 22)
    assert repeated == (len(seen) - different if planted else 0)


@pytest.mark.parametrize("planted", [True, False])
def test_tokens_reach_few_experts(planted: bool) -> None:
    for name, least in (("router_starts_collapsed", 6), ("experts_out_of_reach", 2)):
        built = build(FAULTS[name], 0, planted)
        logits = outputs(built)["net.mixtures.0.gate"]
        chosen = logits.topk(2, -1).indices.flatten().bincount(minlength=8)
        assert (int((chosen == 0).sum()) >= least) is planted
    assert (build(FAULTS["balance_with_wrong_sign"], 0, planted).module.weight < 0) is planted


@pytest.mark.parametrize("planted", [True, False])
def test_modern_faults_are_planted(planted: bool) -> None:
    groups: Any = build(FAULTS["logits_grow"], 0, planted).module.configure_optimizers()
    rates = {group["lr"] for group in groups.param_groups}
    assert len(rates) == (2 if planted else 1)
    sparse = build(FAULTS["balance_without_gradient"], 0, planted)
    assert sparse.module.detached is planted
    assert without_gradient(build(FAULTS["positions_not_added"], 0, planted)) == ({"net.position.weight"} if planted else set())
    optimizer: Any = build(FAULTS["discriminator_too_strong"], 0, planted).module.configure_optimizers()
    assert optimizer[1].param_groups[0]["lr"] == (5e-2 if planted else 5e-3)


@pytest.mark.parametrize("name", ["zero_init", "negative_bias"])
def test_harm_is_done(name: str) -> None:
    """A sample; ``make faults`` looks at every family and seed."""
    case = FAULTS[name]
    faulty, clean = (train(build(case, 3, planted))[0] for planted in (True, False))
    assert case.hurts is not None
    assert case.hurts(faulty, clean)
    assert clean.score >= case.reaches


@pytest.mark.parametrize("name", ["natural_sparsity", "early_convergence"])
def test_healthy_ones_learn(name: str) -> None:
    """A sample, likewise."""
    outcome, _ = train(build(HEALTHY[name], 3))
    assert outcome.score >= HEALTHY[name].reaches
    assert outcome.finite
    assert outcome.last_loss < 0.7 * outcome.first_loss
