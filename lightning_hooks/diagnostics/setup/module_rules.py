"""What modules hold that a training does not expect: modes, weights that something else sets, copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import PROOF, CauseEvidence, Judgement, Remedy, possible_cause
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent, subject
from lightning_hooks.diagnostics.causes import code
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.reports import GradientFlowReport, had_gradient
from lightning_hooks.diagnostics.setup.outside import ROUNDING
from lightning_hooks.hooks.selection import outwards
from lightning_hooks.trackers.console import shared_prefix, some

THE_MODEL = "the model"


class EvalMode(Rule, kind="eval_mode"):
    """Dropout, batch norm or spectral norm in eval mode while the part around it trains.

    Lightning keeps the mode that each module has when fit starts (since 2.2; Lightning's issue 20216), and ``from_pretrained`` of
    transformers returns models in eval mode. A part that is frozen, or gets no gradient (a teacher), is in eval mode on purpose. A
    single batch norm in eval mode within a module in training mode was switched by itself, as detection recipes do
    (``norm_eval=True``): that is an info, unless its running statistics are still the 0 and 1 that it was made with. Then it
    normalises nothing. A part that was frozen before and learns now keeps the mode, and the statistics, that it was frozen with.
    """

    trains: ClassVar[float] = 0.5  # share of the elements around a module that must train, in [0, 1]

    def __call__(self, report: GradientFlowReport) -> Alerts:
        setup = report.model_setup
        if not setup.eval_modes:
            return
        elements, trained = _elements(report)
        levels = {site: level for site, level in setup.eval_modes.items() if self._trains_around(site, elements, trained)}
        for part, sites in grouped((outwards(site)[level - 1], site) for site, level in levels.items() if level > 1).items():
            since = min((setup.eval_since[site] for site in sites if site in setup.eval_since), default=None)
            thawed = any(_rested(earlier, part or THE_MODEL) for earlier in report.earlier)  # its norms stay as they were then
            yield self.finding(
                report, part or THE_MODEL, len(sites), 0,
                f"it trains in eval mode{f', since step {since}' * (since is not None)}: "
                f"{subject(sites, 'behaves', 'behave')} as in validation.",
                since_step=since, conclusive=not thawed,
                advice=(f"Call {part or 'model'}.train() before training", "Freeze it if it is not to learn"),
            )  # fmt: skip
        single = [site for site, level in levels.items() if level <= 1]
        unestimated = [site for site in setup.unestimated if site in single]
        if unestimated:
            more = f", and so has {some(unestimated[1:], 3)}" * (len(unestimated) > 1)
            yield self.finding(
                report, unestimated[0], len(unestimated), 0,
                "batch norm in eval mode has a running mean and variance of 0 and 1, as it was made: it normalises nothing"
                f"{more}.",
                advice=("Call train() on it until its statistics are estimated", "Load a checkpoint that holds its buffers"),
            )  # fmt: skip
        switched = [site for site in single if site not in unestimated]
        if switched:
            yield self.finding(
                report, switched[0], len(switched), 0,
                f"{subject(switched, 'is', 'are')} in eval mode within modules in training mode.",
                advice=("Call train() on it, unless its statistics are kept on purpose",), conclusive=False,
            )  # fmt: skip

    def _trains_around(self, site: str, elements: Counter[str], trained: Counter[str]) -> bool:
        """Whether enough of the innermost part around a module with parameters of its own trains."""
        around = next((outer for outer in outwards(site)[1:] if elements[outer] > elements[site]), "")
        return trained[around] >= max(self.trains * elements[around], 1)


class FrozenStatistics(Rule, kind="frozen_statistics"):
    """Batch norm whose running statistics change in a part that is frozen: requires_grad does not stop them.

    Keras runs a frozen batch norm in inference mode for that reason ("Transfer learning and fine-tuning" of its guides), and
    Lightning's ``BaseFinetuning.freeze_module`` sets ``track_running_stats`` to False.

    Attributes:
        threshold: How far the statistics may move from those that the frozen weights were trained with, in their standard
            deviations. New data of the same kind moved them by less than 0.3 in healthy runs; below, it is an info.
    """

    threshold: float = 0.5

    def __call__(self, report: GradientFlowReport) -> Alerts:
        updating = report.model_setup.updating
        if not updating:
            return
        _, trained = _elements(report)
        frozen = {site: [outer for outer in outwards(site) if not trained[outer]] for site in updating}
        parts = grouped((outer[-1], site) for site, outer in frozen.items() if outer)  # the others train in turn
        for part, sites in parts.items():
            farthest = max(sites, key=updating.__getitem__)
            moved = updating[farthest]
            far = moved > self.threshold
            updates = subject(sites, "is in training mode and updates its", "are in training mode and update their")
            yield self.finding(
                report, part or THE_MODEL, moved, self.threshold * far,
                f"it is frozen, but {updates} running statistics: those of {farthest} have moved by {moved:.2g} standard "
                f"deviations ({('a warning above', 'limit')[far]} {self.threshold:.2g}).",
                conclusive=far,
            )  # fmt: skip


def _rested(report: GradientFlowReport, part: str) -> bool:
    """Whether nothing in a part trained in a window, while all of it that has a mode was in eval mode."""
    modes = report.model_setup.eval_modes
    trains = any(name.startswith(f"{part}.") and setup.trains for name, setup in report.setups.items())
    return not trains and any(site == part or site.startswith(f"{part}.") for site in modes)


def _elements(report: GradientFlowReport) -> tuple[Counter[str], Counter[str]]:
    """Of each module, the elements of its parameters, and of those that an optimizer holds and that had a gradient."""
    elements, trained = Counter[str](), Counter[str]()
    for name, setup in report.setups.items():
        for outer in outwards(name.rpartition(".")[0]):
            elements[outer] += setup.elements
            trained[outer] += setup.elements * (bool(setup.optimizers) and (setup.learns or had_gradient(report, name)))
    return elements, trained


class SetOutside(Rule, kind="set_outside", shares=("restored",)):
    """Weights that something other than an optimizer sets while training pauses, so that what was learned is lost.

    An average that is copied in once, a merge, a pruning or a return to the best checkpoint keep most of what was learned, or are
    done once: infos. What is swapped in and put back before the next batch is not seen.

    Attributes:
        restored: Share of the trained elements that are what training started with again, from which on it counts at once.
    """

    restored: float = 0.5
    pauses: ClassVar[int] = 2  # of the last four pauses, those that undid half of what was learned, from which on it counts

    def __call__(self, report: GradientFlowReport) -> Alerts:
        found = report.model_setup.weights_set
        if found is None:
            return
        again, often = found.restored >= self.restored, found.undone_pauses >= self.pauses
        value, limit, now = found.share, 0.0, f"those of {found.source}" if found.source else "others"
        lost = f", and {percent(found.undone)} of what they had learned is gone" * (found.undone > 0)
        lost += f" (so it is after {found.undone_pauses} of the last pauses)" * often
        if again:
            value, limit, now, lost = found.restored, self.restored, "what training started with again", ""
        elif often:
            value, limit = float(found.undone_pauses), float(self.pauses)
        yield self.finding(
            report, around(found.parameters), value, limit,
            f"something other than the optimizer set {some(found.parameters, 3)} {found.moment}, after step {found.step}: "
            f"{percent(found.share)} of the trained weights are {now}{lost}.", conclusive=again or often,
        )  # fmt: skip


class SetBack(Rule, kind="set_outside"):
    """Weights that are to the bit what they were before updates: no optimizer does that, code that loads them again does.

    Attributes:
        returns: Sampled steps from which on it counts; a single return to an earlier state may be wanted.
    """

    returns: int = 3

    def __call__(self, report: GradientFlowReport) -> Alerts:
        found, still = report.model_setup.weights_returned, report.model_setup.weights_still
        updates = [report.parameters[name] for name in still if name in report.parameters]
        lost = max((max(stats.zero_fraction, stats.lost_fraction or 0.0) for stats in updates), default=1.0)  # of the elements
        held = lost < HALF and all((stats.update_ratio or 0.0) > ROUNDING for stats in updates)
        if held or found >= self.returns:
            yield self.finding(
                report, THE_MODEL, float(max(found, held * self.returns)), float(self.returns),
                f"at {(found, 'all')[held]} sampled steps its weights were to the bit those of an earlier one, although updates "
                f"had changed them (limit {self.returns}): something sets them back.",
            )  # fmt: skip


class NeverAway(Rule, kind="set_outside"):
    """Weights that are no more than a step away from where training began, many steps later."""

    steps: ClassVar[float] = 1.5  # how many of its steps each weight that is looked at may be away
    least: ClassVar[float] = 0.3  # as many it must be, else the few values that are looked at say nothing

    def __call__(self, report: GradientFlowReport) -> Alerts:
        away = report.model_setup.weights_away
        known = {name: report.parameters[name] for name in away if name in report.parameters}
        sizes = {name: (stats.update_ratio or 0.0) * (stats.weight_rms or 0.0) for name, stats in known.items()}
        steps = [away[name] / size for name, size in sizes.items() if 0 < self.least * size < away[name]]
        if len(steps) == len(away) > 1 and max(steps) < self.steps:
            yield self.finding(
                report, THE_MODEL, max(steps), self.steps,
                f"after {report.step} steps its weights are {max(steps):.2g} steps away from where training began (limit "
                f"{self.steps:g}): something sets them back.",
            )  # fmt: skip


class CopyFollows(Rule, kind="module_copy"):
    """A copy of a module that moves away from it, hardly averages or hardly follows, is the module itself, or stands still.

    No optimizer holds it. A moving average goes towards its original at each step, and a target network is the original of some
    time ago. A reference model stands still on purpose, which is an info, unless its weights are random.

    Attributes:
        away: Cosine of a copy's change and of the way to its original below which it moves away.
        follows: Share of its first weights that an average has given up after all planned steps, below which it hardly follows.
    """

    away: float = -0.5
    follows: float = 0.1
    decay: ClassVar[float] = 0.7  # what a step keeps of an average, below which it is the weights of the last steps
    min_steps: ClassVar[int] = 25  # steps before the window below which that is not judged: averages warm up
    still: ClassVar[float] = 0.5  # share of the planned steps after which a copy with random weights has stood still for too long

    def __call__(self, report: GradientFlowReport) -> Alerts:
        planned = report.planned_steps or 0
        warm = any(before.step >= self.min_steps for before in report.earlier[-1:])
        for copy, stats in report.model_setup.copies.items():
            of, value, limit, given_up = stats.original, 0.0, 0.0, stats.given_up(planned)
            random = any(how == "drawn" and f"{layer}.".startswith(f"{copy}.") for layer, how in report.model_setup.made.items())
            if stats.shares_memory:
                message = f"its weights are those of {of} themselves, in the same memory: it changes as they do, and is no copy."
            elif stats.toward < self.away:
                value, limit = stats.toward, self.away
                message = (
                    f"it moves away from {of}, of which it is a copy: the cosine of its change and of the way to {of} is "
                    f"{value:.2g} (limit {limit:g}), and the distance is {percent(stats.distance)} of the norm."
                )
            elif stats.decay is not None and stats.decay < self.decay and warm:
                value, limit = stats.decay, self.decay
                message = (
                    f"it is an average of {of} that keeps {percent(value)} of itself at a step (limit {percent(limit)}): "
                    "it is no more than the last few steps' weights."
                )
            elif given_up is not None and planned >= self.min_steps and given_up < self.follows:
                value, limit = given_up, self.follows
                message = (
                    f"it is an average of {of} that keeps {stats.decay:.5g} of itself at a step: after all {planned} planned "
                    f"steps only {percent(value)} of it will come from training (limit {percent(limit)})."
                )
            elif not stats.changed and stats.distance > 0:
                message = (
                    f"it has the {'random ' * random}weights that {of} had when training started, and {of} has changed "
                    "since: it is not updated."
                )
            else:
                continue
            conclusive = stats.changed or stats.shares_memory or (random and 0 < self.still * planned <= report.step)
            yield self.finding(report, copy, value, limit, message, conclusive=conclusive)


def around(names: Sequence[str]) -> str:
    """The innermost module around parameters, or the only one."""
    return names[0] if len(names) == 1 else shared_prefix(names).removesuffix(".") or THE_MODEL


HALF = 0.5  # of the weights that an average started with: one that gives up more of them follows
LEFT = 0.01  # of these weights, after all planned steps with the decay of the remedy


@possible_cause("set the decay of the average")
def average_too_slow(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A moving average forgets its first weights too slowly for the length of the training."""
    stats, planned = facts.flow.model_setup.copies.get(alert.site), facts.flow.planned_steps or 0
    given_up = None if stats is None else stats.given_up(planned)
    if stats is None or given_up is None or not planned or given_up >= HALF:
        return None
    found.add(True, PROOF, f"{stats.decay:.5g} to the power of {planned} steps is {1 - given_up:.2g}")
    decay = 1 - float(f"{1 - LEFT ** (1 / planned):.2g}")  # its distance from 1 is rounded: 0.99954 is no 1
    effect = f"an average near {stats.original}"
    remedy = Remedy("set", f"the decay of {alert.site}", f"{stats.decay:.6g}", f"{decay:.6g}", effect=effect, steps=planned)
    return f"The average keeps {stats.decay:.5g} of itself at a step, too much for {planned} steps.", [remedy]


__all__ = ["CopyFollows", "EvalMode", "FrozenStatistics", "NeverAway", "SetBack", "SetOutside"]

KINDS = (
    Kind(
        "eval_mode", "Training in eval mode", group="Set-up", states="fact", measures="nothing",
        causes=(
            code.fact("left_in_eval_mode", "a part that trains is in eval mode", "call", "train() of {site}",
                code="{code}.train()"),
        ),
        meaning="Dropout, batch norm or spectral norm is in eval mode while the part of the model around it trains. Dropout drops "
        "nothing, batch norm uses its running statistics and does not update them, and spectral norm does not follow its weight.",
        formula="alert if a dropout (or a module with a share to drop), batch norm or spectral norm and the module around it are "
        "in eval mode, at the start\n"
        "      and before the backward pass of every sampled batch, or of the last three of a window, and at least "
        "{EvalMode.trains} of the elements next to it train and have a gradient\n"
        "or if a batch norm alone is, with a running mean and variance of 0 and 1",
        inconclusive="for a single module whose statistics are not 0 and 1, and for a part that was frozen earlier",
        advice=("Call train() on it before training", "Freeze it with requires_grad_(False) if it is not to learn"),
    ),
    Kind(
        "frozen_statistics", "Batch norm that changes in a frozen part", group="Set-up", states="fact",
        causes=(
            code.fact("follows_data", "a frozen batch norm is in training mode", "call", "eval() of {site}", code="{code}.eval()"),
        ),
        meaning="A part of the model is frozen, but its batch norms are in training mode: their running statistics follow the new "
        "data, and validation uses them with the old weights.",
        formula="d = mean over channels of (change of the running mean / std)² + (std now / std - 1)²,\n"
        "    since training started, in the running std of that time\n\n"
        "alert if no parameter of the module requires a gradient (or next to it, if it has none), and sqrt(d) > "
        "{FrozenStatistics.threshold}",
        inconclusive="while the statistics have moved little",
        advice=("Call eval() on the frozen part in on_train_epoch_start",
            "Set track_running_stats=False on its batch norms, as Lightning's BaseFinetuning does"),
    ),
    Kind(
        "set_outside", "Weights that are set outside of the optimizer", group="Updates", states="fact",
        measures="number",
        causes=(
            code.written_back,
            code.fact("written_between_steps", "something other than the optimizer sets the weights", "remove",
                "what sets the weights of {site} (load_state_dict, copy_), or let it put them back"),
        ),
        meaning="When training goes on after a validation or an epoch's end, weights are not what the last step left. They were "
        "restored, or copied in and not put back, and what was learned is lost. Or they return to what they were between steps.",
        formula="undone = 1 - ‖now - then‖ / ‖before - then‖, of a few values of each parameter before and after the pause, and\n"
        "         where they were after the last pause that set them, or at the start\n\n"
        "alert if {SetOutside.restored} of the trained elements are exactly what training started with\n"
        "      or undone >= 0.5 for half of the trained elements at {SetOutside.pauses} of the last four pauses\n"
        "      or {SetBack.returns} sampled steps, or all, begin with the weights of an earlier one, to the bit, after updates\n"
        "      or weights are within {NeverAway.steps} updates of where they began, after 20 steps and more\n"
        "not for parameters behind a pruning mask, and those of which values became 0",
        inconclusive="where it was set once, or most of what was learned stays",
        advice=("Find what writes weights at that moment: load_state_dict, copy_, .data = in a hook or callback",
            "Put the trained weights back after validation", "Update an average at each step, before it is copied in"),
    ),
    Kind(
        "module_copy", "A copy of a module that does not follow it", group="Set-up", states="fact", measures="number",
        causes=(
            average_too_slow,
            code.fact("copy_not_updated", "a copy of a module is not updated as it should be", "replace", "the update of {site}",
                "one towards its original", "copy.data.lerp_(parameter.data, 1 - decay)"),
        ),
        meaning="A module started as a copy of another one, as a target network or a moving average does, and no optimizer holds "
        "it. It moves away from its original, is nearly or exactly the same, or stands still.",
        formula="cosine = that of the copy's change over the window and of the way to where the original is at its end\n"
        "decay = what the window's first step, else a step on average, kept of it, where it moved towards the original\n\n"
        "alert if cosine < {CopyFollows.away}, or both use the same memory\n"
        "      or decay < {CopyFollows.decay}, after {CopyFollows.min_steps} steps before the window\n"
        "      or 1 - decay ^ planned steps < {CopyFollows.follows}, where at least {CopyFollows.min_steps} are planned\n"
        "info if it has not changed, and the original has; a warning after {CopyFollows.still} of the planned steps,\n"
        "     if its weights are uniform in ±1/sqrt(fan_in), as PyTorch draws them",
        inconclusive="where it stands still and may have been trained before",
        advice=("Update it towards its original after each step: copy.data.lerp_(parameter.data, 1 - decay)",
            "Assign the module itself, without copy.deepcopy, where both are to be one"),
    ),
)  # fmt: skip
