"""The monitors that each have one report, and monitors(): the three of them that observe every training, as a list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from lightning_hooks.alerts import AttentionReport, ClipReport, FeatureReport, GradientFlowReport, RouterReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.routers.collector import RouterCollector
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.hooks.selection import check_selector
from lightning_hooks.hosts.observers import FEATURES, OF_TRAINING, ModelReports, arguments_of_each, members_of
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import (
    CapsulePlace,
    Histograms,
    Learning,
    Logged,
    OnAlert,
    ReportDir,
    ReportEvery,
    Rules,
    Settings,
    Summary,
    arguments_in,
)


class FeatureStatsMonitor(ModelReports, Monitor[FeatureReport]):
    """Logs exact epoch statistics of module outputs, and finds dead, saturated, constant and non-finite layers.

    Statistics pool every value of the sampled batches, of all calls and all ranks: they are those of the concatenated data, not
    means of batch means. A unit of a rectifier counts as dead if it fired in no sampled batch of the epoch, on any rank.

    Each epoch ``callback_metrics`` gets ``features/<module>/<stat>`` with stat one of mean, std, min, max, rms, zero_fraction,
    nonfinite_fraction, and where they apply dead_fraction and saturated_fraction (NaN while a module is silent);
    ``features/model/<stat>_median`` and ``features/model/<stat>_worst``, over all modules; and ``features/alerts/<kind>``, the
    number of alerts. Loggers get what ``logged`` says.

    Calls of functions are sites as modules are: ``blocks.3.attn/sdpa``, ``mlp/relu``, ``relu_1`` for the second call of the model
    itself.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, for outputs of modules and functions alone. ``report`` is
    the last epoch's :class:`~lightning_hooks.alerts.FeatureReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import FeatureStatsMonitor
        >>> trainer = Trainer(callbacks=[FeatureStatsMonitor(modules="encoder.*", every_n_steps=1)], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = FeatureCollector

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        min_probability: float = 0.8,
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        histograms: Histograms = False,
        figures: bool | int = False,
        check_every_n_steps: int | None = None,
        progress_bar: bool = False,
        functional: bool = True,
    ) -> None:
        own, *self._others = members_of(FEATURES, others=FeatureReport, **arguments_in(locals()))
        super().__init__(own.settings)

    @property
    @override
    def members(self) -> Sequence[Member]:
        return (self.member, *self._others)


