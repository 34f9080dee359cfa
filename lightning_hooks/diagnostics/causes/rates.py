"""Causes in the settings of optimizers, of their schedules, and of clipping."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.hypothesis import Cause, Evidence, hypothesis
from lightning_hooks.declare.remedy import Remedy
from lightning_hooks.diagnostics.causes.facts import Facts, Rate
from lightning_hooks.diagnostics.past import is_scale_free


class Range(NamedTuple):
    """The usual learning rates of a class of optimizers."""

    low: float
    typical: float
    high: float


_USUAL = {
    "SGD": Range(1e-4, 0.1, 1.0),
    "Adadelta": Range(0.05, 1.0, 2.0),
    "Adagrad": Range(1e-4, 1e-2, 0.1),
    "Lion": Range(1e-6, 1e-4, 1e-3),
    "Muon": Range(1e-4, 0.02, 0.1),
    "LBFGS": Range(1e-2, 1.0, 1.0),
    "Rprop": Range(1e-4, 1e-2, 0.1),
    "ASGD": Range(1e-4, 0.01, 1.0),
}
_ADAM = Range(1e-5, 3e-3, 1e-2)
"""Of Adam and of what else divides by the size of the gradient."""
USUAL_UPDATE = 3e-3
"""A usual share of a weight that a step changes."""
SOON = 50
"""Optimizer steps after which a cure of the step size shows."""


def usual(rate: Rate) -> Range | None:
    """The usual learning rates of a group's optimizer; None for a class that is not known."""
    found = _USUAL.get(rate.kind, _ADAM if is_scale_free(rate.optimizer) else None)
    if found is None:
        return None
    slower = 1 - min(rate.settings.momentum or 0.0, 0.99)  # momentum adds up steps
    return found._replace(typical=rounded(found.typical * (slower if rate.kind == "SGD" else 1)))


def rounded(value: float) -> float:
    """A value to one significant digit."""
    return float(f"{value:.0e}") if value else 0.0


def _set_rate(rate: Rate, to: float, effect: str) -> Remedy:
    kind = rate.kind or "the optimizer"
    return Remedy(
        "set", rate.target, rate.lr, to, f"{rate.target} is {rate.lr:.3g}", effect, SOON, f"torch.optim.{kind}(…, lr={to:g})"
    )  # fmt: skip


def lower_rate(rate: Rate, facts: Facts) -> float:
    """A learning rate for steps of a usual size: by what a step gains, by the share of a weight that it changes, by the usual."""
    known, factors = usual(rate), [0.1]
    ratio, gains = facts.usual_ratio(rate.optimizer), facts.step_ratio
    if ratio is not None and ratio > 10 * USUAL_UPDATE:
        factors.append(USUAL_UPDATE / ratio)
    if gains is not None and gains < 0.5:
        factors.append(1.0 / (2.0 * (1.0 - gains)))
    if known is not None and rate.lr > known.high:
        return known.typical  # steps of this size say nothing about those of a usual one
    return rounded(rate.lr * min(factors))


def rate_evidence(alert: Alert, facts: Facts, rate: Rate) -> Evidence:
    """What speaks for and against a learning rate that is too high."""
    found, known = Evidence(), usual(rate)
    ratio, gains = facts.usual_ratio(rate.optimizer), facts.step_ratio
    if known is not None:
        over = rate.lr / known.high
        found.add(
            over > 1,
            min(0.4 + 0.15 * math.log10(max(over, 1.0)), 0.7),
            f"{rate.kind}'s usual range is {known.low:g} to {known.high:g}",
        )
        found.add(over <= 0.3, -0.1, f"{rate.lr:.3g} is usual for {rate.kind}")
    if ratio is not None and math.isfinite(ratio):
        found.add(ratio > 0.02, 0.3, f"a step changes a weight by {ratio:.2g} of its size, where {USUAL_UPDATE:g} is usual")
        found.add(ratio < 2 * USUAL_UPDATE, -0.3, f"a step changes a weight by {ratio:.2g} of its size, which is usual")
    if gains is not None:
        found.add(gains < 0.1, 0.3, f"its steps gain {gains:.2g} of what their gradients predict")
        found.add(gains > 0.5, -0.3, f"its steps gain {gains:.2g} of what their gradients predict")
    rose = rate.began
    found.add(
        bool(rose) and rate.lr > 1.5 * (rose or 0.0), 0.45, f"it began with {rose or 0.0:.2g} and was raised to {rate.lr:.2g}"
    )
    related = facts.raised("update_too_large", "loss_diverging", "step_too_long", "loss_spike", "weights_growing")
    related = [kind for kind in related if kind != alert.kind]
    found.add(bool(related), 0.1, f"{' and '.join(related)} {'is' if len(related) == 1 else 'are'} raised too")
    return found


