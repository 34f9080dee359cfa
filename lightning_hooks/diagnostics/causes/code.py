"""Causes in the code: what is not finite, what stands before the loss, and what rules state as facts."""

from __future__ import annotations

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import (
    EXCLUDES,
    PROOF,
    SHOWN,
    SLIGHT,
    SOME,
    STRONG,
    Cause,
    CauseEvidence,
    Judgement,
    PossibleCause,
    Remedy,
    possible_cause,
)
from lightning_hooks.diagnostics.causes.data import large_inputs, large_targets
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.rates import rate_too_high
from lightning_hooks.diagnostics.causes.remedies import SOON, in_code, replace
from lightning_hooks.diagnostics.causes.weights import nonfinite_weights, stretching_start
from lightning_hooks.diagnostics.loss_inputs.targets import BLANK, SIGNS
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep
from lightning_hooks.diagnostics.nonfinite.operations import explained, name_of, place_of, state

MANY = 0.05
"""Share of numbers that are not finite above which a transform makes them, and no single sample has them."""

# What is not finite.


def _shown(alert: Alert, step: BadStep) -> str:
    """What running the step again has shown, but for what the alert says already."""
    _, what, why = state(step)
    return why or what if alert.message == what else f"{what} {why}".strip()


@possible_cause("replace what is not finite in the batch", "replace the transform that makes it")
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
    """An operation gives NaN or infinity of finite numbers."""
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
    return _shown(alert, step), known.remedies if known is not None and known.remedies else [check]


