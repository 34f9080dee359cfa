"""AttentionMonitor: logits and entropy of every attention head."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from lightning_hooks.alerts import AttentionReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.session.settings import Logged, OnAlert, ReportDir, ReportEvery, Rules, Settings, Summary


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
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        figures: bool | int = False,
        progress_bar: bool = False,
    ) -> None:
        settings = Settings(
            modules=modules,
            every_n_steps=every_n_steps,
            report_every_n_steps=report_every_n_steps,
            on_alert=on_alert,
            rules=rules,
            summary=summary,
            logged=logged,
            max_overhead=max_overhead,
            report_dir=report_dir,
            figures=figures,
            progress_bar=progress_bar,
        )
        super().__init__(settings, partial(AttentionCollector, expected=True))
