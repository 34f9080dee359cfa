"""Faults of the optimizer: its settings, and which parameters it has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.evidence.population.operators.fault import Sites, Where, between, both, fault, when
from tests.evidence.population.operators.model import inner
from tests.evidence.population.training import Training


def groups(t: Training) -> list[dict[str, Any]]:
    return [group for optimizer in t.optimizers for group in optimizer.param_groups]


def having(setting: str, check: Callable[[Any], bool] = lambda _: True) -> Where:
    """Where the optimizer has a setting, of this kind."""
    return when(lambda t: all(setting in group and check(group[setting]) for group in groups(t)))


def put(t: Training, **settings: Any) -> Sites:
    """Set these in all groups, also as what a schedule begins with."""
    for group in groups(t):
        group.update(settings)


def rated(t: Training, factor: float) -> Sites:
    """Other rates."""
    for group in groups(t):
        group["lr"] = group["lr"] * factor


plain_rate = when(lambda t: t.recipe.optimizer not in ("adadelta", "rprop"))


@fault("optimizer", "rate_too_high", "lower the learning rate", where=plain_rate, also=("group_too_fast",), code="lr=1e-3",
       harmless="rates that are a little high still learn")  # fmt: skip
def rate_too_high(t: Training, _: None) -> Sites:
    return rated(t, between(t, 20, 3000))


@fault("optimizer", "rate_too_low", "raise the learning rate", where=plain_rate, code="lr=1e-3")
def rate_too_low(t: Training, _: None) -> Sites:
    return rated(t, 1 / between(t, 50, 1e5))


@fault("optimizer", "unusual_setting", "set momentum to 0.9", where=having("momentum", lambda m: m > 0), code="momentum=0.9",
       also=("rate_too_high",))  # fmt: skip
def momentum_next_to_one(t: Training, _: None) -> Sites:
    return put(t, momentum=t.pick((0.995, 0.999, 0.9999)))


@fault("optimizer", "unusual_setting", "set betas to 0.9 and 0.999", where=having("betas"), code="betas=(0.9, 0.999)",
       harmless="short trainings bear it")  # fmt: skip
def betas_in_another_order(t: Training, _: None) -> Sites:
    return put(t, betas=t.pick(((0.999, 0.9), (0.999, 0.999), (0.9999, 0.99))))


@fault("optimizer", "unusual_setting", "set beta2 to 0.999", where=having("betas"), code="betas=(0.9, 0.999)",
       also=("rate_too_high",), harmless="it is RMSprop with a short memory")  # fmt: skip
def beta2_too_small(t: Training, _: None) -> Sites:
    return put(t, betas=(0.9, t.pick((0.0, 0.1, 0.5))))


@fault("optimizer", "unusual_setting", "set eps to 1e-8", where=having("eps", lambda eps: isinstance(eps, float)),
       also=("rate_too_low",), code="eps=1e-8")  # fmt: skip
def eps_too_large(t: Training, _: None) -> Sites:
    return put(t, eps=t.pick((0.1, 1.0, 100.0, 1e8)))


@fault("optimizer", "unusual_setting", "lower the weight decay", where=having("weight_decay"), code="weight_decay=0.01")
def decay_too_large(t: Training, _: None) -> Sites:
    decoupled = t.recipe.optimizer in ("adamw", "lion", "signum", "muon")
    return put(t, weight_decay=between(t, 3, 300) if decoupled else between(t, 0.1, 10))


@fault("optimizer", "wrong_sign", "minimise", where=having("maximize"), code="maximize=False")
def maximize(t: Training, _: None) -> Sites:
    return put(t, maximize=True)


def modules(t: Training) -> list[str]:
    """The direct parts of the model that train, of those that are not all of it."""
    trained = {id(p) for group in groups(t) for p in group["params"]}
    parts = [name for name, part in t.model.named_children() if any(id(p) in trained for p in part.parameters())]
    return parts if len(parts) > 1 else []


def left_out(t: Training, parameters: set[int]) -> None:
    """Take parameters out of the optimizers, which keep at least one."""
    for optimizer in t.optimizers:
        for group in optimizer.param_groups:
            kept = [p for p in group["params"] if id(p) not in parameters]
            group["params"] = kept or group["params"][:1]


@fault("optimizer", "in_no_optimizer", "give all parameters to the optimizer", where=modules, code="Adam(self.parameters())")
def part_left_out(t: Training, name: str) -> Sites:
    left_out(t, {id(p) for p in t.model.get_submodule(name).parameters()})
    return (f"{name}", f"{name}.*")


@fault("optimizer", "in_no_optimizer", "make the optimizer after the layer", where=inner, code="Adam(self.parameters())",
       harmless="one layer as it started may do")  # fmt: skip
def layer_left_out(t: Training, name: str) -> Sites:
    left_out(t, {id(p) for p in t.model.get_submodule(name).parameters()})
    return (f"{name}", f"{name}.*")


@fault("optimizer", "in_no_optimizer", "make the optimizer of the model that is trained", also=("idle_step",),
       code="optimizer = Adam(model.parameters())  # after model = Net()")  # fmt: skip
def optimizer_of_an_old_model(t: Training, _: None) -> Sites:
    for group in groups(t):
        group["params"] = [copy.deepcopy(p.detach()).requires_grad_() for p in group["params"]]


@fault("optimizer", "group_too_fast", "give the group a usual rate", where=both(plain_rate, modules), also=("rate_too_high",))
def part_too_fast(t: Training, name: str) -> Sites:
    ids, factor = {id(p) for p in t.model.get_submodule(name).parameters()}, between(t, 50, 3000)
    for optimizer in t.optimizers:
        for group in list(optimizer.param_groups):
            fast, slow = ([p for p in group["params"] if (id(p) in ids) is flag] for flag in (True, False))
            if fast and slow:
                group["params"] = slow
                optimizer.add_param_group({**group, "params": fast, "lr": group["lr"] * factor})
            elif fast:
                group["lr"] = group["lr"] * factor
    return (f"{name}", f"{name}.*")


@fault("optimizer", "never_zeroed", "set the gradients to zero after each step", stage="training", code="optimizer.zero_grad()")
def zero_grad_forgotten(t: Training, _: None) -> Sites:
    t.loop.zero_grad = False


@fault("optimizer", "never_zeroed", "set the gradients to zero after the step, not before it", stage="training",
       also=("idle_step", "rate_too_low"), code="loss.backward(); optimizer.step(); optimizer.zero_grad()")  # fmt: skip
def zero_grad_before_the_step(t: Training, _: None) -> Sites:
    def zero(training: Training, _: int) -> None:
        for p in training.model.parameters():
            if p.grad is not None:
                p.grad.zero_()

    t.loop.before_step.append(zero)