@possible_cause("set trainer.precision to bf16-mixed")
def half_overflow(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Half precision overflows."""
    if "16" not in facts.precision or "bf16" in facts.precision:
        return None
    sites = facts.features.sites.values()
    largest = max((max(abs(stats.min), abs(stats.max)) for stats in sites if stats.count), default=0.0)
    found.add(True, SOME, "the largest number of float16 is 65504")
    found.add(largest > 1e4, SOME, f"an output is {largest:.3g}")
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
    if not twice and kind.lower() not in _BOUNDED:
        return None
    found.add(bool(twice), PROOF, "the loss applies a softmax or sigmoid itself")
    found.add(not twice, STRONG, f"{last} is the last one called before the loss")
    if unreachable is not None and not twice and kind.lower() != unreachable.bound:
        return None
    effect = "the loss takes any numbers" if unreachable else "the loss takes logits", "a loss that falls further", SOON
    if last in facts.modules and kind.lower() not in _BOUNDED:  # a function squashes the output of this module, or within it
        remedy = Remedy("remove", f"the softmax or sigmoid that the output of {last} is passed through", None, None, *effect)
        return f"The output of {last} ({kind}) is passed through a softmax or sigmoid before a loss that expects logits.", [remedy]
    code = f"{in_code(last)} = nn.Identity()" if last in facts.modules else ""
    remedy = Remedy("remove", last, kind or None, None, *effect, code)
    what = "whose targets it cannot put out" if unreachable else "that expects logits"
    return f"{last}{f' ({kind})' * bool(kind)} stands before a loss {what}.", [remedy]


@possible_cause("add 1 to the labels, and a class to the outputs")
def blank_label(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A label is the blank of the alignment."""
    stats = facts.features.targets.get(alert.site)
    if stats is None or stats.bound != BLANK:
        return None
    found.add(stats.outside > 0, PROOF, f"{stats.outside} of {stats.bounded} labels are the blank, which no output spells")
    labels = f"the labels of {alert.site} that are its blank"
    remedy = replace(labels, "labels from 1 on, with one more class", "a lower loss", "targets + 1")
    return "A label has the number of the blank.", [remedy]


@possible_cause("give it -1 for 0")
def labels_of_zero(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Labels are 0 and 1 where -1 and 1 are expected."""
    stats = facts.features.targets.get(alert.site)
    if stats is None or stats.bound != SIGNS:
        return None
    found.add(stats.outside > 0, PROOF, f"{stats.outside} of {stats.bounded} labels are 0")
    remedy = replace(f"the labels of {alert.site} that are 0", "-1", "a lower loss", "2 * labels - 1")
    return f"Labels of {alert.site} are 0 where it expects -1.", [remedy]


@possible_cause("make one table of numbers, in training and validation")
def other_numbers(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Classes or words have other numbers in training than in validation."""
    inputs = facts.features.inputs
    one, other = inputs.get("training"), inputs.get("validation")
    differs = one is not None and other is not None and one.rms > 0 and not 0.8 < other.rms / one.rms < 1.25
    of_loss = facts.flow.loss is not None and bool(facts.flow.loss.validations) and alert.site not in facts.modules
    named = alert.site in facts.features.validated
    found.add(named, PROOF, "predictions follow the labels of validation one to one, by other numbers")
    found.add(of_loss and not (differs or named), STRONG, "the validation loss is worse than guessing, on inputs of the same size")
    numbers, to = "the numbers of classes and words in validation", "those of training: one table for both, not unique() of a part"
    remedy = replace(numbers, to, "a validation loss near that of training")
    return "Validation has other numbers for the same classes or words, or each batch of training has numbers of its own.", [remedy]


@possible_cause("check its samples")
def bad_batch(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """One batch is unlike the others."""
    if alert.batch is None:
        return None
    rate = facts.rate_at(alert.site)
    found.add(True, SOME, f"one step leapt, at batch {alert.batch} of epoch {alert.epoch}")
    found.add(
        bool(alert.samples) and alert.kind in ("spike", "loss_spike"), SLIGHT, "a gradient leapt that no large update came before"
    )
    found.add(
        rate is not None and bool(rate.began) and rate.lr > 1.5 * (rate.began or 0.0), EXCLUDES, "the learning rate had risen"
    )
    what = f"batch {alert.batch} of epoch {alert.epoch}"
    named = f" ({alert.of_samples.rstrip('.')})" if alert.samples else ""
    return f"B{what[1:]} is unlike the others{named}.", [Remedy("check", f"the samples of {what}", effect="no such step")]


@possible_cause("remove the code that writes them")
def written_back(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Code writes weights back after steps."""
    rate, setup = facts.rate_at(alert.site), facts.flow.model_setup
    between = bool(setup.weights_returned or setup.weights_still) and setup.weights_set is None
    found.add(
        between and alert.kind == "set_outside",
        PROOF,
        "steps begin with the weights that earlier ones began with, although updates change them",
    )
    found.add(
        alert.value == 0 and rate is not None and rate.lr > 0, STRONG, "it has a gradient and a rate, and does not change by a bit"
    )
    found.add(rate is not None and rate.first == 0, EXCLUDES, "its rate was 0 when training started")
    return "Code sets weights back to what they were after the optimizer's step.", [
        Remedy("remove", f"what writes the weights of {alert.site}")
    ]


@possible_cause("replace the softmax by a sigmoid, or give it two outputs")
def softmax_of_one(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A softmax is given one number, and puts out 1."""
    stats, kind = facts.features.sites.get(alert.site), facts.modules.get(alert.site, "")
    found.add(stats is not None and kind == "Softmax" and stats.min == stats.max == 1.0, PROOF, "its output is 1 in all samples")
    remedy = replace("nn.Softmax", "nn.Sigmoid", "outputs that vary", f"{in_code(alert.site)} = nn.Sigmoid()")
    return f"{alert.site} is a softmax over a single number.", [remedy]


# What a rule states as a fact.


@possible_cause("give each class one over its weight")
def weights_upside_down(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A loss weighs frequent classes more than rare ones."""
    outputs, targets = facts.features.outputs.get(alert.site), facts.features.targets.get(alert.site)
    if outputs is not None and outputs.frequent_weight > 1:
        found.add(True, PROOF, f"labels weigh {outputs.frequent_weight:.2g} times as much as classes do")
        weight, code = f"the weight of {alert.site}", "weight = counts.sum() / (len(counts) * counts)"
    elif targets is not None and targets.weighted_down > 0:
        found.add(True, PROOF, "positive targets are rare, and pos_weight is below 1")
        weight, code = f"the pos_weight of {alert.site}", "pos_weight = negatives / positives"
    else:
        return None
    remedy = replace(weight, "one over it", "rare classes that are named", code)
    return f"{alert.site} weighs frequent classes more than rare ones.", [remedy]


@possible_cause("transpose the logits in place of a view")
def viewed_classes(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A view brings the classes to the second dimension, and takes other numbers for them."""
    stats = facts.features.outputs.get(alert.site)
    if stats is None or not stats.viewed:
        return None
    found.add(True, PROOF, f"the tensor that is viewed has its {stats.classes} classes last")
    view, to = f"the view (or reshape) before {alert.site}", "a transpose, or permute"
    remedy = replace(view, to, "a loss that falls further", "logits.transpose(1, -1)")
    return f"{alert.site} takes numbers of several places for one class.", [remedy]


def fact(
    name: str, title: str, op: str, target: str, to: str = "", code: str = "", at: str = "", advice: str = ""
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
    """

    def judge(alert: Alert, facts: Facts) -> Cause | None:
        if at not in alert.site or (advice and advice not in alert.advice):
            return None
        words = {"site": alert.site, "code": in_code(facts.module_of(alert.site) or alert.site)}
        remedy = Remedy(op, target.format(**words), None, to or None, "", "", SOON, code.format(**words))
        statement = f"{title[:1].upper()}{title[1:]}."
        return Cause(name, statement, evidence_for=(alert.message,), remedies=(remedy,), strengths=(STRONG,))

    return PossibleCause(name, title, (f"{op} {target.format(site='SITE', code='SITE')}{f': {to}' if to else ''}",), judge)


WRONG_DIMENSION = fact("wrong_dimension", "a softmax is along the wrong dimension", "set", "{site}.dim", "-1", "softmax(x, dim=-1)")
NO_LOGITS = fact("no_logits", "the loss is given no logits", "replace", "what {site} is given",
                 "the output of the last linear layer", at="cross_entropy")  # fmt: skip
LABELS_LOST = fact(
    "labels_lost", "labels are masked, or ignored as a class", "check", "the labels that the loss is given, and ignore_index"
)
SAME_BATCHES = fact("same_batches", "the data repeat", "replace", "the loader's samples", "samples that each worker draws once")
OTHER_UNITS = fact("other_units", "validation has other units than training", "replace", "the transforms of validation",
                   "those of training")  # fmt: skip
DROPS_IN_EVAL = fact("drops_in_eval", "dropout acts in validation", "set", "training of {site}", "self.training",
                     "F.dropout(x, p, training=self.training)")  # fmt: skip
NOT_CAST = fact("not_cast", "autocast does not reach it", "remove", "autocast(enabled=False) or .float() around {site}")
NONFINITE = (
    *(nonfinite_weights, nonfinite_data, nonfinite_operation, half_overflow, stretching_start, large_inputs, large_targets),
    rate_too_high,
)
"""What makes values NaN or infinite."""
