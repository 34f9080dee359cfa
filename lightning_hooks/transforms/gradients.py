"""Transforms of gradients during backward: functions that return a new gradient, and the factor of an epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lightning_hooks.extraction.batches import map_tensors
from lightning_hooks.hooks import Listener

# A function of the unscaled gradient, and of the factor if there is one, that returns a new gradient, or None for no change.
GradientFunction = Callable[..., "Tensor | None"]


# A number; a mapping from first epochs to numbers; or a function of the epoch (None: no number).
Factor: TypeAlias = float | Mapping[int, float] | Callable[[int], float | None]


def clamp_gradient(gradient: Tensor, bound: float, loss_scale: Tensor | None = None) -> Tensor:
    """Return the gradient with each element clamped to ±``bound``.

    Args:
        gradient: The gradient times ``loss_scale``, dense, any shape.
        bound: The bound for the unscaled gradient, above 0.
        loss_scale: The current loss scale, 0-d; None for none. With a scale, elements that are not finite are kept, so that the
            scaler skips the step.
    """
    if loss_scale is None:
        return gradient.clamp(-bound, bound)
    limit = (bound * loss_scale).to(gradient.device, gradient.dtype)
    return torch.where(torch.isfinite(gradient), gradient.clamp(-limit, limit), gradient)


def noisy_gradient(gradient: Tensor, std: float, key: str, loss_scale: Tensor | None = None) -> Tensor:
    """Return the gradient plus Gaussian noise (Neelakantan et al. 2015, "Adding gradient noise improves learning").

    The noise is a function of ``key``: there is no state, and the global generators are not used.

    Args:
        gradient: The gradient times ``loss_scale``, dense, any shape.
        std: Standard deviation for the unscaled gradient, at least 0.
        key: The seed, as text; the same key gives the same noise on devices of the same type.
        loss_scale: The current loss scale, 0-d; None for none.
    """
    generator = torch.Generator(gradient.device).manual_seed(
        int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True)
    )
    wide = gradient.dtype if gradient.dtype in (torch.float32, torch.float64) else torch.float32
    noise = torch.randn(gradient.shape, generator=generator, device=gradient.device, dtype=wide) * std
    return gradient + (noise if loss_scale is None else noise * loss_scale.to(gradient.device, wide)).to(gradient.dtype)


def apply_function(
    function: GradientFunction, gradient: Tensor, factor: float | None, loss_scale: Tensor | None, site: str
) -> Tensor | None:
    """Apply a user's function to the unscaled gradient, and return the result times the loss scale, or None for no change.

    Raises:
        RuntimeError: If the function changed the gradient in place.
        TypeError, ValueError: If it returned something other than None or a tensor like the gradient.
    """
    # Half precision cannot represent the small values of the unscaled gradient.
    wide = gradient if loss_scale is None or gradient.dtype.itemsize > 2 else gradient.float()
    given = wide if loss_scale is None else wide / loss_scale.to(wide.device, wide.dtype)
    version = given._version  # autograd's counter of in-place changes; there is no public one
    changed = function(given) if factor is None else function(given, factor)
    if given._version != version:
        raise RuntimeError(
            f"The transform at {site!r} changed the gradient in place, which others may still read. Return a new tensor, "
            "for instance gradient * 0.5 instead of gradient.mul_(0.5)."
        )
    if changed is None:
        return None
    if not isinstance(changed, Tensor):
        raise TypeError(f"The transform at {site!r} must return a tensor, or None for no change; got {type(changed).__name__}.")
    if (changed.shape, changed.dtype, changed.device) != (given.shape, given.dtype, given.device):
        raise ValueError(
            f"The transform at {site!r} must return a gradient of shape {tuple(given.shape)}, {given.dtype}, on {given.device}; "
            f"got {tuple(changed.shape)}, {changed.dtype}, on {changed.device}."
        )
    return changed if loss_scale is None else (changed * loss_scale.to(changed.device, changed.dtype)).to(gradient.dtype)


class Schedule:
    """A number for each epoch.

    Args:
        name: The name of the argument, for messages.
        factor: A number for all epochs; a mapping, such as ``{0: 0.1, 5: 1.0}`` for 0.1 from epoch 0 and 1.0 from epoch 5, with no
            number before its first epoch; or a function of the epoch that returns the number, or None.
        low: Lower bound.
        above: Whether the bound is exclusive.

    Raises:
        TypeError: If ``factor`` is of another type.
        ValueError: If a number is not finite or out of bounds, or the mapping is empty or has a negative epoch.
    """

    def __init__(self, name: str, factor: Factor, low: float = -math.inf, above: bool = False) -> None:
        self.name, self.low, self.above = name, low, above
        self.factor = factor if callable(factor) or isinstance(factor, Mapping) else {0: factor}
        if not self.factor:
            raise ValueError(f"{name} must have a number for some epoch; got {factor!r}.")
        for epoch, value in () if callable(self.factor) else self.factor.items():
            if isinstance(epoch, bool) or not isinstance(epoch, int):
                raise TypeError(f"{name} must map epochs (integers) to numbers; got {epoch!r} in {factor!r}.")
            if epoch < 0:
                raise ValueError(f"{name} must map epochs from 0 on; got {epoch!r} in {factor!r}.")
            self._checked(value)

    def at(self, epoch: int) -> float | None:
        """Return the number for an epoch, or None."""
        if callable(self.factor):
            value = self.factor(epoch)
            return None if value is None else self._checked(value, f" from {self.factor!r} for epoch {epoch}")
        begun = [start for start in self.factor if start <= epoch]
        return self._checked(self.factor[max(begun)]) if begun else None

    def _checked(self, value: object, where: str = "") -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"{self.name} must be a number, a mapping of epochs to numbers, or a function of the epoch; got {value!r}{where}."
            )
        if not math.isfinite(value) or value < self.low or (self.above and value == self.low):
            bound = "finite" if self.low == -math.inf else f"{'above' if self.above else 'at least'} {self.low:g} and finite"
            raise ValueError(f"{self.name} must be {bound}; got {value!r}{where}.")
        return float(value)


CHANGES: dict[str, Callable[[Tensor, float, str, Tensor | None], Tensor]] = {
    "scale": lambda gradient, factor, *_: gradient * factor,  # -1 reverses it: Ganin and Lempitsky (2015), arXiv:1409.7495
    "zero": lambda gradient, *_: torch.zeros_like(gradient),  # also where it is not finite
    "clamp": lambda gradient, factor, _, loss_scale: clamp_gradient(gradient, factor, loss_scale),
    "noise": noisy_gradient,
}
TRANSFORMS = tuple(CHANGES)  # the named transforms


@dataclass(slots=True)
class GradientState:
    """The state that the hooks of one GradientTransform share.

    Attributes:
        transform: One of ``TRANSFORMS``, or a function.
        seed: The seed of the noise.
        needs_factor: Whether gradients are unchanged in epochs without a number.
        factor: The number of the current epoch, or None.
        active: Whether gradients are changed now.
        step: A name for the current backward pass, for the seed of the noise.
        loss_scale: A function that returns the current loss scale; None for none.
    """

    transform: str | GradientFunction
    seed: int = 0
    needs_factor: bool = True
    factor: float | None = None
    active: bool = False
    step: str = ""
    loss_scale: Callable[[], Tensor | None] | None = None


class ChangeGradient(Listener):
    """Tensor hook of one site.

    The noise depends on ``stream``, which is different on ranks that see different data.
    """

    def __init__(self, state: GradientState, site: str, stream: str = "") -> None:
        self.state, self.site, self.stream = state, site, stream
        self.reached = False  # by a gradient
        self._step, self._draws = "", -1

    def __call__(self, gradient: Tensor) -> Tensor | None:
        """Return the new gradient, or None for no change."""
        state = self.state
        if not state.active:
            return None
        self.reached = True
        self._draws = self._draws + 1 if self._step == state.step else 0  # which gradient of this backward pass
        self._step = state.step
        if state.needs_factor and state.factor is None:
            return None
        loss_scale = None if state.loss_scale is None else state.loss_scale()
        if callable(state.transform):
            return apply_function(state.transform, gradient, state.factor, loss_scale, self.site)
        key = f"{state.seed}/{self.site}/{self.stream}/{self._step}/{self._draws}"
        return CHANGES[state.transform](gradient, state.factor or 0.0, key, loss_scale)


@dataclass(eq=False)
class HookOutput(Listener):
    """Forward hook of one site: registers ``change`` on the tensors of its output."""

    change: ChangeGradient

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Return the output with hooks on its tensors."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        return map_tensors(output, lambda tensor: self._hooked(tensor, given))

    def _hooked(self, tensor: Tensor, given: list[Tensor]) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        # An input that is returned unchanged is also used elsewhere, and an in-place operation on a view drops the view's hooks
        # (there is no public "is a view"). A copy has the same values and the same gradient.
        if any(tensor is other for other in given) or tensor._is_view() or tensor.is_leaf:
            tensor = tensor.clone()
        tensor.register_hook(self.change)  # type: ignore[no-untyped-call]
        return tensor
