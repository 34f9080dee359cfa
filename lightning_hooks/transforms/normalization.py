"""Normalisation of the inputs of modules by channel, with given or learned statistics, and the hook that does it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Gate, Listener
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import pool


def channel_moments(values: Tensor, dim: int | None) -> Tensor:
    """Return the count, mean and sum of squared deviations of each channel's finite values, without a host sync.

    Args:
        values: Real, any dtype and shape.
        dim: The dimension of the channels; None for all values together.

    Returns:
        Shape ``(3, channels)``, float64 where the device has it; one channel for ``dim=None``.
    """
    dtype = row_dtype(values.device)
    x = _wide(values)
    flat = x.reshape(1, -1) if dim is None else x.movedim(dim, 0).reshape(x.shape[dim], -1)
    finite = torch.isfinite(flat)
    count = finite.sum(1, dtype=dtype)
    divisor = count.clamp(min=1)
    pivot = (torch.where(finite, flat, 0).sum(1, dtype=dtype) / divisor).to(x.dtype)
    deviation = torch.where(finite, flat - pivot[:, None], 0).to(dtype)
    shift = deviation.sum(1)
    m2 = (deviation.square().sum(1) - shift * shift / divisor).clamp(min=0)
    return torch.stack((count, pivot.to(dtype) + shift / divisor, m2))


def merge_moments(moments: Sequence[Tensor]) -> Tensor:
    """Merge the moments of several batches or ranks, each ``(3, channels)``, on the device of the first."""
    return torch.stack(pool(*torch.stack([each.to(moments[0].device) for each in moments], 1)))


def mean_and_std(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return each channel's mean and (population) standard deviation, of shape ``(channels,)``.

    A channel that does not vary gets 1, as something to divide by; one without values mean 0 and standard deviation 1.
    """
    count, mean, m2 = moments
    std = (m2 / count.clamp(min=1)).sqrt()
    # What is left of a constant channel after rounding is no variation.
    return mean, torch.where(std > 1e-10 * mean.abs(), std, 1.0)


class Normalization:
    """``(x - mean) / std`` per channel, with a given mean and standard deviation, or those of the tensors passed to :meth:`learn`.

    While learning, ``mean`` and ``std`` are those of all tensors so far (None before the first); the pooled statistics are exact
    for any batch sizes. :meth:`freeze` makes them final.

    Args:
        site: The name of the normalised module, for messages.
        dim: The dimension of the channels; None for one mean and one standard deviation over all values.
        mean: Given means, ``(channels,)``; None to learn.
        std: Given standard deviations, ``(channels,)``, above 0.
    """

    def __init__(self, site: str, dim: int | None = 1, mean: Tensor | None = None, std: Tensor | None = None) -> None:
        self.site, self.dim = site, dim
        self.given = self.frozen = mean is not None
        self.moments: Tensor | None = None  # (3, channels)
        self._use(mean, std)

    def _use(self, mean: Tensor | None, std: Tensor | None) -> None:
        self.mean, self.std = mean, std
        self._ready: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def learn(self, x: Tensor) -> None:
        """Update the statistics with one tensor, unless frozen. No host sync."""
        if self.frozen or not x.numel():
            return
        self._check(x)
        found = channel_moments(x.detach(), self.dim)
        self.moments = found if self.moments is None else merge_moments([self.moments.to(found.device), found])
        self._use(*mean_and_std(self.moments))

    def freeze(self, moments: Tensor | None = None) -> None:
        """Stop learning, and normalise with these moments, ``(3, channels)``, or with those learned here."""
        self.moments = self.moments if moments is None else moments
        if self.moments is not None and not self.given:
            self._use(*mean_and_std(self.moments))
        self.frozen = True

    def normalize(self, x: Tensor) -> Tensor:
        """Return ``(x - mean) / std``, computed in float32 at least, in the dtype of ``x`` (the default dtype for integers)."""
        mean, std = self._numbers(x)
        return _narrow((_wide(x) - mean) / std, x)

    def inverse(self, x: Tensor) -> Tensor:
        """Return ``x * std + mean``."""
        mean, std = self._numbers(x)
        return _narrow(_wide(x) * std + mean, x)

    def _numbers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self._check(x)
        shape = [1] * x.dim()
        if self.mean is None or self.std is None:  # nothing learned yet
            return torch.zeros(shape, device=x.device), torch.ones(shape, device=x.device)
        key = (x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)
        ready = {} if torch.compiler.is_compiling() else self._ready
        if key not in ready:
            with torch.inference_mode(False):  # tensors made in validation are used in training too
                ready[key] = self.mean.to(*key, non_blocking=True), self.std.to(*key, non_blocking=True)
        if self.dim is not None:
            shape[self.dim] = -1
        mean, std = ready[key]
        return mean.view(shape), std.view(shape)

    def _check(self, x: Tensor) -> None:
        if x.is_complex() or x.dtype == torch.bool:
            raise TypeError(f"InputNormalizer normalises real tensors; got {x.dtype} at {self.site!r}.")
        if self.dim is not None and not -x.dim() <= self.dim < x.dim():
            raise ValueError(
                f"dim={self.dim} is not a dimension of the input of {self.site!r}, of shape {tuple(x.shape)}. dim is that of the "
                "channels; None takes one mean and one standard deviation over all values."
            )
        if self.dim is None or self.mean is None or (self.given and self.mean.numel() == 1):
            return
        if x.shape[self.dim] != self.mean.numel():
            raise ValueError(
                f"The input of {self.site!r} has shape {tuple(x.shape)}, with {x.shape[self.dim]} channels in dimension "
                f"{self.dim}; the mean has {self.mean.numel()}."
            )

    def state(self, moments: Tensor | None = None) -> dict[str, Any]:
        """Return the state as tensors on the host, for a checkpoint; ``moments`` replace those learned here."""
        moments = self.moments if moments is None else moments
        return {"frozen": self.frozen} | ({} if moments is None else {"moments": moments.to("cpu", copy=True)})

    def load(self, state: dict[str, Any]) -> None:
        """Restore a :meth:`state`; a given mean and standard deviation stay."""
        if not self.given:
            self.moments, self.frozen = state.get("moments"), state["frozen"]
            self._use(*((None, None) if self.moments is None else mean_and_std(self.moments)))


