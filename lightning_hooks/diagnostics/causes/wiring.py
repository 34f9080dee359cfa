"""Causes in the wiring: parameters that are frozen or left out, paths that the gradient does not take, axes that are swapped."""

from __future__ import annotations

import math
import statistics

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
)
from lightning_hooks.declare.rule import subject
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.rates import usual
from lightning_hooks.diagnostics.reports import unused_tensors
from lightning_hooks.trackers import some


@possible_cause("add them to the optimizer", "create the optimizer after the layers")
def in_no_optimizer(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Parameters are in no optimizer."""
    setups = facts.flow.setups.items()
    left = [name for name, setup in setups if setup.trains and setup.has_gradient and not setup.optimizers]
    if not left:
        return None
    old = bool(unused_tensors(facts.flow))  # what an optimizer holds instead is in the words of the rule
    found.add(True, PROOF, alert.message if old else "they have a gradient, and no optimizer holds them")
    modules = list(dict.fromkeys(name.rpartition(".")[0] or name for name in left))
    parts = _in_code(left, [name for name, setup in setups if setup.optimizers])
    listed = parts[0][1:] if len(parts) == 1 and parts[0].startswith("*") else f"[{', '.join(parts)}]"
    code = f"optimizer.add_param_group({{'params': {listed}}})"
    target = ", ".join(left if len(left) < 3 else modules[:20])
    remedies = [Remedy("add", target, None, "optimizer", "", "weights that change", SOON, code)]
    if any(name not in facts.start for name in left):  # they came when training had been set up
        code = "self.trainer.strategy.setup_optimizers(self.trainer)"
        again = Remedy("call", "configure_optimizers after the layers are replaced", effect="weights that change", code=code)
        remedies.insert(0, again)
    return f"{some(left, 2)} {'is' if len(left) == 1 else 'are'} in no optimizer.", remedies


def _in_code(left: list[str], held: list[str]) -> list[str]:
    """What is in no optimizer: of the outermost modules that hold nothing else all parameters, others by themselves."""
    parts: dict[str, None] = {}
    for name in left:
        outer = (name[:end] for end, letter in enumerate(name) if letter == ".")
        module = next((place for place in outer if not any(other.startswith(f"{place}.") for other in held)), None)
        parts[in_code(name) if module is None else f"*{in_code(module)}.parameters()"] = None
    return list(parts)


@possible_cause("replace them by an nn.ModuleList or nn.ModuleDict", "replace them by nn.Parameter or an nn.ParameterList")
def not_registered(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The model does not know these modules or tensors."""
    held = facts.flow.model_setup.unregistered.get(alert.site)
    found.add(True, STRONG, alert.message)
    tensors, site = held is not None and not held.modules, in_code(alert.site)
    to = "an nn.Parameter or nn.ParameterList" if tensors else "an nn.ModuleList or nn.ModuleDict"
    code = "" if tensors else f"{site} = nn.ModuleList({site})"
    if held is not None and not held.held:
        to, code = "one that __init__ creates", ""
    return "The model does not know these modules or tensors.", [replace(alert.site, to, "weights that change", code)]


@possible_cause("call requires_grad_(True) on them, and add them to the optimizer")
def frozen_by_mistake(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Layers that were never trained are frozen."""
    setups = facts.flow.setups.items()
    whole = alert.kind == "no_progress"
    inside = {name: one.trains for name, one in setups if (whole and one.optimizers) or alert.site in one.optimizers}
    held = [name for name, trains in inside.items() if not trains]
    head = [name for name, setup in setups if not setup.trains and name.rpartition(".")[0] == alert.site]
    around = [name for name, setup in setups if setup.trains and setup.has_gradient and not setup.optimizers]
    frozen = [name for name, setup in setups if not setup.trains and setup.dimensions > 1]
    drawn = [abs(w.high + w.low) < 0.06 * w.size for w in (facts.start[name] for name in frozen if name in facts.start)]
    only = "the optimizer holds frozen parameters only"
    part = f"of {len(inside)} parameters in optimizers, {len(held)} do not require a gradient (requires_grad)"
    found.add(bool(held), STRONG if whole else PROOF, only if len(held) == len(inside) else part)
    found.add(bool(head) and not held, PROOF, "it is as it was initialised")
    body = not (held or head) and bool(around) and len(drawn) > 1 and all(drawn)
    found.add(body, PROOF, f"their weights lie evenly around 0, as drawn; {len(around)} parameters next to them have a gradient")
    names = held or head or [*frozen, *around]
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))[:20]
    if not modules or (whole and not held):
        return None
    code = f"{in_code(modules[0])}.requires_grad_(True)"
    remedy = Remedy("call", f"requires_grad_(True) on {', '.join(modules)}", effect="weights that change", steps=SOON, code=code)
    return f"{subject(modules, 'is', 'are')} frozen.", [remedy]


@possible_cause("set batch_first=True")
def wrong_axis(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Attention or recurrence runs over the samples of a batch, not over the places of a sequence."""
    known = facts.features.representations
    swapped = [name for name in facts.time_first if any(one == name or one.startswith(f"{name}.") for one in known)]
    if not swapped:
        return None
    strength = PROOF if facts.features.over_samples else STRONG
    found.add(True, strength, f"batch_first is False, and samples are along the first dimension of the output of {swapped[0]}")
    target = ", ".join(f"{name}.batch_first" for name in swapped)
    remedy = Remedy("set", target, to=True, effect="a loss that falls", steps=SOON, code="batch_first=True")
    given = f"{some(swapped, 1)} is given batches with the samples first"
    return f"{given}, and takes these for the places of a sequence.", [remedy]


@possible_cause("add positions along the second dimension")
def positions_by_sample(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Positions are added along the samples of a batch, not along the places of a sequence."""
    if not facts.places_first:
        return None
    name = facts.places_first[0]
    found.add(True, STRONG, "it has its places first, and attention is given batches with the samples first")
    cut, to = f"the positions that are cut from {name} by the first dimension", "those of the second one"
    remedy = replace(cut, to, "a loss that falls", f"x + {in_code(name)}[: x.size(1)].transpose(0, 1)")
    return f"{name} holds positions for sequences with their places first.", [remedy]


@possible_cause("remove the detach between its calls")
def detached_state(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A state is detached between the calls of a module, so that nothing is learned over time."""
    for name, stats in facts.features.sites.items():
        back, calls = facts.flow.modules.get(name), stats.calls / max(facts.features.sampled_batches, 1)
        times = 0.0 if back is None else back.calls / max(facts.flow.sampled_batches, 1)
        if back is not None and calls >= 4 and times <= 1.01:
            found.add(True, STRONG, f"it is called {calls:.3g} times a batch, and a gradient comes back to one of these")
            detach = f"the detach of the state between the calls of {name}"
            remedy = Remedy("remove", detach, effect="a loss that falls", steps=SOON)
            return f"The state of {name} ({facts.modules.get(name, 'a function')}) is cut off between its calls.", [remedy]
    return None


def _let_pass(operation: str, code: str) -> Remedy:
    return replace(operation, "one that lets the gradient pass", "gradients that are not 0", code, 1)


@possible_cause("let the gradient pass: x + (round(x) - x).detach()")
def no_slope(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A weight goes through an operation whose gradient is 0, such as round or sign."""
    flow, module = facts.flow, facts.module_of(alert.site)
    weight, bias = flow.parameters.get(alert.site), flow.parameters.get(f"{module}.bias")
    if weight is None or not alert.site.endswith("weight") or weight.zero_fraction < 1:
        return None
    found.add(bias is not None and bias.zero_fraction < 1 and bias.norm > 0, STRONG, f"{module}.bias has a gradient")
    known = facts.features.representations.get(module)
    found.add(known is not None and known.ratio < 1e-9, EXCLUDES, f"the output of {module} is the same for all samples")
    order = list(facts.modules)
    before = order[order.index(module) - 1] if module in order[1:] else ""
    shut = any(kind in ("dead", "constant") and site == before for kind, site in facts.others)
    found.add(shut, EXCLUDES, f"what {before} puts out hardly varies")
    remedy = _let_pass(f"round, floor or sign of the weight in {module}", "w + (torch.round(w) - w).detach()")
    return f"{alert.site} is used through an operation whose gradient is 0, such as round, sign or a comparison.", [remedy]


@possible_cause("let the gradient pass: x + (round(x) - x).detach()")
def flat_outputs(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The outputs go through an operation whose gradient is 0, such as round or a comparison, before the loss."""
    gradients, known = facts.flow.parameters, facts.features.representations
    last = next((name for name in reversed(facts.flow.modules) if facts.parameters_of(name)), "")
    sites = facts.features.sites
    if len(gradients) < 2 or last not in sites or any(stats.zero_fraction < 1 for stats in gradients.values()):
        return None
    found.add(True, STRONG, f"the gradients of all {len(gradients)} parameters are 0, the last layer's too")
    varies = sites[last].std > 0 and (last not in known or known[last].ratio > 1e-9)
    found.add(varies, SLIGHT, f"the outputs of {last} differ")
    remedy = _let_pass(f"round, floor or sign of what {last} puts out", "x + (torch.round(x) - x).detach()")
    return f"What {last} puts out goes through an operation whose gradient is 0, such as round, sign or a comparison.", [remedy]


@possible_cause("let the gradient pass, straight-through: x + (q - x).detach()")
def flat_between(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """What one layer puts out reaches the next through an operation without a slope, such as argmin and a table of codes."""
    known, gradients = facts.features.representations, facts.flow.modules
    order = [name for name in facts.modules if name in known and name in gradients and facts.parameters_of(name)]
    if alert.site not in order[1:]:
        return None
    before = order[order.index(alert.site) - 1]
    here, there = gradients[alert.site].rms, gradients[before].rms
    same = known[alert.site].ratio < 1e-12 < 1e-6 < known[before].ratio
    found.add(same, SOME, f"the outputs of {before} differ between samples, and those of {alert.site} next to it do not at all")
    found.add(same and there < 1e-2 * here, SOME, f"the gradient at {before} is {there:.1g}, and {here:.1g} behind it")
    choice, effect = f"what chooses codes between {before} and {alert.site}", "gradients and outputs that differ"
    remedy = replace(choice, "one that is straight-through", effect, "x + (q - x).detach()")
    return f"An operation without a slope, such as argmin and a table of codes, lies between {before} and {alert.site}.", [remedy]


@possible_cause("remove the hooks or the code that cuts gradients")
def cut_gradients(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Gradients are cut to one size far below what the loss gives."""
    rms = [stats.rms for stats in facts.flow.parameters.values() if stats.rms > 0 and math.isfinite(stats.rms)]
    if len(rms) < 5:
        return None
    usual = statistics.median(rms)
    share = sum(0.99 * usual < one < 1.01 * usual for one in rms) / len(rms)
    found.add(share > 0.6, STRONG, f"{share:.0%} of the {len(rms)} gradients have the root mean square {usual:.2g}, to a hundredth")
    remedy = Remedy("remove", f"the hooks (register_hook) or the clamp that cut gradients at {usual:.2g}", steps=1)
    return f"The gradients of most parameters have one size, {usual:.2g}: something cuts each element.", [remedy]


@possible_cause("remove what cuts the path from it to the loss", "call it in forward")
def cut_path(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """No gradient reaches it from the loss."""
    module, order = facts.module_of(alert.site), list(facts.features.sites)
    found.add(True, STRONG, alert.message)
    if module in facts.features.silent:
        found.add(True, SLIGHT, f"{module} was not called in any sampled batch")
        return f"{module} is never called.", [Remedy("call", f"{module} in forward", effect="a gradient", steps=SOON)]
    learns = {name.rpartition(".")[0] for name, stats in facts.flow.parameters.items() if stats.steps}
    after = next((name for name in order[order.index(module) + 1 :] if name in learns), "") if module in order else ""
    found.add(bool(after), SLIGHT, f"{after} is called after it, and has a gradient")
    between = f"between {module} and {after}" if after else f"from {alert.site} to the loss"
    remedy = Remedy("remove", f"what cuts the path {between} (detach, no_grad, argmax, a forward without it)", steps=SOON)
    return f"{module} is called, and no gradient comes back from {after}." if after else "No gradient reaches it.", [remedy]


@possible_cause("compute the loss from what the model puts out")
def loss_without_graph(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss is a new tensor that is not connected to the model."""
    reached = [setup.has_gradient for setup in facts.flow.setups.values() if setup.trains and setup.optimizers]
    found.add(len(reached) > 1 and not any(reached), PROOF, "no parameter at all has a gradient")
    new = "what makes a new tensor of the losses (torch.tensor([…]), .item(), detach)"
    remedy = replace(new, "torch.stack or a sum of them", "gradients", "torch.stack(losses).sum()", 1)
    return "The loss has no path to any parameter.", [remedy]


@possible_cause("step the optimizer that configure_optimizers returned")
def another_optimizer(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The optimizer that steps is not the one that the trainer knows."""
    steps, by_hand = max((one.steps for one in facts.flow.setups.values()), default=0), not facts.setup.automatic_optimization
    found.add(by_hand and steps == 0 and alert.site in facts.optimizers, STRONG, f"{alert.site} took no step")
    other, to = "the optimizer that training_step makes or keeps", "self.optimizers()"
    remedy = replace(other, to, f"steps of {alert.site}", f"optimizer = {to}", 1)
    return f"{alert.site}, which configure_optimizers returned, takes no step: training_step steps another one, or none.", [remedy]


@possible_cause("call the optimizer's own step, without torch.compile or a captured graph")
def idle_step(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The optimizer's step is called and does nothing."""
    ratios = [stats.update_ratio for stats in facts.flow.parameters.values() if stats.norm > 0 and stats.update_ratio is not None]
    rate, steps = facts.rate_at(alert.site), max((one.steps for one in facts.flow.setups.values()), default=0)
    idle = len(ratios) > 1 and not any(ratios) and rate is not None and rate.lr > 0 and rate.first != 0 and steps > 0
    found.add(idle, STRONG, f"none of {len(ratios)} parameters changes by a bit, and all of them have a gradient")
    found.add(rate is not None and rate.lr < usual(rate).low, EXCLUDES, "its learning rate is below the usual range")
    found.add(bool(facts.raised("not_zeroed")), EXCLUDES, "gradients are zeroed before it")
    stepping = f"what steps {alert.site} (a compiled or captured step, or a class around it)"
    remedy = replace(stepping, "its own step()", "weights that change", "optimizer.step()", 1)
    return f"{alert.site} takes {steps} steps, which change nothing.", [remedy]


@possible_cause("copy it into contiguous memory")
def strided_weight(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A weight is not contiguous, and the optimizer writes its step into a copy."""
    found.add(alert.site in facts.strided, STRONG, "it does not change, and it is not contiguous")
    code = f"{in_code(alert.site)}.data = {in_code(alert.site)}.data.contiguous()"
    remedy = replace(f"{alert.site}.data", "a contiguous copy", "a weight that changes", code)
    return f"{alert.site} is not contiguous in memory.", [remedy]


@possible_cause("put an activation between them")
def no_activation(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Nothing stands between linear layers."""
    chain = facts.flow.linear_layers
    if chain is None or (alert.kind == "settings" and alert.site not in facts.modules):
        return None
    layers = [name for name in facts.modules if name in facts.features.initial_gains]
    inner = layers[layers.index(chain[0]) + 1 : layers.index(chain[1]) + 1] if {*chain[:2]} <= {*layers} else [chain[1]]
    found.add(True, PROOF, f"{chain[2]} layers make one linear function")
    code = f"{in_code(inner[0])} = nn.Sequential(nn.ReLU(), {in_code(inner[0])})"
    remedy = Remedy("insert", ", ".join(inner), None, "nn.ReLU()", "", "a loss that falls further", SOON, code)
    return f"Nothing stands between the layers {chain[0]} to {chain[1]}.", [remedy]


@possible_cause("give both one shape")
def compared_in_pairs(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The loss compares every output with every target."""
    stats = facts.features.targets.get(alert.site)
    if stats is None or not stats.paired:
        return None
    found.add(True, PROOF, f"its input has {stats.inputs} numbers and its target {stats.targets}, in different shapes")
    remedy = replace(f"the target of {alert.site}", "one of the output's shape", "a lower loss", "target.view_as(output)")
    return "Outputs and targets have different shapes, and are expanded to pairs.", [remedy]


@possible_cause("call unscale_ before gradients are clipped")
def clipped_while_scaled(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """Gradients are clipped while the loss scaler's factor is in them."""
    scaled = facts.flow.loss is not None and facts.flow.loss.scaled
    by_hand = facts.setup.clip_norm is None and any(stats.clipped_steps for stats in facts.clip.optimizers.values())
    found.add(scaled and by_hand, STRONG, "the loss is scaled for half precision, and your own code clips gradients")
    remedy = Remedy("call", "scaler.unscale_(optimizer) before clipping", code="scaler.unscale_(optimizer)", steps=1)
    return "Gradients are clipped while they are still scaled for half precision.", [remedy]
