"""What the optimizers and the model hold: parameters without an optimizer, unregistered modules, one layer in several places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent, subject
from lightning_hooks.diagnostics.causes import code, wiring
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport, had_gradient, unused_tensors
from lightning_hooks.diagnostics.setup.module_rules import around
from lightning_hooks.trackers import some


class NotOptimized(Rule, kind="not_optimized"):
    """Parameters that get a gradient and are in no optimizer, optimizers of frozen parameters, no optimizer, and a frozen new head.

    Attributes:
        most: Share of the elements that require a gradient from which on the message adds how many no optimizer holds.
    """

    most: ClassVar[float] = 0.5

    def __call__(self, report: GradientFlowReport) -> Alerts:
        yield from self._changed(report)
        yield from self._head(report)
        held = grouped((optimizer, name) for name, setup in report.setups.items() for optimizer in setup.optimizers)
        if held:
            yield from self._frozen(report, held)
            yield from self._left_out(report)
        elif report.setups:
            yield from self._no_optimizer(report)

    def _no_optimizer(self, report: GradientFlowReport) -> Alerts:
        """A warning for optimizers of something else, an info for none. Lightning's stand-in for none has no learning rate."""
        others = [name for name, stats in report.optimizers.items() if any(group.lr for group in stats.groups)]
        if others:
            yield self.finding(
                report, "the model", float(len(others)), 0.0,
                f"none of its parameters is held by an optimizer: what {', '.join(others)} holds is not this model's.",
                advice=("Create the optimizer from self.parameters() in configure_optimizers",),
            )  # fmt: skip
        else:
            yield self.finding(
                report, "the model", float(_trained_elements(report)), 0.0,
                "there is no optimizer: parameters change only where your own code changes them, and update ratios and "
                "clipping are not measured.",
                conclusive=False,
                advice=("Return an optimizer from configure_optimizers to have them measured",),
            )  # fmt: skip

    def _frozen(self, report: GradientFlowReport, held: Mapping[str, list[str]]) -> Alerts:
        """A warning for an optimizer all of whose parameters are frozen, or that were frozen again when training went on."""
        for optimizer, names in held.items():
            again = [n for n in names if report.setups[n].stepped and report.setups[n].lr and not report.setups[n].trains]
            if not any(report.setups[name].trains or had_gradient(report, name) for name in names):
                yield self.finding(
                    report, optimizer, float(len(names)), 0.0,
                    f"all {len(names)} of its parameters are frozen (requires_grad is False): its steps change nothing.",
                    advice=("Unfreeze what it holds, or give it the parameters that train",),
                )  # fmt: skip
            elif again:
                yield self.finding(
                    report, optimizer, float(len(again)), 0.0,
                    f"{len(again)} of its {len(names)} parameters do not require a gradient ({some(again, 3)}), though it has "
                    f"taken steps with them, and their learning rate is {report.setups[again[0]].lr or 0.0:.2g}: they were frozen "
                    "again when training went on.",
                    advice=("Call requires_grad_(True) on them when training goes on",),
                )  # fmt: skip

    def _left_out(self, report: GradientFlowReport) -> Alerts:
        """A warning per parameter that has a gradient and is in no optimizer, an info per one that only requires it."""
        left_out = {name: setup for name, setup in report.setups.items() if setup.trains and not setup.optimizers}
        share = sum(setup.elements for setup in left_out.values() if setup.has_gradient) / max(_trained_elements(report), 1)
        more, advice = f", and {percent(share)} of what trains is in none" * (share >= self.most), tuple[str, ...]()
        old = unused_tensors(report)
        if old and any(setup.has_gradient for setup in left_out.values()):
            tensors, what = ("tensors", "are not parameters") if len(old) > 1 else ("tensor", "is not a parameter")
            more += (
                f"; {old[0].partition('.')[0]} holds {len(old)} {tensors} ({_shapes(report, old)}) that {what} of the model, as "
            )
            more += "if made before a layer was replaced"
            advice = ("Create the optimizer after the layer, in configure_optimizers",)
        for name, setup in left_out.items():
            yield self.finding(
                report, name, float(setup.elements), 0.0,
                f"it requires a gradient, but no optimizer holds it: it does not change{more}.",
                conclusive=setup.has_gradient,
                advice=advice,
            )  # fmt: skip

    def _changed(self, report: GradientFlowReport) -> Alerts:
        """An info for what was frozen since the last window, and one for what was unfrozen."""
        for before in report.earlier[-1:]:
            both = [(name, before.setups[name].trains, setup) for name, setup in report.setups.items() if name in before.setups]
            changed = grouped((setup.trains, name) for name, then, setup in both if then is not setup.trains and not setup.stepped)
            for trains, names in sorted(changed.items()):
                yield self.finding(
                    report, around(names), float(len(names)), 0.0,
                    f"{subject(names, 'was', 'were')} {'un' * trains}frozen between steps {before.step} and {report.step}.",
                    conclusive=False,
                    since_step=before.step, advice=("Check that it is on purpose",),
                )  # fmt: skip

    def _head(self, report: GradientFlowReport) -> Alerts:
        """A warning for a last layer that is frozen as it was initialised, where its bias or its bounds show that."""
        site = next((site for site in report.order if f"{site}.weight" in report.setups), "")
        inside = {name: setup for name, setup in report.setups.items() if name.rpartition(".")[0] in report.order}
        trains = [name for name, setup in inside.items() if setup.optimizers and setup.learns]
        frozen = bool(trains and site) and not (report.setups[f"{site}.weight"].trains or had_gradient(report, f"{site}.weight"))
        if frozen and report.model_setup.made.get(site):
            yield self.finding(
                report, site, 0.0, 0.0,
                f"the last layer before the loss is frozen, and its weights are as they were initialised, while {len(trains)} "
                f"parameters before it train ({trains[0]}, …): its output is a random combination that never gets better.",
                advice=("Call requires_grad_(True) on it, and give it to the optimizer",),
            )  # fmt: skip


