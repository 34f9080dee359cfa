"""Features of a batch, fixed samples and Grad-CAM in plain torch, and running a model without side effects."""

from lightning_hooks.extraction.batches import (
    Field,
    Forward,
    batch_size,
    device_of,
    field_of,
    first_rows,
    images_in,
    map_tensors,
    run_model,
    undisturbed,
)
from lightning_hooks.extraction.cam import Cam, Reshape, Target, grad_cam, resize
from lightning_hooks.extraction.capture import POOLS, Pool, call_name, capture, extract, pooled
from lightning_hooks.extraction.extracted import FORMATS, ExtractedFeatures, choose
from lightning_hooks.extraction.store import SAMPLINGS, FeatureStore, Reservoir, Sampling, to_host

__all__ = [
    "FORMATS",
    "POOLS",
    "SAMPLINGS",
    "Cam",
    "ExtractedFeatures",
    "FeatureStore",
    "Field",
    "Forward",
    "Pool",
    "Reservoir",
    "Reshape",
    "Sampling",
    "Target",
    "batch_size",
    "call_name",
    "capture",
    "choose",
    "device_of",
    "extract",
    "field_of",
    "first_rows",
    "grad_cam",
    "images_in",
    "map_tensors",
    "pooled",
    "resize",
    "run_model",
    "to_host",
    "undisturbed",
]