def given_numbers(mean: object, std: object) -> tuple[Tensor, Tensor] | None:
    """Check a given mean and standard deviation, numbers or sequences of numbers.

    Returns:
        Both as float64 of shape ``(channels,)``; None if neither is given.

    Raises:
        TypeError: If only one is given, or one is neither a number nor a sequence of numbers.
        ValueError: If their lengths differ, a value is not finite, or a standard deviation is not above 0.
    """
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise TypeError(f"Pass mean and std together, or neither to learn them; got mean={mean!r} and std={std!r}.")
    mean_values, std_values = _vector("mean", mean), _vector("std", std)
    if len(mean_values) != len(std_values):
        raise ValueError(f"mean and std must have the same length; got {len(mean_values)} and {len(std_values)}.")
    if not (std_values > 0).all():
        raise ValueError(f"std must be above 0; got {std!r}.")
    return mean_values, std_values


def _vector(name: str, value: Any) -> Tensor:
    try:
        vector = torch.as_tensor(value, dtype=row_dtype(torch.device("cpu")))
    except (TypeError, ValueError, RuntimeError):
        vector = None
    if vector is None or vector.dim() > 1 or not vector.numel() or isinstance(value, str | bool):
        raise TypeError(f"{name} must be a number, or one per channel; got {value!r}.")
    if not torch.isfinite(vector).all():
        raise ValueError(f"{name} must be finite; got {value!r}.")
    return vector.detach().reshape(-1).clone()


def _narrow(changed: Tensor, x: Tensor) -> Tensor:
    """Return ``changed`` in the dtype of ``x``; in the default dtype for integers."""
    return changed.to(x.dtype if x.is_floating_point() else torch.get_default_dtype())


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class NormalizeInput(Listener):
    """Forward pre-hook of one module: finds a tensor among its arguments, and normalises it.

    Args:
        site: The normalisation of the module's input.
        module: The module; no reference to it is kept.
        argument: The name of the parameter of its ``forward``; None for the first floating-point tensor.
        gate: While it is open, the statistics are learned, unless they are final.

    Raises:
        ValueError: If ``forward`` has no such parameter.
    """

    def __init__(self, site: Normalization, module: nn.Module, argument: str | None, gate: Gate) -> None:
        self.site, self.argument, self.gate, self.called = site, argument, gate, False
        self.position = -1  # of the parameter among the positional ones
        if argument is None:
            return
        parameters = list(inspect.signature(module.forward).parameters.values())
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if argument in positional:
            self.position = positional.index(argument)
        elif not any(p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters):
            known = ", ".join(repr(p.name) for p in parameters) or "nothing"
            raise ValueError(f"argument={argument!r}: the forward of {site.site!r} takes {known}.")

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments, one of them normalised; raise TypeError if there is no such tensor."""
        self.called = True
        values: dict[int | str, Any] = dict(enumerate(args))
        values.update(kwargs)
        place = self._place(values)
        if self.gate.open:
            self.site.learn(values[place])
        values[place] = self.site.normalize(values[place])
        return tuple(values[index] for index in range(len(args))), {key: values[key] for key in kwargs}

    def _place(self, values: dict[int | str, Any]) -> int | str:
        if self.argument is not None:
            place = self.position if self.position in values and self.argument not in values else self.argument
            found = values.get(place)
            if isinstance(found, Tensor):
                return place
            came = "nothing" if found is None else type(found).__name__
            raise TypeError(f"argument={self.argument!r} of {self.site.site!r} must be a tensor; got {came}.")
        for place, value in values.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                return place
        came = ", ".join(f"{key}=" * isinstance(key, str) + type(value).__name__ for key, value in values.items())
        raise TypeError(
            f"{self.site.site!r} was called without a floating-point tensor to normalise; got ({came}). Name the parameter of its "
            "forward with argument=; integers, such as images in uint8, are normalised only if named."
        )
