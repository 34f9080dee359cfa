"""Figures of reports and of the outputs of layers, made by matplotlib.

Figures are made without pyplot: nothing is registered, nothing stays open, and the backend is not changed. Colours can be
distinguished with any colour vision, each severity of alerts has a marker of its own, and names are shown literally.
"""

from typing import TYPE_CHECKING

from lightning_hooks.lazy import names_from

if TYPE_CHECKING:
    from lightning_hooks.diagnostics.attention.collector import attention_heads
    from lightning_hooks.diagnostics.clipping_events.report import clip_history
    from lightning_hooks.diagnostics.features.collector import dead_units
    from lightning_hooks.diagnostics.gradients.view import gradient_flow, update_ratios
    from lightning_hooks.diagnostics.residual_stream.rules import residual_stream
    from lightning_hooks.diagnostics.routers.collector import expert_load
    from lightning_hooks.plots.heat import heatmap
    from lightning_hooks.plots.maps import cam_figure, feature_map

__all__ = [
    "attention_heads",
    "cam_figure",
    "clip_history",
    "dead_units",
    "expert_load",
    "feature_map",
    "gradient_flow",
    "heatmap",
    "residual_stream",
    "update_ratios",
]

__getattr__ = names_from(
    __name__,
    {
        "..diagnostics.attention.collector": ("attention_heads",),
        "..diagnostics.clipping_events.report": ("clip_history",),
        "..diagnostics.features.collector": ("dead_units",),
        "..diagnostics.gradients.view": ("gradient_flow", "update_ratios"),
        "..diagnostics.residual_stream.rules": ("residual_stream",),
        "..diagnostics.routers.collector": ("expert_load",),
        ".heat": ("heatmap",),
        ".maps": ("cam_figure", "feature_map"),
    },
)
