"""Clipping policies: the factor or bound of each gradient at one optimizer step.

Their methods are pure functions of tensors, with the state as argument and result, without a host sync. A gradient whose norm is
not finite is returned unchanged: ``clip_grad_norm_`` would turn infinities into NaN, which hides the overflow from a loss scaler.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

State = dict[str, Tensor]
Factors = list[Tensor]


def norm_factor(norm: Tensor, max_norm: Tensor | float) -> Tensor:
    """Return the factor that reduces a norm to ``max_norm``: at most 1, and 1 for a norm that is not finite.

    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013), with the 1e-6 of
    ``torch.nn.utils.clip_grad_norm_``, whose result it equals.
    """
    return torch.where(torch.isfinite(norm), (max_norm / (norm + 1e-6)).clamp(max=1.0), 1.0)


def _limit_factor(norm: Tensor, limit: Tensor) -> Tensor:
    # Without the 1e-6, which would dominate the adaptive limits of small gradients.
    return torch.where(torch.isfinite(norm) & (norm > limit), limit / norm, 1.0)


def unit_norms(tensor: Tensor) -> Tensor:
    """Return the L2 norm of each unit (row of a weight, output channel of a kernel), broadcastable over ``tensor``.

    Vectors and scalars (biases, gains) are one unit.
    """
    dims = tuple(range(1, tensor.dim())) or None
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=dims, keepdim=dims is not None)
    return norms


def agc_factor(gradient: Tensor, parameter: Tensor, clipping: float, eps: float) -> Tensor:
    """Return the unit-wise factors of adaptive gradient clipping.

    Brock, De, Smith and Simonyan, "High-performance large-scale image recognition without normalization" (2021), eq. 3:
    a unit's gradient norm may be ``clipping`` times the unit's weight norm, which counts as ``eps`` at least.

    Returns:
        At most 1; broadcastable over ``gradient``.
    """
    allowed = clipping * unit_norms(parameter.detach()).clamp(min=eps)
    norm = unit_norms(gradient)
    return torch.where(torch.isfinite(norm) & (norm > allowed), allowed / norm.clamp(min=1e-6), 1.0)


class ClipPolicy:
    """A policy: its fields are its configuration, its state is passed as a value."""

    name: ClassVar[str]
    __slots__ = ()

    def __post_init__(self) -> None:
        """Raise ValueError if a field is not above 0, and TypeError if it is no number."""
        for field in fields(self):  # type: ignore[arg-type]  # every policy is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{field.name} must be a number above 0; got {value!r}.")
            if not value > 0:
                raise ValueError(f"{field.name} must be above 0; got {value!r}.")

    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        """The state before the first step; empty if there is none."""
        return {}


class TotalNormPolicy(ClipPolicy):
    """A policy with one factor for all gradients, from their total norm."""

    __slots__ = ()

    @abstractmethod
    def factor(self, norm: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the factor for a total norm, and the next state."""

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """Return a factor for each gradient, broadcastable over it, and the next state.

        Args:
            gradients: The gradients.
            parameters: Their parameters, in the same order.
            norms: The L2 norms of the gradients, shape ``(n,)``.
            state: What the last step returned, or :meth:`initial`.
        """
        factor, state = self.factor(torch.linalg.vector_norm(norms), state)
        return [factor] * len(gradients), state


@dataclass(frozen=True, slots=True)
class GlobalNorm(TotalNormPolicy):
    """Scale all gradients together so that their total L2 norm is at most ``max_norm``."""

    max_norm: float = 1.0
    name: ClassVar[str] = "norm"

    @override
    def factor(self, norm: Tensor, state: State) -> tuple[Tensor, State]:
        return norm_factor(norm, self.max_norm), state


@dataclass(frozen=True, slots=True)
class ZClip(TotalNormPolicy):
    """Reduce norms that are outliers from their own moving average.

    Kumar, Owen, Chowdhury and Güra, "ZClip: adaptive spike mitigation for LLM pre-training" (2025): the norm's z-score under
    exponential moving averages of mean and variance; above ``z`` the norm is reduced to mean + z²/score · std, and the
    reduced norm enters the averages. The first ``warmup`` steps are not clipped; their mean and variance initialise the averages.
    Norms that are not finite are ignored.
    """

    z: float = 2.5
    alpha: float = 0.97
    warmup: int = 25
    name: ClassVar[str] = "zclip"

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1; got {self.alpha!r}. The paper uses 0.97.")
        if self.warmup < 1:
            raise ValueError(f"warmup must be at least 1 step; got {self.warmup!r}. The paper uses 25.")
        ClipPolicy.__post_init__(self)

    @override
    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        return {key: torch.zeros((), device=device, dtype=dtype) for key in ("steps", "mean", "variance")}

    @override
    def factor(self, norm: Tensor, state: State) -> tuple[Tensor, State]:
        steps, mean, variance = state["steps"], state["mean"], state["variance"]
        warming = steps < self.warmup
        score = (norm - mean) / (variance.sqrt() + 1e-6)
        spike = (score > self.z) & ~warming
        limit = torch.where(spike, mean + self.z * self.z / torch.where(spike, score, 1.0) * variance.sqrt(), norm)
        weight = torch.where(warming, 1 / (steps + 1), torch.as_tensor(1 - self.alpha, dtype=norm.dtype, device=norm.device))
        new_mean = mean + weight * (limit - mean)
        # During warm-up: Welford's running variance; then an average of squared deviations from the new mean.
        new_variance = torch.where(
            warming,
            (variance * steps + (limit - mean) * (limit - new_mean)) / (steps + 1),
            self.alpha * variance + (1 - self.alpha) * (limit - new_mean) ** 2,
        )
        new = {"steps": steps + 1, "mean": new_mean, "variance": new_variance}
        usable = torch.isfinite(norm)
        return _limit_factor(norm, limit), {name: torch.where(usable, new[name], value) for name, value in state.items()}


