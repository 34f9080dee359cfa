"""How large the weights are that a training starts from."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lightning_hooks.statistics.shards import is_distributed

_TABLES = (nn.Embedding, nn.EmbeddingBag)  # a row of an embedding is looked up, not summed over: it has no gain


def initial_gains(sites: Iterable[tuple[str, nn.Module]]) -> dict[str, float]:
    """The gain of each site's weights: root mean square times the root of the fan-in, so that layers of any width compare.

    A layer with gain g makes of independent inputs of size 1 outputs of about size g: 1.41 for He's initialisation, 0.58 for
    PyTorch's own, 1 for LeCun's. Of a module with several weights (a recurrent one) the largest counts.

    Args:
        sites: (name, module) pairs. Frozen weights, embeddings and what has fewer than two dimensions are left out.

    Returns:
        Name to gain. One copy from the device.
    """
    names: list[str] = []
    gains: list[Tensor] = []
    for name, module in sites:
        if isinstance(module, _TABLES):
            continue
        weights = [p for p in module.parameters(recurse=False) if not nn.parameter.is_lazy(p)]
        for weight in weights:
            if weight.dim() < 2 or not weight.requires_grad or not weight.is_floating_point() or not weight.numel():
                continue
            transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
            fan_in = weight.numel() // weight.shape[1 if transposed else 0]
            norm = torch.linalg.vector_norm(weight.detach(), dtype=torch.promote_types(weight.dtype, torch.float32))
            whole = norm.full_tensor() if is_distributed(norm) else norm  # a collective: all ranks start with the same sites
            gains.append(whole.float() * math.sqrt(fan_in / weight.numel()))
            names.append(name)
    found: dict[str, float] = {}
    if gains:
        for name, gain in zip(names, torch.stack([gain.to(gains[0].device) for gain in gains]).tolist(), strict=True):
            found[name] = max(gain, found.get(name, 0.0))
    return found


def shared_modules(root: nn.Module) -> dict[str, tuple[str, ...]]:
    """Modules with parameters that one parent holds under several names, as ``[layer] * 4`` makes them.

    Returns:
        The first name to the others.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, parent in root.named_modules():
        seen: dict[int, list[str]] = {}
        for key, child in parent._modules.items():
            if child is not None and any(True for _ in child.parameters()):
                seen.setdefault(id(child), []).append(f"{name}.{key}" if name else key)
        found |= {names[0]: tuple(names[1:]) for names in seen.values() if len(names) > 1}
    return found
