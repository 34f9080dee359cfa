"""Clipping policies: how much each gradient is to be scaled, or bounded, at one optimizer step.

The arithmetic is in pure functions of tensors, state in and state out, without a host sync. A gradient whose norm is not finite is
left as it is: ``clip_grad_norm_`` would turn infinities into NaN and hide from a loss scaler what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

State = dict[str, Tensor]
Factors = list[Tensor]


def norm_factor(norm: Tensor, max_norm: Tensor | float) -> Tensor:
    """The factor that brings a norm down to ``max_norm``: at most 1, and 1 for a norm that is not finite.

    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013), with the 1e-6 of
    ``torch.nn.utils.clip_grad_norm_``, to which it is equal.
    """
    factor: Tensor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return torch.where(torch.isfinite(norm), factor, 1.0)


def _limit_factor(norm: Tensor, limit: Tensor) -> Tensor:
    # Without the 1e-6, beside which the adaptive limits of small gradients would not count.
    return torch.where(torch.isfinite(norm) & (norm > limit), limit / norm, 1.0)


def unit_norms(tensor: Tensor) -> Tensor:
    """L2 norm per unit (per row of a weight, per output channel of a kernel), broadcastable over ``tensor``.

    Vectors and scalars (biases, gains) are one unit.
    """
    dims = tuple(range(1, tensor.dim())) or None
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=dims is not None)
    return norms


def agc_factor(gradient: Tensor, parameter: Tensor, clipping: float, eps: float) -> Tensor:
    """Unit-wise factors of adaptive gradient clipping.

    Brock, De, Smith and Simonyan, "High-performance large-scale image recognition without normalization" (2021), eq. 3:
    a unit's gradient norm may be ``clipping`` times the unit's weight norm, which counts as ``eps`` at least.

    Returns:
        At most 1; broadcastable over ``gradient``.
    """
    allowed = clipping * unit_norms(parameter.detach()).clamp(min=eps)
    norm = unit_norms(gradient)
    factor = torch.where(norm > allowed, allowed / norm.clamp(min=1e-6), 1.0)
    return torch.where(torch.isfinite(norm), factor, 1.0)


def zclip_limit(norm: Tensor, state: State, z: float, alpha: float, warmup: int) -> tuple[Tensor, State]:
    """The norm to which ZClip lets this step go, and its state after it.

    Kumar, Owen, Chowdhury and Güra, "ZClip: adaptive spike mitigation for LLM pre-training" (2025): the norm's z-score under
    exponential moving averages of mean and variance; beyond ``z`` the norm is brought to mean + z²/score · std, and the
    brought-down norm enters the averages. The first ``warmup`` steps are not clipped; their mean and variance start
    the averages. Norms that are not finite change nothing.
    """
    steps, mean, variance = state["steps"], state["mean"], state["variance"]
    warming = steps < warmup
    score = (norm - mean) / (variance.sqrt() + 1e-6)
    spike = (score > z) & ~warming
    limit = torch.where(spike, mean + z * z / torch.where(spike, score, 1.0) * variance.sqrt(), norm)
    weight = torch.where(warming, 1 / (steps + 1), torch.as_tensor(1 - alpha, dtype=norm.dtype, device=norm.device))
    new_mean = mean + weight * (limit - mean)
    # Warming up: Welford's running variance; after: an average of squared deviations from the new mean.
    new_variance = torch.where(
        warming,
        (variance * steps + (limit - mean) * (limit - new_mean)) / (steps + 1),
        alpha * variance + (1 - alpha) * (limit - new_mean) ** 2,
    )
    usable = torch.isfinite(norm)
    return limit, {
        "steps": torch.where(usable, steps + 1, steps),
        "mean": torch.where(usable, new_mean, mean),
        "variance": torch.where(usable, new_variance, variance),
    }


def autoclip_limit(norm: Tensor, state: State, percentile: float) -> tuple[Tensor, State]:
    """The norm to which AutoClip lets this step go, and its state after it.

    Seetharaman, Wichern, Pardo and Le Roux, "AutoClip: adaptive gradient clipping for source separation networks" (2020):
    a percentile of the norms so far, this one included. Of the history the latest ``window`` norms are kept (the paper
    keeps all). Norms that are not finite change nothing.
    """
    steps, history = state["steps"], state["history"]
    usable = torch.isfinite(norm)
    slot = torch.arange(len(history), device=history.device) == steps % len(history)
    history = torch.where(slot & usable, norm, history)
    limit = torch.nanquantile(history, percentile / 100)
    return limit, {"steps": torch.where(usable, steps + 1, steps), "history": history}


class ClipPolicy(Protocol):
    """A policy: its configuration as fields, its memory outside."""

    name: ClassVar[str]

    @property
    def limit(self) -> float | None:
        """The total norm it holds every step to, or None if it makes no such promise."""

    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        """The state before the first step."""

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """Return a factor per gradient, broadcastable over it, and the next state."""


@dataclass(frozen=True, slots=True)
class GlobalNorm:
    """Scale all gradients together so that their total L2 norm is at most ``max_norm``."""

    max_norm: float = 1.0
    name: ClassVar[str] = "norm"

    def __post_init__(self) -> None:
        _check_positive("max_norm", self.max_norm)

    @property
    def limit(self) -> float | None:
        """``max_norm``."""
        return self.max_norm

    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        """No state."""
        return {}

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """One factor for all."""
        return [norm_factor(torch.linalg.vector_norm(norms), self.max_norm)] * len(gradients), state


@dataclass(frozen=True, slots=True)
class ZClip:
    """Bring down the steps whose norm is an outlier against its own moving average: see :func:`zclip_limit`."""

    z: float = 2.5
    alpha: float = 0.97
    warmup: int = 25
    name: ClassVar[str] = "zclip"
    limit: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        _check_positive("z", self.z)
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1; got {self.alpha!r}. The paper uses 0.97.")
        if self.warmup < 1:
            raise ValueError(f"warmup must be at least 1 step; got {self.warmup!r}. The paper uses 25.")

    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        """No steps seen."""
        return {key: torch.zeros((), device=device, dtype=dtype) for key in ("steps", "mean", "variance")}

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """One factor for all."""
        total = torch.linalg.vector_norm(norms)
        limit, state = zclip_limit(total, state, self.z, self.alpha, self.warmup)
        return [_limit_factor(total, limit)] * len(gradients), state


@dataclass(frozen=True, slots=True)
class AutoClip:
    """Clip to a percentile of the norms so far: see :func:`autoclip_limit`."""

    percentile: float = 10.0
    window: int = 1000
    name: ClassVar[str] = "autoclip"
    limit: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        _check_positive("percentile", self.percentile)
        if self.percentile > 100:
            raise ValueError(f"percentile must be at most 100; got {self.percentile!r}. The paper uses 10.")
        if self.window < 1:
            raise ValueError(f"window must be at least 1 step; got {self.window!r}.")

    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        """An empty history."""
        return {
            "steps": torch.zeros((), device=device, dtype=dtype),
            "history": torch.full((self.window,), torch.nan, device=device, dtype=dtype),
        }

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """One factor for all."""
        total = torch.linalg.vector_norm(norms)
        limit, state = autoclip_limit(total, state, self.percentile)
        return [_limit_factor(total, limit)] * len(gradients), state


@dataclass(frozen=True, slots=True)
class AGC:
    """Adaptive gradient clipping, unit by unit against the weights: see :func:`agc_factor`.

    The paper leaves the last linear layer out; name it in ``GradientClipper(exclude=…)``.
    """

    clipping: float = 0.01
    eps: float = 1e-3
    name: ClassVar[str] = "agc"
    limit: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        _check_positive("clipping", self.clipping)
        _check_positive("eps", self.eps)

    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        """No state."""
        return {}

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """A factor per unit of each gradient."""
        pairs = zip(gradients, parameters, strict=True)
        return [agc_factor(gradient, parameter, self.clipping, self.eps) for gradient, parameter in pairs], state


@dataclass(frozen=True, slots=True)
class Value:
    """Bound every gradient element to [-max_value, max_value], as ``torch.nn.utils.clip_grad_value_`` does."""

    max_value: float = 0.5
    name: ClassVar[str] = "value"
    limit: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        _check_positive("max_value", self.max_value)


@dataclass(frozen=True, slots=True)
class PerTensor:
    """Scale each parameter's gradient by itself to an L2 norm of at most ``max_norm``, in a tensor hook during backward."""

    max_norm: float = 1.0
    name: ClassVar[str] = "tensor"
    limit: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        _check_positive("max_norm", self.max_norm)


