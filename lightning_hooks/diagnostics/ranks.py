"""Whether ranks hold the same parameters, as far as the training loop says that they are to: what is recorded of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import as_real
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Span, Spans, largest, paired
from lightning_hooks.statistics.weight_sample import spacing

TOLERANCE = 1e-5  # relative difference up to which ranks agree: some hundred times the rounding of float32

SAMPLE = 128  # up to so many elements of a parameter are all looked at; of a larger one a quarter as many

_TINY = 1e-300  # in place of a norm of 0, which has no logarithm


@dataclass(frozen=True, slots=True)
class RankDifference:
    """Parameters that differ between ranks, though every rank is to hold them alike.

    Attributes:
        parameter: The first of them, in the model's order: of those whose gradients differ, where there are some.
        what: What differs there: its ``gradients`` after the strategy's reduction, at the last measured step of the window, or its
            ``weights`` at the end of the window.
        difference: By how much, relative to the larger one, in [0, 1]; of weights about.
        gradients: Parameters whose gradients differ.
        weights: Parameters whose weights differ.
        compared: Parameters that were compared.
    """

    parameter: str
    what: Literal["gradients", "weights"]
    difference: float
    gradients: int
    weights: int
    compared: int


class ReplicaTable:
    """A number for each parameter's weights and for its gradient."""

    def __init__(self, n_parameters: int, device: torch.device | str = "cpu") -> None:
        self._device, self._dtype = torch.device(device), row_dtype(torch.device(device))
        self._gradients = self._unknown(n_parameters)
        self._weights: Tensor | None = None
        self._compared: Tensor | None = None
        self._steps = 0

    def _unknown(self, n_parameters: int) -> Tensor:
        return torch.full((n_parameters,), -math.inf, device=self._device, dtype=self._dtype)

    def add_gradients(self, indices: Tensor, norms: Tensor, global_step: int) -> None:
        """Record the L2 norms of the gradients of one optimizer step, shape ``(k,)``; those of a later step take their place."""
        self._gradients[indices.to(self._device)] = norms.to(self._gradients).clamp(min=_TINY).log()
        self._steps += global_step + 1

    def add_weights(self, indices: Sequence[int], parameters: Sequence[Tensor]) -> None:
        """Record the weights of the parameters that every rank is to hold alike; only these are compared."""
        self._weights = self._unknown(len(self._gradients))
        self._compared = torch.zeros(len(self._gradients), dtype=torch.bool, device=self._device)
        if indices:
            places = torch.tensor(indices).to(self._device, non_blocking=True)
            self._weights[places] = weight_marks(parameters).to(self._weights)
            self._compared[places] = True

    def pack(self) -> Tensor:
        """Return everything as one vector, of which ranks take the largest: each number, and its negative."""
        steps = torch.tensor([self._steps], dtype=self._dtype).to(self._device, non_blocking=True)
        unknown = self._unknown(len(self._gradients))
        weights = unknown if self._weights is None else self._weights
        gradients = unknown if self._compared is None else torch.where(self._compared, self._gradients, unknown)
        numbers = torch.cat((weights, gradients, steps))
        both = torch.cat((numbers, -numbers))
        return torch.where(torch.isfinite(both), both, -math.inf)  # NaN and infinite values are not for this comparison

    def unpack(self, packed: Tensor) -> None:
        """A resumed window compares from where it goes on."""

    @property
    def spans(self) -> Spans:
        """How packed vectors merge: each number, and its negative."""
        return (Span(2 * (2 * len(self._gradients) + 1), largest, paired(_larger_difference)),)

    def grow(self, n_parameters: int) -> None:
        """Make room for parameters that came later."""
        self._gradients = torch.cat((self._gradients, self._unknown(n_parameters - len(self._gradients))))
        self._weights = self._compared = None

    def reset(self) -> None:
        """Start a new window."""
        self._gradients.fill_(-math.inf)
        self._weights = self._compared = None
        self._steps = 0


def rank_difference(packed: Tensor, names: Sequence[str]) -> RankDifference | None:
    """What differs, of a merged vector on the host; None where nothing does, or nothing was compared."""
    weights, gradients = _gaps(packed).tolist()
    compared = sum(gap >= 0 for gap in weights)
    far = {"gradients": gradients, "weights": weights}
    places = {what: [place for place, gap in enumerate(gaps) if gap > TOLERANCE] for what, gaps in far.items()}
    for what in ("gradients", "weights"):
        if places[what]:
            first = places[what][0]
            counts = len(places["gradients"]), len(places["weights"])
            return RankDifference(names[first], what, -math.expm1(-far[what][first]), *counts, compared)
    return None


def _gaps(packed: Tensor) -> Tensor:
    """Distance between the largest and the smallest number, for weights and gradients, ``(2, n)``; -1 where there is none.

    Gradients of ranks that measured other steps, as they may within a budget of time (``max_overhead``), are not compared.
    """
    high, low = packed.view(2, -1)[0], -packed.view(2, -1)[1]
    gaps = torch.where(torch.isfinite(high) & torch.isfinite(low), high - low, -1.0)
    found = gaps[:-1].view(2, -1).clone()
    if gaps[-1] != 0:
        found[1] = -1.0
    return found


def _larger_difference(earlier: Tensor, later: Tensor) -> Tensor:
    """Of two windows' numbers those that differ more."""
    gaps = torch.stack((_gaps(earlier).flatten(), _gaps(later).flatten()))
    both = torch.stack((earlier, later)).view(2, 2, -1)[..., :-1]
    chosen = torch.where(gaps[1] >= gaps[0], both[1], both[0])
    chosen = torch.where(gaps.amax(0) < 0, -math.inf, chosen)
    return torch.cat((chosen, chosen.new_zeros((2, 1))), 1).flatten()


@torch.no_grad()
def weight_marks(parameters: Sequence[Tensor]) -> Tensor:
    """A number for the weights of each parameter, which differs as much as they do.

    It is the logarithm of the norm of some of its elements, plus their sum, each times a factor of its own, over the norm.

    Returns:
        Shape ``(n,)``, on the device of the first parameter; NaN or infinite where a weight is.
    """
    samples = [_sample(parameter) for parameter in parameters]
    device = samples[0].device
    lengths = torch.tensor([sample.shape[0] for sample in samples])
    line = torch.repeat_interleave(torch.arange(len(samples)), lengths)
    position = torch.arange(len(line)) - (lengths.cumsum(0) - lengths)[line]
    line, factors = line.to(device), torch.cos(1.0 + position).to(device, row_dtype(device))
    alike = len({(sample.dtype, sample.device) for sample in samples}) == 1  # then one conversion is enough
    values = torch.cat(samples if alike else [sample.to(device, factors.dtype) for sample in samples]).to(factors.dtype)
    sums = factors.new_zeros((len(samples), 2)).index_add_(0, line, torch.stack((values * values, values * factors), 1))
    norms = sums[:, 0].sqrt().clamp(min=_TINY)
    return norms.log() + sums[:, 1] / norms


def _sample(parameter: Tensor) -> Tensor:
    """Some elements of a parameter, evenly spread: a view where they lie one behind the other in memory."""
    values = as_real(parameter)
    numel = values.numel()
    if not numel:
        return values.reshape(0)
    taken, stride = spacing(numel, numel // values.shape[0] if values.dim() else 1, SAMPLE)
    if values.is_contiguous() or values.is_contiguous(memory_format=torch.channels_last):
        return values.as_strided((taken,), (stride,))
    return values.reshape(-1)[::stride]
