"""GradientTransform in a fit: against trainings whose gradients are changed by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_hooks import GradientTransform
from lightning_hooks.transforms.gradients import clamp_gradient
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer
from tests.support.reference import same_state
from tests.support.trainings import amp


class ByHand(Classifier):
    """Changes gradients after backward, where no scaler and no second micro-batch stand between."""

    def __init__(self, net: nn.Module, change: Any, **kwargs: Any) -> None:
        super().__init__(net, **kwargs)
        self.change = change

    def on_after_backward(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.grad is not None:
                parameter.grad = self.change(name, parameter.grad, self.current_epoch)


def pair(ours: list[Any], change: Any, net: Any = mlp, **kwargs: Any) -> tuple[Classifier, Classifier]:
    shape = (1, 6, 6) if net is ResidualCNN else (8,)
    found = []
    for callbacks, build in ((ours, Classifier), ([], lambda *a, **k: ByHand(*a, change=change, **k))):
        torch.manual_seed(0)
        model = build(net(), optimizer=torch.optim.Adam, lr=0.01)
        trainer(callbacks, max_epochs=3, **kwargs).fit(model, loader(shape))
        found.append(model)
    return found[0], found[1]


HAND = {
    "scale": (
        {"transform": "scale", "factor": 0.25, "parameters": "net.0.*"},
        lambda name, g, epoch: g * 0.25 if name.startswith("net.0.") else g,
    ),
    "scheduled": (
        {"transform": "scale", "factor": {1: -0.5, 2: 2.0}, "parameters": ["*.weight"]},
        lambda name, g, epoch: g * (1.0, -0.5, 2.0)[epoch] if name.endswith("weight") else g,
    ),
    "zero": ({"transform": "zero", "parameters": "net.2.bias"}, lambda name, g, epoch: g * 0 if name == "net.2.bias" else g),
    "clamp": ({"transform": "clamp", "factor": 0.003, "parameters": "*"}, lambda name, g, epoch: g.clamp(-0.003, 0.003)),
    "function": (
        {"transform": lambda g: g.sign(), "parameters": lambda name, p: p.dim() == 2},
        lambda name, g, epoch: g.sign() if g.dim() == 2 else g,
    ),
    "function of the factor": (
        {"transform": lambda g, factor: g * factor + g * g, "factor": lambda epoch: 1.0 + epoch, "parameters": "*"},
        lambda name, g, epoch: g * (1.0 + epoch) + g * g,
    ),
}


@pytest.mark.parametrize("case", HAND)
def test_parameters_train_as_if_changed_by_hand(case: str) -> None:
    arguments, change = HAND[case]
    transform = GradientTransform(**arguments)
    ours, hand = pair([transform], change)
    assert ours.losses == hand.losses
    assert same_state(ours, hand)
    assert not any(hook_counts(ours).values())


@pytest.mark.parametrize("net", [mlp, ResidualCNN])
def test_at_a_modules_output_everything_before_it_changes(net: Any) -> None:
    """Half the gradient at the last layer but one is half of every gradient before it, in-place operations and all."""
    site = "net.act2" if net is ResidualCNN else "net.3"
    after = ("net.head",) if net is ResidualCNN else ("net.4",)
    ours, hand = pair(
        [GradientTransform(transform="scale", factor=0.5, modules=site)],
        lambda name, g, epoch: g if name.startswith(after) else g * 0.5,
        net,
    )
    for key, value in ours.state_dict().items():
        torch.testing.assert_close(value, hand.state_dict()[key], rtol=1e-5, atol=1e-6)
    plain = pair([], lambda name, g, epoch: g, net)[0]
    assert not same_state(plain, ours)


class Reversed(Classifier):
    """Two heads on one body, the second behind a reversed gradient, as for domain adaptation."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__(nn.Linear(8, 4))
        self.reverse, self.head, self.domain, self.by_hand = nn.Identity(), nn.Linear(4, 3), nn.Linear(4, 2), by_hand

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features = self.net(batch[0])
        other = self.reverse(features)
        if self.by_hand:
            other = 2 * features.detach() - features  # its value, and minus its gradient
        loss = nn.functional.cross_entropy(self.head(features), batch[1])
        return loss + nn.functional.cross_entropy(self.domain(other), batch[1] % 2)