POLICIES: dict[str, tuple[type[Any], str]] = {
    "norm": (GlobalNorm, "max_norm"),
    "value": (Value, "max_value"),
    "tensor": (PerTensor, "max_norm"),
    "agc": (AGC, "clipping"),
    "zclip": (ZClip, "z"),
    "autoclip": (AutoClip, "percentile"),
}
"""Name of a policy to its class and to the field that ``threshold`` sets."""


def make_policy(policy: str | object, threshold: float | None = None) -> Any:
    """Return the policy that a name or a policy object means.

    Args:
        policy: A name from ``POLICIES``, or a policy object.
        threshold: The policy's main number; None for its default (the paper's). Only with a name.

    Raises:
        ValueError: If the name is unknown, or the threshold out of range.
        TypeError: If the policy is of another type, or both an object and a threshold are given.
    """
    kinds = tuple(kind for kind, _ in POLICIES.values())
    if isinstance(policy, kinds):
        if threshold is not None:
            raise TypeError(f"threshold goes with a policy's name; {policy!r} holds its own. Leave threshold out.")
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"policy must be one of {', '.join(POLICIES)} or a policy object; got {policy!r}.")
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}.")
    kind, field = POLICIES[policy]
    return kind() if threshold is None else kind(**{field: threshold})


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number above 0; got {value!r}.")
    if not value > 0:
        raise ValueError(f"{name} must be above 0; got {value!r}.")
