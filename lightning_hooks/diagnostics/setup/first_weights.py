"""Weights that a training starts from and that cannot have been trained: constants, and layers as they were initialised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from lightning_hooks.hooks.attributes import contents, stored, stored_count
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import has_values, stored_tensor
from lightning_hooks.statistics.weight_sample import is_distributed

TIME_STEP = "dt_bias"
"""The name of the bias of a Mamba-2 layer's time steps, one for each head."""


class FirstWeights(NamedTuple):
    """What stands out among the weights of linear and convolution layers when training starts.

    Attributes:
        constant: Layer to the one number, other than 0, that all its weights are; only layers with two outputs or more. So are
            the matrices of recurrent layers (``….weight_hh_l0``) and the time-step biases of state-space layers (``….dt_bias``), by
            their own names.
        one_sign: Layer that trains to the mean of its weights, where all of them are above 0, or all below, and not one number.
        untrained: Frozen layers that are as they were initialised: with a bias of exact zeros, or with weights and a bias that are
            uniform between ±1 / sqrt(fan-in), PyTorch's default (``reset_parameters``).
    """

    constant: dict[str, float]
    untrained: tuple[str, ...]
    one_sign: Mapping[str, float] = MappingProxyType({})


def first_weights(model: nn.Module, few: int = 64) -> FirstWeights:
    """Look at the weights of a model's linear and convolution layers.

    Args:
        model: The model.
        few: Numbers in a weight below which its distribution says nothing.

    Returns:
        What stands out. One copy from the device.
    """
    names, sizes, frozen, rows = [], [], [], []
    for name, module, weight in _layers(model):
        bias = stored_tensor(module, "bias")
        outputs = weight.shape[1 if stored(module, "transposed") else 0]
        if outputs < 2 or weight.numel() < few or stored_count(module, "groups") > 1:
            continue
        no_bias = weight.new_full((), math.nan)
        whole = weight.float()
        ends = weight.amin(), weight.amax()
        numbers = *ends, whole.mean(), whole.square().mean().sqrt(), no_bias if bias is None else _largest(bias)
        rows.append(torch.stack([number.float() for number in numbers]))
        names.append(name)
        sizes.append((weight.shape[1:].numel(), weight.numel()))
        frozen.append(not any(parameter.requires_grad for parameter in module.parameters()))
    constant, untrained = _constants(_time_steps(model)), []
    one_sign: dict[str, float] = {}
    constant |= {name: value for name, value in _constants(_recurrent(model, few)).items() if value != 0}
    values = torch.stack([row.to(rows[0].device) for row in rows]).tolist() if rows else []
    for name, (fan_in, count), still, (low, high, mean, rms, bias) in zip(names, sizes, frozen, values, strict=True):
        if low == high != 0:
            constant[name] = low
        elif not still and (low > 0 or high < 0):
            one_sign[name] = mean
        bound = 1 / math.sqrt(fan_in)
        spread = 2 / math.sqrt(count)  # four standard errors of the root mean square of a uniform distribution
        uniform = 0.9 * bound < max(high, -low) <= 1.001 * bound and abs(rms * math.sqrt(3) / bound - 1) < spread
        if still and (bias == 0 or (uniform and bias <= 1.001 * bound)):
            untrained.append(name)
    return FirstWeights(constant, tuple(untrained), one_sign)


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """The layers with a matrix or kernel, and that: of a parametrised one what it is computed from, as constant as the result."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | _ConvNd) or _like_linear(module):
            weight = stored_tensor(module, "weight")
            whole = not any(map(is_distributed, nn.Module.parameters(module, recurse=False)))
            if weight is not None and weight.is_floating_point() and weight.dim() > 1 and whole:
                yield clean_name(name), module, weight.detach()


def _like_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer of another library: a matrix, from so many channels or features to so many."""
    sizes = not contents(module).keys().isdisjoint(("in_channels", "in_features"))
    return sizes and isinstance(module._parameters.get("weight"), nn.Parameter)


def _time_steps(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p.detach()) for name, p in model.named_parameters() if name.endswith(TIME_STEP) and _is_known(p)]


def _recurrent(model: nn.Module, few: int) -> list[tuple[str, Tensor]]:
    """The matrices of recurrent layers."""
    matrices = []
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            own = ((f"{name}.{inner}" if name else inner, p) for inner, p in module.named_parameters(recurse=False))
            matrices += [(inner, p.detach()) for inner, p in own if p.dim() > 1 and _is_known(p) and p.numel() >= few]
    return matrices


def _is_known(parameter: Tensor) -> bool:
    return has_values(parameter) and not is_distributed(parameter)


def _constants(named: Sequence[tuple[str, Tensor]]) -> dict[str, float]:
    """The tensors all whose numbers are one, with that number."""
    ends = [torch.stack([tensor.amin(), tensor.amax()]).float() for _, tensor in named if tensor.numel() > 1]
    values = torch.stack([end.to(ends[0].device) for end in ends]).tolist() if ends else []
    names = [clean_name(name) for name, tensor in named if tensor.numel() > 1]
    return {name: low for name, (low, high) in zip(names, values, strict=True) if low == high}


def _largest(bias: Tensor) -> Tensor:
    return bias.detach().abs().amax()
