"""Every tag that the monitors of a model of five modules write."""

from __future__ import annotations

from lightning_hooks.alerts import ClipReport, FeatureReport, GradientFlowReport, kinds_of

MODULES = ["net.0", "net.1", "net.2", "net.3", "net.4"]


PARAMETERS = [f"net.{i}.{p}" for i in (0, 2, 4) for p in ("weight", "bias")]


FEATURES = ["mean", "std", "min", "max", "rms", "zero_fraction", "nonfinite_fraction"]


MODULE_GRADIENTS = ["mean", "std", "min", "max", "rms", "norm", "zero_fraction", "nonfinite_fraction"]


PARAMETER_GRADIENTS = [
    *("norm", "norm_max", "rms", "zero_fraction", "nonfinite_steps", "missing_steps", "update_ratio", "update_ratio_max"),
    *("weight_norm", "weight_rms"),
]


OPTIMIZER = ["gradient_flow/0-SGD/lr"]


LOSS = [f"loss/{stat}" for stat in ("mean", "std", "min", "max", "last", "nonfinite_steps")]


CLIP = [
    *("steps", "clipped_steps", "rate", "norm_before", "norm_before_max", "norm_after", "norm_after_max"),
    *("coefficient", "nonfinite_steps", "skipped_steps"),
]


MODEL_FEATURES = ["mean", "std", "rms", "zero_fraction", "dead_fraction", "saturated_fraction", "nonfinite_fraction"]


def logged_tags() -> set[str]:
    """What loggers get by default of a model of five modules."""
    return {
        *(f"features/{m}/{s}" for m in MODULES for s in ("mean", "std", "rms", "zero_fraction", "nonfinite_fraction")),
        "features/net.1/dead_fraction",
        "features/net.3/saturated_fraction",
        *(f"gradient_flow/{m}/rms" for m in MODULES),
        *(f"gradient_flow/{p}/{s}" for p in PARAMETERS for s in ("norm", "update_ratio", "weight_norm")),
        "gradient_flow/total_norm",
        *OPTIMIZER,
        *LOSS,
        *(f"gradient_clip/{s}" for s in CLIP),
    }


def expected_tags() -> set[str]:
    """What callback_metrics has."""
    return {
        *(f"features/model/{s}_{which}" for s in MODEL_FEATURES for which in ("median", "worst")),
        *(f"gradient_flow/model/{s}_{which}" for s in ("rms", "norm", "update_ratio") for which in ("median", "worst")),
        *(f"features/{m}/{s}" for m in MODULES for s in FEATURES),
        "features/net.1/dead_fraction",
        "features/net.3/saturated_fraction",
        *(f"features/alerts/{kind}" for kind in kinds_of(FeatureReport)),
        *(f"gradient_flow/{m}/{s}" for m in MODULES for s in MODULE_GRADIENTS),
        *(f"gradient_flow/{p}/{s}" for p in PARAMETERS for s in PARAMETER_GRADIENTS),
        *OPTIMIZER,
        *LOSS,
        "gradient_flow/total_norm",
        *(f"gradient_flow/alerts/{kind}" for kind in kinds_of(GradientFlowReport)),
        *(f"gradient_clip/{s}" for s in CLIP),
        *(f"gradient_clip/alerts/{kind}" for kind in kinds_of(ClipReport)),
    }
