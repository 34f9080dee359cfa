"""Grad-CAM: the positions of a layer that contribute to a class score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lightning_hooks.extraction.batches import Forward, check_forward, map_tensors, run_model, undisturbed
from lightning_hooks.extraction.capture import channels_first, check_called
from lightning_hooks.hooks import HookManager, float_tensors, select_modules
from lightning_hooks.hooks.selection import named_sites

# A class, a class per sample, None for the predicted one, or a function of the model's output that returns scores.
Target: TypeAlias = int | Sequence[int] | Tensor | Callable[[Any], Tensor] | None

# The spatial layout of tokens: (height, width), or a function from a layer's output to (n, channels, space …).
Reshape: TypeAlias = Sequence[int] | Callable[[Tensor], Tensor] | None


def grad_cam(
    model: nn.Module,
    batch: Any,
    module: str | None = None,
    target: Target = None,
    *,
    reshape: Reshape = None,
    size: Sequence[int] | None = None,
    forward: Forward | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute Grad-CAM: see :meth:`lightning_hooks.GradCAM.compute`, which returns the maps.

    Returns:
        The maps, the explained score of each sample, ``(n,)``, and its class, ``(n,)``; None if the target was a function.
    """
    check_forward(forward)
    check_target(target)
    check_reshape(reshape)
    if size is not None and not _is_size(size):
        raise TypeError(f"size must be the (height, width) that maps are scaled to, or None; got {size!r}.")
    name, layer = find_layer(model, module)
    calls: list[Tensor] = []

    def tap(_: nn.Module, __: Any, output: Any) -> Any:
        """Keep the output, and return a copy, which later modules may change in place; the gradient passes it."""
        found = float_tensors(output)
        if not found:
            return output
        # If nothing before the layer requires a gradient, what is kept is the root of the graph.
        kept = found[0] if found[0].requires_grad else found[0].detach().requires_grad_()
        calls.append(kept)
        copy = kept.clone()
        return map_tensors(output, lambda tensor: copy if tensor is found[0] else tensor)

    # cuDNN computes no gradient of a recurrent layer in eval mode.
    recurrent = torch.cuda.is_available() and any(isinstance(module, nn.RNNBase) for module in model.modules())
    without_cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
    with undisturbed(model, grad=True), without_cudnn, HookManager() as hooks:
        hooks.register(layer, tap, "forward", label=name)
        batch = map_tensors(batch, lambda tensor: tensor.clone() if tensor.is_inference() else tensor)
        output = run_model(model, batch, forward)
        check_called([] if calls else [name], bool(calls), model)
        values = calls[-1]
        scores, classes = _scores(output, target)
        gradient = torch.autograd.grad(scores.sum(), values, allow_unused=True)[0] if scores.requires_grad else None
        if gradient is None:
            raise ValueError(
                f"the score does not depend on the output of {name!r}, or forward cuts the gradient between them (no_grad, "
                "detach). Choose a layer that the score depends on."
            )
        # In float32 at least: half precision loses the sum of many small gradients.
        exact = torch.promote_types(values.dtype, torch.float32)
        values, gradient = (spatial(tensor, layer, reshape).to(exact) for tensor in (values.detach(), gradient))
        maps = (gradient.mean(dim=tuple(range(2, gradient.dim())), keepdim=True) * values).sum(1).clamp(min=0)
    return maps if size is None else resize(maps, size), scores.detach(), classes


def find_layer(model: nn.Module, module: str | None) -> tuple[str, nn.Module]:
    """Return the (name, module) of a layer, by default of the last convolution.

    Raises:
        ValueError: If no module or several match the name, or there is no convolution.
        TypeError: If ``module`` is of another type.
    """
    if module is not None:
        found = select_modules(model, module)
        if len(found) > 1:
            raise ValueError(
                f"module={module!r} matches {len(found)} modules, of which Grad-CAM takes one: {[n for n, _ in found]}."
            )
        return found[0]
    convolutions = [(name, layer) for name, layer in named_sites(model) if isinstance(layer, nn.modules.conv._ConvNd)]
    if not convolutions:
        raise ValueError(
            f"{type(model).__name__} has no convolution to choose; name a layer with module=, and see reshape= for tokens."
        )
    return convolutions[-1]