@hypothesis("the learning rate is too high", "set optimizer.lr, by the size of its steps and the optimizer's usual range")
def rate_too_high(alert: Alert, facts: Facts) -> Cause | None:
    """The learning rate of the group at the alert's site, else of the fastest one."""
    rate = facts.rate_at(alert.site)
    if rate is None or not rate.lr > 0 or too_fast_group(facts) is not None:
        return None
    found = rate_evidence(alert, facts, rate)
    to = lower_rate(rate, facts)
    ratio = facts.usual_ratio(rate.optimizer)
    size = f"; a step changes a weight by {ratio:.2g} of its size" if ratio is not None and ratio > 0.02 else ""
    known = usual(rate)
    range_ = f"; {rate.kind}'s usual range is {known.low:g} to {known.high:g}" if known and rate.lr > known.high else ""
    effect = f"update ratios near {USUAL_UPDATE:g}, and a loss that falls"
    remedies = [_set_rate(rate, to, effect), _set_rate(rate, rounded(to / 10), effect)]
    if rate.began and rate.lr > 1.5 * rate.began:
        raises = Remedy("remove", f"what raises {rate.target}", None, None, "no scheduler is configured", effect, SOON)
        remedies.insert(0, _without_schedule(facts) if facts.schedules else raises)
    return found.cause("rate_too_high", f"The learning rate is {rate.lr:.3g}{range_}{size}.", *remedies)


def too_fast_group(facts: Facts) -> tuple[Rate, float] | None:
    """The parameter group whose rate is ten times that of the others or more, with theirs; None without one."""
    rates = facts.rates()
    fastest = max(rates, key=lambda rate: rate.lr, default=None)
    if fastest is None or len(rates) < 2:
        return None
    others = statistics.median(rate.lr for rate in rates if rate is not fastest)
    same = {rate.kind for rate in rates} == {fastest.kind}
    return (fastest, others) if same and 0 < 10 * others <= fastest.lr else None


@hypothesis("one parameter group has a much higher learning rate than the others", "set that group's lr to the others'")
def group_too_fast(alert: Alert, facts: Facts) -> Cause | None:
    """A rate that was multiplied twice, or is of another optimizer."""
    group = too_fast_group(facts)
    if group is None:
        return None
    rate, others = group
    found = Evidence()
    found.add(True, 0.45, f"that is {rate.lr / others:.3g} times the rate of the others")
    here = facts.rate_at(alert.site)
    found.add(here is not None and here.target == rate.target, 0.2, "it is the group of this site")
    return found.cause(
        "group_too_fast",
        f"The learning rate of {rate.target.removesuffix('.lr')} is {rate.lr:.3g}, {rate.lr / others:.3g} times that of the others.",
        _set_rate(rate, others, "update ratios like those of the other groups"),
    )  # fmt: skip


@hypothesis("the learning rate is too low", "set optimizer.lr, by the size of its steps")
def rate_too_low(alert: Alert, facts: Facts) -> Cause | None:
    """Steps that change next to nothing."""
    rate = facts.rate_at(alert.site)
    if rate is None or not rate.lr > 0:
        return None
    ratio, known, found = facts.usual_ratio(rate.optimizer), usual(rate), Evidence()
    found.add(
        ratio is not None and ratio < 1e-4,
        0.4,
        f"a step changes a weight by {ratio or 0:.2g} of its size; {USUAL_UPDATE:g} is usual",
    )
    if known is not None:
        found.add(rate.lr < known.low, 0.4, f"{rate.kind}'s usual range is {known.low:g} to {known.high:g}")
        found.add(rate.lr >= known.typical, -0.3, f"{rate.lr:.3g} is usual for {rate.kind}")
    gains = facts.step_ratio
    found.add(gains is not None and gains > 0.99, 0.2, f"its steps gain {gains or 0:.3g} of what their gradients predict")
    to = rate.lr * USUAL_UPDATE / ratio if ratio else rate.lr * 1000
    if known is not None:
        to = known.typical if rate.lr < known.low else min(to, known.typical)
    to = rounded(to)
    return found.cause(
        "rate_too_low", f"The learning rate is {rate.lr:.3g}{f', and a step changes a weight by {ratio:.2g} of its size' if ratio is not None else ''}.",
        _set_rate(rate, to, "update ratios near 1e-3"), _set_rate(rate, rounded(to / 10), "update ratios near 1e-4"),
    )  # fmt: skip


