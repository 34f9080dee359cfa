"""The modes of modules, and the running statistics of batch norms."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, graded, grouped, subject
from lightning_hooks.diagnostics.causes.code import fact
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.diagnostics.training_state import had_gradient
from lightning_hooks.hooks.selection import outwards
from lightning_hooks.trackers import some

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
        parts = grouped((outwards(site)[level - 1], site) for site, level in levels.items() if level > 1)
        for part, sites in parts.items():
            since = min((setup.eval_since[site] for site in sites if site in setup.eval_since), default=None)
            thawed = any(_rested(earlier, part or THE_MODEL) for earlier in report.earlier)  # its norms stay as they were then
            yield self.alert(
                report, part or THE_MODEL, len(sites), 0, graded(not thawed),
                f"it trains in eval mode{f', since step {since}' * (since is not None)}: "
                f"{subject(sites, 'behaves', 'behave')} as in validation.",
                since_step=since,
                advice=(f"Call {part or 'model'}.train() before training", "Freeze it if it is not to learn"),
            )  # fmt: skip
        single = [site for site, level in levels.items() if level <= 1]
        unestimated = [site for site in setup.unestimated if site in single]
        if unestimated:
            more = f", and so has {some(unestimated[1:], 3)}" * (len(unestimated) > 1)
            yield self.alert(
                report, unestimated[0], len(unestimated), 0, "warning",
                "batch norm in eval mode has a running mean and variance of 0 and 1, as it was made: it normalises nothing"
                f"{more}.",
                advice=("Call train() on it until its statistics are estimated", "Load a checkpoint that holds its buffers"),
            )  # fmt: skip
        switched = [site for site in single if site not in unestimated]
        if switched:
            yield self.alert(
                report, switched[0], len(switched), 0, "info",
                f"{subject(switched, 'is', 'are')} in eval mode within modules in training mode.",
                advice=("Call train() on it, unless its statistics are kept on purpose",),
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
            yield self.alert(
                report, part or THE_MODEL, moved, self.threshold * far, graded(far),
                f"it is frozen, but {updates} running statistics: those of {farthest} have moved by {moved:.2g} standard "
                f"deviations ({('a warning above', 'limit')[far]} {self.threshold:.2g}).",
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


__all__ = ["EvalMode", "FrozenStatistics"]

KINDS = (
    Kind(
        "eval_mode", "Training in eval mode", group="Set-up", states="fact", measures="nothing",
        causes=(
            fact("left_in_eval_mode", "a part that trains is in eval mode", "call", "train() of {site}", code="{code}.train()"),
        ),
        meaning="Dropout, batch norm or spectral norm is in eval mode while the part of the model around it trains. Dropout drops "
        "nothing, batch norm uses its running statistics and does not update them, and spectral norm does not follow its weight.",
        formula="alert if a dropout (or a module with a share to drop), batch norm or spectral norm and the module around it are "
        "in eval mode, at the start\n"
        "      and before the backward pass of every sampled batch, or of the last three of a window, and at least "
        "{EvalMode.trains} of the elements next to it train and have a gradient\n"
        "or if a batch norm alone is, with a running mean and variance of 0 and 1",
        severities="warning; info where only the module itself is in eval mode, unless its statistics are 0 and 1, and where "
        "the part was frozen in an earlier window",
        advice=("Call train() on it before training", "Freeze it with requires_grad_(False) if it is not to learn"),
    ),
    Kind(
        "frozen_statistics", "Batch norm that changes in a frozen part", group="Set-up", states="fact",
        causes=(
            fact("follows_data", "a frozen batch norm is in training mode", "call", "eval() of {site}", code="{code}.eval()"),
        ),
        meaning="A part of the model is frozen, but its batch norms are in training mode: their running statistics follow the new "
        "data, and validation uses them with the old weights.",
        formula="d = mean over channels of (change of the running mean / std)² + (std now / std - 1)²,\n"
        "    since training started, in the running std of that time\n\n"
        "alert if no parameter of the module requires a gradient (or next to it, if it has none), and sqrt(d) > "
        "{FrozenStatistics.threshold}",
        severities="warning; info while the statistics have moved little",
        advice=("Call eval() on the frozen part in on_train_epoch_start",
            "Set track_running_stats=False on its batch norms, as Lightning's BaseFinetuning does"),
    ),
)  # fmt: skip
