"""Made-up reports of any number of layers and epochs, with alerts, for what draws and writes them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from lightning_hooks.alerts import Alert, ClipReport, FeatureReport, GradientFlowReport
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import GradientStats, ParameterGradientStats

HOSTILE = (
    "<script>alert(1)</script>",
    "a/../../etc",
    "$x^2$",
    "\N{CJK UNIFIED IDEOGRAPH-65E5}\N{CJK UNIFIED IDEOGRAPH-672C} layer",
    "tab\tnew\nline\x00",
    "_" * 90,
    "\N{LATIN SMALL LETTER E WITH ACUTE}t\N{LATIN SMALL LETTER E WITH ACUTE}",
    "\N{FIRE}",
    "%s{}[]|`*_#",
    "\\frac{a}\"'&amp;",
)
BLOCK = ("ln_1", "attn.q", "attn.k", "attn.v", "attn.out_proj", "ln_2", "mlp.fc1", "mlp.act", "mlp.fc2", "drop")


def layer_names(n: int) -> list[str]:
    """Names as a transformer of n leaves has them."""
    blocks = [f"model.encoder.layers.{i}.{part}" for i in range(n // len(BLOCK) + 1) for part in BLOCK]
    return ["model.embed", *blocks[: n - 2], "model.head"] if n > 1 else ["model.embed"][:n]


def alert(
    kind: str,
    site: str,
    epoch: int,
    severity: str = "warning",
    diagnosis: str = "seen; likely cause.",
    advice: tuple[str, ...] = ("Try this",),
) -> Alert:
    return Alert(kind, site, 1.0, 0.5, epoch, 10 * epoch + 10, severity, diagnosis=diagnosis, advice=advice)


def features(epoch: int, names: Sequence[str], dead: Sequence[float | None] | None = None, broken: bool = False, **changes):
    """A feature report; every fourth layer is a rectifier unless ``dead`` says which."""
    draw = random.Random(1000 + epoch)
    sites = {}
    for i, name in enumerate(names):
        share = dead[i] if dead is not None else (min(1.0, 0.03 * (i % 7) * (epoch + 1)) if i % 4 == 1 else None)
        values = [math.nan] * 5 if broken else [draw.gauss(0, 1), math.exp(draw.gauss(0, 1)), -3.0, 4.0, math.exp(draw.gauss(0, 1))]
        sites[name] = FeatureStats(5, 0 if broken else 640, *values, draw.random(), float(broken), share, None)
    alerts = [
        alert("dead", name, epoch, "critical" if stats.dead_fraction == 1 else "warning")
        for name, stats in sites.items()
        if stats.dead_fraction is not None and stats.dead_fraction > 0.5
    ]
    alerts += [alert("nonfinite", name, epoch, "critical") for name in names if broken]
    return FeatureReport(
        **{
            "epoch": epoch,
            "step": 10 * epoch + 10,
            "sites": sites,
            "sampled_batches": 3,
            "batches": 23,
            "alerts": tuple(alerts),
            **changes,
        }
    )


def flow(epoch: int, names: Sequence[str], broken: bool = False, **changes):
    """A gradient-flow report: it vanishes towards the input."""
    draw = random.Random(epoch)
    modules, parameters = {}, {}
    for i, name in enumerate(names):
        rms = math.nan if broken else 10 ** (-7 + 6 * i / len(names) + draw.gauss(0, 0.25))
        modules[name] = GradientStats(
            5, 0 if broken else 640, 0.2 * rms, rms, -5 * rms, 7 * rms, rms, 25 * rms, 50 * rms, 0.1, float(broken)
        )
        for part in ("weight", "bias"):
            ratio = None if broken else 10 ** draw.gauss(-3, 0.7)
            parameters[f"{name}.{part}"] = ParameterGradientStats(5, 10 * rms, 20 * rms, rms / 3, 0.0, 5 * broken, 0, ratio)
    kind, severity = ("nonfinite", "critical") if broken else ("vanishing", "warning")
    affected = names if broken else names[: len(names) // 5]
    alerts = tuple(alert(kind, name, epoch, severity) for name in affected)
    norm = math.nan if broken else 0.5
    return GradientFlowReport(
        **{
            "epoch": epoch, "step": 10 * epoch + 10, "modules": modules, "parameters": parameters, "total_norm": norm,
            "sampled_batches": 3, "batches": 23, "alerts": alerts, **changes,
        }
    )  # fmt: skip


def clips(epoch: int, optimizers: Sequence[str] = ("0-AdamW",), broken: bool = False, **changes):
    """A clip report: less and less is clipped."""
    found = {}
    for name in optimizers:
        before = math.nan if broken else 3 * math.exp(-epoch / 20)
        clipped = 0 if broken else round(20 * min(1, before / 3))
        after = before if broken else min(before, 1.0)
        found[name] = ClipStats(
            20,
            clipped,
            clipped / 20,
            before,
            4 * before,
            after,
            after,
            after / before,
            20 * broken,
            2,
            (("head.weight", 0.8),),
            1.0,
        )
    return ClipReport(**{"epoch": epoch, "step": 10 * epoch + 10, "optimizers": found, **changes})


FIT = {"version": 1, "package": "0.1.0", "model": "Net", "epoch": 0, "step": 0, "max_epochs": 5, "monitors": []}
