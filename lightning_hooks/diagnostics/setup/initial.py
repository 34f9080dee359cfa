"""How large the weights are that a training starts from, and those that cannot have been trained: constants, fresh layers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from lightning_hooks.declare.rule import grouped
from lightning_hooks.hooks.attributes import contents, stored, stored_count
from lightning_hooks.hooks.selection import clean_name, cleaned
from lightning_hooks.hooks.tensors import has_values, is_computed, is_distributed, stored_tensor, weights_of

_TABLES = (nn.Embedding, nn.EmbeddingBag)  # a row of an embedding is looked up, not summed over: it has no gain


TEXTBOOK = (0.3, 1.6)  # gains of common initialisations
FAR = 7.0  # factor of a usual gain from which on one is unusual


def is_textbook(gain: float) -> bool:
    """Whether a gain is that of a common initialisation."""
    return TEXTBOOK[0] <= gain <= TEXTBOOK[1]


def initial_scales(sites: Iterable[tuple[str, nn.Module]]) -> tuple[dict[str, float], dict[str, float]]:
    """The gain and the root mean square of the weights that training starts from.

    The gain is the root mean square times the root of the fan-in, so that layers of any width compare: a layer with gain g makes of
    independent inputs of size 1 outputs of about size g: 1.41 for He's initialisation, 0.58 for PyTorch's own, 1 for LeCun's. Where
    it is unusual, and the gain by the fan-out is not, that one counts: torchvision and timm initialise convolutions by their
    fan-out. Of a module with several weights (a recurrent one) the largest counts.

    Args:
        sites: (name, module) pairs. Frozen weights, embeddings and what has fewer than two dimensions are left out.

    Returns:
        Name to gain, and name to root mean square. One copy from the device.
    """
    layers = [(name, module) for name, module in sites if not isinstance(module, _TABLES)]
    weights = ((name, _outputs(module), weight) for name, module in layers for weight in weights_of(module))
    known = [one for one in weights if _is_trained_matrix(one[2]) and one[2].is_floating_point()]
    gains, sizes = dict[str, float](), dict[str, float]()
    for (name, outputs, weight), norm in zip(known, _norms([weight for *_, weight in known]), strict=True):
        size = norm / math.sqrt(weight.numel())
        by_fan_in, by_fan_out = (size * math.sqrt(weight.numel() // weight.shape[place]) for place in (outputs, 1 - outputs))
        gain = by_fan_in if is_textbook(by_fan_in) or not is_textbook(by_fan_out) else by_fan_out
        gains[name], sizes[name] = max(gain, gains.get(name, 0.0)), max(size, sizes.get(name, 0.0))
    return gains, sizes


def _is_trained_matrix(weight: Tensor) -> bool:
    return weight.dim() > 1 and weight.requires_grad and weight.numel() > 0


def _norms(weights: Sequence[Tensor]) -> list[float]:
    """The L2 norms of weights. Of sharded ones a collective: all ranks start with the same weights."""
    norms = [torch.linalg.vector_norm(w.detach(), dtype=torch.promote_types(w.dtype, torch.float32)) for w in weights]
    return on_host([(norm.full_tensor() if is_distributed(norm) else norm).float() for norm in norms])


def on_host(rows: Sequence[Tensor]) -> list[Any]:
    """Tensors of one shape as plain numbers, by one copy from the device."""
    return torch.stack([row.to(rows[0].device) for row in rows]).tolist() if rows else []


def role_of(site: str) -> str:
    """What a module is in its block: the last part of its name without numbers; empty in a sequence that is only numbered.

    Example:
        >>> [role_of(site) for site in ("encoder.layers.3.self_attn.q_proj", "net.conv12", "net.4")]
        ['q_proj', 'conv', '']
    """
    return re.sub(r"\d+", "", site.rpartition(".")[2])


def _type_name(module: nn.Module) -> str:
    # FSDP2 makes a sharded module's class a subclass of both: FSDPLinear of FSDPModule and Linear.
    kinds = type(module).__mro__
    return next(kind for kind in kinds if not (kind.__name__.startswith("FSDP") and kinds[1].__name__ == "FSDPModule")).__name__


def roles(sites: Iterable[tuple[str, nn.Module]]) -> dict[str, str]:
    """What each layer with weights is in its block: its type, and the last part of its name without numbers.

    A head has none: a layer that none of its role is like in shape, and whose outputs are as many as no layer takes in, or the last
    of a numbered sequence (``actor.4``). How large a head's weights start is a choice of its own.

    Args:
        sites: (name, module) pairs, as for :func:`initial_scales`.

    Returns:
        Name to role, such as ``Linear q_proj``; layers that are only numbered share the role of their type.
    """
    modules = {name: module for name, module in sites if not isinstance(module, _TABLES)}
    held = ((name, nn.Module.parameters(module, recurse=False)) for name, module in modules.items())
    shapes = {name: [p.shape for p in parameters if is_computed(p) and p.dim() > 1] for name, parameters in held}
    found = {name: f"{_type_name(modules[name])} {role_of(name)}".rstrip() for name, own in shapes.items() if own}
    taken = {shapes[name][0][1 - _outputs(modules[name])] for name in found}
    last = {name.rpartition(".")[0]: name for name in found if not role_of(name)}  # of each numbered sequence
    forms = {name: (role, *shapes[name]) for name, role in found.items()}
    alike = Counter(forms.values())
    alone = [name for name, form in forms.items() if alike[form] == 1]
    heads = {name for name in (*alone, *last.values()) if shapes[name][0][_outputs(modules[name])] not in taken}
    return {name: role for name, role in found.items() if name not in heads}


def _outputs(module: nn.Module) -> int:
    """The dimension of a weight along which the outputs of its module lie; the inputs lie along the other one, 0 or 1."""
    return int(isinstance(module, nn.modules.conv._ConvTransposeNd))


def starting_at_zero(parameters: Iterable[tuple[str, Tensor]], size: float = 2e-3) -> frozenset[str]:
    """The names of the weights (two dimensions or more) that start at zero, or next to it, as class tokens and some heads do.

    Next to it is a root mean square up to ``size``: a step of Adam's with a learning rate of 1e-3 is half of a weight that small.
    One copy from the device.
    """
    weights = {name: weight for name, weight in parameters if has_values(weight) and _is_trained_matrix(weight)}
    norms = zip(weights.items(), _norms([*weights.values()]), strict=True)
    return frozenset(name for (name, weight), norm in norms if norm <= size * math.sqrt(weight.numel()))


def shared_modules(root: nn.Module) -> dict[str, tuple[str, ...]]:
    """Modules with parameters that one parent holds under several names, as ``[layer] * 4`` makes them.

    Returns:
        The first name to the others.
    """
    children = [(parent, key, child) for parent, module in root.named_modules() for key, child in module._modules.items()]
    held = [one for one in children if one[2] is not None and any(True for _ in one[2].parameters())]
    names = grouped(((parent, id(child)), f"{parent}.{key}".lstrip(".")) for parent, key, child in held)
    return {first: tuple(others) for first, *others in names.values() if others}


class FirstWeights(NamedTuple):
    """What stands out among the weights of linear and convolution layers when training starts.

    Attributes:
        constant: Layer to the one number that all its weights are; only layers with two outputs or more, and 0 only where most
            layers hold it. So are the matrices of recurrent layers, by their own names (``….weight_hh_l0``).
        one_sign: Layer that trains to the mean of its weights, where all of them are above 0, or all below, and not one number.
        made: Layer to how it was initialised, where its weights show that: ``drawn``, uniform between ±1 / sqrt(fan-in) as its bias
            is (PyTorch's default, ``reset_parameters``); ``zeros``, with a bias of exact zeros; ``ones``, a norm with weights of 1
            and a bias of 0; empty if it is no longer so.
    """

    constant: dict[str, float]
    one_sign: Mapping[str, float] = MappingProxyType({})
    made: Mapping[str, str] = MappingProxyType({})


def first_weights(model: nn.Module, few: int = 64) -> FirstWeights:
    """What stands out among the weights of linear and convolution layers of ``few`` numbers or more. One copy from the device."""
    constant, one_sign, numbers = dict[str, float](), dict[str, float](), dict[str, float]()
    norms = _norms_of(model)
    limits = on_host([_summary(weight, bias) for weight, bias in norms.values()])
    made = {name: "ones" * (low == high == 1 and not bias > 0) for name, (low, high, _, _, bias) in zip(norms, limits, strict=True)}
    matrices = _recurrent(model, few)
    bounds = zip(matrices, on_host([torch.stack(w.aminmax()).float() for w in matrices.values()]), strict=True)
    constant |= {name: low for name, (low, high) in bounds if low == high != 0}
    layers = [(name, module, weight) for name, module, weight in _layers(model) if weight.numel() >= few]
    values = on_host([_summary(weight, stored_tensor(module, "bias")) for _, module, weight in layers])
    for (name, module, weight), (low, high, mean, rms, bias) in zip(layers, values, strict=True):
        frozen = not any(parameter.requires_grad for parameter in module.parameters())
        if low == high:
            numbers[name] = low
        elif not frozen and (low > 0 or high < 0):
            one_sign[name] = mean
        bound = 1 / math.sqrt(weight.shape[1:].numel())
        spread = 2 / math.sqrt(weight.numel())  # four standard errors of the root mean square of a uniform distribution
        uniform = 0.9 * bound < max(high, -low) <= 1.001 * bound and abs(rms * math.sqrt(3) / bound - 1) < spread
        if uniform or not math.isnan(bias):
            made[name] = "drawn" if uniform and not bias > 1.001 * bound else "zeros" * (bias == 0)
    most = 2 * [*numbers.values()].count(0) > len(layers)
    return FirstWeights(constant | {name: number for name, number in numbers.items() if number or most}, one_sign, made)


def still_alike(model: nn.Module, constant: Mapping[str, float], near: float = 0.3) -> dict[str, float]:
    """Of the layers that started with one number those whose units, or whose inputs, mostly have similar weights still.

    The weights of two may differ by ``near`` times the largest one, as biases that are drawn at random make them.
    """
    if not constant:
        return {}
    weights = {name: weight for name, _, weight in _layers(model)} | _recurrent(model, 0)
    known = {name: weights[name].flatten(1).float() for name in constant if name in weights}
    pairs = [torch.stack([_alike(some, near * weight.abs().amax()) for some in (weight, weight.T)]) for weight in known.values()]
    return {name: constant[name] for name, shares in zip(known, on_host(pairs), strict=True) if max(shares) >= 0.5}


def _alike(weight: Tensor, size: Tensor) -> Tensor:
    return (weight.diff(dim=0).abs().amax(1) <= size).float().mean()


def _summary(weight: Tensor, bias: Tensor | None) -> Tensor:
    """The smallest, the largest, the mean and the root mean square of a weight; and the largest of its bias, NaN without one."""
    largest = weight.new_full((), math.nan) if bias is None else bias.detach().abs().amax()
    whole = weight.float()
    return torch.stack([number.float() for number in (*whole.aminmax(), whole.mean(), whole.square().mean().sqrt(), largest)])


@dataclass(frozen=True, slots=True)
class NonfiniteWeight:
    """A parameter that is not finite when training starts.

    Attributes:
        count: How many of its numbers are NaN or infinite.
        elements: How many it has.
        index: Where the first of them is.
    """

    count: int
    elements: int
    index: tuple[int, ...]


def nonfinite_weights(model: nn.Module) -> dict[str, NonfiniteWeight]:
    """The parameters with numbers that are NaN or infinite, by name. One copy from the device where there are none."""
    weights = {name: p.detach() for name, p in cleaned(model.named_parameters()) if is_known(p) and p.is_floating_point()}
    norms = _norms([*weights.values()])
    suspects = [name for name, norm in zip(weights, norms, strict=True) if not math.isfinite(norm)]
    found = {name: weights[name].isfinite().logical_not().nonzero() for name in suspects}
    return {  # of the others only the squares are beyond all bounds
        name: NonfiniteWeight(len(places), weights[name].numel(), tuple(places[0].tolist()))
        for name, places in found.items()
        if len(places)
    }


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The layers with two outputs or more whose units all see the same inputs, with their weight.

    Of a parametrised layer that is what the weight is computed from, as constant as the result.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd) or _like_linear(module):
            weight = stored_tensor(module, "weight")
            whole = not any(map(is_distributed, nn.Module.parameters(module, recurse=False)))
            outputs = 1 if stored(module, "transposed") else 0
            dense = whole and weight is not None and weight.is_floating_point() and weight.dim() > 1
            if weight is not None and dense and weight.shape[outputs] > 1 and stored_count(module, "groups") < 2:
                yield clean_name(name), module, weight.detach()


def _norms_of(model: nn.Module) -> dict[str, tuple[Tensor, Tensor | None]]:
    norms = [(name, module) for name, module in cleaned(model.named_modules()) if "norm" in type(module).__name__.lower()]
    weights = ((name, stored_tensor(module, "weight"), stored_tensor(module, "bias")) for name, module in norms)
    return {
        name: (weight.detach(), bias)
        for name, weight, bias in weights
        if weight is not None and weight.is_floating_point() and weight.numel() > 1 and is_known(weight)
    }


def _like_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer of another library: a matrix, from so many channels or features to so many."""
    sizes = not contents(module).keys().isdisjoint(("in_channels", "in_features"))
    return sizes and isinstance(module._parameters.get("weight"), nn.Parameter)


def _recurrent(model: nn.Module, few: int) -> dict[str, Tensor]:
    return {
        clean_name(f"{name}.{inner}" if name else inner): parameter.detach()
        for name, module in model.named_modules()
        if isinstance(module, nn.RNNBase | nn.RNNCellBase)
        for inner, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 1 and is_known(parameter) and parameter.numel() >= few
    }


def is_known(parameter: Tensor) -> bool:
    """Whether all values of a parameter are here to be read: it has some, and is not spread over ranks."""
    return has_values(parameter) and not is_distributed(parameter)
