"""Causes in the settings of optimizers, of their schedules, of the loss's scale, and of clipping."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.hypothesis import CauseEvidence, Judgement, Remedy, Setting, hypothesis
from lightning_hooks.diagnostics.causes.facts import Facts, Rate
from lightning_hooks.diagnostics.causes.remedies import SOON, rounded
from lightning_hooks.diagnostics.excuses import is_scale_free
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
_ADAM = Range(1e-5, 3e-3, 1e-2)
"""Of Adam and of what else divides by the size of the gradient."""
_UNKNOWN = Range(math.nan, math.nan, math.nan)
USUAL_UPDATE = 3e-3
"""A usual share of a weight that a step changes."""


def usual(rate: Rate) -> Range:
    """The usual learning rates of a group's optimizer; NaN for a class that is not known."""
    found = _USUAL.get(rate.kind, _ADAM if is_scale_free(rate.optimizer) else _UNKNOWN)
    slower = 1 - min(rate.settings.momentum or 0.0, 0.99) if rate.kind == "SGD" else 1.0  # momentum adds up steps
    return found._replace(typical=rounded(found.typical * slower))


def _set(rate: Rate, setting: str, now: Setting, to: Setting, effect: str = "steps of a usual size") -> Remedy:
    shown = f"{to:g}" if isinstance(to, float) else to
    return Remedy("set", rate.of(setting), now, to, "", effect, SOON, f"torch.optim.{rate.kind}(…, {setting}={shown})")


def lower_rate(rate: Rate, facts: Facts) -> float:
    """A learning rate for steps of a usual size: by what a step gains and how much of a weight it changes; or a usual one."""
    known, ratio, gains = usual(rate), facts.largest_ratio(rate.optimizer), facts.step_ratio
    if rate.lr > known.high:
        return known.typical  # steps of this size say nothing about those of a usual one
    factors = [0.1, USUAL_UPDATE / ratio if ratio > 0 else 1.0, 1 / (2 * (1 - gains)) if gains < 0.5 else 1.0]
    lowest = min(known.low, rate.lr / 10) if known.low > 0 else rate.lr / 1000  # a step that ruins all weights has no size
    return rounded(max(rate.lr * min(factors), lowest))


@hypothesis("set optimizer.lr, by the size of its steps and the optimizer's usual range", "remove what raises it")
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
    found.add(over > 1, min(0.4 + 0.15 * math.log10(max(over, 1.0)), 0.7), range_)
    found.add(over <= 0.3, -0.1, f"{rate.lr:.3g} is usual for {rate.kind}")
    found.add(ratio > 0.02, min(0.3 + 0.15 * math.log10(max(ratio / 0.05, 1.0)), 0.65), f"{size}, where {USUAL_UPDATE:g} is usual")
    found.add(ratio < 2 * USUAL_UPDATE and not related, -0.3, f"{size}, which is usual")
    found.add(gains < 0.1, 0.3, gained)
    found.add(gains > 0.5, -0.3, gained)
    lost = facts.flow.loss is not None and facts.flow.loss.nonfinite_steps > 0
    found.add(rate.lr > 1.5 * began, 0.45, f"it began with {began:.2g} and was raised to {rate.lr:.2g}")
    found.add(bool(related), 0.1, f"{' and '.join(related)} {'is' if len(related) == 1 else 'are'} raised too")
    found.add(over <= 0.3 and bool(facts.magnified), -0.3, facts.magnified)
    found.add(facts.overflows, 0.2, "numbers grew from step to step until they overflowed")
    found.add(alert.severity == "info" and not lost, -1.0, "nothing shows that it does harm")
    to, effect = lower_rate(rate, facts), f"update ratios near {USUAL_UPDATE:g}, and a loss that falls"
    remedies = [_set(rate, "lr", rate.lr, to, effect), _set(rate, "lr", rate.lr, rounded(to / 10), effect)]
    if rate.lr > 1.5 * began:
        raises = Remedy("remove", f"what raises {rate.target}", None, None, "no scheduler is configured", effect, SOON)
        remedies.insert(0, _without_schedule(facts) if facts.schedules else raises)
    return f"The learning rate is {rate.lr:.3g}{f'; {range_}' * (over > 1)}{f'; {size}' * (ratio > 0.02)}.", remedies


def too_fast_group(facts: Facts) -> tuple[Rate, float] | None:
    """The parameter group whose rate is ten times that of the others or more, with theirs; None without one."""
    rates = facts.rates()
    if len(rates) < 2 or len({rate.kind for rate in rates}) > 1:
        return None
    fastest = max(rates, key=lambda rate: rate.lr)
    others = statistics.median(rate.lr for rate in rates if rate is not fastest)
    return (fastest, others) if 0 < 10 * others <= fastest.lr else None


