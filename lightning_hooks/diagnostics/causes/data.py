"""Causes in the data: what the model is given, and whether targets have to do with it."""

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
    in_code,
    possible_cause,
    replace,
    rounded,
)
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.reports import FeatureReport

_ALIKE = ("constant", "representation_collapse", "vanishing", "no_progress")

FEW_STEPS = 100  # before which a training may not have left the best constant answer yet
LEAP = 3.0  # how many times as large as in earlier windows the inputs of one with an unusual batch are


def _first_layer(facts: Facts) -> tuple[str, float]:
    """The first module with weights and how much its outputs differ between samples; empty unless that is known and they vary."""
    own = {name.rpartition(".")[0] for name in facts.start}
    first, known = next((name for name in facts.modules if name in own), ""), facts.features.representations
    varied = any(not facts.start[name].constant for name in facts.parameters_of(first))
    return (first, known[first].ratio) if varied and first in known else ("", math.nan)


@possible_cause("multiply the input by one over its size", "subtract its mean and divide by its standard deviation")
def large_inputs(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The model's inputs are not normalised."""
    stats = facts.features.inputs.get("training")
    if stats is None or not (8 < stats.rms < math.inf or (0 < stats.std < math.inf and abs(stats.mean) > 4 * stats.std)):
        return _large_within(facts, found)
    place, bytes_ = f"batch{facts.features.input_place}", stats.min >= 0 and 200 < stats.max <= 255
    ratio = max((scales.ratio for scales in facts.features.feature_scales.values()), default=1.0)
    columns = ratio > 3 and not facts.features.images
    away = abs(stats.mean) / stats.std if stats.std > 0 else 0.0
    found.add_all(
        (stats.rms > 8, STRONG if stats.rms > 50 else SOME, f"its root mean square is {stats.rms:.3g}"),
        (bytes_, SOME, "it looks like bytes"),
        (away > 4, STRONG, f"its mean is {stats.mean:.3g}, {away:.3g} times its standard deviation"),
        (
            LEAP * getattr(facts.features.first.inputs.get("training"), "rms", math.inf) < stats.rms,
            EXCLUDES,
            "they were of a usual size when training started",
        ),
    )
    layer, alike = _first_layer(facts)
    found.add(alert.kind in _ALIKE and alike < 1e-2, SLIGHT, f"samples differ by {alike:.2g} of their size at {layer}")
    found.add(alert.severity == "info" and stats.rms <= 50, EXCLUDES, "nothing shows that it does harm")
    to = float(f"{1 / 255 if bytes_ else 1 / stats.rms:.2g}")
    scale = Remedy("scale", place, None, to, "", "inputs of a size near 1", 1, f"x = x * {to:g}")
    middle, half, around = (stats.max + stats.min) / 2, (stats.max - stats.min) / 2, "inputs around 0, of a size near 1"
    from_range = replace(place, "its values, from -1 to 1", around, f"x = (x {-middle:+.3g}) / {half:.3g}", 1)
    if columns:
        standard = replace(place, "its columns, standardised", around, "x = (x - x.mean(0)) / x.std(0)", 1)
    elif not facts.features.images and stats.max - stats.min < 4 * stats.std:  # they fill a range
        standard = from_range
    else:
        standard = replace(place, "its values, standardised", around, f"x = (x {-stats.mean:+.3g}) / {stats.std:.3g}", 1)
    remedies = [standard, scale] if (columns or away > 4) and not bytes_ else [scale, standard]
    if away > 4 and not columns and standard is not from_range:  # its size is no cure
        remedies[1] = from_range
    own_loss = not (facts.features.outputs or facts.features.targets)  # it may use the batch in its units
    if layer and own_loss and alert.kind == "saturated" and remedies[0] is scale:
        code = f"{in_code(layer)}(x * {to:g})"
        remedies = [Remedy("scale", f"what {layer} is given", None, to, "", "inputs of a size near 1", 1, code), scale]
    usual = "a size of 1 is usual" if stats.rms > 8 else "a mean near 0 is usual"
    return f"{place} holds numbers from {stats.min:.3g} to {stats.max:.3g}, where {usual}.", remedies


def _large_within(facts: Facts, found: CauseEvidence) -> Judgement:
    """What the first layer is given is large, though the batch is not."""
    layer, scales = next(iter(facts.features.feature_scales.items()), ("", None))
    if scales is None or not 30 <= scales.rms < math.inf:
        return None
    found.add(True, STRONG, f"one of its features has a root mean square of {scales.rms:.3g}")
    to = float(f"{1 / scales.rms:.2g}")
    remedy = Remedy("scale", f"what {layer} is given", None, to, "", "inputs of a size near 1", 1, f"{in_code(layer)}(x * {to:g})")
    return f"What {layer} is given holds numbers of a size near {scales.rms:.3g}, where a size of 1 is usual.", [remedy]


@possible_cause("multiply the input by one over its largest number")
def tiny_inputs(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The model's inputs are next to zero: they were divided twice."""
    stats = facts.features.inputs.get("training")
    if stats is None or not 0 < max(stats.max, -stats.min) <= 0.01:
        return None
    place, largest = f"batch{facts.features.input_place}", max(stats.max, -stats.min)
    found.add(True, STRONG, f"none of its numbers is above {largest:.2g}")
    found.add(facts.features.images and stats.min >= 0 and stats.max <= 0.004, SLIGHT, "they are images, divided by 255 twice")
    to = float(f"{1 / largest:.3g}")
    remedy = Remedy("scale", place, None, to, "", "inputs of a size near 1", 1, f"x = x * {to:g}")
    return f"{place} holds numbers up to {largest:.2g}, where a size of 1 is usual.", [remedy]


NINES = (-999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0)  # numbers that stand for what is missing in many data sets
FAR_NINES = 2.0  # how many times the root mean square of all numbers such a one must be


def farthest(features: FeatureReport) -> tuple[float, float]:
    """The number of the training inputs that is farthest from 0, and how many times their root mean square; 0 without inputs."""
    stats = features.inputs.get("training")
    value = 0.0 if stats is None else max(stats.min, stats.max, key=abs)
    return value, 0.0 if stats is None or not stats.rms else abs(value) / stats.rms


@possible_cause("replace that number by the mean of the others")
def placeholder(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A number far from all others stands for what is missing."""
    value, times = farthest(facts.features)
    if not (math.inf > abs(value) >= 99 and value == round(value) and times > (FAR_NINES if value in NINES else 7)):
        return None
    largest = max((scales.rms for scales in facts.features.feature_scales.values()), default=0.0)
    found.add(abs(value) < 4 * largest, EXCLUDES, f"numbers of one feature have a root mean square of {largest:.3g}")
    found.add(True, STRONG, f"it is {times:.3g} times the root mean square")
    place = f"batch{facts.features.input_place}"
    remedy = Remedy("replace", place, value, f"0 where it is {value:g}", "", "inputs of one size", 1, f"x[x == {value:g}] = 0")
    return f"{place} holds {value:g}, far from its other numbers.", [remedy]


@possible_cause("multiply the targets by one over their size")
def large_targets(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The targets of a regression are not normalised."""
    first = facts.first_loss
    if not 1e3 < first < math.inf or facts.features.outputs:
        return None
    size = rounded(math.sqrt(first))
    found.add(True, STRONG, "it is not a cross entropy")
    numbers = max((stats.targets for stats in facts.features.targets.values()), default=1)
    near = alert.kind == "no_progress" and first < 2.0 * (facts.flow.learned.constant_loss or math.inf)
    found.add(near and first < 1e3 * numbers, EXCLUDES, f"it may be a sum over {numbers} numbers")
    found.add(facts.overflows, SOME, "numbers grew from step to step until they overflowed")
    remedy = Remedy("scale", "targets", None, rounded(1 / size), "", "a loss that starts near 1", 1, f"target = target / {size:g}")
    return f"The loss starts at {first:.3g}, as with targets of a size near {size:g}.", [remedy]


@possible_cause("check a batch as the model receives it", "check the targets")
def constant_data(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The samples or the targets are all the same."""
    inputs, same = facts.features.inputs.get("training"), facts.features.same_samples is True
    layer, ratio = _first_layer(facts)
    one = inputs is not None and inputs.count > 1 and inputs.min == inputs.max
    if inputs is not None:
        found.add(one, PROOF, f"all numbers of the input are {inputs.min:.3g}")
    found.add(same and not one, PROOF, "the samples of a batch are equal to the bit")
    alike = ratio < 1e-12 and not (one or same)
    found.add(alike, STRONG, f"the outputs of {layer}, the first layer, are the same for all samples")
    agreement = alert.kind == "constant" and alert.value > 0.5 and alert.threshold > 0.5  # of the gradients at the last layer
    targets = not (one or same or alike) and agreement
    found.add(targets, STRONG, "samples differ, and their gradients at the last layer do not")
    found.add(targets and inputs is not None and inputs.rms > 8, EXCLUDES, "inputs that are not normalised do the same")
    what = "the targets" if targets else "the samples"
    where = f", and what is done to them before {layer}" * alike
    remedy = Remedy("check", f"{what} of a batch, and __getitem__{where}")
    return f"{what[:1].upper()}{what[1:]} of a batch are all the same{' when they reach ' + layer if where else ''}.", [remedy]


@possible_cause("check what is done to the samples before the first layer")
def destroyed_inputs(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """What the first layer is given hardly differs from sample to sample."""
    (layer, alike), inputs = _first_layer(facts), facts.features.inputs.get("training")
    off = inputs is not None and (inputs.rms > 8 or abs(inputs.mean) > 4 * inputs.std)
    found.add(1e-12 <= alike < 1e-5 and not off, STRONG, f"its outputs differ by {alike:.2g} of their size from sample to sample")
    remedy = Remedy("check", f"what is done to the samples before {layer}", effect="outputs that differ from sample to sample")
    return f"What {layer}, the first layer, is given is almost the same for all samples.", [remedy]


@possible_cause("add what separates samples: negatives, or a variance term")
def nothing_repels(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss is smallest where all outputs are the same."""
    loss = facts.flow.loss
    if loss is None or not loss.recent or facts.features.outputs or facts.features.targets:
        return None
    last, fell = loss.recent[-1], f"the loss fell from {loss.start:.2g} to {loss.recent[-1]:.2g} while outputs became alike"
    found.add(0 <= last < 0.05 * loss.start, STRONG, fell)
    to = "one with negatives, a variance term, or a stop-gradient and a predictor"
    remedy = replace("the loss between outputs", to, "outputs that differ from sample to sample")
    return "The loss is smallest where all outputs are the same, and nothing in it separates samples.", [remedy]


@possible_cause("check that each target belongs to its input, and what the model is given")
def unrelated_targets(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The targets do not follow from what the model is given."""
    over, (first, alike) = facts.flow.over_constant, _first_layer(facts)
    found.add_all(
        (0.97 < over < 1.15, SOME, f"the loss is {over:.3g} of that of the best constant answer"),
        (any(facts.largest_ratio(name, below=0.1) > 3e-4 for name in facts.optimizers), SOME, "steps are of a usual size"),
        (alert.severity == "info", EXCLUDES, "it may begin to learn"),
        (facts.flow.step < FEW_STEPS, AGAINST, f"it has taken no more than {facts.flow.step} steps"),
        (alike < 1e-2, AGAINST, f"samples are almost the same at {first}"),
    )
    what = "that row i of the targets belongs to row i of the inputs (one shuffle, sort or loader for both)"
    remedy = Remedy("check", f"{what}, and that what the model is given holds what targets depend on", steps=SOON)
    return "Weights move, and the loss stays at that of a constant: targets do not follow from what the model is given.", [remedy]


@possible_cause("add less noise to training batches")
def strong_augmentation(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The noise that the training step adds to a batch is larger than the data."""
    inputs, given = facts.features.inputs.get("training"), facts.features.layer_inputs
    training, validation = given.get("training"), given.get("validation")
    if inputs is None or training is None or validation is None or alert.site != facts.features.first_layer:
        return None
    added = math.sqrt(max(training.rms**2 - inputs.rms**2, 0.0))
    found.add(2 * inputs.rms < training.rms, STRONG, f"batches have a root mean square of {inputs.rms:.3g} before the step")
    alike = 0.5 < validation.rms / max(inputs.rms, math.ulp(0.0)) < 2
    found.add(alike, SOME, "validation batches reach the model as they are")
    found.add(not alike, EXCLUDES, "validation batches are changed too")
    to = float(f"{inputs.rms / 10:.1g}")
    remedy = Remedy(
        "set", "the size of the noise in training_step", float(f"{added:.3g}"), to, "", "a loss that falls further", SOON
    )
    return f"The training step adds noise of a size near {added:.3g} to data of a size near {inputs.rms:.3g}.", [remedy]


CHANCE = 2.0
"""Standard deviations up to which predictions agree with targets by chance."""


@possible_cause("check that targets belong to their inputs, and that validation has the columns and the numbers of training")
def unlike_validation(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """What is learned does not hold for validation."""
    known = [*facts.features.agreement.values(), *(pairs.sigmas for pairs in facts.features.validated.values())]
    most = max(known, default=math.nan)
    text = f"predictions follow targets there by no more than {most:.2g} standard deviations of chance"
    found.add(alert.severity != "info" and most < CHANCE, STRONG, text)
    what = "that each target belongs to its input, and that columns and classes of validation are in the order of training"
    code = "trainer.validate(model, train_dataloader)"
    remedy = Remedy("check", what, effect="a validation loss near that of training", steps=SOON, code=code)
    return "What training has learned has nothing to do with the targets of validation.", [remedy]
