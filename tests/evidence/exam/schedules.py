"""Budgets, optimizers and schedules of fine-tuning and pretraining recipes, as ``configure_optimizers`` returns them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule

SHORT: dict[str, Any] = {"max_epochs": 2, "limit_train_batches": 24}
STEPS = 48
"""The steps of a training with ``SHORT``, without accumulation."""
CLIPPED: dict[str, Any] = {**SHORT, "gradient_clip_val": 1.0}
Optimizers = Callable[[LightningModule], Any]
TWICE_25 = {"max_epochs": 2, "limit_train_batches": 25}
TWO_EPOCHS = {"max_epochs": 2}
TWICE_30 = {"max_epochs": 2, "limit_train_batches": 30}
TWICE_40 = {"max_epochs": 2, "limit_train_batches": 40}
TWICE_75 = {"max_epochs": 2, "limit_train_batches": 75}


def trained(module: LightningModule) -> list[Any]:
    """The parameters that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def adamw(rate: float = 1e-3, decay: float = 0.01, **options: Any) -> Optimizers:
    """AdamW over all parameters that are not frozen."""
    return lambda module: torch.optim.AdamW(trained(module), lr=rate, weight_decay=decay, **options)


def decayed_apart(rate: float = 1e-3, decay: float = 0.1, betas: tuple[float, float] = (0.9, 0.95)) -> Optimizers:
    """AdamW that leaves biases and norms out of the decay, with the betas of GPT-3 and Llama."""

    def make(module: LightningModule) -> Any:
        matrices = [parameter for parameter in trained(module) if parameter.ndim > 1]
        vectors = [parameter for parameter in trained(module) if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=rate, betas=betas)

    return make


def layer_wise(rate: float, factor: float, layers: str) -> Optimizers:
    """AdamW whose rate falls by ``factor`` from layer to layer towards the input; embeddings have the least.

    Args:
        rate: That of the head.
        factor: Below 1.
        layers: The name of the list of layers, such as ``"encoder.layer."``.
    """

    def make(module: LightningModule) -> Any:
        depths = {name: int(name.partition(layers)[2].split(".")[0]) for name, _ in module.named_parameters() if layers in name}
        top = max(depths.values()) + 1
        groups: dict[int, list[Any]] = {}
        for name, parameter in module.named_parameters():
            depth = depths.get(name, -1 if "embeddings" in name else top)
            groups.setdefault(top - depth, []).append(parameter)
        return torch.optim.AdamW([{"params": group, "lr": rate * factor**below} for below, group in groups.items()])

    return make


def scheduled(optimizers: Optimizers, schedule: Callable[[Any], Any], interval: str = "step") -> Optimizers:
    """With a schedule, stepped after each batch or epoch."""

    def make(module: LightningModule) -> Any:
        optimizer = optimizers(module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), "interval": interval}}

    return make


def warm_cosine(optimizers: Optimizers, steps: int = STEPS, warm_up: int = STEPS // 10) -> Optimizers:
    """A warm-up, then a cosine down to 0."""
    from transformers import get_cosine_schedule_with_warmup

    return scheduled(optimizers, lambda optimizer: get_cosine_schedule_with_warmup(optimizer, warm_up, steps))


def warm_linear(optimizers: Optimizers, steps: int = STEPS, warm_up: int = STEPS // 10) -> Optimizers:
    """A warm-up, then a line down to 0."""
    from transformers import get_linear_schedule_with_warmup

    return scheduled(optimizers, lambda optimizer: get_linear_schedule_with_warmup(optimizer, warm_up, steps))


def plain_sgd(rate: float, **options: Any) -> Any:
    return lambda module: torch.optim.SGD(module.parameters(), rate, **options)


def adam(rate: float = 1e-3, **options: Any) -> Callable[[Any], Any]:
    """Adam over all parameters."""
    return lambda module: torch.optim.Adam(module.parameters(), rate, **options)


def sgd(rate: float, momentum: float = 0.9, **options: Any) -> Callable[[Any], Any]:
    """SGD over all parameters."""
    return lambda module: torch.optim.SGD(module.parameters(), rate, momentum, **options)


def warmed(make: Callable[[Any], Any], steps: int, warm: int = 20) -> Callable[[Any], Any]:
    """An optimizer whose rate rises in a line, then falls as a cosine, batch by batch."""

    def optimizers(module: Any) -> Any:
        def share(step: int) -> float:
            return min((step + 1) / warm, 1.0) * 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0)))

        chosen = make(module)
        return {
            "optimizer": chosen,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.LambdaLR(chosen, share), "interval": "step"},
        }

    return optimizers