@hypothesis("set that group's lr to the others', or to a usual one")
def group_too_fast(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """One parameter group has a much higher learning rate than the others."""
    group, here = too_fast_group(facts), facts.rate_at(alert.site)
    if group is None:
        return None
    rate, others = group
    known, times = usual(rate), f"{rate.lr / others:.3g} times that of the others"
    found.add(True, 0.45, f"it is {times}")
    found.add(here is not None and here.target == rate.target, 0.2, "it is the group of this site")
    values = [others, *([known.typical] if known.typical > 0 else [])]
    steep = [one for one in facts.rates() if one.lr > 10 * min(each.lr for each in facts.rates()) and one.lr > known.high]
    if len(steep) > 1 and "param_groups" in rate.target:  # rates that grow from group to group
        least = max(min(each.lr for each in facts.rates()), known.typical)
        found.add(True, 0.1, f"{len(steep)} groups are above {known.high:g}, which is usual at most")
        target, effect = ", ".join(one.target for one in steep), "update ratios like those of the others"
        all_of_them = Remedy("set", target, None, least, "", effect, SOON, f"lr={least:g}")
        return f"The learning rates of {len(steep)} groups are up to {times}.", [all_of_them, _set(rate, "lr", rate.lr, others)]
    if rate.lr > known.high and "[" in rate.target.partition(".")[0]:  # an optimizer of its own
        values.insert(0, known.typical)
    text = f"The learning rate of {rate.target.removesuffix('.lr')} is {rate.lr:.3g}, {times}."
    return text, [_set(rate, "lr", rate.lr, to, "update ratios like those of the others") for to in dict.fromkeys(values)]


@hypothesis("set optimizer.lr, by the size of its steps and the optimizer's usual range")
def rate_too_low(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The learning rate is too low."""
    rate = facts.rate_at(alert.site)
    if rate is None or not rate.lr > 0:
        return None
    ratio, known, gains = facts.usual_ratio(rate.optimizer), usual(rate), facts.step_ratio
    size, learning = f"a step changes a weight by {ratio:.2g} of its size", facts.flow.learning
    over = math.nan if learning is None or learning.over_constant is None else learning.over_constant
    found.add(ratio < 1e-4, 0.4, f"{size}; {USUAL_UPDATE:g} is usual")
    found.add(ratio < 1e-4 and over > 0.97, 0.2, f"the loss is still {over:.3g} of that of the best constant answer")
    found.add(rate.lr < known.low, 0.4, f"{rate.kind}'s usual range is {known.low:g} to {known.high:g}")
    found.add(rate.lr >= known.typical, -0.3, f"{rate.lr:.3g} is usual for {rate.kind}")
    found.add(gains > 0.99, 0.2, f"its steps gain {gains:.3g} of what their gradients predict")
    found.add(alert.severity == "info" and alert.kind != "step_too_short", -1.0, "nothing shows that it does harm")
    to = rate.lr * USUAL_UPDATE / ratio if ratio > 0 else math.nan
    most = known.high if math.isfinite(known.high) else 100 * rate.lr
    if rate.lr < known.low or not math.isfinite(to):
        to = known.typical if math.isfinite(known.typical) else most
    to = min(to, most)
    if to < 2 * rate.lr:  # it is no cure
        return None
    values = rounded(to), rounded(min(5 * to, most) if to < most else max(to / 10, 2 * rate.lr))
    text = f"The learning rate is {rate.lr:.3g}{f'; {size}' * math.isfinite(ratio)}."
    return text, [_set(rate, "lr", rate.lr, value, f"update ratios near {USUAL_UPDATE:g}") for value in values]


# Schedules.


def _without_schedule(facts: Facts) -> Remedy:
    kinds = ", ".join(dict.fromkeys(schedule.name for schedule in facts.schedules))
    return Remedy("remove", "scheduler", kinds, None, "a scheduler is configured", "a rate that stays", SOON, "return optimizer")


@hypothesis("set the scheduler's length or interval", "remove the scheduler")
def wrong_schedule(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The schedule is over too early, has hardly begun, rises, or falls below zero."""
    rate = max(facts.rates(), key=lambda rate: rate.settings.low_steps, default=None)
    if rate is None or not facts.schedules:
        return None
    settings, schedule, planned, remedies = rate.settings, facts.schedules[0], facts.setup.planned_steps, []
    lr, peak, initial, low = settings.lr or 0.0, settings.lr_peak or 0.0, settings.lr_initial or 0.0, settings.low_steps
    least = min(each.settings.lr or 0.0 for each in facts.rates())
    found.add(least < 0, 0.9, f"it is {least:.2g} now: steps climb the loss")
    found.add(low > 0, 0.6, f"it was {peak:.2g}, and has been near 0 for {low} steps")
    found.add(0 <= lr < 0.1 * initial and peak < 0.1 * initial, 0.6, f"it is made for {initial:.2g} and has reached {peak:.2g}")
    found.add(peak > 1.5 * initial > 0, 0.7, f"it began with {initial:.2g} and has reached {peak:.2g}")
    found.add(rate.first == 0 and initial > 0, 0.7, f"it is made for {initial:.2g}, and the rate was 0 when training started")
    effect = "a rate above 0 to the end"
    if schedule.length and planned and schedule.by_epoch and schedule.length > planned / 2:
        found.add(True, 0.2, f"its {schedule.argument} is {schedule.length}, and it is stepped once per epoch")
        code = '{"scheduler": scheduler, "interval": "step"}'
        remedies.append(Remedy("set", "scheduler.interval", "epoch", "step", "", effect, SOON, code))
    elif schedule.length and planned and not schedule.by_epoch and schedule.length < planned:
        name = schedule.argument
        fits = 0.2 if planned < 2 * schedule.length else 0.6
        found.add(True, fits, f"its {name} is {schedule.length}, and {planned} steps are planned")
        code = f"{schedule.name}(optimizer, {name}={planned})"
        remedies.append(Remedy("set", f"scheduler.{name}", schedule.length, planned, "", effect, SOON, code))
    elif not schedule.by_epoch and low > 0:
        code = '{"scheduler": scheduler, "interval": "epoch"}'
        remedies.append(Remedy("set", "scheduler.interval", "step", "epoch", "", effect, SOON, code))
    if 0 <= lr < peak < 0.1 * initial and usual(rate).typical > 0:  # it was at its highest: the factor is not near 1 anywhere
        to = rounded(initial * usual(rate).typical / peak)
        remedies.insert(0, _set(rate, "lr", initial, to, f"a rate near {usual(rate).typical:g} at its highest"))
    text = f"The learning rate is {min(lr, least):.2g} now under {schedule.name}, and was {peak:.2g} at most."
    return text, [*remedies, _without_schedule(facts)]


# Other settings.

_SETTINGS = {"momentum": (0.99, 0.9), "eps": (1e-3, 1e-8), "weight_decay": (0.3, 0.01), "lr_decay": (0.1, 0.0)}
"""From which value on a setting is unusual, and a usual one."""


@hypothesis("set optimizer.weight_decay, optimizer.momentum, optimizer.eps, optimizer.lr_decay or optimizer.betas")
def unusual_setting(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A setting of the optimizer is far out of its usual range."""
    stated: list[str] = []
    remedies: list[Remedy] = []
    for rate in facts.rates():
        for name, (limit, to) in _SETTINGS.items():
            value = getattr(rate.settings, name) or 0.0
            if name == "weight_decay" and rate.kind in (*L2, "SGD"):
                to = 1e-4  # it is added to the gradient
            if value >= limit and (name != "eps" or is_scale_free(rate.optimizer)):
                found.add(not stated, 0.7, f"{to:g} is usual")
                stated.append(f"{name} of {rate.optimizer} is {value:g}; {to:g} is usual.")
                remedies.append(_set(rate, name, value, to))
        betas = rate.settings.betas
        if len(betas) == 2 and "adam" in rate.kind.lower() and (betas[0] > betas[1] or betas[1] < 0.5):
            found.add(not stated, 0.8, "0.9 and 0.999 are usual")
            stated.append(f"betas of {rate.optimizer} are {betas}; (0.9, 0.999) are usual.")
            remedies.append(_set(rate, "betas", str(betas), "(0.9, 0.999)"))
    return (" ".join(stated), remedies) if stated else None


# Clipping.


def clip_at(facts: Facts, to: float) -> Remedy:
    """Clip the norm of gradients."""
    code = f"Trainer(gradient_clip_val={to:g})"
    return Remedy("set", "trainer.gradient_clip_val", facts.setup.clip_norm, to, "", "no step with a larger norm", SOON, code)


@hypothesis("set trainer.gradient_clip_val to the usual norm")
def unclipped(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Nothing limits a single large gradient."""
    norm = facts.usual_norm
    if facts.setup.clip_norm is not None or not norm > 0:
        return None
    top = max(stats.norm_before_max for stats in facts.clip.optimizers.values())
    found.add(top > 10 * norm, 0.45, f"a step had a gradient norm of {top:.3g}, and {norm:.3g} is usual")
    found.add(any(stats.clipped_steps for stats in facts.clip.optimizers.values()), -0.45, "code of your own clips")
    return f"Nothing clips, and the gradient norm reached {top:.3g} where {norm:.3g} is usual.", [clip_at(facts, rounded(norm))]


@hypothesis("set trainer.gradient_clip_val above the usual norm")
def clip_too_low(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The clipping threshold is far below the usual norm."""
    norm, summed = facts.usual_norm, loss_summed.judge(alert, facts)
    if facts.setup.clip_norm is None or not norm > facts.setup.clip_norm:
        return None
    found.add(True, 0.3, f"the usual norm is {norm:.3g}")
    found.add(norm > 10 * facts.setup.clip_norm, 0.3, f"that is {norm / facts.setup.clip_norm:.3g} times the threshold")
    found.add(summed is not None, -0.3, "the loss is as large as a sum over the batch")
    found.add(bool(facts.raised("exploding")), -0.6, "exploding is raised too: that norm is no measure of a usual step")
    return f"gradient_clip_val is {facts.setup.clip_norm:g}, and the usual norm is {norm:.3g}.", [clip_at(facts, rounded(2 * norm))]


# The scale of the loss.


def _scale_loss(to: float, code: str) -> list[Remedy]:
    return [Remedy("scale", "loss", None, to, "", "gradients of a usual size", 1, code)]


@hypothesis("multiply the loss by one over the batch size")
def loss_summed(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss is a sum over the batch, not a mean."""
    loss, learning, outputs = facts.flow.loss, facts.flow.learning, facts.features.outputs.values()
    classes = max((stats.classes for stats in outputs), default=0)
    rows = max((stats.rows / stats.calls for stats in outputs if stats.calls), default=0.0)
    size = (None if learning is None else learning.batch_size) or rows
    if loss is None or size < 4 or classes < 2:
        return None
    first = loss.recent[0] if facts.flow.epoch == 0 and loss.recent else loss.start
    guess = math.log(classes)
    times = f"{first / guess:.3g} times that of guessing"
    found.add(0.6 < first / guess / size < 1.7, 0.75, f"it starts at {first:.3g}, {times}")
    text = f"The loss starts at {first:.3g}, {times} ({guess:.2g}), with a batch of {size:.0f}: it is summed over the batch."
    return text, _scale_loss(float(f"{1 / size:.2g}"), 'reduction="mean"')


@hypothesis("multiply the loss by one over the factor")
def loss_multiplied(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss is a large multiple of the cross entropy that it is made of."""
    loss, outputs = facts.flow.first.loss, facts.features.first.outputs
    losses = [stats.first_loss for stats in outputs.values() if stats.first_loss > 0]
    rate = facts.rate_at(alert.site)
    if loss is None or not loss.recent or len(losses) != 1 or rate is None or is_scale_free(rate.optimizer):
        return None
    (site,), (measured,) = outputs, losses
    factor, summed = loss.recent[0] / measured, loss_summed.judge(alert, facts)
    if not 0 < factor < math.inf:
        return None
    found.add(factor > 10, 0.75, f"the first loss is {loss.recent[0]:.3g}, and {site} of that batch is {measured:.3g}")
    found.add(summed is not None and summed.decisive, -0.5, "it is as large as a sum over the batch")
    to = float(f"{1 / factor:.2g}")
    return f"The loss is {factor:.3g} times {site}, and so is each gradient.", _scale_loss(to, f"loss * {to:g}")


@hypothesis("multiply the loss by one over the number of batches of a step")
def accumulation_summed(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The gradients of several batches are added up by hand, and not divided."""
    steps = max((setup.steps for setup in facts.flow.setups.values()), default=0)
    batches = round(facts.flow.batches / steps) if steps else 0
    if facts.setup.automatic_optimization or batches < 2 or len(facts.flow.optimizers) != 1:
        return None
    ratio = facts.usual_ratio(*facts.flow.optimizers)
    found.add(ratio > 0.02, 0.6, f"a step changes a weight by {ratio:.2g} of its size")
    text = f"{batches} batches make a step under manual optimisation, and steps are as large as if their gradients were summed."
    return text, _scale_loss(float(f"{1 / batches:.2g}"), f"self.manual_backward(loss / {batches})")


@hypothesis("multiply the loss")
def loss_divided(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss or its gradient is divided too often."""
    norm = facts.usual_norm
    if not norm > 0:
        return None
    found.add(norm < 1e-5, 0.6, "Adam's eps is 1e-8 for each element")
    return f"The usual norm of the gradients is {norm:.2g}.", _scale_loss(rounded(1 / norm), f"loss * {1 / norm:.0e}")


STEP_SIZE = (rate_too_high, group_too_fast, wrong_schedule, unusual_setting, loss_summed, loss_multiplied, accumulation_summed)
"""What makes steps too large."""
LARGE_STEP = (*STEP_SIZE, unclipped)
"""What makes a single one of them too large."""
SMALL_STEPS = (wrong_schedule, unusual_setting, clip_too_low, rate_too_low)
"""What makes steps too small."""
