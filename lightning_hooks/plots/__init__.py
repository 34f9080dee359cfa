"""Pictures of reports, and of what layers put out: numbers in, a matplotlib Figure out.

Figures are made without pyplot: nothing is registered, nothing stays open, no backend is touched. Colours can be told apart
with any colour vision, alerts have a shape of their own each severity, and names are shown as they are, whatever they hold.
"""

from lightning_hooks.plots.clip import clip_history
from lightning_hooks.plots.flow import gradient_flow, update_ratios
from lightning_hooks.plots.heat import dead_units, heatmap
from lightning_hooks.plots.histograms import colourful_dimension
from lightning_hooks.plots.maps import feature_map
from lightning_hooks.plots.overlay import cam_figure
from lightning_hooks.plots.profile import layer_times

__all__ = [
    "cam_figure",
    "clip_history",
    "colourful_dimension",
    "dead_units",
    "feature_map",
    "gradient_flow",
    "heatmap",
    "layer_times",
    "update_ratios",
]
