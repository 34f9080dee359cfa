"""What a model, the process group and the objects of the process say of a training, whichever its loop."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import nn
from torch.optim import Optimizer

from lightning_hooks.declare.host import TrainingSetup

UNREADABLE = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers whose parameters are shards that do not say how they are spread."""
_SAME_EVERYWHERE = ("default_hooks", "powerSGD_hook", "quantization_hooks", "mixed_precision_hooks", "optimizer_overlap_hooks")

T = TypeVar("T")


def setup_of(model: nn.Module, **known: Any) -> TrainingSetup:
    """What a model and the process group say.

    Args:
        model: The model.
        **known: What is known otherwise, by the names of :class:`~lightning_hooks.declare.host.TrainingSetup`.
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


def replicated(wrapped: nn.Module | None) -> list[nn.Parameter]:
    """Return the parameters that DDP keeps the same: none where a communication hook may not, or without DDP.

    What a hook of the user's does is not known.
    """
    if not isinstance(wrapped, nn.parallel.DistributedDataParallel):
        return []
    hooks: Any = getattr(wrapped, "_comm_hooks", ())  # of torch; neither of these has a public name
    ignored: Any = getattr(wrapped, "parameters_to_ignore", ())
    if not all(_reduces_alike(hook, state) for hook, state in hooks):
        return []
    return [parameter for name, parameter in wrapped.module.named_parameters() if name not in ignored]


def _reduces_alike(hook: Any, state: Any) -> bool:
    """Whether a communication hook of DDP's leaves every rank with the same gradients."""
    known = getattr(hook, "__module__", "") in {f"torch.distributed.algorithms.ddp_comm_hooks.{name}" for name in _SAME_EVERYWHERE}
    return known and type(state).__name__ != "PostLocalSGDState"  # which a wrapper such as fp16_compress_wrapper hands on


def instances(kind: type[T]) -> Iterator[T]:
    """Yield all objects of a class: some loops hand theirs to no callback. No attribute is read: an object may be a proxy."""
    return (each for each in gc.get_objects() if issubclass(type(each), kind))


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Return the optimizers that hold parameters of a model, in the order of these."""
    places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    found = []
    for each in instances(Optimizer):
        if "_optimizer" not in vars(each) and "param_groups" in vars(each):  # no wrapper of Fabric's
            held = [places[id(p)] for group in each.param_groups for p in group["params"] if id(p) in places]
            if held:
                found.append((min(held), each))
    return [optimizer for _, optimizer in sorted(found, key=lambda entry: entry[0])]
