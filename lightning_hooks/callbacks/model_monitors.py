"""AttentionMonitor and RouterMonitor: what heads of attention, routers of experts and codebooks choose."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from lightning_hooks.alerts import AttentionReport, RouterReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.routers.collector import RouterCollector
from lightning_hooks.hooks.selection import ModuleSelector, check_selector
from lightning_hooks.session.settings import Logged, OnAlert, ReportDir, ReportEvery, Rules, Settings, Summary, arguments_in


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
        settings = Settings(**arguments_in(locals()))
        super().__init__(settings, partial(AttentionCollector, expected=True))


class RouterMonitor(Monitor[RouterReport]):
    """Logs how a mixture of experts spreads its tokens, and finds routers that collapse and experts that get nothing.

    A router's choices are read off its output: its logits and the experts that it chose, or the largest logits. No module is called
    and nothing waits for the device. Found by themselves are the routers of transformers (Mixtral, Qwen-MoE, OLMoE, DeepSeek,
    Llama 4, gpt-oss, Switch, …), modules called a router that know their number of experts, and linear layers called ``gate`` or
    ``router`` next to ``experts``. Padding counts as tokens. In a compiled region the choices are the largest logits.

    Logged each window: ``routers/<router>/<stat>`` with stat one of balance, max_load, dead_fraction, entropy, margin,
    overflow_fraction, dropped_fraction; ``routers/<codebook>/<stat>`` (perplexity, usage, max_share); of the whole model
    ``routers/model/<stat>_median`` and ``…_worst``; ``routers/alerts/<kind>``. The load of each expert is in the report.

    Args:
        routers: The modules that put out a router's logits or choices, such as ``"*.gate"``; None for those that are found.
        codebooks: The modules that return the codes of a vector quantiser, such as ``"quantize"``; None for none.
        capacity_factor: What an expert's even share of a call is multiplied by; choices beyond count as overflow. At least 1.
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
        capacity_factor: float = 1.25,
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
        arguments = arguments_in(locals())
        check_selector(codebooks)
        if isinstance(capacity_factor, bool) or not isinstance(capacity_factor, int | float):
            raise TypeError(f"capacity_factor must be a number of at least 1, such as 1.25; got {capacity_factor!r}.")
        if not capacity_factor >= 1:
            raise ValueError(f"capacity_factor must be at least 1: an even share fits; got {capacity_factor!r}.")
        own = ("routers", "codebooks", "capacity_factor")
        settings = Settings(modules=routers, **{name: value for name, value in arguments.items() if name not in own})
        self.routers, self.codebooks, self.capacity_factor = routers, codebooks, capacity_factor
        new = partial(RouterCollector, routers=routers, codebooks=codebooks, capacity_factor=float(capacity_factor))
        super().__init__(settings, new)