def _trained_elements(report: GradientFlowReport) -> int:
    return sum(setup.elements for setup in report.setups.values() if setup.trains)


class Unregistered(Rule, kind="unregistered"):
    """Modules and tensors that the loss reaches, and that the model does not know: in a plain list, or created in ``forward``.

    PyTorch's documentation of ModuleList: only modules in it are "properly registered, and will be visible by all Module methods".
    Modules without a gradient, in eval mode or frozen are hidden on purpose; so is a tensor that an optimizer holds (an image that
    is learned, codes), of which an info says that no checkpoint holds it. An input of a module (coordinates) does not count.
    A parameter that is gone after the first step was created on the way to its loss, as a layer in ``forward`` is, and what it
    learns goes with it. Under manual optimization it may be a copy whose gradients are used, as in first-order MAML.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for site, held in report.model_setup.unregistered.items():
            advice: tuple[str, ...] = ()
            if not held.held and report.minimized.optimized:
                message = f"it uses parameters ({held.elements} numbers) that no module and no optimizer holds, and that were gone "
                message += "after the first step: each step creates them, and they never learn."
                advice = ("Create it once, in __init__, and assign it to self",)
            elif held.held and held.reached and not held.modules:
                message = f"it is, or holds, tensors with requires_grad ({held.elements} numbers) that get gradients, but are not "
                message += "parameters."
                advice = ("Wrap them in nn.Parameter, or in nn.ParameterList where there are several",)
            elif held.held and held.reached and held.training:
                message = f"it is a plain list or dictionary whose modules ({held.modules}, with {held.elements} parameters) get "
                message += f"gradients, but the model does not know them{', and no optimizer holds them' * (not held.optimized)}."
            else:
                continue
            conclusive = held.modules or not (held.held and held.optimized)
            yield self.finding(report, site, float(held.elements), 0.0, message, conclusive=conclusive, advice=advice)


class Shared(Rule, kind="shared"):
    """One layer under several names, as ``[layer] * 4`` makes it: an info where it has several names, as by design."""

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, others in report.shared.items():
            listed = ", ".join(others[:3]) + ", …" * (len(others) > 3)
            numbered = all(name.rpartition(".")[2].isdigit() for name in (site, *others))
            yield self.finding(
                report, site, len(others) + 1, 1,
                f"{listed} {('is', 'are')[len(others) > 1]} the same module, with the same weights.",
                conclusive=numbered,
            )  # fmt: skip


def _shapes(report: GradientFlowReport, names: Sequence[str]) -> str:
    shapes = ["x".join(map(str, report.model_setup.foreign[name])) or "1" for name in names]
    return ", ".join(shapes[:3]) + ", …" * (len(shapes) > 3)


__all__ = ["NotOptimized", "Shared", "Unregistered"]

KINDS = (
    Kind(
        "not_optimized", "Parameters that no optimizer holds", group="Set-up", states="fact", measures="nothing",
        causes=(wiring.frozen_by_mistake, wiring.in_no_optimizer),
        meaning="A parameter gets a gradient and no optimizer holds it, or an optimizer holds frozen parameters only, or there is "
        "no optimizer; or the last layer is frozen as it was initialised, while layers before it train.",
        formula="alert if requires_grad and in no parameter group of any optimizer\n"
        "or if there are optimizers, and none holds a parameter of the model, or one holds frozen parameters only\n"
        "or if a parameter is frozen, and an optimizer with a rate above 0 has state of it since training began\n"
        "or if the layer nearest the loss is frozen, others train, and its bias is 0 or weights and bias are uniform in "
        "±1/sqrt(fan_in)\n"
        "info if a parameter is frozen or unfrozen in mid-run",
        inconclusive="while the parameter gets no gradient, without any optimizer, and for what is frozen in mid-run",
        advice=("Give it to an optimizer (optimizer.add_param_group)",
            "Freeze it with requires_grad_(False) if it is not to learn"),
    ),
    Kind(
        "unregistered", "Modules that the model does not know", group="Set-up", states="fact", measures="nothing",
        causes=(wiring.not_registered,),
        meaning="The loss depends on modules in a plain Python list, tuple or dictionary, or on a tensor with `requires_grad` "
        "that is no parameter. The model does not know them: no optimizer gets them from `parameters()`, and no checkpoint holds "
        "them. Or it depends on parameters that each step creates again, as a layer in `forward` is: they never learn.",
        formula="alert if a module in a list, tuple, set or dict is not in model.modules(), is in training mode,\n"
        "      and a parameter of it that is not in model.parameters() gets a gradient\n"
        "or if a tensor that is an attribute, or in such a container, requires a gradient, is no parameter, and gets one\n"
        "or if the first loss has a gradient for a parameter that no module and no optimizer holds, and that is gone after the "
        "step",
        inconclusive="for a tensor that an optimizer holds",
        advice=("Put them in an nn.ModuleList or nn.ModuleDict",
            "Freeze them with requires_grad_(False) if they are hidden on purpose"),
    ),
    Kind(
        "shared", "One layer used in several places", group="Set-up", states="fact", measures="nothing",
        causes=(
            code.fact("one_layer_shared", "one layer stands in several places", "replace", "{site}", "layers of their own",
                "[make_layer() for _ in range(n)]"),
        ),
        meaning="One parent holds the same module under several names, as `[layer] * 4` does. The layers share their weights.",
        formula="alert if one module object is registered under two or more names of one parent",
        inconclusive="for modules with names of their own, not in a numbered list",
        advice=("Make each its own: [make_layer() for _ in range(n)]",
            "Where weights are shared on purpose, mute this with rules=['-shared']"),
    ),
)  # fmt: skip