# Schedules.


def _without_schedule(facts: Facts) -> Remedy:
    kinds = ", ".join(dict.fromkeys(schedule.kind for schedule in facts.schedules))
    return Remedy(
        "remove", "scheduler", kinds, None, "a scheduler is configured", "a learning rate that stays", SOON, "return optimizer"
    )


@hypothesis(
    "the schedule is over too early, has hardly begun, or falls below zero",
    "set the scheduler's length or interval", "remove the scheduler",
)  # fmt: skip
def wrong_schedule(_: Alert, facts: Facts) -> Cause | None:
    """A schedule that does not fit the length of the training."""
    rate = max(facts.rates(), key=lambda rate: rate.settings.low_steps, default=None)
    if rate is None or not facts.schedules:
        return None
    lr, peak, found, planned = rate.settings.lr or 0.0, rate.settings.lr_peak or 0.0, Evidence(), facts.planned_steps
    schedule = facts.schedules[0]
    over = f"it was {peak:.2g}, and has been near 0 for {rate.settings.low_steps} steps"
    negative = min((each.settings.lr or 0.0 for each in facts.rates()), default=0.0)
    found.add(negative < 0, 0.9, f"it is {negative:.2g} now: steps climb the loss")
    found.add(rate.settings.low_steps > 0, 0.6, over)
    initial = rate.settings.lr_initial or 0.0
    found.add(0 <= lr < 0.1 * initial and peak < 0.1 * initial, 0.6, f"it is made for {initial:.2g} and has reached {peak:.2g}")
    found.add(peak > 1.5 * initial > 0, 0.7, f"it began with {initial:.2g} and has reached {peak:.2g}")
    remedies = []
    if schedule.length and planned and schedule.length < planned:
        found.add(True, 0.2, f"its {schedule.length_name} is {schedule.length}, and {planned} steps are planned")
        code = f"{schedule.kind}(optimizer, {schedule.length_name}={planned})"
        target = f"scheduler.{schedule.length_name}"
        remedies.append(Remedy("set", target, schedule.length, planned, "", "a rate above 0 to the end", SOON, code))
    elif schedule.interval == "step" and rate.settings.low_steps > 0:
        code = '{"scheduler": scheduler, "interval": "epoch"}'
        remedies.append(Remedy("set", "scheduler.interval", "step", "epoch", "", "a rate above 0 to the end", SOON, code))
    statement = f"The learning rate of {schedule.kind} is {min(lr, negative):.2g} now, and was {peak:.2g} at most."
    return found.cause("wrong_schedule", statement, *remedies, _without_schedule(facts))


# Other settings.

_SETTINGS = {
    "momentum": (0.99, 0.9, "0.9 is usual"),
    "eps": (1e-3, 1e-8, "1e-8 is usual"),
    "weight_decay": (0.3, 0.01, "0.01 is usual"),
}


@hypothesis(
    "a setting of the optimizer is far out of its usual range",
    "set optimizer.weight_decay, optimizer.momentum, optimizer.eps or optimizer.betas",
)  # fmt: skip
def unusual_setting(_: Alert, facts: Facts) -> Cause | None:
    """Weight decay, momentum, eps or betas."""
    found: list[Cause | None] = []
    for rate in facts.rates():
        for name, (limit, to, why) in _SETTINGS.items():
            value = getattr(rate.settings, name)
            if value is None or value < limit or (name == "eps" and not is_scale_free(rate.optimizer)):
                continue
            evidence = Evidence()
            evidence.add(True, 0.65 + 0.05 * min(math.log10(value / limit + 1), 4.0), why)
            remedy = Remedy(
                "set",
                rate.of(name),
                value,
                to,
                f"it is {value:g}",
                "steps of a usual size",
                SOON,
                f"torch.optim.{rate.kind}(…, {name}={to:g})",
            )
            found.append(evidence.cause("unusual_setting", f"{name} of {rate.optimizer} is {value:g}; {why}.", remedy))
        betas = rate.settings.betas
        if len(betas) == 2 and "adam" in rate.kind.lower() and (betas[0] > betas[1] or betas[1] < 0.5):
            evidence = Evidence()
            evidence.add(True, 0.8, "0.9 and 0.999 are usual")
            remedy = Remedy(
                "set",
                rate.of("betas"),
                f"{betas}",
                "(0.9, 0.999)",
                "",
                "steps that are averaged",
                SOON,
                f"torch.optim.{rate.kind}(…, betas=(0.9, 0.999))",
            )
            found.append(
                evidence.cause("unusual_setting", f"betas of {rate.optimizer} are {betas}; 0.9 and 0.999 are usual.", remedy)
            )
    return max((cause for cause in found if cause is not None), key=lambda cause: cause.score, default=None)


