"""Reading what an optimizer steps on, at one step after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.gradients import WeightPlan, WeightSample, gradient_norms, located, norms_and_zeros
from lightning_hooks.statistics.native import Places


class StepReader:
    """Reads the gradients and weights of one optimizer; keeps where they lay at the last step, since most often they still do."""

    def __init__(self) -> None:
        self._places: Places | None = None
        self._plan: WeightPlan | None = None

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """L2 norm of each gradient, without a host sync; not finite where a gradient holds such a value.

        Args:
            gradients: Of any layout or subclass (of a distributed one the shard is read); at least one.

        Returns:
            Shape ``(n,)``, in the row's dtype.
        """
        return gradient_norms(*self._values(gradients))

    def norms_and_zeros(self, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
        """What :meth:`norms` gives, how many elements of each are exactly zero, and how many each stores."""
        values, places = self._values(gradients)
        norms, zeros = norms_and_zeros(values, places)
        return norms, zeros, [value.numel() for value in values]

    def sample(self, parameters: Sequence[Tensor]) -> WeightSample:
        """Copy parts of parameters before an update, to measure its size after it."""
        found = WeightSample(parameters, self._plan)
        self._plan = found.plan
        return found

    def _values(self, gradients: Sequence[Tensor]) -> tuple[Sequence[Tensor], Places | None]:
        """The gradients as the kernels can read them, and where they lie if the fast ones can."""
        places = self._places = located(gradients, self._places)
        return (gradients, places) if places is not None else ([plain_values(gradient) for gradient in gradients], None)
