"""Causes in the weights, as they are and as they were at the start, and in modules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import (
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
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.causes.steps import clip_at
from lightning_hooks.diagnostics.setup.initial import FAR, TEXTBOOK, is_textbook
from lightning_hooks.trackers import some

_SHUT = ("dead", "zero", "vanishing", "constant", "representation_collapse")
_OF_LARGE = ("dead", "exploding", "saturated", "attention_logits", "attention_collapse", "residual_growth")
"""What weights that are too small do not lead to."""


@possible_cause("fill the bias with 0")
def offset_bias(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A bias holds the units below zero, or one of them far above the others."""
    near, shut = facts.before(alert.site, 99 if alert.kind == "saturated" else 3), alert.kind in _SHUT
    biases = [(m, name, facts.start[name]) for m in near for name in facts.parameters_of(m) if name.endswith("bias")]
    known = [one for one in biases if one[2].elements > 1 and not one[2].nonfinite and (one[2].high < 0 or not shut)]
    if not known:
        return None
    module, name, bias = known[0] if shut else max(known, key=lambda one: one[2].size)
    if shut:
        found.add(True, SOME if bias.constant else SLIGHT, f"all its numbers are {'equal and ' * bias.constant}below 0")
        largest = facts.features.sites[module].max if module in facts.features.sites else math.nan
        shown = f"the largest output of {module} is {largest:.3g}, without it {largest - bias.mean:.3g}"
        found.add(largest <= 0 < largest - bias.mean, SOME, shown)
    else:
        one = bias.constant and bias.size >= 5 and alert.kind == "saturated"
        found.add(one or (bias.size >= 2 and bias.high - bias.low > 2), STRONG, f"it is as large as {bias.size:.3g}")
    found.add(bool(found.pros), SLIGHT, "it has been so since the start")
    now = facts.now.get(name, bias).mean
    found.add(abs(now - bias.mean) > 3 * max(bias.size, 0.1), EXCLUDES, f"its mean was {bias.mean:.2g} and is {now:.2g} now")
    units = "channels" if facts.modules.get(module, "").startswith(("Conv", "BatchNorm")) else "units"
    values = f"{bias.mean:.4g} in all" if bias.constant else f"{bias.low:.3g} to {bias.high:.3g} in"
    alike = _alike(facts, name, bias, [other for other in facts.start if other.endswith("bias")])
    code = "; ".join(f"nn.init.zeros_({in_code(other)})" for other in alike)
    remedy = Remedy("fill", ", ".join(alike), None, 0.0, f"{name} is far from 0", f"outputs of {module} above 0", SOON, code)
    return f"{name} is {values} {bias.elements} {units}, since the start.", [remedy]


def _alike(facts: Facts, name: str, tensor: TensorFacts, names: Sequence[str]) -> list[str]:
    """A parameter and, where one number other than 0 filled it at the start, those of others that the same one filled."""
    others = (other for other in names if other != name and facts.start[other].constant and facts.start[other].mean == tensor.mean)
    return [name, *(others if tensor.constant and tensor.mean else ())]