def check_target(target: object) -> None:
    """Raise TypeError if ``target`` is of a wrong type."""
    known = target is None or callable(target) or isinstance(target, Tensor | int | float | Sequence)
    if not known or isinstance(target, str | bytes):
        raise TypeError(
            "target must be the number of a class, one for each sample, None for the predicted one, or a function of the model's "
            f"output; got {target!r}."
        )


def _is_size(size: object) -> bool:
    return isinstance(size, Sequence) and len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)


def check_reshape(reshape: object) -> None:
    """Raise TypeError if ``reshape`` is neither None, a function, nor two sizes."""
    if reshape is not None and not callable(reshape) and not _is_size(reshape):
        raise TypeError(
            f"reshape must be (height, width) of the grid of tokens, a function of the layer's output, or None; got {reshape!r}."
        )


def resize(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Scale maps, ``(n, h, w)``, to (height, width) bilinearly."""
    if maps.dim() != 3:
        raise ValueError(f"size= scales maps of two dimensions; these are of shape {tuple(maps.shape[1:])}.")
    return nn.functional.interpolate(maps[:, None].float(), tuple(size), mode="bilinear", align_corners=False)[:, 0]


def _scores(output: Any, target: Target) -> tuple[Tensor, Tensor | None]:
    if callable(target) and not isinstance(target, Tensor):
        scores = target(output)
        if not isinstance(scores, Tensor):
            raise TypeError(
                f"target, a function of the model's output, must return a tensor of scores; got {type(scores).__name__}."
            )
        return scores, None
    logits = _logits(output)
    if logits.dim() == 1:
        logits = logits[:, None]
    if logits.dim() != 2:
        raise ValueError(
            f"the model gives scores of shape {tuple(logits.shape)}, not (n, classes). Give target= as a function of the output "
            "that returns one score per sample, such as lambda output: output[:, 3].mean((1, 2))."
        )
    n, n_classes = logits.shape
    classes = logits.detach().argmax(1) if target is None else torch.as_tensor(target, device=logits.device)
    if classes.is_floating_point() or classes.dtype == torch.bool or classes.shape not in ((), (1,), (n,)):
        raise ValueError(f"target must be a class or one class for each of the {n} samples; got {target!r}.")
    classes = classes.long().expand(n)
    if not bool(((classes >= 0) & (classes < n_classes)).all()):
        raise ValueError(f"target must be between 0 and {n_classes - 1}, the model's classes; got {target!r}.")
    return logits.gather(1, classes[:, None])[:, 0], classes


def _logits(output: Any) -> Tensor:
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    found = float_tensors(logits if isinstance(logits, Tensor) else output)
    if len(found) != 1:
        raise ValueError(
            f"the model returns {len(found)} floating-point tensors ({type(output).__name__}) and none is called logits. "
            "Give target= as a function of the output that returns one score per sample."
        )
    return found[0]


def spatial(values: Tensor, layer: nn.Module, reshape: Reshape = None) -> Tensor:
    """Return a layer's output with spatial dimensions.

    Args:
        values: ``(n, channels, space …)``, or tokens ``(n, tokens, features)``.
        layer: The layer.
        reshape: (height, width) of the grid of the last height · width tokens; a function of ``values``; or None for a square
            grid, with or without a CLS token before it.

    Returns:
        Shape ``(n, channels, space …)``.

    Raises:
        ValueError: If the tokens are not a square grid and ``reshape`` is None, or the output has no spatial dimensions.
    """
    if callable(reshape):
        laid: Tensor = reshape(values)
        return laid
    if values.dim() >= 3 and channels_first(layer, values.dim()) and reshape is None:
        return values
    if values.dim() != 3:
        raise ValueError(
            f"the output of this {type(layer).__name__} has shape {tuple(values.shape)}, without spatial dimensions. Choose a "
            "layer with (n, channels, height, width) or (n, tokens, features), or give reshape= as a function."
        )
    tokens = values.shape[1]
    side = math.isqrt(tokens)
    if reshape is None and side * side != tokens and math.isqrt(tokens - 1) ** 2 != tokens - 1:
        raise ValueError(f"{tokens} tokens are no square grid, with or without the first; pass reshape=(height, width).")
    height, width = (side, side) if reshape is None else reshape
    if height * width > tokens:
        raise ValueError(f"reshape={tuple(reshape or ())!r} needs {height * width} tokens; the layer gives {tokens}.")
    return values[:, tokens - height * width :].transpose(1, 2).reshape(values.shape[0], -1, height, width)
