"""Causes in the weights, as they are and as they were at the start, and in the inputs."""

from __future__ import annotations

import math
import statistics

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.hypothesis import Cause, Evidence, hypothesis
from lightning_hooks.declare.remedy import Remedy
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.causes.rates import SOON, rounded


def in_code(name: str) -> str:
    """A module or parameter as an attribute of the model in its own ``__init__``: ``self.net[0].bias``."""
    return "self" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in name.split("."))


def _described(bias: TensorFacts, units: str) -> str:
    return (
        f"{bias.mean:.4g} in all {bias.elements} {units}"
        if bias.constant
        else f"{bias.low:.3g} to {bias.high:.3g} in {bias.elements} {units}"
    )


def _fill(name: str, value: float, effect: str) -> Remedy:
    done = f"nn.init.zeros_({in_code(name)})" if value == 0 else f"nn.init.constant_({in_code(name)}, {value:g})"
    return Remedy("fill", name, None, value, f"{name} holds one number, or one of few", effect, SOON, done)


@hypothesis("a bias holds the units below zero, or one far above the others", "fill the bias with 0")
def offset_bias(alert: Alert, facts: Facts) -> Cause | None:
    """The bias of the layer before the site, of a normalisation too, against its outputs."""
    best: Cause | None = None
    for module in facts.before(alert.site, 2):
        for name in facts.parameters_of(module):
            if not name.endswith("bias"):
                continue
            first, now = facts.start.get(name), facts.now.get(name)
            bias = first or now
            if bias is None or now is None or bias.nonfinite or bias.elements < 2:
                continue
            stats = None if facts.features is None else facts.features.sites.get(module)
            found, size = Evidence(), max(abs(bias.low), abs(bias.high))
            negative = bias.high < 0 and alert.kind in ("dead", "zero", "vanishing", "constant", "representation_collapse")
            spread = stats.std if stats is not None and math.isfinite(stats.std) and stats.std > 0 else None
            found.add(negative and bias.constant, 0.4, "all its numbers are one, below 0")
            found.add(negative and not bias.constant, 0.2, "all its numbers are below 0")
            without = None if stats is None else stats.max - bias.mean
            shut = negative and stats is not None and stats.max <= 0 < (without or 0.0)
            found.add(
                shut, 0.35, f"the largest output of {module} is {stats.max if stats else 0:.3g}, without it {without or 0:.3g}"
            )
            found.add(
                size > 10 and size > 100 * statistics.median([abs(bias.low), abs(bias.mean), abs(bias.high), 1.0]),
                0.3,
                f"one of its numbers is {size:.3g}",
            )
            found.add(
                size >= 2 and not negative and (spread is None or size > 2 * spread or bias.high - bias.low > 4),
                0.55,
                f"it is as large as {size:.3g}",
            )
            found.add(first is not None and (size >= 0.5) and found.score > 0, 0.2, "it has been so since the start")
            moved = first is not None and abs(now.mean - first.mean) > 3 * max(size, 0.1)
            found.add(moved, -0.4, f"its mean was {bias.mean:.2g} at the start and is {now.mean:.2g} now")
            units = "channels" if facts.modules.get(module, "").startswith(("Conv", "BatchNorm")) else "units"
            cause = found.cause(
                "offset_bias", f"{name} is {_described(bias, units)}{', since the start' if first is not None else ''}.",
                _fill(name, 0.0, f"outputs of {module} above 0"),
            )  # fmt: skip
            best = max(filter(None, (best, cause)), key=lambda one: one.score, default=None)
    return best


