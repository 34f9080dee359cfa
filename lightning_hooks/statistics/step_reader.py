"""Reading what an optimizer steps on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_hooks.statistics.gradients import WeightSample
from lightning_hooks.statistics.kernels import kernels_for


class StepReader:
    """Reads the gradients and weights of one optimizer."""

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """L2 norm of each gradient, without a host sync; not finite where a gradient holds such a value.

        Args:
            gradients: Of any layout or subclass (of a distributed one the shard is read), on one device; at least one.

        Returns:
            Shape ``(n,)``, in the row's dtype.
        """
        return kernels_for(gradients[0].device.type).norms(gradients).norms

    def norms_and_zeros(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
        """What :meth:`norms` gives, how many elements of each are exactly zero, and how many each stores."""
        norms, zeros, sizes = kernels_for(gradients[0].device.type).norms(gradients, zeros=True)
        assert zeros is not None
        return norms, zeros, sizes

    def sample(self, parameters: Sequence[Tensor]) -> WeightSample:
        """Copy parts of parameters before an update, to measure its size after it."""
        return WeightSample(parameters)
