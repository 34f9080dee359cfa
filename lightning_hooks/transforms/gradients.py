"""Changing a gradient on its way back: functions that return a new one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.tensors import MAX_DEPTH

TRANSFORMS = ("scale", "zero", "clamp", "noise")
"""The transforms that have a name."""

GradientFunction = Callable[..., "Tensor | None"]
"""A function of the unscaled gradient, and of the factor if there is one; it returns a new gradient, or None to leave it."""


def scale_gradient(gradient: Tensor, factor: float) -> Tensor:
    """Return the gradient times a factor; -1 reverses it (Ganin and Lempitsky 2015)."""
    return gradient * factor


def zero_gradient(gradient: Tensor) -> Tensor:
    """Return zeros, also where the gradient is not finite."""
    return torch.zeros_like(gradient)


def clamp_gradient(gradient: Tensor, bound: float, loss_scale: Tensor | None = None) -> Tensor:
    """Return the gradient with each element brought to at most ``bound`` in size.

    Args:
        gradient: Of any layout; times ``loss_scale``.
        bound: Above 0, for the unscaled gradient.
        loss_scale: The scale in force, 0-d; None for none. Where there is one, elements that are not finite stay, since the scaler
            has to see them to skip the step.
    """

    def clamp(values: Tensor) -> Tensor:
        if loss_scale is None:
            return values.clamp(-bound, bound)
        limit = (bound * loss_scale).to(values.device, values.dtype)
        return torch.where(torch.isfinite(values), values.clamp(-limit, limit), values)

    return _on_values(gradient, clamp)


def noisy_gradient(gradient: Tensor, std: float, key: str, loss_scale: Tensor | None = None) -> Tensor:
    """Return the gradient plus Gaussian noise (Neelakantan et al. 2015).

    The noise is a function of ``key`` alone: no state is kept, and the global generators are left as they are.

    Args:
        gradient: Of any layout (of a sparse one, what it stores); times ``loss_scale``.
        std: Standard deviation for the unscaled gradient, at least 0.
        key: What names the draw; the same one gives the same noise on a device of the same kind.
        loss_scale: The scale in force, 0-d; None for none.
    """

    def add(values: Tensor) -> Tensor:
        generator = torch.Generator(values.device)
        generator.manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True))
        wide = values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
        noise = torch.randn(values.shape, generator=generator, device=values.device, dtype=wide) * std
        if loss_scale is not None:
            noise = noise * loss_scale.to(values.device, wide)
        return values + noise.to(values.dtype)

    return _on_values(gradient, add)


def apply_function(
    function: GradientFunction, gradient: Tensor, factor: float | None, loss_scale: Tensor | None, site: str
) -> Tensor | None:
    """Return what a user's function makes of the unscaled gradient, at the loss scale.

    Raises:
        RuntimeError: If it changed the gradient in place.
        TypeError: If it returned something that is no tensor.
        ValueError: If it returned a tensor of another shape, dtype or device.
    """
    # Half precision cannot hold what the loss scale is there to lift.
    wide = gradient if loss_scale is None or gradient.dtype.itemsize > 2 else gradient.float()
    given = wide if loss_scale is None else wide / loss_scale.to(wide.device, wide.dtype)
    version = given._version  # there is no public count of in-place changes; autograd itself goes by this one
    changed = function(given) if factor is None else function(given, factor)
    if given._version != version:
        raise RuntimeError(
            f"The transform at {site!r} changed the gradient in place, which others may still read. Return a new tensor instead, "
            "for instance gradient * 0.5 and not gradient.mul_(0.5)."
        )
    if changed is None:
        return None
    if not isinstance(changed, Tensor):
        raise TypeError(
            f"The transform at {site!r} must return a tensor, or None to leave the gradient; got {type(changed).__name__}."
        )
    if (changed.shape, changed.dtype, changed.device) != (given.shape, given.dtype, given.device):
        raise ValueError(
            f"The transform at {site!r} must return a gradient of shape {tuple(given.shape)}, {given.dtype}, on {given.device}; "
            f"got {tuple(changed.shape)}, {changed.dtype}, on {changed.device}."
        )
    return changed if loss_scale is None else (changed * loss_scale.to(changed.device, changed.dtype)).to(gradient.dtype)


class GradientState:
    """What the hooks of one GradientTransform share: what to do, and when.

    Attributes:
        factor: This epoch's number; None for none.
        active: Whether gradients are changed now.
        step: What names the backward pass under way, for the noise.
        loss_scale: A function that gives the loss scale in force; None for none.
    """

    def __init__(self, transform: str | GradientFunction, seed: int = 0, needs_factor: bool = True) -> None:
        self.transform, self.seed, self.needs_factor = transform, seed, needs_factor
        self.factor: float | None = None
        self.active = False
        self.step = ""
        self.loss_scale: Callable[[], Tensor | None] | None = None

    def change(self, gradient: Tensor, site: str, key: str) -> Tensor | None:
        """Return the new gradient, or None to leave it as it is."""
        if not self.active or (self.needs_factor and self.factor is None):
            return None
        factor = 0.0 if self.factor is None else self.factor
        if self.transform == "scale":
            return scale_gradient(gradient, factor)
        if self.transform == "zero":
            return zero_gradient(gradient)
        loss_scale = None if self.loss_scale is None else self.loss_scale()
        if self.transform == "clamp":
            return clamp_gradient(gradient, factor, loss_scale)
        if self.transform == "noise":
            return noisy_gradient(gradient, factor, f"{self.seed}/{key}", loss_scale)
        assert callable(self.transform)
        return apply_function(self.transform, gradient, self.factor, loss_scale, site)


class ChangeGradient(Listener):
    """Tensor hook of one site.

    Args:
        state: What to do.
        site: Its name.
        stream: Told apart in the noise: ranks whose gradients are of different data have different ones.
    """

    def __init__(self, state: GradientState, site: str, stream: str = "") -> None:
        self.state, self.site, self.stream = state, site, stream
        self.calls = 0  # gradients changed
        self.heard = 0  # gradients that came
        self._step, self._draws = "", 0

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """Return the new gradient, or None to leave it."""
        if not self.state.active:
            return None
        self.heard += 1
        if self._step != self.state.step:
            self._step, self._draws = self.state.step, 0
        changed = self.state.change(gradient, self.site, f"{self.site}/{self.stream}/{self._step}/{self._draws}")
        self._draws += 1
        self.calls += changed is not None
        return changed


class HookOutput(Listener):
    """Forward hook of one site: puts ``change`` on the gradients of its output."""

    def __init__(self, change: ChangeGradient) -> None:
        self.change = change

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return the output, its tensors hooked."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        return _map_tensors(output, lambda tensor: self._hooked(tensor, given))

    def _hooked(self, tensor: Tensor, given: list[Tensor]) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        # What the module hands on is others' tensor too; and an in-place operation on a view throws the view's hooks away. There
        # is no public name for "is a view". A copy has the same bits, and the same gradient.
        if any(tensor is other for other in given) or tensor._is_view() or tensor.is_leaf:
            tensor = tensor.clone()
        tensor.register_hook(self.change)  # type: ignore[no-untyped-call]
        return tensor


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor], depth: int = 0) -> Any:
    """Apply a function to the tensors that ``tensors_in`` finds; containers without a changed one stay the same object."""
    if isinstance(value, Tensor):
        return function(value) if value.is_floating_point() or value.is_complex() else value
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, dict):
        changed = {key: _map_tensors(entry, function, depth + 1) for key, entry in value.items()}
        if all(changed[key] is value[key] for key in value):
            return value
        if type(value) is dict:
            return changed
        copied = value.copy() if hasattr(value, "copy") else type(value)(value)
        for key, entry in changed.items():
            copied[key] = entry
        return copied
    if isinstance(value, tuple | list):
        entries = [_map_tensors(entry, function, depth + 1) for entry in value]
        if all(one is other for one, other in zip(entries, value, strict=True)):
            return value
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        mapped = {name: _map_tensors(entry, function, depth + 1) for name, entry in fields.items()}
        changed = {name: entry for name, entry in mapped.items() if entry is not fields[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _on_values(gradient: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function to a gradient, or to the values that a sparse one stores."""
    if gradient.layout != torch.sparse_coo:
        return function(gradient)
    gradient = gradient.coalesce()
    values = function(gradient.values())
    return torch.sparse_coo_tensor(gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False)