@possible_cause("initialise the layer at random, as large as the others")
def constant_weights(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A layer's weights all start with the same number."""
    trained = {name for name, setup in facts.flow.setups.items() if setup.dimensions > 1 and setup.trains}
    flat = [name for name, tensor in facts.start.items() if name in trained and tensor.constant and tensor.elements > 1]
    modules = {facts.module_of(alert.site), *facts.before(alert.site)}
    near = [name for name in flat if name == alert.site or name.rpartition(".")[0] in modules]
    able = {*facts.concerns(alert, (name.rpartition(".")[0] for name in flat))}
    found_at = near or [name for name in flat if name.rpartition(".")[0] in able]
    if not found_at or (not near and len(flat) > 3):
        return None
    name, several = found_at[0], [f"{site}.weight" for site in facts.flow.model_setup.constant_weights]
    first, now = facts.start[name], facts.now.get(name)
    found.add_all(
        (bool(near), STRONG if name in several else SOME, "it is at this site, or next to it"),
        (not near, SLIGHT, f"{len(flat)} of the model's weights start so"),
        (now is not None and now.constant, SOME, "it is so still"),
    )
    gains = [gain for site, gain in usable_gains(facts).items() if f"{site}.weight" not in flat]
    gain = float(f"{statistics.median(gains) if gains else 1.0:.2g}")
    alike = several if name in several else _alike(facts, name, first, flat)
    code = "; ".join(f"nn.init.kaiming_normal_({in_code(other)}).mul_({gain / math.sqrt(2):.2g})" for other in alike)
    remedy = Remedy("initialise", ", ".join(alike), first.mean, gain, "", "outputs that differ from unit to unit", SOON, code)
    return f"{name} started with {first.mean:.3g} in all of its {first.elements} numbers.", [remedy]


@possible_cause("multiply it by one over its size", "start it from its logarithm, if exp is taken of it")
def large_start(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A parameter starts far larger than the others."""
    sizes = {name: tensor.size for name, tensor in facts.start.items() if not tensor.nonfinite and tensor.size > 0}
    if len(sizes) < 3:
        return None
    able = {*facts.concerns(alert, (name.rpartition(".")[0] for name in sizes))}
    name = max((name for name in sizes if name.rpartition(".")[0] in able), key=sizes.__getitem__, default="")
    size, times = sizes.get(name, 0.0), sizes.get(name, 0.0) / statistics.median(sizes.values())
    if not (size > 8 and times > 10):
        return None
    tensor = facts.start[name]
    found.add(True, STRONG if times > 30 else SOME, f"that is {times:.3g} times the median of the others")
    if tensor.elements == 1:
        to = float(f"{math.log(size):.3g}")
        found.add(alert.kind == "poor_init", SLIGHT, "the first loss is far above that of guessing")
        code = f"nn.init.constant_({in_code(name)}, {to:g})"
        remedy = Remedy("fill", name, tensor.mean, to, "exp is taken of it", "a first loss near that of guessing", 1, code)
        return f"{name} starts at {tensor.mean:.3g}.", [remedy]
    to = float(f"{math.sqrt(3) / size:.2g}")  # evenly spread numbers then have a root mean square of 1
    remedy = Remedy("scale", name, None, to, "", "a size like that of the others", SOON, f"{in_code(name)}.data.mul_({to:g})")
    return f"{name} starts between {tensor.low:.3g} and {tensor.high:.3g}.", [remedy]


@possible_cause("initialise all layers so that each keeps the size of its input")
def small_start(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """All layers start so small that each shrinks the signal, and no norm restores it."""
    gains = list(usable_gains(facts).values())
    if len(gains) < 4 or facts.has("norm"):
        return None
    kinds = [*map(str.lower, facts.modules.values()), *(site.rpartition("/")[2] for site in facts.features.sites if "/" in site)]
    middle, rectified = statistics.median(gains), 2 * sum("relu" in kind for kind in kinds) >= len(gains)
    to = math.sqrt(2) if rectified else 1.0  # a rectifier halves the mean square
    left = f"a signal is {(middle / to) ** len(gains):.1g} of itself behind {len(gains)} layers"
    found.add(middle < 0.35, STRONG, left)
    deep = rectified and middle >= 0.35 and (middle / to) ** len(gains) < 1e-3 and not facts.features.residual
    found.add(deep, STRONG, f"{left} with rectifiers")
    target, init = ", ".join(facts.features.initial_gains), "kaiming" if rectified else "xavier"
    code = f"for layer in layers: nn.init.{init}_uniform_(layer.weight)"
    remedy = Remedy("initialise", target, middle, to, "", "signals of one size from layer to layer", SOON, code)
    return f"Each layer starts with a gain near {middle:.2g}, and nothing normalises their outputs.", [remedy]


@possible_cause("initialise all layers so that each keeps the size of its input")
def stretching_start(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """All layers start so large that each stretches the signal, and no norm restores it."""
    gains, middle = usable_gains(facts), facts.stretch
    if middle < 3:
        return None
    found.add(True, STRONG, f"a layer puts out {middle:.3g} times what it is given; PyTorch's layers start near 0.58")
    found.add(facts.overflows, SLIGHT, "numbers grow from layer to layer until they overflow")
    site = [*gains][-1]
    stats, loss = facts.features.sites.get(site), facts.flow.loss
    alike = stats is not None and loss is not None and 0.1 < stats.rms / math.sqrt(max(loss.start, 1e-9)) < 10
    found.add(alike, SLIGHT, f"the outputs of {site}, not the targets, are as large as the loss suggests")
    code = "for layer in layers: layer.reset_parameters()"
    remedy = Remedy("initialise", ", ".join(gains), middle, None, "", "signals of one size from layer to layer", SOON, code)
    return f"Each of {len(gains)} layers starts with a gain near {middle:.3g}, and nothing normalises their outputs.", [remedy]


def usable_gains(facts: Facts) -> dict[str, float]:
    """The gains of the initial weights that are not all zeros."""
    return {site: gain for site, gain in facts.features.initial_gains.items() if 0 < gain < math.inf}


@possible_cause("multiply its weight by one over the factor")
def initial_scale(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A layer starts with much larger or smaller weights than the others."""
    gains = usable_gains(facts)
    if len(gains) < 3:
        return None
    middle, here = _usual_gain(gains), facts.module_of(alert.site)
    away = {site: abs(math.log10(gain / middle)) for site, gain in gains.items()}
    able = [site for site in facts.concerns(alert, gains) if gains[site] > middle or alert.kind not in _OF_LARGE]
    site = max(able, key=away.__getitem__, default="")
    site = here if here in able and away[here] > 0.7 * away[site] else site
    if away.get(site, 0.0) < 0.5:
        return None
    factor, block, least = gains[site] / middle, here.rpartition(".")[0], 0.7 * away[site]
    found.add(True, STRONG if away[site] > math.log10(FAR) else SOME, f"that is {factor:.3g} times the gain that is usual here")
    close = site in (here, *facts.before(alert.site)) or bool(block and site.startswith(f"{block}."))
    found.add(close, SOME, "it is at this site, or just before it")
    alike = [site, *(other for other in gains if other != site and away[other] > least and (gains[other] > middle) == (factor > 1))]
    names = [next((n for n in facts.start if n.startswith(f"{one}.") and n.endswith("weight")), f"{one}.weight") for one in alike]
    found.add(len(names) > 2, SLIGHT, f"{len(names)} layers start so")
    to = float(f"{1 / factor:.2g}")
    size = f"{factor:.3g} times as large as is usual in this model (gain {gains[site]:.3g}, usual {middle:.3g})"
    code = f"{in_code(names[0])}.data.mul_({to:g})"
    remedy = Remedy("scale", names[0], None, to, "", "a gain like that of the others", SOON, code)
    if len(names) > 1:
        code = f"nn.init.kaiming_normal_({in_code(names[0])}).mul_({middle / math.sqrt(2):.2g}), and so on"
        remedy = Remedy("initialise", ", ".join(names), gains[site], middle, "", "gains that are usual", SOON, code)
    return f"{some(names, 1)} started {size}.", [remedy]


def _usual_gain(gains: Mapping[str, float]) -> float:
    """The median; of the layers that start with a usual gain where most have a larger one, and 1 where all have."""
    middle = statistics.median(gains.values())
    return middle if middle <= TEXTBOOK[1] else statistics.median([gain for gain in gains.values() if is_textbook(gain)] or [1.0])


@possible_cause("add the input of a block once: x + f(x)")
def scaled_shortcut(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Each block multiplies its input by one factor on the way around it."""
    carried = [stats.carried for stats in facts.features.residual.values() if stats.carried is not None]
    middle = statistics.median(carried) if len(carried) > 2 else 1.0
    alike = sum(0.85 * middle < one < 1.15 * middle for one in carried)
    found.add(middle > 1.6 and alike > 0.7 * len(carried), STRONG, f"{alike} of {len(carried)} blocks hand {middle:.3g} of it on")
    blocks = ", ".join([*facts.features.residual][:2])
    remedy = replace(f"the shortcut in {blocks} and so on", "the input, once", code="return x + branch(x)")
    return f"Each block hands on {middle:.3g} times its input: it is added more than once.", [remedy]


_SQUASHING = ("Sigmoid", "Tanh", "Hardsigmoid", "Hardtanh", "Softsign", "LogSigmoid")


@possible_cause("replace them by ReLU, with He initialisation")
def squashing_chain(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A chain of activations lets only a part of the gradient through."""
    names = [name for name, kind in facts.modules.items() if kind in _SQUASHING]
    if len(names) < 3:
        return None
    kind = facts.modules[names[0]]
    most = 0.25 if "igmoid" in kind else 1
    found.add(True, STRONG if len(names) > 3 else SOME, f"each lets at most {most:g} of the gradient through")
    code = "nn.ReLU(), and nn.init.kaiming_normal_ for weights"
    remedy = replace(f"nn.{kind}", "nn.ReLU and He initialisation", "gradients of one size", code)
    return f"The gradient passes {len(names)} {kind} modules ({names[0]} to {names[-1]}).", [remedy]


_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}  # square matrices that a recurrent weight is made of
STRETCHES = 1.5  # gain of a recurrent weight above which it stretches what it is given; an orthogonal one has 1


@possible_cause("initialise it orthogonally", "set trainer.gradient_clip_val")
def stretching_recurrence(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A recurrent layer amplifies the gradient at each time step."""
    module = next((name for name, kind in facts.modules.items() if kind.removesuffix("Cell") in ("RNN", "LSTM", "GRU")), "")
    matrix = next((name for name in facts.start if module and name.startswith(f"{module}.weight_hh")), "")
    if not matrix:
        return None
    kind, norm, start = facts.modules[module], facts.usual_norm, facts.start[matrix]
    gain = start.rms * (start.elements / _GATES[kind.removesuffix("Cell")]) ** 0.25  # the root of its width
    found.add(alert.kind == "poor_init" and not gain > STRETCHES, EXCLUDES, "it starts with a usual gain")
    found.add(gain > STRETCHES, STRONG, f"{matrix} starts with a gain of {gain:.3g}; PyTorch's recurrent layers start with 0.58")
    found.add(True, SOME, f"{module} is a {kind}")
    found.add(facts.setup.clip_norm is None, SLIGHT, "nothing clips")
    code = f"nn.init.orthogonal_({in_code(matrix)})"
    remedies = [Remedy("initialise", matrix, None, "orthogonal", "", "gradients of one size over time", SOON, code)]
    remedies += [clip_at(facts, rounded(min(1.0, norm)))] if facts.setup.clip_norm is None else []
    return f"{module} ({kind}) multiplies gradients by {matrix} at each time step.", remedies


_WANTED = {"p": 0.1, "eps": 1e-5, "momentum": 0.1}


@possible_cause("set it to the usual value")
def module_setting(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A module's setting is far out of its usual range."""
    settings = facts.flow.model_setup.settings.items()
    known = [(module, name, value) for module, values in settings for name, value in values.items() if name in _WANTED]
    if not known or (alert.kind == "settings" and alert.site not in facts.modules):
        return None
    module, name, value = known[0]
    wanted, alike = _WANTED[name], [other for other, same, _ in known if same == name]
    found.add(True, SOME, f"{wanted:g} is usual")
    found.add(facts.module_of(alert.site) in alike, SOME, "it is a module of this site")
    target = ", ".join(f"{other}.{name}" for other in alike)
    text = f"{name} of {module}{f' and {len(alike) - 1} more' * (len(alike) > 1)} is {value:g}; {wanted:g} is usual."
    return text, [Remedy("set", target, value, wanted, steps=SOON, code=f"{in_code(module)}.{name} = {wanted:g}")]


@possible_cause("use larger batches", "use a group norm in its place")
def small_batches(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A batch norm has very few values."""
    values, kind = facts.flow.model_setup.values_per_channel.get(alert.site), facts.modules.get(alert.site, "")
    if values is None or not kind.startswith("BatchNorm"):
        return None
    found.add(True, PROOF, f"it has {values:.3g} values per channel and batch")
    effect, size = "the same statistics in training and validation", facts.flow.learned.batch_size
    remedies = [replace(f"nn.{kind}", "nn.GroupNorm", effect, "nn.GroupNorm(1, channels)")]
    if size:
        to = math.ceil(size * _FEW / values)
        code = f"DataLoader(…, batch_size={to})"
        remedies.insert(0, Remedy("set", "dataloader.batch_size", round(size), to, "", effect, SOON, code))
    return f"The statistics of {alert.site} come from {values:.3g} values of a batch.", remedies


_FEW = 16  # values of a batch from which the statistics of a channel are as good as usual


@possible_cause("initialise the parameter, or load it again")
def nonfinite_weights(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Weights were not finite from the start."""
    bad = [(name, tensor) for name, tensor in facts.start.items() if tensor.nonfinite]
    if not bad:
        return None
    name, tensor = bad[0]
    more = f" (and {len(bad) - 1} more parameters)" * (len(bad) > 1)
    found.add(True, PROOF, "it was so before the first step")
    text = f"{name}{more} held {tensor.nonfinite} of {tensor.elements} numbers that are NaN or infinite when training started"
    return f"{text}.", [Remedy("initialise", name, None, None, "", "a finite loss", 1, f"{in_code(name)}.data.nan_to_num_(0.0)")]