@dataclass(frozen=True, slots=True)
class AutoClip(TotalNormPolicy):
    """Clip to a percentile (0 to 100) of the norms so far, this one included.

    Seetharaman, Wichern, Pardo and Le Roux, "AutoClip: adaptive gradient clipping for source separation networks" (2020). The
    history holds the latest ``window`` norms (the paper keeps all). Norms that are not finite are ignored.
    """

    percentile: float = 10.0
    window: int = 1000
    name: ClassVar[str] = "autoclip"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 step; got {self.window!r}.")
        ClipPolicy.__post_init__(self)
        if self.percentile > 100:
            raise ValueError(f"percentile must be at most 100; got {self.percentile!r}. The paper uses 10.")

    @override
    def initial(self, device: torch.device, dtype: torch.dtype) -> State:
        history = torch.full((self.window,), torch.nan, device=device, dtype=dtype)
        return {"steps": torch.zeros((), device=device, dtype=dtype), "history": history}

    @override
    def factor(self, norm: Tensor, state: State) -> tuple[Tensor, State]:
        steps, history = state["steps"], state["history"]
        usable = torch.isfinite(norm)
        slot = torch.arange(len(history), device=history.device) == steps % len(history)
        history = torch.where(slot & usable, norm, history)
        limit = torch.nanquantile(history, self.percentile / 100)
        return _limit_factor(norm, limit), {"steps": torch.where(usable, steps + 1, steps), "history": history}


@dataclass(frozen=True, slots=True)
class AGC(ClipPolicy):
    """Adaptive gradient clipping: each unit's gradient relative to its weights, see :func:`agc_factor`.

    The paper excludes the last linear layer: pass its name as ``GradientClipper(exclude=…)``.
    """

    clipping: float = 0.01
    eps: float = 1e-3
    name: ClassVar[str] = "agc"

    def factors(
        self, gradients: Sequence[Tensor], parameters: Sequence[Tensor], norms: Tensor, state: State
    ) -> tuple[Factors, State]:
        """Return the factors of each gradient's units: see :meth:`TotalNormPolicy.factors`."""
        pairs = zip(gradients, parameters, strict=True)
        return [agc_factor(gradient, parameter, self.clipping, self.eps) for gradient, parameter in pairs], state


@dataclass(frozen=True, slots=True)
class Value(ClipPolicy):
    """Bound every gradient element to [-max_value, max_value], as ``torch.nn.utils.clip_grad_value_`` does."""

    max_value: float = 0.5
    name: ClassVar[str] = "value"


@dataclass(frozen=True, slots=True)
class PerTensor(ClipPolicy):
    """Scale each parameter's gradient separately to an L2 norm of at most ``max_norm``, in a tensor hook during backward."""

    max_norm: float = 1.0
    name: ClassVar[str] = "tensor"


# Name of a policy to its class, of which threshold sets the first field.
POLICIES: dict[str, type[Any]] = {kind.name: kind for kind in (GlobalNorm, Value, PerTensor, AGC, ZClip, AutoClip)}


def make_policy(policy: str | object, threshold: float | None = None) -> Any:
    """Return the policy for a name, or a policy object unchanged.

    Args:
        policy: A name from ``POLICIES``, or a policy object.
        threshold: The policy's main number; None for its default (the paper's). Only with a name.

    Raises:
        ValueError: If the name is unknown, or the threshold out of range.
        TypeError: If the policy is of another type, or both an object and a threshold are given.
    """
    if isinstance(policy, ClipPolicy):
        if threshold is not None:
            raise TypeError(f"threshold goes with a policy's name; {policy!r} has its own. Remove threshold.")
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"policy must be one of {', '.join(POLICIES)} or a policy object; got {policy!r}.")
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}; got {policy!r}.")
    return POLICIES[policy](*[] if threshold is None else [threshold])