@hypothesis("weights start with one number", "initialise the layer at random")
def constant_weights(alert: Alert, facts: Facts) -> Cause | None:
    """Matrices of one number at the start, zeros too: at the site, at its neighbours, or anywhere where that is rare."""
    setups = {} if facts.flow is None else facts.flow.setups
    flat = [
        n
        for n, t in facts.start.items()
        if t.constant and t.elements > 1 and n in setups and setups[n].dimensions > 1 and setups[n].trains
    ]
    near = [n for n in flat if n.rpartition(".")[0] in (*facts.before(alert.site), facts.module_of(alert.site)) or n == alert.site]
    if not flat or (len(flat) > max(3, len(facts.start) // 4) and not near):
        return None
    name = (near or flat)[0]
    twins = [other for other in flat if other != name and _both_of_one_adapter(name, other)]
    value = facts.start[name].mean
    found = Evidence()
    found.add(bool(near), 0.45, "it is at this site, or next to it")
    found.add(not near, 0.2, "it is the only one in the model" if len(flat) == 1 else f"so are {len(flat)} weights")
    still = facts.now.get(name)
    found.add(still is not None and still.constant, 0.3, "it is so still")
    found.add(bool(twins), 0.2, f"{twins[0] if twins else ''} is so too: neither gets a gradient")
    module = name.rpartition(".")[0]
    gains = () if facts.features is None else [gain for gain in facts.features.initial_gains.values() if 0 < gain < math.inf]
    gain = float(f"{statistics.median(gains):.2g}") if gains else 1.0
    code = f"nn.init.kaiming_normal_({in_code(name)}).mul_({gain / math.sqrt(2):.2g})"
    text = f"{name} started with {value:.3g} in all of its {facts.start[name].elements} numbers."
    return found.cause(
        "constant_weights",
        text,
        Remedy("initialise", name, value, gain, "", f"outputs of {module} that differ", SOON, code),
    )


def _both_of_one_adapter(one: str, other: str) -> bool:
    return one.rpartition(".")[0].rpartition(".")[0] == other.rpartition(".")[0].rpartition(".")[0]


@hypothesis("a layer starts with much larger or smaller weights than the others", "multiply its weight by one over the factor")
def initial_scale(alert: Alert, facts: Facts) -> Cause | None:
    """The layer whose gain is farthest from the median, where it is far."""
    gains = {} if facts.features is None else {s: g for s, g in facts.features.initial_gains.items() if 0 < g < math.inf}
    if len(gains) < 3:
        return None
    middle = statistics.median(gains.values())
    site = max(gains, key=lambda site: abs(math.log(gains[site] / middle)))
    here = facts.module_of(alert.site)
    if here in gains and abs(math.log(gains[here] / middle)) > 0.7 * abs(math.log(gains[site] / middle)):
        site = here
    factor = gains[site] / middle
    if max(factor, 1 / factor) < 3:
        return None
    found = Evidence()
    found.add(True, min(0.2 + 0.25 * abs(math.log10(factor)), 0.55), f"that is {factor:.3g} times the median of the layers")
    block = here.rpartition(".")[0]
    close = site == here or site in facts.before(alert.site) or (bool(block) and site.startswith(f"{block}."))
    found.add(close, 0.25, "it is at this site, or just before it")
    parameter = next((name for name in facts.start if name.startswith(f"{site}.") and name.endswith("weight")), f"{site}.weight")
    code = f"{in_code(parameter)}.data.mul_({1 / factor:.2g})"
    return found.cause(
        "initial_scale", f"{parameter} started {factor:.3g} times as large as is usual in this model (gain {gains[site]:.3g}, median {middle:.3g}).",
        Remedy("scale", parameter, None, float(f"{1 / factor:.2g}"), "", "a gain like that of the other layers", SOON, code),
    )  # fmt: skip


@hypothesis("the model's inputs are not normalised", "multiply the input by one over its size")
def large_inputs(_: Alert, facts: Facts) -> Cause | None:
    """Numbers such as 0 to 255 at the first layer."""
    stats = None if facts.features is None else facts.features.inputs.get("training")
    if facts.features is None or stats is None or not stats.rms > 8:
        return None
    found, size = Evidence(), max(abs(stats.min), abs(stats.max))
    place = f"batch{facts.features.input_place}"
    found.add(
        True, min(0.35 + 0.15 * math.log10(stats.rms / 8 + 1), 0.6), f"its root mean square is {stats.rms:.3g}, where 1 is usual"
    )
    found.add(stats.min >= 0 and 200 < stats.max <= 255, 0.25, "it looks like bytes from 0 to 255")
    to = rounded(1 / 255 if 200 < stats.max <= 255 and stats.min >= 0 else 1 / stats.rms)
    to = 1 / 255 if 200 < stats.max <= 255 and stats.min >= 0 else to
    return found.cause(
        "large_inputs", f"{place} holds numbers from {stats.min:.3g} to {stats.max:.3g} (size {size:.3g}).",
        Remedy("scale", place, None, to, "", "inputs of a size near 1", 1, f"x = x * {to:.3g}"),
    )  # fmt: skip


_SQUASHING = ("Sigmoid", "Tanh", "Hardsigmoid", "Hardtanh", "Softsign", "LogSigmoid")


@hypothesis("a chain of activations that squash", "replace them by ReLU")
def squashing_chain(_: Alert, facts: Facts) -> Cause | None:
    """Three or more modules whose slope is at most 1, of a sigmoid a quarter."""
    names = [name for name, kind in facts.modules.items() if kind in _SQUASHING]
    if len(names) < 3:
        return None
    kind = facts.modules[names[0]]
    found = Evidence()
    slope = 0.25 if kind == "Sigmoid" else 0.6
    found.add(True, min(0.3 + 0.05 * len(names), 0.6), f"each lets at most {slope:g} of the gradient through")
    return found.cause(
        "squashing_chain", f"The gradient passes {len(names)} {kind} modules in a row ({names[0]} to {names[-1]}).",
        Remedy("replace", f"nn.{kind}", None, "nn.ReLU and He initialisation", f"{len(names)} modules of this class",
            "gradients of one size in all layers", SOON, "nn.ReLU(), and nn.init.kaiming_normal_ for weights"),
    )  # fmt: skip


_WANTED: dict[str, tuple[float, float]] = {"p": (0.5, 0.1), "eps": (0.01, 1e-5), "momentum": (0.0, 0.1)}


@hypothesis("a module's setting is far out of its usual range", "set it to the usual value")
def module_setting(alert: Alert, facts: Facts) -> Cause | None:
    """What the setup of the model says of the module at the site, or of any before it."""
    settings = {} if facts.flow is None else facts.flow.model_setup.settings
    for module, values in settings.items():
        for name, value in values.items():
            if name not in _WANTED:
                continue
            found = Evidence()
            found.add(True, 0.3, f"{_WANTED[name][1]:g} is usual")
            found.add(module == facts.module_of(alert.site), 0.4, "it is the module of this site")
            code = f"{in_code(module)}.{name} = {_WANTED[name][1]:g}"
            remedy = Remedy("set", f"{module}.{name}", value, _WANTED[name][1], "", "", SOON, code)
            return found.cause("module_setting", f"{name} of {module} is {value:g}; {_WANTED[name][1]:g} is usual.", remedy)
    return None


@hypothesis(
    "a recurrent layer amplifies the gradient at each time step", "initialise it orthogonally", "set trainer.gradient_clip_val"
)
def stretching_recurrence(_: Alert, facts: Facts) -> Cause | None:
    """Only where the model has one."""
    module = next(
        (name for name, kind in facts.modules.items() if kind in ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")), ""
    )
    matrix = next((n for n in facts.start if n.startswith(f"{module}.") and "weight_hh" in n), "") if module else ""
    if not matrix:
        return None
    found = Evidence()
    found.add(True, 0.3, f"{module} is a {facts.modules[module]}")
    found.add(facts.clip_norm is None, 0.2, "nothing clips")
    found.add(facts.modules[module] == "RNN", 0.15, "it has no gates")
    remedies = [
        Remedy(
            "initialise", matrix, None, "orthogonal", "", "gradients of one size", SOON, f"nn.init.orthogonal_({in_code(matrix)})"
        )
    ]
    norm = facts.usual_norm
    if facts.clip_norm is None:
        remedies.append(
            Remedy("set", "trainer.gradient_clip_val", None, rounded(min(norm or 1.0, 1.0)), code="Trainer(gradient_clip_val=1.0)")
        )
    return found.cause(
        "stretching_recurrence",
        f"{module} ({facts.modules[module]}) multiplies gradients by {matrix} at each time step.",
        *remedies,
    )


@hypothesis("the targets of a regression are not normalised", "multiply the targets by one over their size")
def large_targets(_: Alert, facts: Facts) -> Cause | None:
    """A loss that starts far above 1 and is no cross entropy."""
    loss = None if facts.flow is None else facts.flow.loss
    if loss is None or not loss.start > 1e3 or facts.features is None or facts.features.outputs:
        return None
    found, size = Evidence(), math.sqrt(loss.start)
    found.add(True, 0.55, f"the loss starts at {loss.start:.3g}")
    remedy = Remedy(
        "scale", "targets", None, rounded(1 / size), "", "a loss that starts near 1", 1, f"target = target / {rounded(size):g}"
    )
    return found.cause("large_targets", f"The loss starts at {loss.start:.3g}, as with targets of a size near {size:.3g}.", remedy)