class GradientFlowMonitor(Monitor[GradientFlowReport]):
    """Logs the gradients at module outputs and of parameters, and finds where they vanish, explode, stop or break.

    At modules: tensor hooks set from a forward hook, so models with in-place operations and any kind of output are fine. Of
    parameters: ``.grad`` at the optimizer step: reduced over ranks, accumulated, unscaled, before clipping; with the ratio of
    update to weight. Steps that a loss scaler skips do not count.

    Each epoch ``callback_metrics`` gets ``gradient_flow/<module>/<stat>`` (mean, std, min, max, rms, norm, zero_fraction,
    nonfinite_fraction), ``gradient_flow/<parameter>/<stat>`` (norm, norm_max, rms, zero_fraction, nonfinite_steps,
    missing_steps, update_ratio, weight_norm, …), of each optimizer ``gradient_flow/0-Adam/<stat>`` (lr, stale_fraction),
    ``gradient_flow/total_norm``, of the whole model ``gradient_flow/model/<stat>_median`` and ``…_worst`` (rms of modules, norm
    and update_ratio of parameters), and ``gradient_flow/alerts/<kind>``. NaN where nothing was measured. Loggers get what
    ``logged`` says.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, for gradients alone: ``modules`` chooses where the
    gradient at an output is recorded, parameters are always all observed, at the first optimizer step at or after each sampled
    batch.
    ``report`` is the last epoch's :class:`~lightning_hooks.alerts.GradientFlowReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientFlowMonitor
        >>> trainer = Trainer(callbacks=[GradientFlowMonitor(on_alert="warn")], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = GradientCollector

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        min_probability: float = 0.8,
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        histograms: Histograms = False,
        figures: bool | int = False,
        check_every_n_steps: int | None = None,
        progress_bar: bool = False,
        capsule: CapsulePlace = "auto",
        max_capsule_mb: float = 200,
        keep_batches: int = 0,
        learning: Learning = "auto",
    ) -> None:
        super().__init__(Settings(**arguments_in(locals())))

    @property
    def learning(self) -> LearningReport | None:
        """What of the training learns, in the last report; None before the first, and with ``learning=False``."""
        return None if self.report is None else self.report.learning


class GradientClipMonitor(Monitor[ClipReport]):
    """Logs the events of gradient clipping, whoever clips: Lightning, a ``configure_gradient_clipping`` of the user's, a callback.

    At every optimizer step it compares the gradients' norms before clipping with those the step is taken with. It distinguishes
    clipped, skipped (by a loss scaler) and non-finite steps, and names the parameters that caused the clips.

    Logged each window: ``gradient_clip/<stat>`` (``gradient_clip/<optimizer>/<stat>`` where there are several optimizers)
    with stat one of steps, clipped_steps, rate, norm_before, norm_before_max, norm_after, norm_after_max, coefficient,
    nonfinite_steps, skipped_steps; and ``gradient_clip/alerts/<kind>``.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`. ``report`` is the last window's
    :class:`~lightning_hooks.alerts.ClipReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientClipMonitor
        >>> trainer = Trainer(callbacks=[GradientClipMonitor()], gradient_clip_val=1.0, logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = ClipCollector

    def __init__(
        self,
        *,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        min_probability: float = 0.8,
        summary: Summary = True,
        report_dir: ReportDir = "auto",
        figures: bool | int = False,
        progress_bar: bool = False,
    ) -> None:
        super().__init__(Settings(**arguments_in(locals())))


class AttentionMonitor(Monitor[AttentionReport]):
    """Logs logits, entropy and masks of every attention head, and finds logits that grow, heads that collapse and empty masks.

    Attention is seen as a call: of ``scaled_dot_product_attention`` (own code, Hugging Face's ``sdpa``,
    ``nn.MultiheadAttention``), or of a softmax over keys (``eager`` attention, own code, ``nn.MultiheadAttention`` with
    ``need_weights=True``). Of each call at most 64 query rows are looked at, evenly spaced over the batch and the queries; their
    numbers are exact. Under ``torch.compile`` calls are not seen.

    Each window ``callback_metrics`` gets ``attention/<site>/<stat>`` with stat one of max_logit, entropy, first_token_share,
    masked_rows, nonfinite_rows; ``attention/model/<stat>_median`` and ``attention/model/<stat>_worst``, over all sites; and
    ``attention/alerts/<kind>``, the number of alerts. Loggers get what ``logged`` says. A site is named after the module that makes
    the call: ``blocks.3.attn/sdpa``, ``blocks.3.attn/softmax``.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`; ``modules`` takes names of sites and of modules that make
    the calls. ``report`` is the last window's :class:`~lightning_hooks.alerts.AttentionReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import AttentionMonitor
        >>> trainer = Trainer(callbacks=[AttentionMonitor(every_n_steps=50)], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = AttentionCollector

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        min_probability: float = 0.8,
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        figures: bool | int = False,
        progress_bar: bool = False,
    ) -> None:
        super().__init__(Settings(**arguments_in(locals())), partial(AttentionCollector, expected=True))


class RouterMonitor(Monitor[RouterReport]):
    """Logs how a mixture of experts spreads its tokens, and finds routers that collapse and experts that get nothing.

    A router's choices are read off its output: its logits and the experts that it chose, or the largest logits. No module is called
    and nothing waits for the device. Found by themselves are the routers of transformers (Mixtral, Qwen-MoE, OLMoE, DeepSeek,
    Llama 4, gpt-oss, Switch, …), modules called a router that know their number of experts, and linear layers called ``gate`` or
    ``router`` next to ``experts``. Padding counts as tokens. In a compiled region the choices are the largest logits.

    Logged each window: ``routers/<router>/<stat>`` with stat one of balance, max_load, dead_fraction, dropped_fraction;
    ``routers/<codebook>/<stat>`` (perplexity, usage, max_share); of the whole model
    ``routers/model/<stat>_median`` and ``…_worst``; ``routers/alerts/<kind>``. The load of each expert is in the report.

    Args:
        routers: The modules that put out a router's logits or choices, such as ``"*.gate"``; None for those that are found.
        codebooks: The modules that return the codes of a vector quantiser, such as ``"quantize"``; None for none.
        every_n_steps: As for :class:`~lightning_hooks.TrainingMonitor`, and so are the others.

    Attributes:
        report: The last window's :class:`~lightning_hooks.alerts.RouterReport`; None before the first.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If one is out of range, or, at train start, if a pattern matches nothing, a module does not say how many experts
            or codes there are, or there is no router.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import RouterMonitor
        >>> trainer = Trainer(callbacks=[RouterMonitor(on_alert="warn")], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = RouterCollector

    def __init__(
        self,
        *,
        routers: ModuleSelector | None = None,
        codebooks: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        min_probability: float = 0.8,
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        figures: bool | int = False,
        progress_bar: bool = False,
    ) -> None:
        settings = Settings(modules=routers, **arguments_in(locals(), "routers", "codebooks"))
        check_selector(codebooks)
        self.routers, self.codebooks = routers, codebooks
        super().__init__(settings, partial(RouterCollector, routers=routers, codebooks=codebooks))


def monitors(
    *,
    modules: ModuleSelector | None = None,
    every_n_steps: int = 10,
    report_every_n_steps: ReportEvery = "auto",
    on_alert: OnAlert = "log",
    rules: Rules = (),
    min_probability: float = 0.8,
    summary: Summary = True,
    logged: Logged = "auto",
    max_overhead: float | None = None,
    report_dir: ReportDir = "auto",
    histograms: Histograms = False,
    figures: bool | int = False,
    check_every_n_steps: int | None = None,
    progress_bar: bool = False,
    functional: bool = True,
    capsule: CapsulePlace = "auto",
    max_capsule_mb: float = 200,
    keep_batches: int = 0,
    learning: Learning = "auto",
) -> list[Monitor]:  # type: ignore[type-arg]  # three monitors, each with a report of its own
    """Return feature statistics, gradient flow and clipping events as three callbacks.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, which is the same in one callback.

    Returns:
        A list for ``Trainer(callbacks=…)``.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import monitors
        >>> trainer = Trainer(callbacks=monitors(), logger=False)
    """
    of_features, of_gradients, of_clipping = arguments_of_each(OF_TRAINING, **locals())
    features, clipping = FeatureStatsMonitor(**of_features), GradientClipMonitor(**of_clipping)
    clipping.member.selection = features.member.selection  # so that a checkpoint distinguishes two lists
    return [features, GradientFlowMonitor(**of_gradients), clipping]
