"""Features of a batch, fixed samples and Grad-CAM in plain torch, and running a model without side effects."""

from lightning_hooks.extraction.batches import undisturbed
from lightning_hooks.extraction.capture import pooled
from lightning_hooks.extraction.extracted import ExtractedFeatures

__all__ = ["ExtractedFeatures", "pooled", "undisturbed"]
