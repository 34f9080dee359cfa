"""What is known of a training when an alert is raised, as plain data: what causes about causes are judged by.

A number that is not known is NaN: no comparison with it holds, so it speaks neither for a cause nor against one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.host import TrainingSetup
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep
from lightning_hooks.diagnostics.nonfinite.operations import overflows
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats, ScheduleStats
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport, weight_ratios


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A parameter in a few numbers, of its finite elements.

    Attributes:
        elements: How many it has; of a very large one those of an evenly spaced sample.
        mean: Their mean.
        low: The smallest.
        high: The largest.
        nonfinite: How many are NaN or infinite.
        rms: Their root mean square.
    """

    elements: int
    mean: float
    low: float
    high: float
    nonfinite: int = 0
    rms: float = math.nan

    @property
    def constant(self) -> bool:
        """Whether all are one number."""
        return self.low == self.high

    @property
    def size(self) -> float:
        """The largest, whatever its sign."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True)
class Rate:
    """The learning rate of one parameter group.

    Attributes:
        optimizer: The name of its optimizer, such as ``0-AdamW``.
        target: What a remedy calls it, such as ``optimizer.lr`` or ``optimizer.param_groups[1].lr``.
        settings: All its settings.
        began: What it began with, by its scheduler, else by what it was when training started; None where not known.
        first: What it was when training started; None where not known.
    """

    optimizer: str
    target: str
    settings: GroupSettings
    began: float | None = None
    first: float | None = None

    @property
    def kind(self) -> str:
        """The class of the optimizer."""
        return self.optimizer.partition("-")[2]

    @property
    def lr(self) -> float:
        """The rate, the largest of now and of its peak; 0 where it is not known."""
        return max(self.settings.lr or 0.0, self.settings.lr_peak or 0.0)

    def of(self, setting: str) -> str:
        """What a remedy calls another setting of the group."""
        return self.target.removesuffix("lr") + setting


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when an alert is raised.

    Attributes:
        features: The last report of the outputs; an empty one where there is none, as for the next two.
        flow: That of the gradients and optimizers.
        clip: That of optimizer steps.
        optimizers: The optimizers, by name.
        modules: Module to its class, in the order of calls, then those that were not called.
        now: Parameters at the alert's site and at its neighbours, as they are.
        start: All parameters, as they were when this training started.
        others: Alerts of the same window, and those of earlier ones that are open, as ``(kind, site)``.
        setup: How the training is set up.
        precision: As the loop calls it.
        schedules: The learning rate schedulers.
        bad_step: What running the first bad step again has shown; None where it was not run.
        first_rates: The learning rates when training started, by the places of the optimizer and of the group.
        time_first: Modules with ``batch_first=False``, such as attention and recurrent layers.
        strided: Parameters that are not contiguous in memory.
        places_first: Tensors of the shape (places, 1, width), next to attention of that width with ``batch_first=True``.
        window: The reports of all monitors.
    """

    features: FeatureReport = field(default_factory=lambda: FeatureReport(0, 0, {}))
    flow: GradientFlowReport = field(default_factory=lambda: GradientFlowReport(0, 0, {}, {}, math.nan))
    clip: ClipReport = field(default_factory=lambda: ClipReport(0, 0, {}))
    optimizers: Mapping[str, OptimizerStats] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    now: Mapping[str, TensorFacts] = field(default_factory=dict)
    start: Mapping[str, TensorFacts] = field(default_factory=dict)
    others: Sequence[tuple[str, str]] = ()
    setup: TrainingSetup = field(default_factory=lambda: TrainingSetup(device=torch.device("cpu")))
    precision: str = ""
    schedules: Sequence[ScheduleStats] = ()
    bad_step: BadStep | None = None
    first_rates: Mapping[tuple[int, int], float] = field(default_factory=dict)
    time_first: Sequence[str] = ()
    strided: Sequence[str] = ()
    places_first: Sequence[str] = ()
    window: Window = field(default_factory=Window)

    @classmethod
    def of(cls, window: Window) -> Facts:
        """What a window says."""
        facts = cls(window=window)
        return replace(
            facts,
            features=window.report(FeatureReport) or facts.features,
            flow=window.report(GradientFlowReport) or facts.flow,
            clip=window.report(ClipReport) or facts.clip,
        )

    def has(self, *words: str) -> bool:
        """Whether the class of a module holds one of these words."""
        return any(word in kind.lower() for kind in self.modules.values() for word in words)

    def raised(self, *kinds: str) -> list[str]:
        """Those of these kinds that are found in this window, or open since an earlier one."""
        found = {kind for kind, _ in self.others}
        return [kind for kind in kinds if kind in found]

    @property
    def overflows(self) -> bool:
        """Whether the first bad step has an operation that is finite for all finite numbers but those that are too large."""
        return self.bad_step is not None and overflows(self.bad_step.failure)

    @property
    def stretch(self) -> float:
        """The median gain of the initial weights where no norm restores their outputs' size; 1 where one does, or few are known."""
        gains = [gain for gain in self.features.initial_gains.values() if 0 < gain < math.inf]
        return 1.0 if len(gains) < 3 or self.has("norm") else statistics.median(gains)

    @property
    def first_loss(self) -> float:
        """The first loss that is known of this training; NaN where none is."""
        loss = self.flow.first.loss or NO_LOSS
        return loss.recent[0] if loss.recent else loss.start

    @property
    def magnified(self) -> str:
        """What makes gradients large, and so steps at a usual learning rate; empty for nothing."""
        inputs = self.features.inputs.get("training")
        if self.stretch >= 3:
            return f"layers start with a gain near {self.stretch:.3g}"
        if inputs is not None and inputs.rms > 8:
            return f"inputs have a root mean square of {inputs.rms:.3g}"
        return f"the loss starts at {self.first_loss:.3g}" if self.first_loss > 1e3 else ""

    # Optimizers.

    def rates(self) -> list[Rate]:
        """Each parameter group."""
        found = []
        for place, (name, stats) in enumerate(self.optimizers.items()):
            of = "optimizer" if len(self.optimizers) == 1 else f"optimizers[{place}]"
            same = len({group.lr for group in stats.groups}) <= 1
            for number, group in enumerate(stats.groups[:1] if same else stats.groups):
                first = self.first_rates.get((place, number))
                target = f"{of}.lr" if same else f"{of}.param_groups[{number}].lr"
                found.append(Rate(name, target, group, group.lr_initial or first, first))
        return found

    def rate_at(self, site: str) -> Rate | None:
        """The group that an alert is about: of its optimizer, of the optimizer that holds its parameters, else the fastest."""
        rates, module = self.rates(), self.module_of(site)
        inside = (name for name in self.flow.setups if name == site or (module and name.startswith(f"{module}.")))
        setups = [self.flow.setups[name] for name in inside]
        names = {name for setup in setups for name in setup.optimizers} | {site}
        rate_here = max((setup.lr or 0.0 for setup in setups), default=None)
        held = [rate for rate in rates if rate.optimizer in names] or rates
        exact = [rate for rate in held if rate.settings.lr == rate_here]
        return max(exact or held, key=lambda rate: rate.lr, default=None)

    def usual_ratio(self, optimizer: str, window: GradientFlowReport | None = None) -> float:
        """The median of the measured update ratios of an optimizer's weights, in this window or another one."""
        flow = self.flow if window is None else window
        ratios = ((ratio, flow.setups[name].optimizers) for name, ratio in weight_ratios(flow).items())
        known = [ratio for ratio, optimizers in ratios if optimizer in optimizers and math.isfinite(ratio)]
        return statistics.median(known) if known else math.nan

    def largest_ratio(self, optimizer: str, below: float = math.inf) -> float:
        """That of the window in which it was largest: weights that no gradient reaches any more say nothing of what ruined them.

        Args:
            optimizer: The name of the optimizer.
            below: A ratio from which on windows do not count.
        """
        ratios = [self.usual_ratio(optimizer, window) for window in self.flow.windows]
        return max((ratio for ratio in ratios if 0 <= ratio < below), default=math.nan)

    @property
    def step_ratio(self) -> float:
        """What a step gains of what its gradient predicts."""
        known = self.flow.learned.step_ratio
        return math.nan if known is None else known

    @property
    def usual_norm(self) -> float:
        """The usual norm of the gradients before clipping: of the steps before a spike, else the mean."""
        leapt = {name: events for name, events in self.clip.events.items() if events.jump > 3 and events.jump_before > 0}
        norms = [leapt[name].jump_mean if name in leapt else stats.norm_before for name, stats in self.clip.optimizers.items()]
        return max((norm for norm in norms if 0 < norm < math.inf), default=math.nan)

    # Modules.

    def module_of(self, site: str) -> str:
        """The module of a site: itself, the one that makes a call, or that holds a parameter; empty where there is none."""
        name = site.partition("/")[0]
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name

    def before(self, site: str, most: int = 4) -> list[str]:
        """The modules with parameters in a site, or else before it in the order of calls, the nearest first."""
        order, module = list(self.modules), self.module_of(site)
        own = {name.rpartition(".")[0] for name in self.start}
        inside = [name for name in order if name in own and name.startswith(f"{module}.")] if module else []
        place = order.index(module) if module else -1
        return (inside or [name for name in order[place::-1] if module and name in own])[:most]

    def concerns(self, alert: Alert, names: Iterable[str]) -> list[str]:
        """Those modules that an alert may be due to: at its site or before it in the order of calls.

        A gradient comes from later modules too, and what is about no module from all.
        """
        order, module = list(self.modules), self.module_of(alert.site)
        if not module or kind_of(alert.kind).group == "Backward":
            return [*names]
        after = order[order.index(module) + 1 :]
        later = {name for name in after if not (name.startswith(f"{module}.") or module.startswith(f"{name}."))}
        return [name for name in names if name not in later]

    def parameters_of(self, module: str) -> list[str]:
        """The parameters of a module itself."""
        return [name for name in self.start if name.rpartition(".")[0] == module]