# Clipping.


def _clip_at(facts: Facts, to: float) -> Remedy:
    return Remedy(
        "set", "trainer.gradient_clip_val", facts.clip_norm, to, "", "no step with a larger norm", SOON, f"Trainer(gradient_clip_val={to:g})"
    )  # fmt: skip


@hypothesis("nothing limits a single large gradient", "set trainer.gradient_clip_val to the usual norm")
def unclipped(_: Alert, facts: Facts) -> Cause | None:
    """Only where nothing clips."""
    norm = facts.usual_norm
    if (
        facts.clip is None
        or facts.clip_norm is not None
        or norm is None
        or any(s.clipped_steps for s in facts.clip.optimizers.values())
    ):
        return None
    top = max((stats.norm_before_max for stats in facts.clip.optimizers.values()), default=0.0)
    found = Evidence()
    found.add(True, 0.1, "no clipping is configured")
    found.add(top > 10 * norm, 0.35, f"a step had a gradient norm of {top:.3g}, and {norm:.3g} is usual")
    statement = f"Nothing clips, and the gradient norm reached {top:.3g} where {norm:.3g} is usual."
    return found.cause("unclipped", statement, _clip_at(facts, rounded(norm)))


@hypothesis("the clipping threshold is far below the usual norm", "set trainer.gradient_clip_val above the usual norm")
def clip_too_low(alert: Alert, facts: Facts) -> Cause | None:
    """Where clipping leaves next to nothing of each step."""
    norm = facts.usual_norm
    if facts.clip_norm is None or norm is None or not norm > facts.clip_norm:
        return None
    found = Evidence()
    found.add(True, 0.3, f"the usual norm is {norm:.3g}")
    found.add(norm > 10 * facts.clip_norm, 0.3, f"that is {norm / facts.clip_norm:.3g} times the threshold")
    summed = loss_summed.judge(alert, facts)
    found.add(summed is not None and summed.decisive, -0.3, "the loss is as large as a sum over the batch")
    statement = f"gradient_clip_val is {facts.clip_norm:g}, and the usual norm is {norm:.3g}."
    return found.cause("clip_too_low", statement, _clip_at(facts, rounded(2 * norm)))


@hypothesis("the loss is a sum over the batch, not a mean", "multiply the loss by one over the batch size")
def loss_summed(_: Alert, facts: Facts) -> Cause | None:
    """A loss that starts as many times above that of a constant answer as a batch has samples."""
    learning = None if facts.flow is None else facts.flow.learning
    loss = None if facts.flow is None else facts.flow.loss
    if loss is None or not loss.start > 0:
        return None
    size = learning.batch_size if learning is not None and learning.batch_size else None
    classes = max((stats.classes for stats in facts.features.outputs.values()), default=0) if facts.features is not None else 0
    if size is None and facts.features is not None:
        rows = [s.rows / s.calls for s in facts.features.outputs.values() if s.calls]
        size = max(rows, default=None)
    if not size or size < 4 or classes < 2:
        return None
    first = loss.recent[0] if facts.flow is not None and facts.flow.epoch == 0 and loss.recent else loss.start
    times = first / math.log(classes)
    found = Evidence()
    found.add(
        0.6 * size < times < 1.7 * size,
        0.75,
        f"it starts at {first:.3g}, {times:.3g} times that of guessing, and a batch has about {size:.0f} rows",
    )
    statement = f"The loss starts at {first:.3g}, about {size:.0f} times that of guessing ({math.log(classes):.2g}): it is summed over the batch."
    return found.cause(
        "loss_summed",
        statement,
        Remedy("scale", "loss", None, rounded(1 / size), "", "a loss near that of guessing at first", 1, 'reduction="mean"'),
    )


STEP_SIZE = (rate_too_high, group_too_fast, wrong_schedule, unusual_setting, loss_summed)
"""What makes steps too large."""


@hypothesis("the loss or its gradient is divided too often", "multiply the loss")
def loss_divided(_: Alert, facts: Facts) -> Cause | None:
    """Gradients far below Adam's eps."""
    norm = facts.usual_norm
    if norm is None:
        return None
    found = Evidence()
    found.add(norm < 1e-5, 0.6, f"the usual norm of the gradients is {norm:.2g}")
    return found.cause(
        "loss_divided",
        f"The gradients have a norm of {norm:.2g}.",
        Remedy("scale", "loss", None, rounded(1 / norm), "", "", 1, "loss * …"),
    )
