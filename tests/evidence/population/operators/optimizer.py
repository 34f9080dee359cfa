"""Faults of the optimizer: its settings, and which parameters it has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.evidence.population.operators.fault import Group, Sites, Where, between, both, of, when
from tests.evidence.population.training import Training

fault = Group("optimizer")
plain_rate = when(lambda t: t.recipe.optimizer not in ("adadelta",))


uncycled = when(lambda t: t.recipe.schedule != "onecycle")
scaled_by_eps = when(lambda t: t.recipe.optimizer not in ("adadelta", "adagrad"))


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


def modules(t: Training) -> list[str]:
    """The direct parts of the model that train, of those that are not all of it."""
    if t.recipe.optimizer == "lbfgs":  # which has one group, and its own list of parameters
        return []
    trained = {id(p) for group in groups(t) for p in group["params"]}
    parts = [name for name, part in t.model.named_children() if any(id(p) in trained for p in part.parameters())]
    return parts if len(parts) > 1 else []


def spared(t: Training) -> list[str]:
    """Those of :func:`modules` without which each group keeps something; a tied head is an embedding, too."""
    parts = {name: {id(p) for p in t.model.get_submodule(name).parameters()} for name in modules(t) if not t.recipe.tied}
    return [name for name, own in parts.items() if all({id(p) for p in group["params"]} - own for group in groups(t))]


def left_out(t: Training, name: str) -> Sites:
    """Take a module's parameters out of the optimizers."""
    own = {id(p) for p in t.model.get_submodule(name).parameters()}
    for group in groups(t):
        group["params"] = [p for p in group["params"] if id(p) not in own]
    return of([name])


@fault(
    "in_no_optimizer idle_step", "make the optimizer of the model that is trained", when(lambda t: t.recipe.optimizer != "lbfgs")
)
def optimizer_of_an_old_model(t: Training, _: None) -> Sites:
    for group in groups(t):
        group["params"] = [copy.deepcopy(p.detach()).requires_grad_() for p in group["params"]]


@fault("group_too_fast rate_too_high", "give the group a usual rate", both(plain_rate, modules))
def part_too_fast(t: Training, name: str) -> Sites:
    ids, factor = {id(p) for p in t.model.get_submodule(name).parameters()}, between(t, 30, 300)
    for optimizer in t.optimizers:
        for group in list(optimizer.param_groups):
            fast, slow = ([p for p in group["params"] if (id(p) in ids) is flag] for flag in (True, False))
            if fast and slow:
                group["params"] = slow
                optimizer.add_param_group({**group, "params": fast, "lr": group["lr"] * factor})
            elif fast:
                group["lr"] = group["lr"] * factor
    return of([name])


def decay(t: Training) -> float:
    """Too large a one, of those that are multiplied by the rate or added to the gradient."""
    return between(t, 1, 60) if t.recipe.optimizer in ("adamw", "lion", "adafactor") else between(t, 0.1, 10)


# fmt: off
fault.by("rate_too_low", "raise the learning rate", plain_rate, rate_too_low=lambda t, _: rated(t, 1 / between(t, 50, 1e5)))
fault.by("unusual_setting rate_too_high", "set betas to 0.9 and 0.999", both(uncycled, having("betas")),
         betas_in_another_order=lambda t, _: put(t, betas=t.pick(((0.999, 0.9), (0.999, 0.999), (0.9999, 0.99)))),
         beta2_too_small=lambda t, _: put(t, betas=(0.9, t.pick((0.0, 0.1, 0.5)))))
fault.by("wrong_sign", "minimise", having("maximize"), maximize=lambda t, _: put(t, maximize=True))
fault.by("rate_too_high group_too_fast", "lower the learning rate", plain_rate,
         rate_too_high=lambda t, _: rated(t, between(t, 20, 400)))
fault.by("unusual_setting rate_too_high", "set momentum to 0.9", both(uncycled, having("momentum", lambda m: m > 0)),
         momentum_next_to_one=lambda t, _: put(t, momentum=t.pick((0.995, 0.999, 0.9999))))
fault.by("unusual_setting rate_too_low", "set eps to 1e-8", both(scaled_by_eps, having("eps", lambda eps: isinstance(eps, float))),
         eps_too_large=lambda t, _: put(t, eps=t.pick((0.1, 1.0, 100.0, 1e8))))
fault.by("in_no_optimizer", "give all parameters to the optimizer", spared, part_left_out=left_out)
fault.by("unusual_setting", "lower the weight decay", having("weight_decay"),
         decay_too_large=lambda t, _: put(t, weight_decay=decay(t)))
fault.by("never_zeroed", "set the gradients to zero after each step", stage="training",
         zero_grad_forgotten=lambda t, _: setattr(t.loop, "zero_grad", False))
fault.by("never_zeroed idle_step", "set the gradients to zero after the step, not before it", stage="training",
         zero_grad_before_the_step=lambda t, _: t.loop.before_step.append(lambda t, _: t.model.zero_grad(set_to_none=False)))