def test_gradient_reversal_behind_an_identity_touches_that_branch_alone() -> None:
    found = []
    for ours in ([GradientTransform(transform="scale", factor=-1.0, modules="reverse")], []):
        torch.manual_seed(0)
        model = Reversed(by_hand=not ours)
        trainer(ours).fit(model, loader())
        found.append(model.state_dict())
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", ["clamp", "noise", "function"])
@pytest.mark.parametrize("where", ["parameters", "modules"])
def test_the_loss_scale_leaves_no_trace(transform: str, where: str) -> None:
    found = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        arguments: dict[str, Any] = {"transform": transform, "factor": 0.002}
        if transform == "function":
            arguments = {"transform": lambda g: g.sign() * 0.001}
        ours = GradientTransform(**arguments, **({"parameters": "*"} if where == "parameters" else {"modules": "net.0"}))
        model = Classifier(mlp(), lr=0.05)
        trainer([ours], plugins=amp(scale)).fit(model, loader())
        found.append(model.state_dict())
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], rtol=1e-2, atol=2e-4)


class Overflows(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.inf if batch_idx == 2 else loss


@pytest.mark.parametrize("arguments", [{"transform": "clamp", "factor": 0.1}, {"transform": "scale", "factor": 0.0}])
def test_an_overflow_still_skips_the_step(arguments: dict[str, Any]) -> None:
    weights: list[Tensor] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            weights.append(pl_module.net[4].weight.detach().clone())

    plugin = amp(1024.0)
    trainer([GradientTransform(**arguments, parameters="*"), Look()], plugins=plugin).fit(Overflows(mlp()), loader())
    assert torch.equal(weights[1], weights[2])
    assert torch.isfinite(weights[-1]).all()
    assert plugin.scaler.get_scale() == 512.0


def noise(**kwargs: Any) -> GradientTransform:
    return GradientTransform(transform="noise", parameters="*", **{"factor": 0.01, **kwargs})


def test_noise_leaves_the_generators_alone_and_follows_its_seed(tmp_path: Path) -> None:
    def fit(ours: list[Any], **kwargs: Any) -> tuple[Classifier, Tensor]:
        torch.manual_seed(0)
        model = Classifier(ResidualCNN())  # its dropout draws too
        trainer(ours, max_epochs=2).fit(model, loader((1, 6, 6)), **kwargs)
        return model, torch.get_rng_state()

    plain, rng = fit([])
    none, _ = fit([noise(factor=0.0)])
    one, rng_with = fit([noise()])
    again, _ = fit([noise()])
    other, _ = fit([noise(seed=1)])
    assert same_state(plain, none)
    assert torch.equal(rng, rng_with)
    assert same_state(one, again)
    assert not same_state(one, other)
    assert not same_state(one, plain)


def test_noise_is_fresh_at_each_step_and_parameter() -> None:
    draws: dict[str, list[Tensor]] = {}

    class Flat(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return 0.0 * self.net(batch[0]).sum()

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            for name, parameter in self.named_parameters():
                draws.setdefault(name, []).append(parameter.grad.clone())

    trainer([noise()], max_epochs=2, accumulate_grad_batches=2).fit(Flat(mlp(width=64)), loader(n=32))
    found = [draw.flatten()[:192] for entries in draws.values() for draw in entries if draw.numel() >= 192]
    assert len(found) == 4 * 3  # steps, and parameters large enough
    for i, one in enumerate(found):
        assert one.std() == pytest.approx(0.01 * 2**0.5, rel=0.25)  # two micro-batches, a draw each
        for other in found[:i]:
            assert abs(torch.corrcoef(torch.stack((one, other)))[0, 1]) < 0.3


@pytest.mark.parametrize("at", [(0, 3), (1, 2)])
def test_a_resumed_run_draws_what_the_uninterrupted_one_does(at: tuple[int, int], tmp_path: Path) -> None:
    def fit(callbacks: list[Any], **kwargs: Any) -> Classifier:
        torch.manual_seed(0)
        model = Classifier(mlp())
        trainer([noise(factor={0: 0.01, 1: 0.1}), *callbacks], max_epochs=2).fit(model, Batches((8,)), **kwargs)
        return model

    whole = fit([])
    with pytest.raises(SystemExit):
        fit([SaveAt(tmp_path / "at.ckpt", *at)])
    assert same_state(fit([], ckpt_path=tmp_path / "at.ckpt", weights_only=True), whole)


def test_each_micro_batch_is_changed() -> None:
    bound = 0.002
    torch.manual_seed(0)
    model = Classifier(mlp())
    reference, total = copy.deepcopy(model.net), {}
    batches = list(loader())[:2]
    for x, y in batches:
        reference.zero_grad()
        (nn.functional.cross_entropy(reference(x), y) / 2).backward()
        for name, parameter in reference.named_parameters():
            total[name] = total.get(name, 0) + clamp_gradient(parameter.grad, bound)
    trainer(
        [GradientTransform(transform="clamp", factor=bound, parameters="*")], accumulate_grad_batches=2, limit_train_batches=2
    ).fit(model, loader())
    for name, parameter in model.net.named_parameters():
        torch.testing.assert_close(parameter.detach(), reference.get_parameter(name).detach() - 0.1 * total[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_compiled_models() -> None:
    class Plain(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def fit(compile_it: bool, **kwargs: Any) -> Plain:
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Plain(mlp(), lr=0.01)
        if compile_it:
            model.net.compile(backend="aot_eager")
        trainer([GradientTransform(transform="scale", factor={0: 0.5, 1: 3.0}, **kwargs)], max_epochs=2).fit(model, loader(n=48))
        return model

    plain, compiled = (fit(compile_it, parameters="net.0.*") for compile_it in (False, True))
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(value, compiled.state_dict()[key], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"'net.0' runs under torch.compile.*Select a module outside of it, or use parameters="):
        fit(True, modules="net.0")
    torch.compiler.reset()


def test_the_factor_is_logged_each_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = [
        GradientTransform(transform="scale", factor={1: 0.5}, parameters="net.0.*"),
        GradientTransform(transform="scale", factor=2.0, parameters="net.2.*", name="double"),
        GradientTransform(transform="zero", parameters="net.4.*", name="head"),
    ]
    with caplog.at_level("INFO"):
        fit = trainer(ours, max_epochs=2, logger=CSVLogger(tmp_path))
        fit.fit(Classifier(mlp()), loader())
    assert "GradientTransform alters training: scale of the gradients of parameters 'net.0.*'." in caplog.text
    assert fit.callback_metrics["gradient_transform/scale/factor"] == 0.5
    assert fit.callback_metrics["gradient_transform/double/factor"] == 2.0
    assert torch.isnan(fit.callback_metrics["gradient_transform/head/factor"])
    header, *rows = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    column = header.split(",").index("gradient_transform/scale/factor")
    assert [value for row in rows if (value := row.split(",")[column])] == ["nan", "0.5"]


BAD = [
    (
        {"transform": "halve", "parameters": "*"},
        ValueError,
        "transform must be one of scale, zero, clamp, noise, or a function.*'halve'",
    ),
    ({"transform": "zero"}, ValueError, "needs parameters="),
    ({"transform": "scale", "parameters": "*"}, ValueError, "transform='scale' needs a factor"),
    ({"transform": "zero", "factor": 0.0, "parameters": "*"}, ValueError, "'zero' takes no factor; got 0.0. For a schedule use"),
    ({"transform": "clamp", "factor": 0.0, "parameters": "*"}, ValueError, "factor must be above 0 and finite; got 0.0"),
    ({"transform": "noise", "factor": -1, "parameters": "*"}, ValueError, "factor must be at least 0 and finite; got -1"),
    ({"transform": "scale", "factor": "1", "parameters": "*"}, TypeError, "factor must be a number.*got '1'"),
    ({"transform": "zero", "parameters": 3}, TypeError, "parameters must be a glob pattern.*got 3"),
    ({"transform": "zero", "modules": 3}, TypeError, "modules must be a glob pattern.*got 3"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GradientTransform(**arguments)


def test_what_matches_nothing_ends_the_fit() -> None:
    model = Classifier(mlp())
    with pytest.raises(ValueError, match=r"parameters='net.0' matches no parameter.*Closest names: 'net.0.weight', 'net.0.bias'"):
        trainer([GradientTransform(transform="zero", parameters="net.0")]).fit(model, loader())
    with pytest.raises(ValueError, match="modules='nat' matches no module"):
        trainer([GradientTransform(transform="zero", parameters="*", modules="nat")]).fit(model, loader())
    assert not any(hook_counts(model).values())
