"""Causes in the code: what is not finite, what stands before the loss, and what rules state as facts."""

from __future__ import annotations

import math

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import (
    EXCLUDES,
    PROOF,
    SHOWN,
    SLIGHT,
    SOME,
    SOON,
    STRONG,
    Cause,
    CauseEvidence,
    Judgement,
    PossibleCause,
    Remedy,
    in_code,
    possible_cause,
    replace,
)
from lightning_hooks.declare.rule import percent
from lightning_hooks.diagnostics.causes.data import LEAP, large_inputs, large_targets
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.rates import rate_too_high, unusual_setting
from lightning_hooks.diagnostics.causes.weights import initial_scale, nonfinite_weights, stretching_start
from lightning_hooks.diagnostics.nonfinite.operations import explained, name_of, place_of, state

MOST = 0.5  # share of the sampled batches without a label from which on the labels are at fault, and not single samples
MANY = 0.05  # share of numbers that are not finite above which a transform makes them, and no single sample has them

# What is not finite.


@possible_cause("replace the non-finite values in the batch", "replace the transform that makes them")
def nonfinite_data(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The data are not finite."""
    step = facts.bad_step
    if step is None or step.failure.source != "data":
        return None
    found.add(True, PROOF, "the step was run again, and the batch was looked at")
    name, value = step.failure.name, step.failure.value
    place = f"batch{name}"
    remedies = [Remedy("replace", place, value, "finite numbers", "", "a finite loss", 1, f"torch.nan_to_num({place})")]
    known = facts.features.inputs.get("training")
    if known is not None and known.nonfinite_fraction > MANY and facts.features.input_place == name:
        to, code = "one that holds for all numbers, such as those below 0", "x.clamp_min(0) ** gamma"
        target = f"the power, logarithm or root in the transforms that make {place}"
        remedies.insert(0, Remedy("replace", target, value, to, "", "a finite loss", 1, code))
    return state(step).what, remedies


@possible_cause("replace the operation by one that is finite there, set the module's eps, or replace the mask")
def nonfinite_operation(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """An operation gives NaN or infinity for finite numbers."""
    step = facts.bad_step
    if step is None or step.failure.source not in ("operation", "error"):
        return None
    known, place = explained(step), step.failure.place
    if facts.overflows and not (known and known.remedies):
        return None  # numbers grew, which has a cause of its own
    found.add(True, PROOF, "the step was run again: its batch and its weights were finite")
    found.add(bool(place.inputs), SHOWN, f"{name_of(step.failure)} was given {place.inputs}")
    for shown in (f"{place.where}: {place.code}" * bool(place.code), *step.notes):
        found.add(bool(shown), SHOWN, shown)
    check = Remedy("check", f"what {name_of(step.failure)} is given in {place_of(place)}", effect="a finite loss", steps=1)
    _, what, why = state(step)
    text = why or what if alert.message == what else f"{what} {why}".strip()  # without what the alert says already
    return text, known.remedies if known is not None and known.remedies else [check]


@possible_cause("check the labels that the loss is given, and ignore_index")
def labels_lost(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Labels are masked, or ignored as a class."""
    share = max((one.ignored_calls / max(one.calls, 1) for one in facts.features.outputs.values()), default=0.0)
    found.add(share >= MOST, PROOF, f"in {percent(share)} of the sampled batches all labels are ignore_index")
    found.add(share < MOST and alert.kind == "labels_ignored", STRONG, alert.message)
    return "Labels are masked, or ignored as a class.", [
        Remedy("check", "the labels that the loss is given, and ignore_index", effect="a finite loss", steps=SOON)
    ]


@possible_cause("set trainer.precision to bf16-mixed")
def half_overflow(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Half precision overflows."""
    half = "16" in facts.precision and "bf16" not in facts.precision
    largest = max((max(-stats.min, stats.max) for stats in facts.features.sites.values() if stats.count), default=0.0)
    found.add(half, SOME, "the largest number of float16 is 65504")
    found.add(half and largest > 1e4, SOME, f"an output is {largest:.3g}")
    return f"precision is {facts.precision}, whose numbers end at 65504.", [_precision(facts)]


@possible_cause("set trainer.precision to bf16-mixed")
def half_weights(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Weights in half precision cannot hold small steps."""
    found.add("true" in facts.precision, STRONG, "the weights themselves are rounded")
    return f"The weights are kept in half precision (precision={facts.precision}).", [_precision(facts)]


def _precision(facts: Facts) -> Remedy:
    code, effect = 'Trainer(precision="bf16-mixed")', "steps that are not lost"
    return Remedy("set", "trainer.precision", facts.precision, "bf16-mixed", effect=effect, steps=SOON, code=code)


# Before the loss.

_BOUNDED = ("softmax", "sigmoid", "relu", "tanh", "logsoftmax", "hardtanh", "relu6")


@possible_cause("remove the activation")
def activation_before_loss(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """An activation stands before a loss that expects logits."""
    twice, given = facts.flow.squashed_twice, facts.features.outputs
    unreachable = next((stats for site, stats in facts.features.targets.items() if site == alert.site and stats.outside), None)
    called = [site for site in facts.features.sites if site not in given]
    parents = {site[:end] for site in called for end, character in enumerate(site) if character in "./"}
    leaves = [site for site in called if site not in parents]
    last = twice or (leaves[-1] if leaves and (given or unreachable) else "")
    kind = facts.modules.get(last) or facts.features.functions.get(last, "")
    bounds = _BOUNDED if unreachable is None else {unreachable.bound}.intersection(_BOUNDED)
    if not twice and (kind.lower() not in bounds or not (unreachable or any(stats.form for stats in given.values()))):
        return None
    found.add(bool(twice), PROOF, "the loss applies a softmax or sigmoid itself")
    found.add(not twice, STRONG, f"{last} is the last one called before the loss")
    effect = "the loss takes any numbers" if unreachable else "the loss takes logits", "a loss that falls further", SOON
    if last in facts.modules and kind.lower() not in _BOUNDED:  # a function squashes the output of this module, or within it
        remedy = Remedy("remove", f"the softmax or sigmoid that the output of {last} is passed through", None, None, *effect)
        return f"The output of {last} ({kind}) is passed through a softmax or sigmoid before a loss that expects logits.", [remedy]
    code = f"{in_code(last)} = nn.Identity()" if last in facts.modules else ""
    remedy = Remedy("remove", last, kind or None, None, *effect, code)
    what = "whose targets it cannot put out" if unreachable else "that expects logits"
    return f"{last}{f' ({kind})' * bool(kind)} stands before a loss {what}.", [remedy]


@possible_cause("make one table of numbers, in training and validation")
def other_numbers(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Classes or words are numbered differently in training and in validation."""
    inputs = facts.features.inputs
    one, other = inputs.get("training"), inputs.get("validation")
    differs = one is not None and other is not None and one.rms > 0 and not 0.8 < other.rms / one.rms < 1.25
    of_loss = facts.flow.loss is not None and bool(facts.flow.loss.validations) and alert.site not in facts.modules
    named = alert.site in facts.features.validated
    found.add(named, PROOF, "predictions follow the labels of validation one to one, by other numbers")
    found.add(of_loss and not (differs or named), STRONG, "the validation loss is worse than guessing, on inputs of the same size")
    numbers, to = "the numbers of classes and words in validation", "those of training: one table for both, not unique() of a part"
    remedy = replace(numbers, to, "a validation loss near that of training")
    return "Validation numbers the same classes or words differently, or each batch of training has numbers of its own.", [remedy]


@possible_cause("check its samples")
def bad_batch(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """One batch is unlike the others."""
    if alert.batch is None:
        return None
    rate, before = facts.rate_at(alert.site), facts.features.previous()
    now, then = (None if each is None else each.inputs.get("training") for each in (facts.features, before))
    times = now.rms / then.rms if now is not None and then is not None and then.rms > 0 else math.nan
    found.add_all(
        (times > LEAP, STRONG, f"inputs have a root mean square of {times:.3g} times that of the window before"),
        (True, SOME, f"one step leapt, at batch {alert.batch} of epoch {alert.epoch}"),
        (
            bool(alert.samples) and alert.kind in ("spike", "loss_spike"),
            SLIGHT,
            "a gradient leapt without a large update before it",
        ),
        (rate is not None and bool(rate.began) and rate.lr > 1.5 * (rate.began or 0.0), EXCLUDES, "the learning rate had risen"),
    )
    what, named = f"batch {alert.batch} of epoch {alert.epoch}", f" ({alert.of_samples.rstrip('.')})" if alert.samples else ""
    return f"B{what[1:]} is unlike the others{named}.", [Remedy("check", f"the samples of {what}", effect="no such step")]


@possible_cause("remove the code that changes it")
def changed_between_steps(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Something other than the optimizer makes a weight grow."""
    before, setup = facts.flow.previous(), facts.flow.setups.get(alert.site)
    now, then = (None if flow is None else flow.parameters.get(alert.site) for flow in (facts.flow, before))
    if now is None or then is None or setup is None or not (now.weight_norm and then.weight_norm and now.update_ratio_max):
        return None
    grown, most = now.weight_norm / then.weight_norm, now.update_ratio_max
    found.add(
        math.log(grown) > setup.steps * math.log1p(2 * most),  # not every step was measured
        PROOF,
        f"it grew {grown:.3g} times, which {setup.steps} steps of at most {percent(most)} of its size cannot do",
    )
    return f"Something other than the optimizer makes {alert.site} grow.", [
        Remedy("remove", f"what multiplies or sets {alert.site} between steps", effect="a norm that stays", steps=SOON)
    ]


@possible_cause("remove the code that writes them")
def written_back(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Code writes weights back after steps."""
    rate, setup = facts.rate_at(alert.site), facts.flow.model_setup
    known = setup.weights_returned or setup.weights_still or setup.weights_away
    between = bool(known) and setup.weights_set is None and alert.kind == "set_outside"
    found.add(between, PROOF, "steps begin with the weights that earlier ones began with, although updates change them")
    still = alert.value == 0 and rate is not None and rate.lr > 0
    found.add(still, STRONG, "it has a gradient and a rate, and does not change by a bit")
    found.add(rate is not None and rate.first == 0, EXCLUDES, "its rate was 0 when training started")
    ruined = bool(facts.raised("step_too_long", "update_too_large", "exploding", "loss_diverging", "not_zeroed"))
    found.add(still and ruined, EXCLUDES, "weights may be large, or units dead, since steps were too long")
    remedy = Remedy("remove", f"what writes the weights of {alert.site}")
    return "Code sets weights back to what they were after the optimizer's step.", [remedy]


@possible_cause("replace the softmax by a sigmoid, or give it two outputs")
def softmax_of_one(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A softmax is given one number, and puts out 1."""
    stats, kind = facts.features.sites.get(alert.site), facts.modules.get(alert.site, "")
    found.add(stats is not None and kind == "Softmax" and stats.min == stats.max == 1.0, PROOF, "its output is 1 in all samples")
    remedy = replace("nn.Softmax", "nn.Sigmoid", "outputs that vary", f"{in_code(alert.site)} = nn.Sigmoid()")
    return f"{alert.site} is a softmax over a single number.", [remedy]


# What a rule states as a fact.


def fact(
    name: str,
    title: str,
    op: str,
    target: str,
    to: str = "",
    code: str = "",
    at: str = "",
    advice: str = "",
    strength: str = STRONG,
) -> PossibleCause:
    """What a rule states as a fact, with the remedy that follows; the words of the alert stay as they are.

    Args:
        name: Of the cause.
        title: What it supposes.
        op: Of the remedy.
        target: Of the remedy; ``{site}`` stands for the alert's site, and ``{code}``, there and in ``code``, for that in code.
        to: Of the remedy.
        code: Of the remedy.
        at: What the alert's site must have in its name.
        advice: What the alert must advise; empty for anything.
        strength: How much the words of the alert say.
    """

    def judge(alert: Alert, facts: Facts) -> Cause | None:
        if at not in alert.site or (advice and advice not in alert.advice):
            return None
        words = {"site": alert.site, "code": in_code(facts.module_of(alert.site) or alert.site)}
        remedy = Remedy(op, target.format(**words), None, to or None, "", "", SOON, code.format(**words))
        statement = f"{title[:1].upper()}{title[1:]}."
        return Cause(name, statement, evidence_for=(alert.message,), remedies=(remedy,), strengths=(strength,))

    return PossibleCause(name, title, (f"{op} {target.format(site='SITE', code='SITE')}{f': {to}' if to else ''}",), judge)


WRONG_DIMENSION = fact("wrong_dimension", "a softmax is along the wrong dimension", "set", "{site}.dim", "-1", "softmax(x, dim=-1)")
NO_LOGITS = fact("no_logits", "the loss is given something other than logits", "replace", "what {site} is given",
                 "the output of the last linear layer", at="cross_entropy")  # fmt: skip
NO_LOGARITHMS = fact("no_logarithms", "the loss is given no logarithms of probabilities", "replace", "what {site} is given",
                     "its log_softmax", "x.log_softmax(-1)", strength=PROOF,
                     advice="Give it the log_softmax of the logits")  # fmt: skip
RATES_FOR_LOGARITHMS = fact("rates_for_logarithms", "a loss takes rates for their logarithms", "set", "log_input of {site}",
                            "False", "log_input=False", strength=PROOF, advice="Pass log_input=False")  # fmt: skip
SHIFTED_TWICE = fact("shifted_twice", "labels are shifted twice", "replace", "the labels that the model is given",
                     "the tokens themselves", "labels=input_ids", strength=PROOF,
                     advice="Shift labels once: models of transformers do it themselves")  # fmt: skip
BLANK_LABEL = fact("blank_label", "a label is the blank of the alignment", "replace", "the labels of {site} that are its blank",
                   "labels from 1 on, with one more class", "targets + 1", strength=PROOF,
                   advice="Add 1 to the labels, and a class to the outputs")  # fmt: skip
LABELS_OF_ZERO = fact("labels_of_zero", "labels are 0 and 1 where -1 and 1 are expected", "replace",
                      "the labels of {site} that are 0", "-1", "2 * labels - 1", strength=PROOF,
                      advice="Pass 2 * labels - 1")  # fmt: skip
VIEWED_DIMENSIONS = fact("viewed_classes", "a view mixes up dimensions", "replace",
                         "the view (or reshape) after {site}", "a transpose, or permute", "x.transpose(1, 2)", strength=PROOF,
                         advice="Use transpose(1, 2), or permute, in place of view or reshape")  # fmt: skip
NEVER_ZEROED = fact("never_zeroed", "gradients add up, or are lost, between steps", "call",
                    "optimizer.zero_grad() once after each step", code="optimizer.zero_grad()",
                    advice="Call optimizer.zero_grad() after each step, and at no other time")  # fmt: skip
UPSIDE_DOWN = fact("weights_upside_down", "a loss weighs frequent classes more than rare ones", "replace", "the weight of {site}",
                   "one over it", "weight = counts.sum() / (len(counts) * counts), or pos_weight = negatives / positives",
                   strength=PROOF, advice="Weigh each class by one over its number: the rarer it is, the more")  # fmt: skip
NORM_OF_ONE = fact("norm_of_one", "a layer norm is over a single number", "remove", "{site}", strength=PROOF,
                   advice="Remove the norm: a single number has no spread")  # fmt: skip
SMOOTHED = fact("labels_smoothed", "labels are smoothed too far", "set", "label_smoothing of {site}", "0.1", "label_smoothing=0.1",
                strength=PROOF, advice="Set label_smoothing=0.1: it is the share to spread, not the share to keep")  # fmt: skip
SAME_BATCHES = fact("same_batches", "the data repeat", "replace", "the loader's samples", "samples that each worker draws once")
OTHER_UNITS = fact("other_units", "validation has other units than training", "replace", "the transforms of validation",
                   "those of training")  # fmt: skip
DROPS_IN_EVAL = fact("drops_in_eval", "dropout acts in validation", "set", "training of {site}", "self.training",
                     "F.dropout(x, p, training=self.training)")  # fmt: skip
NOT_CAST = fact("not_cast", "autocast does not reach it", "remove", "autocast(enabled=False) or .float() around {site}")
NONFINITE = (
    *(nonfinite_weights, nonfinite_data, labels_lost, nonfinite_operation, half_overflow, stretching_start, initial_scale),
    *(large_inputs, large_targets, rate_too_high, unusual_setting),
)
"""What makes values NaN or infinite."""
