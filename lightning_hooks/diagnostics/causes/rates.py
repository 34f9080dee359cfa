"""Causes in the settings of optimizers and of their schedules."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import (
    AGAINST,
    EXCLUDES,
    PROOF,
    SLIGHT,
    SOME,
    SOON,
    STRONG,
    CauseEvidence,
    Judgement,
    Remedy,
    Setting,
    possible_cause,
    rounded,
)
from lightning_hooks.diagnostics.causes.facts import Facts, Rate
from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.reports import is_scale_free
from lightning_hooks.diagnostics.setup.parameters import L2


class Range(NamedTuple):
    """The usual learning rates of a class of optimizers."""

    low: float
    typical: float
    high: float


_USUAL = {
    "SGD": Range(1e-4, 0.1, 1.0), "ASGD": Range(1e-4, 0.01, 1.0), "Adadelta": Range(0.05, 1.0, 2.0), "Rprop": Range(1e-4, 0.01, 1),
    "Adagrad": Range(1e-4, 0.01, 0.1), "Lion": Range(1e-6, 1e-4, 1e-3), "Muon": Range(1e-4, 0.02, 0.1), "LBFGS": Range(0.01, 1, 1),
}  # fmt: skip
_ADAM = Range(1e-5, 3e-3, 1e-2)  # of Adam and of what else divides by the size of the gradient
_UNKNOWN = Range(math.nan, math.nan, math.nan)
USUAL_UPDATE = 3e-3  # a usual share of a weight that a step changes


def usual(rate: Rate) -> Range:
    """The usual learning rates of a group's optimizer; NaN for a class that is not known."""
    found = _USUAL.get(rate.kind, _ADAM if is_scale_free(rate.optimizer) else _UNKNOWN)
    slower = 1 - min(rate.settings.momentum or 0.0, 0.99) if rate.kind == "SGD" else 1.0  # momentum adds up steps
    return found._replace(typical=rounded(found.typical * slower))


def set_to(rate: Rate, setting: str, now: Setting, to: Setting, effect: str = "steps of a usual size") -> Remedy:
    """Set a setting of a group."""
    shown = f"{to:g}" if isinstance(to, float) else to
    return Remedy("set", rate.of(setting), now, to, "", effect, SOON, f"torch.optim.{rate.kind}(…, {setting}={shown})")


def lower_rate(rate: Rate, facts: Facts) -> float:
    """A learning rate for steps of a usual size: by what a step gains and how much of a weight it changes; or a usual one."""
    known, ratio, gains = usual(rate), facts.largest_ratio(rate.optimizer, 1.0), facts.step_ratio  # larger ones ruin weights
    if rate.lr > known.high:
        return known.typical  # steps of this size say nothing about those of a usual one
    factors = [0.1, USUAL_UPDATE / ratio if ratio > 0 else 1.0, 1 / (2 * (1 - gains)) if gains < 0.5 else 1.0]
    lowest = min(known.low, rate.lr / 10) if known.low > 0 else rate.lr / 1000  # a step that ruins all weights has no size
    return rounded(max(rate.lr * min(factors), lowest))


