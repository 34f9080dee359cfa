"""What a model and the process group say of a training, whichever its loop."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import nn

from lightning_hooks.hosts.host import TrainingSetup

UNREADABLE = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers whose parameters are shards that do not say how they are spread."""


def setup_of(model: nn.Module, **known: Any) -> TrainingSetup:
    """What a model and the process group say.

    Args:
        model: The model.
        **known: What is known otherwise, by the names of :class:`~lightning_hooks.hosts.host.TrainingSetup`.
    """
    grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = torch.distributed.get_world_size() if grouped else 1
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    found: dict[str, Any] = {
        "device": device,
        "world_size": ranks,
        "data_parallel_size": ranks,
        "is_global_zero": not grouped or torch.distributed.get_rank() == 0,
        "unreadable_shards": next((kind for module in model.modules() if (kind := type(module).__name__) in UNREADABLE), ""),
    }
    return TrainingSetup(**{**found, **known})


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in the wrappers that train it: Fabric's, and those for several ranks or devices."""
    wrappers = nn.parallel.DistributedDataParallel, nn.DataParallel
    inner = model.module if isinstance(model, wrappers) else model._modules.get("_forward_module")
    return model if inner is None else unwrapped(inner)


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer in the wrapper of Accelerate's or Fabric's, which has no step hooks of its own."""
    wrapped = {"AcceleratedOptimizer", "_FabricOptimizer"} & {kind.__name__ for kind in type(optimizer).__mro__}
    return inner_optimizer(optimizer.optimizer) if wrapped else optimizer
