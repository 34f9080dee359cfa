"""Causes of steps that are too large or too small: clipping, the scale of the loss, and its sign."""

from __future__ import annotations

import math

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
    possible_cause,
    replace,
    rounded,
)
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.rates import (
    group_too_fast,
    rate_too_high,
    rate_too_low,
    set_to,
    unusual_setting,
    wrong_schedule,
)
from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.reports import is_scale_free

# Clipping.


def clip_at(facts: Facts, to: float) -> Remedy:
    """Clip the norm of gradients."""
    code = f"Trainer(gradient_clip_val={to:g})"
    return Remedy("set", "trainer.gradient_clip_val", facts.setup.clip_norm, to, "", "no step with a larger norm", SOON, code)


@possible_cause("set trainer.gradient_clip_val to the usual norm")
def unclipped(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Nothing limits a single large gradient."""
    norm = facts.usual_norm
    if facts.setup.clip_norm is not None or not norm > 0:
        return None
    top = max(stats.norm_before_max for stats in facts.clip.optimizers.values())
    found.add(top > 10 * norm, SOME, f"a step had a gradient norm of {top:.3g}, and {norm:.3g} is usual")
    found.add(any(stats.clipped_steps for stats in facts.clip.optimizers.values()), EXCLUDES, "your own code clips gradients")
    return f"Nothing clips, and the gradient norm reached {top:.3g} where {norm:.3g} is usual.", [clip_at(facts, rounded(norm))]


@possible_cause("set trainer.gradient_clip_val above the usual norm")
def clip_too_low(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The clipping threshold is far below the usual norm."""
    norm, summed = facts.usual_norm, loss_summed.judge(alert, facts)
    if facts.setup.clip_norm is None or not norm > facts.setup.clip_norm:
        return None
    found.add_all(
        (True, SOME, f"the usual norm is {norm:.3g}"),
        (norm > 10 * facts.setup.clip_norm, SOME, f"that is {norm / facts.setup.clip_norm:.3g} times the threshold"),
        (summed is not None, AGAINST, "the loss is as large as a sum over the batch"),
        (bool(facts.raised("exploding")), EXCLUDES, "exploding is raised too: that norm is no measure of a usual step"),
    )
    return f"gradient_clip_val is {facts.setup.clip_norm:g}, and the usual norm is {norm:.3g}.", [clip_at(facts, rounded(2 * norm))]


# The scale of the loss.


def _scale_loss(to: float, code: str) -> list[Remedy]:
    return [Remedy("scale", "loss", None, to, "", "gradients of a usual size", 1, code)]


@possible_cause("multiply the loss by one over the batch size")
def loss_summed(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss is a sum over the batch, not a mean."""
    loss, outputs = facts.flow.loss or NO_LOSS, facts.features.outputs.values()
    classes = max((stats.classes for stats in outputs), default=0)
    rows = max((stats.rows / stats.calls for stats in outputs if stats.calls), default=0.0)
    size = facts.flow.learned.batch_size or rows
    if size < 4 or classes < 2:
        return None
    first, guess = loss.recent[0] if facts.flow.epoch == 0 and loss.recent else loss.start, math.log(classes)
    times = f"{first / guess:.3g} times that of guessing"
    found.add(0.6 < first / guess / size < 1.7, STRONG, f"it starts at {first:.3g}, {times}")
    text = f"The loss starts at {first:.3g}, {times} ({guess:.2g}), with a batch of {size:.0f}: it is summed over the batch."
    return text, _scale_loss(float(f"{1 / size:.2g}"), 'reduction="mean"')


@possible_cause("multiply the loss by one over the factor")
def loss_multiplied(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss is a large multiple of the cross entropy that it is made of."""
    known, outputs, rate = (facts.flow.first.loss or NO_LOSS).recent, facts.features.first.outputs, facts.rate_at(alert.site)
    losses = [stats.first_loss for stats in outputs.values() if 0 < stats.first_loss < math.inf]
    if not known or not 0 < known[0] < math.inf or len(losses) != 1 or rate is None or is_scale_free(rate.optimizer):
        return None
    (site,), (measured,) = outputs, losses
    factor, summed = known[0] / measured, loss_summed.judge(alert, facts)
    found.add(factor > 10, STRONG, f"the first loss is {known[0]:.3g}, and {site} of that batch is {measured:.3g}")
    found.add(summed is not None, EXCLUDES, "it is as large as a sum over the batch")
    power = factor > 1000 and abs(math.log2(factor) % 1.0 - 0.5) > 0.495
    found.add(power, EXCLUDES, f"the factor is about 2^{round(math.log2(factor))}, as that of a GradScaler")
    to = float(f"{1 / factor:.2g}")
    return f"The loss is {factor:.3g} times {site}, and so is each gradient.", _scale_loss(to, f"loss * {to:g}")


@possible_cause("multiply the loss by one over the number of batches of a step")
def accumulation_summed(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The gradients of several batches are added up by hand, and not divided."""
    steps = max((setup.steps for setup in facts.flow.setups.values()), default=0)
    batches = round(facts.flow.batches / steps) if steps else 0
    if facts.setup.automatic_optimization or batches < 2 or len(facts.flow.optimizers) != 1:
        return None
    ratio = facts.usual_ratio(next(iter(facts.flow.optimizers)))
    found.add(ratio > 0.02, STRONG, f"a step changes a weight by {ratio:.2g} of its size")
    text = f"{batches} batches make a step under manual optimisation, and steps are as large as if their gradients were summed."
    return text, _scale_loss(float(f"{1 / batches:.2g}"), f"self.manual_backward(loss / {batches})")


@possible_cause("multiply the loss")
def loss_divided(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss or its gradient is divided too often."""
    norm = facts.usual_norm
    found.add(norm < 1e-5, STRONG, "Adam's eps is 1e-8 for each element")
    return f"The usual norm of the gradients is {norm:.2g}.", _scale_loss(rounded(1 / norm), f"loss * {1 / norm:.0e}")


# The direction of steps.


@possible_cause("set optimizer.maximize to False", "flip the sign of the loss, or of the term")
def wrong_sign(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss, or a term of it, is made larger."""
    loss, sign, effect = facts.flow.loss or NO_LOSS, facts.flow.loss_sign, "a loss that falls"
    ways = {group.maximize for stats in facts.optimizers.values() for group in stats.groups}  # of both in a min-max problem
    over, proven = facts.flow.over_constant, loss.optimized and sign != 0 and ways == {sign > 0}
    climbs = ways == {True} and sign >= 0 and (proven or over > 1)
    if climbs or proven:
        rate = facts.rates()[0]
        what = f"{rate.of('maximize')} is True" if climbs else "there is a minus before it"
        found.add(proven, PROOF, "the loss is a distance of outputs from targets: it has a smallest value, and no largest one")
        found.add(not proven, STRONG, f"outputs are {over:.3g} times as far from their targets as the best constant answer")
        minus = Remedy("remove", "the minus before the loss", effect=effect, steps=SOON)
        remedy = set_to(rate, "maximize", "True", "False", effect) if climbs else minus
        return f"The loss is made as large as possible: {what}.", [remedy]
    known, recent = [*facts.features.outputs, *facts.features.targets], [value for value in loss.recent if value == value]
    if not known or len(recent) < 4:
        return None
    negative = max(recent[-4:]) < 0
    found.add(negative, STRONG, f"the loss is {recent[-1]:.3g}, and {known[0]}, which is part of it, is never below 0")
    found.add(negative and recent[-1] < recent[0], SLIGHT, "and it falls")
    term = f"the sign of what is added to {known[0]}"
    remedy = replace(term, "its opposite", "a loss above 0", "loss = loss + weight * penalty")
    return f"A term that is added to {known[0]} makes the loss negative: it grows without bound.", [remedy]


STEP_SIZE = (
    wrong_sign, rate_too_high, group_too_fast, wrong_schedule, unusual_setting, loss_summed, loss_multiplied, accumulation_summed,
)  # fmt: skip
"""What makes steps too large."""
LARGE_STEP = (*STEP_SIZE, unclipped)  # what makes a single one of them too large
SMALL_STEPS = (wrong_schedule, unusual_setting, clip_too_low, rate_too_low)  # what makes steps too small