@possible_cause("set optimizer.lr, by the size of its steps and the optimizer's usual range", "remove what raises it")
def rate_too_high(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The learning rate is too high."""
    rate = facts.rate_at(alert.site)
    if rate is None or not rate.lr > 0 or too_fast_group(facts) is not None:
        return None
    known, ratio, gains, began = usual(rate), facts.largest_ratio(rate.optimizer), facts.step_ratio, rate.began or math.inf
    over, range_ = rate.lr / known.high, f"{rate.kind}'s usual range is {known.low:g} to {known.high:g}"
    size = f"a step changes a weight by {ratio:.2g} of its size"
    others = ("update_too_large", "loss_diverging", "step_too_long", "loss_spike", "weights_growing")
    related = [kind for kind in facts.raised(*others) if kind != alert.kind]
    gained = f"its steps gain {gains:.2g} of what their gradients predict"
    found.add_all(
        (over > 1, STRONG if over > 5 else SOME, range_),
        (over <= 0.3 and not ratio > 1, AGAINST, f"{rate.lr:.3g} is usual for {rate.kind}"),
        (ratio > 0.02, STRONG if ratio > 1 else SOME, f"{size}, where {USUAL_UPDATE:g} is usual"),
        (ratio < 2 * USUAL_UPDATE and not related, AGAINST, f"{size}, which is usual"),
        (gains < 0.1, SOME, gained),
        (gains > 0.5, AGAINST, gained),
    )
    raised = rate.lr > 1.5 * began
    found.add_all(
        (raised, SOME, f"it began with {began:.2g} and was raised to {rate.lr:.2g}"),
        (bool(related), SLIGHT, f"{' and '.join(related)} {'is' if len(related) == 1 else 'are'} raised too"),
        (over <= 0.3 and bool(facts.magnified), AGAINST, facts.magnified),
        (facts.overflows, SLIGHT, "numbers grew from step to step until they overflowed"),
    )
    harmless = alert.severity == "info" and not (facts.flow.loss or NO_LOSS).nonfinite_steps
    found.add(harmless, EXCLUDES, "nothing shows that it does harm")
    to, effect = lower_rate(rate, facts), f"update ratios near {USUAL_UPDATE:g}, and a loss that falls"
    remedies = [set_to(rate, "lr", rate.lr, to, effect), set_to(rate, "lr", rate.lr, rounded(to / 10), effect)]
    if raised:
        raises = Remedy("remove", f"what raises {rate.target}", None, None, "no scheduler is configured", effect, SOON)
        remedies.insert(0, _without_schedule(facts) if facts.schedules else raises)
    return f"The learning rate is {rate.lr:.3g}{f'; {range_}' * (over > 1)}{f'; {size}' * (ratio > 0.02)}.", remedies


FASTER = 20  # how many times the rate of the others is unusual for a group: ten times theirs is usual for a new head


def too_fast_group(facts: Facts) -> tuple[Rate, float] | None:
    """The parameter group whose rate is :data:`FASTER` times that of the others or more, with theirs; None without one."""
    rates = facts.rates()
    if len(rates) < 2 or len({rate.kind for rate in rates}) > 1:
        return None
    fastest = max(rates, key=lambda rate: rate.lr)
    others = statistics.median(rate.lr for rate in rates if rate is not fastest)
    return (fastest, others) if 0 < FASTER * others <= fastest.lr else None


@possible_cause("set that group's lr to the others', or to a usual one")
def group_too_fast(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """One parameter group has a much higher learning rate than the others."""
    group, here = too_fast_group(facts), facts.rate_at(alert.site)
    if group is None:
        return None
    rate, others = group
    known, times, over = usual(rate), f"{rate.lr / others:.3g} times that of the others", rate.lr > usual(rate).high
    found.add(True, SOME, f"it is {times}")
    found.add(alert.kind == "not_loaded" and not over, EXCLUDES, "that is usual for a head, and low for the others")
    found.add(over, SOME, f"{rate.kind}'s usual range is {known.low:g} to {known.high:g}")
    found.add(here is not None and here.target == rate.target, SLIGHT, "it is the group of this site")
    values = [others, *([known.typical] if known.typical > 0 else [])]
    steep = [one for one in facts.rates() if one.lr > 10 * min(each.lr for each in facts.rates()) and one.lr > known.high]
    if len(steep) > 1 and "param_groups" in rate.target:  # rates that grow from group to group
        least = max(min(each.lr for each in facts.rates()), known.typical)
        found.add(True, SLIGHT, f"{len(steep)} groups are above {known.high:g}, which is usual at most")
        target, effect = ", ".join(one.target for one in steep), "update ratios like those of the others"
        all_of_them = Remedy("set", target, None, least, "", effect, SOON, f"lr={least:g}")
        return f"The learning rates of {len(steep)} groups are up to {times}.", [all_of_them, set_to(rate, "lr", rate.lr, others)]
    if over and "[" in rate.target.partition(".")[0]:  # an optimizer of its own
        values.insert(0, known.typical)
    text = f"The learning rate of {rate.target.removesuffix('.lr')} is {rate.lr:.3g}, {times}."
    return text, [set_to(rate, "lr", rate.lr, to, "update ratios like those of the others") for to in dict.fromkeys(values)]


@possible_cause("set optimizer.lr, by the size of its steps and the optimizer's usual range")
def rate_too_low(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The learning rate is too low."""
    rate = facts.rate_at(alert.site)
    if rate is None or not rate.lr > 0:
        return None
    ratio, known, gains = facts.usual_ratio(rate.optimizer), usual(rate), facts.step_ratio
    size, over = f"a step changes a weight by {ratio:.2g} of its size", facts.flow.over_constant
    small = ratio < USUAL_UPDATE / 10
    found.add_all(
        (small, SOME, f"{size}; {USUAL_UPDATE:g} is usual"),
        (small and over > 0.97, SLIGHT, f"the loss is still {over:.3g} of that of the best constant answer"),
        (rate.lr < known.low, SOME, f"{rate.kind}'s usual range is {known.low:g} to {known.high:g}"),
        (rate.lr >= known.typical, AGAINST, f"{rate.lr:.3g} is usual for {rate.kind}"),
        (gains > 0.99, SLIGHT, f"its steps gain {gains:.3g} of what their gradients predict"),
        (alert.severity == "info" and alert.kind != "step_too_short", EXCLUDES, "nothing shows that it does harm"),
        (bool(facts.raised("not_zeroed")), EXCLUDES, "steps do not follow the gradients"),
    )
    to = rate.lr * USUAL_UPDATE / ratio if ratio > 0 else math.nan
    most = known.high if math.isfinite(known.high) else 100 * rate.lr
    if rate.lr < known.low or not math.isfinite(to):
        to = known.typical if math.isfinite(known.typical) else most
    to = min(to, most)
    if to < 2 * rate.lr:  # it is no cure
        return None
    values = rounded(to), rounded(min(5 * to, most) if to < most else max(to / 10, 2 * rate.lr))
    text = f"The learning rate is {rate.lr:.3g}{f'; {size}' * math.isfinite(ratio)}."
    return text, [set_to(rate, "lr", rate.lr, value, f"update ratios near {USUAL_UPDATE:g}") for value in values]


# Schedules.


def _without_schedule(facts: Facts) -> Remedy:
    kinds = ", ".join(dict.fromkeys(schedule.name for schedule in facts.schedules))
    return Remedy("remove", "scheduler", kinds, None, "a scheduler is configured", "a rate that stays", SOON, "return optimizer")


HELD = 0.05  # share of the planned steps for which a rate near 0 is more than a schedule's end


@possible_cause("set the scheduler's length or interval", "remove the scheduler")
def wrong_schedule(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The schedule is over too early, has hardly begun, rises, or falls below zero."""
    rate = max(facts.rates(), key=lambda rate: rate.settings.low_steps, default=None)
    if rate is None:
        return None
    settings, schedule, planned, remedies = rate.settings, next(iter(facts.schedules), None), facts.setup.planned_steps, []
    lr, peak, initial, low = settings.lr or 0.0, settings.lr_peak or 0.0, settings.lr_initial or 0.0, settings.low_steps
    least = min(each.settings.lr or 0.0 for each in facts.rates())
    found.add_all(
        (least < 0, PROOF, f"it is {least:.2g} now: steps climb the loss"),
        (low >= max(HELD * (planned or 0), 1), STRONG, f"it was {peak:.2g}, and has been near 0 for {low} steps"),
        (0 <= lr < 0.1 * initial and peak < 0.1 * initial, STRONG, f"it is made for {initial:.2g} and has reached {peak:.2g}"),
        (peak > 1.5 * initial > 0, STRONG, f"it began with {initial:.2g} and has reached {peak:.2g}"),
        (rate.first == 0 and peak < 0.5 * initial, STRONG, f"it was 0 at first and has reached {peak:.2g} of {initial:.2g}"),
    )
    effect = "a rate above 0 to the end"
    if schedule is None:  # code sets the rate, or a schedule that only it knows
        if initial <= 0:
            return None
        remedies.append(set_to(rate, "lr", lr, initial, effect))
    elif schedule.length and planned and schedule.by_epoch and schedule.length > planned / 2:
        found.add(True, SLIGHT, f"its {schedule.argument} is {schedule.length}, and it is stepped once per epoch")
        code = '{"scheduler": scheduler, "interval": "step"}'
        remedies.append(Remedy("set", "scheduler.interval", "epoch", "step", "", effect, SOON, code))
    elif schedule.length and planned and not schedule.by_epoch and schedule.length < planned and (low > 0 or schedule.repeats):
        name, strength = schedule.argument, STRONG if planned >= 2 * schedule.length else SLIGHT
        found.add(True, strength, f"its {name} is {schedule.length}, and {planned} steps are planned")
        code = f"{schedule.name}(optimizer, {name}={planned})"
        remedies.append(Remedy("set", f"scheduler.{name}", schedule.length, planned, "", effect, SOON, code))
    elif not schedule.by_epoch and low > 0:
        code = '{"scheduler": scheduler, "interval": "epoch"}'
        remedies.append(Remedy("set", "scheduler.interval", "step", "epoch", "", effect, SOON, code))
    if 0 <= lr < peak < 0.1 * initial and usual(rate).typical > 0:  # it was at its highest: the factor is not near 1 anywhere
        to = rounded(initial * usual(rate).typical / peak)
        remedies.insert(0, set_to(rate, "lr", initial, to, f"a rate near {usual(rate).typical:g} at its highest"))
    under = f" under {schedule.name}" if schedule else ""
    text = f"The learning rate is {min(lr, least):.2g} now{under}, and was {peak:.2g} at most."
    return text, [*remedies, *([_without_schedule(facts)] if schedule else [])]


# Other settings.

_SETTINGS = {"momentum": (0.99, 0.9), "eps": (1e-3, 1e-8), "weight_decay": (0.3, 0.01), "lr_decay": (0.1, 0.0)}
"""From which value on a setting is unusual, and a usual one."""


@possible_cause("set optimizer.weight_decay, optimizer.momentum, optimizer.eps, optimizer.lr_decay or optimizer.betas")
def unusual_setting(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A setting of the optimizer is far out of its usual range."""
    if alert.kind == "settings" and alert.site not in facts.optimizers:
        return None  # the setting of a module, or of a loss
    stated: list[str] = []
    remedies: list[Remedy] = []
    for rate in facts.rates():
        for name, (limit, to) in _SETTINGS.items():
            value = getattr(rate.settings, name) or 0.0
            if name == "weight_decay" and rate.kind in (*L2, "SGD"):
                limit, to = 0.01 if alert.kind == "optimizer_settings" else limit, 1e-4  # it is added to the gradient
            if value >= limit and (name != "eps" or is_scale_free(rate.optimizer)):
                found.add(not stated, STRONG, f"{to:g} is usual")
                stated.append(f"{name} of {rate.optimizer} is {value:g}; {to:g} is usual.")
                remedies.append(set_to(rate, name, value, to))
        betas = rate.settings.betas
        if len(betas) == 2 and "adam" in rate.kind.lower() and (betas[0] > betas[1] or betas[1] < 0.5):
            found.add(not stated, PROOF, "0.9 and 0.999 are usual")
            stated.append(f"betas of {rate.optimizer} are {betas}; (0.9, 0.999) are usual.")
            remedies.append(set_to(rate, "betas", str(betas), "(0.9, 0.999)"))
    return (" ".join(stated), remedies) if stated else None
