"""Figures of reports and of the outputs of layers, made by matplotlib.

Figures are made without pyplot: nothing is registered, nothing stays open, and the backend is not changed. Colours can be
distinguished with any colour vision, each severity of alerts has a marker of its own, and names are shown literally.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_hooks.plots.heat import heatmap
from lightning_hooks.plots.maps import cam_figure, feature_map

if TYPE_CHECKING:
    from lightning_hooks.diagnostics.attention.collector import attention_heads
    from lightning_hooks.diagnostics.clipping_events.report import clip_history
    from lightning_hooks.diagnostics.gradients.view import gradient_flow, update_ratios
    from lightning_hooks.diagnostics.routers.collector import expert_load

__all__ = [
    "attention_heads",
    "cam_figure",
    "clip_history",
    "expert_load",
    "feature_map",
    "gradient_flow",
    "heatmap",
    "update_ratios",
]

# The figures that capabilities declare: they are imported when they are first asked for, since they import this package.
_DRAWN_BY = {
    "attention_heads": "attention.collector",
    "clip_history": "clipping_events.report",
    "expert_load": "routers.collector",
    "gradient_flow": "gradients.view",
    "update_ratios": "gradients.view",
}


def __getattr__(name: str) -> Any:
    if name in _DRAWN_BY:
        return getattr(import_module(f"lightning_hooks.diagnostics.{_DRAWN_BY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
