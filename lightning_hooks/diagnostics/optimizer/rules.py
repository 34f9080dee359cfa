"""Optimizers: learning rates near zero, second moments below eps, settings that are hardly meant."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent
from lightning_hooks.diagnostics.causes.rates import HELD, unusual_setting, wrong_schedule
from lightning_hooks.diagnostics.causes.steps import loss_divided
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats
from lightning_hooks.diagnostics.reports import GradientFlowReport, has_converged, is_scale_free
from lightning_hooks.diagnostics.setup.parameters import L2


class SecondMomentStale(Rule, kind="second_moment_stale", shares=("threshold",)):
    """Second moments so small that Adam's eps, not the gradient, decides the size of its steps.

    Then it is plain gradient descent with the learning rate over eps. Updates vanish as the gradient's root mean square comes near
    eps (Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023, section 3.4).

    Attributes:
        threshold: Share of the second moments, where the gradient is not 0, above which it counts.
        at_once: The same in training's first window: behind a layer scale of 1e-5 gradients grow as the scale does.
    """

    threshold: float = 0.5
    at_once: ClassVar[float] = 0.9

    def __call__(self, report: GradientFlowReport) -> Alerts:
        limit = (self.at_once, self.threshold)[bool(report.earlier)]
        for name, stats in report.optimizers.items():
            stale = stats.stale_fraction or 0.0
            if stale > limit and any(rate > 0 for rate in stats.lr) and not has_converged(report):
                yield self.finding(
                    report, name, stale, limit,
                    f"{percent(stale)} of its second moments are below eps² (eps is {stats.largest('eps'):.1e}; limit "
                    f"{percent(limit)}): eps, not the gradient, decides the size of these steps, and they are smaller than "
                    "the learning rate says.",
                )  # fmt: skip


class LrZero(Rule, kind="lr_zero"):
    """Learning rates of zero, or next to it, long before training ends.

    All parameter groups of an optimizer must have one: a single group may be frozen by its schedule. A low point of a cycle is
    short against the training, so a rate counts only when it has been low for a while; a warm-up that starts at zero rises. It
    then counts to the end of training, unless the rate rises again: few steps that are left do not undo those that were lost. How
    long training will be must be known (``max_steps`` or ``max_epochs``). The limits are a cosine's: it is below 1e-4 of its peak
    in its last 0.6 %.

    Attributes:
        initial: Share of ``initial_lr``, or of the ``max_lr`` of a cycle, that a warm-up must have reached after half of the
            planned steps.
    """

    left: ClassVar[float] = 0.1  # share of the planned steps that must be left when the rate has been low for ``held``
    held: ClassVar[float] = HELD  # share of the planned steps for which the rate must have been below 1e-4 of its peak
    initial: ClassVar[float] = 0.1

    def __call__(self, report: GradientFlowReport) -> Alerts:
        planned, first = report.planned_steps or 0, report.first
        for name, stats in report.optimizers.items():
            groups = stats.rated
            rate, peak, initial = map(stats.largest, ("lr", "lr_peak", "lr_initial"))
            judged = bool(groups) and not has_converged(report)
            if judged and not peak and not any(group.lr_initial for group in groups):
                yield self.finding(
                    report, name, 0.0, 0.0,
                    "its learning rate is 0 and has never been above 0: it changes nothing.",
                    conclusive=False,
                    advice=("Set a learning rate, unless that is meant",),
                )  # fmt: skip
            elif judged and planned and self._fell_early(groups, report.step, planned):
                yield self.finding(
                    report, name, rate, 1e-4 * peak,
                    f"its learning rate has been below 1e-4 of its peak ({peak:.1e}) for {min(g.low_steps for g in groups)} of the "
                    f"{planned} planned steps, and is {rate:.1e} now.",
                )  # fmt: skip
            elif judged and planned and report.step > planned / 2 and self._never_rose(name, groups, first):
                yield self.finding(
                    report, name, rate, self.initial * initial,
                    f"its learning rate is {rate:.1e}, below {percent(self.initial)} of the {initial:.1e} that its scheduler "
                    f"is made for, after {percent(report.step / planned)} of the planned {planned} steps.",
                )  # fmt: skip

    def _fell_early(self, groups: Sequence[GroupSettings], step: int, planned: int) -> bool:
        held, low = max(self.held * planned, 1), min(group.low_steps for group in groups)
        return all(group.lr_peak for group in groups) and low >= held and step - low + held < (1 - self.left) * planned

    def _never_rose(self, name: str, groups: Sequence[GroupSettings], first: GradientFlowReport) -> bool:
        """Whether all groups are still at the foot of their warm-up: rising beyond all before, or at zero since the start."""
        before = first.optimizers.get(name, OptimizerStats()).lr
        return len(before) == len(groups) and all(
            group.lr_initial
            and (group.lr_peak or 0.0) < self.initial * group.lr_initial
            and (not group.lr_peak or (group.lr or 0.0) > max(1.01 * earlier, 0.99 * group.lr_peak))
            for group, earlier in zip(groups, before, strict=True)
        )


class ScheduleLength(Rule, kind="lr_zero"):
    """A schedule made for steps that is stepped per epoch, or a cosine that rises again since it is shorter than the training."""

    periods: ClassVar[float] = 1.5  # how many times its ``T_max`` a cosine must have been stepped: at 2 it is back at its peak
    near: ClassVar[float] = 0.1  # share of the planned steps by which a length may differ from them to be meant for them
    steps: ClassVar[int] = 4  # planned steps over planned epochs from which on the two cannot be taken for one another

    def __call__(self, report: GradientFlowReport) -> Alerts:
        planned, epochs = report.planned_steps or 0, report.epoch + 1
        for name, stats in report.optimizers.items():
            for schedule in stats.schedules:
                made = f"its {schedule.name} is made for {schedule.length} steps ({schedule.argument})"
                if schedule.repeats and schedule.length > 1 and schedule.taken >= self.periods * schedule.length:
                    times = ("so far", f"of {planned} planned ones")[bool(planned) and not schedule.by_epoch]
                    yield self.finding(
                        report, name, schedule.taken, self.periods * schedule.length,
                        f"{made} and has been stepped {schedule.taken} times {times}: after {schedule.length} of them its learning "
                        "rate rises again, as slowly as it fell.",
                        advice=(f"Set {schedule.argument} to the number of times that it is stepped",
                            "Use CosineAnnealingWarmRestarts if it is to start again"),
                    )  # fmt: skip
                elif (
                    planned
                    and schedule.by_epoch
                    and abs(schedule.length - planned) <= self.near * planned
                    and report.step >= self.steps * epochs
                ):
                    yield self.finding(
                        report, name, schedule.length, (1 - self.near) * planned,
                        f"{made}, as many as the training has ({planned}), and is stepped once per epoch: it goes "
                        f"{percent(planned * epochs / report.step / schedule.length)} of its way.",
                        advice=("Return {'scheduler': scheduler, 'interval': 'step'}",),
                    )  # fmt: skip


class OptimizerSettings(Rule, kind="optimizer_settings"):
    """Settings of an optimizer that are hardly meant.

    Attributes:
        eps: eps of an Adam-like optimizer from which it counts (torch's default is 1e-8). Large ones are published practice too
            (TensorFlow's Inception has 1.0 in RMSprop): it is a warning only where second moments are seen to be below eps².
        momentum: Momentum from which it counts: at 0.999 a step adds up a thousand gradients, and is as much larger.
        lr_decay: The decay of Adagrad's rate from which it counts: at 0.1 half of the rate is left after ten steps.
        weight_decay: Weight decay that is multiplied by the rate alone, as AdamW's, from which it counts: recipes have 0.4 at most.
        added: The same that is added to the gradient, as SGD's and Adam's: recipes have 0.01 at most.
    """

    eps: float = 1e-2
    stale: ClassVar[float] = 0.5  # share of the second moments below eps² from which it is a warning
    momentum: ClassVar[float] = 0.999
    lr_decay: ClassVar[float] = 0.1
    weight_decay: ClassVar[float] = 1.0
    added: ClassVar[float] = 0.1

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for name, stats in report.optimizers.items():
            eps, stale = stats.largest("eps"), stats.stale_fraction or 0.0
            if eps >= self.eps and is_scale_free(name):
                measured = f": {percent(stale)} of its second moments are below eps²" * (stats.stale_fraction is not None)
                yield self.finding(
                    report, name, eps, self.eps,
                    f"its eps is {eps:g} (limit {self.eps:g}; 1e-8 is usual){measured}.",
                    conclusive=stale > self.stale,
                    advice=("Set eps=1e-8, unless that is meant",),
                )  # fmt: skip
            # Adam need not converge unless beta1 < sqrt(beta2) (Reddi et al. 2018). Others mean other things by betas.
            pairs = {group.betas for group in stats.groups if len(group.betas) == 2 and "adam" in name.lower()}
            for one, two in sorted(pair for pair in pairs if pair[0] > pair[1])[:1]:
                yield self.finding(
                    report, name, one, two,
                    f"beta1 ({one:g}) is larger than beta2 ({two:g}): the second moment forgets faster than the first, so steps "
                    "are divided by the size of gradients other than those that they are made of.",
                    advice=("Set betas=(0.9, 0.999)",),
                )  # fmt: skip
            decay, steps = stats.largest("lr_decay"), report.planned_steps or report.step
            left = f"{percent(1 / (1 + steps * decay))} of its steps are left after {steps}"
            most, less = ((self.weight_decay, 0.01), (self.added, 1e-4))[name.partition("-")[2] in (*L2, "SGD")]
            for setting, limit, usual, why in (
                ("momentum", self.momentum, 0.9, "a step goes on for more than a thousand steps"),
                ("lr_decay", self.lr_decay, 0, f"{left}, as they are divided by 1 + n * {decay:g}"),
                ("weight_decay", most, less, "weights shrink faster than they learn"),
            ):
                if (value := stats.largest(setting)) >= limit:
                    yield self.finding(
                        report, name, value, limit,
                        f"its {setting} is {value:g} (limit {limit:g}; {usual:g} is usual): {why}.",
                        advice=(f"Set {setting}={usual:g}",),
                    )  # fmt: skip


class DecayDominates(Rule, kind="optimizer_settings"):
    """Weight decay that Adam adds to the gradient (L2), many times as large as the gradient of the loss.

    Adam divides both by their size, so that a large decay does not shrink weights faster: it takes the loss's place (Loshchilov and
    Hutter 2019, "Decoupled weight decay regularization").

    Attributes:
        factor: Weight decay times the root mean square of a weight, over that of its gradient, as the median of the matrices that
            an optimizer holds, above which it counts.
    """

    decay: ClassVar[float] = 0.01  # a smaller weight decay is not judged: gradients that vanish are another fault
    factor: ClassVar[float] = 2.0

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for name in report.optimizers:
            held = {site: setup.l2 for site, setup in report.setups.items() if setup.optimizers == (name,) and setup.dimensions > 1}
            decayed = {site: decay for site, decay in held.items() if decay >= self.decay and site in report.parameters}
            stats = [(decay, report.parameters[site]) for site, decay in decayed.items()]
            ratios = [decay * each.weight_rms / each.rms for decay, each in stats if each.weight_rms is not None and each.rms > 0]
            ratio = statistics.median(ratios or [0.0])
            if ratio > self.factor and not has_converged(report, 0.1):
                yield self.finding(
                    report, name, ratio, self.factor,
                    f"its weight decay of {max(decayed.values()):g} is added to the gradient, and is "
                    f"{ratio:.3g} times its size (median of {len(ratios)} weights; limit {self.factor:g}): steps follow the decay, "
                    "not the loss.",
                    advice=("Use AdamW", "Try weight_decay=1e-4"),
                )  # fmt: skip


__all__ = ["DecayDominates", "LrZero", "OptimizerSettings", "ScheduleLength", "SecondMomentStale"]

KINDS = (
    Kind(
        "second_moment_stale", "Second moments below eps", group="Updates", states="symptom", measures="share",
        causes=(unusual_setting, loss_divided),
        meaning="Adam divides the gradient by the root of its second moment plus eps. Most second moments are below eps², so eps "
        "alone divides: steps shrink with the gradient, and the learning rate no longer says how large they are.",
        formula="stale_fraction = second moments below eps² / second moments, where the gradient is not 0\n\n"
        "alert if stale_fraction > {SecondMomentStale.threshold}; {SecondMomentStale.at_once} in the first window",
        advice=("Scale the loss up if it is divided more than once", "Try a smaller eps, such as 1e-15"),
    ),
    Kind(
        "lr_zero", "A schedule that does not fit the training", group="Updates", states="fact",
        causes=(wrong_schedule,),
        meaning="The learning rate is zero or almost zero while much of the training is still to come, or a warm-up has hardly "
        "begun when half of it is over: the remaining steps change nothing. Or a schedule is made for another number of steps.",
        formula="alert if the learning rate was below 1e-4 of its peak for {LrZero.held} of the planned steps,\n"
        "      with more than {LrZero.left} of them left\n"
        "      or is below {LrZero.initial} * initial_lr (of a cycle: max_lr) after half of them, and still at the foot of its "
        "warm-up\n"
        "      or a cosine has been stepped {ScheduleLength.periods} * T_max times: it rises again\n"
        "      or a schedule of as many steps as the training has (within {ScheduleLength.near}) is stepped once per epoch",
        inconclusive="for a rate that has always been 0",
        advice=("Step the scheduler as often as it was made for (interval='epoch' or 'step')",
            "Make the schedule as long as the training: T_max, total_steps, num_training_steps"),
    ),
    Kind(
        "optimizer_settings", "Unusual settings of an optimizer", group="Set-up", states="fact",
        causes=(unusual_setting,),
        meaning="A setting of an optimizer is far outside of what is usual: a large eps, beta1 above beta2, a momentum next to 1, "
        "a fast decay of Adagrad's rate, a large weight decay, or one that Adam adds to the gradient and that outweighs it.",
        formula="alert if eps >= {OptimizerSettings.eps} (Adam-like), or beta1 > beta2, or momentum >= "
        "{OptimizerSettings.momentum},\n"
        "      or lr_decay >= {OptimizerSettings.lr_decay} (Adagrad), or weight_decay >= {OptimizerSettings.weight_decay},\n"
        "      {OptimizerSettings.added} where it is added to the gradient (SGD, Adam)\n"
        "or if a weight_decay >= {DecayDominates.decay} is added to the gradient, and weight_decay * rms(weight) / rms(gradient) "
        "> {DecayDominates.factor}, median of the matrices\n"
        "   (torch's Adam, NAdam, RAdam, Adamax, Adagrad, RMSprop)",
        inconclusive="for a large eps that does not decide the steps",
        advice=("Check the arguments of the optimizer",),
    ),
)  # fmt: skip
