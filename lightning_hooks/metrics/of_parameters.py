"""Metrics of parameters: their gradients, and what the optimizer's steps do to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.hooks.tensors import has_values, plain_values
from lightning_hooks.metrics.of_tensors import Statistic
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import ParameterColumn, parameter_rows
from lightning_hooks.statistics.weight_sample import WeightSample


class GradientNorm(Statistic):
    """The L2 norm of all gradients together, mean over steps; a step with a value that is not finite does not count.

    Call ``update`` where gradients are as you want them: ``on_before_optimizer_step`` comes before clipping. Keyword arguments are
    those of :class:`torchmetrics.Metric`.
    """

    gradients: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("gradients", ParameterColumn.empty(1), dist_reduce_fx=ParameterColumn.merged)

    @override
    def update(self, parameters: nn.Module | Iterable[Tensor]) -> None:
        """Add a step, of a module or of parameters; those without a gradient are skipped."""
        gradients = [each.grad for each in _tensors(parameters) if each.grad is not None]
        if gradients:
            norm = kernels_for(gradients[0].device.type).norms(gradients).norms.norm()[None]
            rows = parameter_rows(norm, torch.zeros_like(norm), torch.zeros_like(norm))
            self.gradients = ParameterColumn.merged(torch.stack((self.gradients, rows)))

    @override
    def compute(self) -> Tensor:
        """Return the norm; NaN where no step counts."""
        return self.gradients[0, ParameterColumn.NORM] / self.gradients[0, ParameterColumn.STEPS]


class UpdateRatio(Statistic):
    """The norm of an update over the norm of the weights before it, ‖update‖ / ‖weights‖, mean over steps; often near 1e-3.

    Call ``update`` before the first step and after each, as in ``on_train_start`` and ``on_train_batch_end``: each call is compared
    with the one before. Of parameters with more than 16 384 elements a sample is. Weights that are not finite do not count. Keyword
    arguments are those of :class:`torchmetrics.Metric`.
    """

    updates: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("updates", ParameterColumn.empty(1), dist_reduce_fx=ParameterColumn.merged)
        self._before: WeightSample | None = None

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_before": None}  # a copy compares from its own first call on

    @override
    def update(self, parameters: nn.Module | Iterable[Tensor]) -> None:
        """Add a step, of a module's parameters that require a gradient, or of parameters: the same in each call."""
        weights = [plain_values(each) for each in _tensors(parameters)]
        before, self._before = self._before, WeightSample(weights) if weights else None
        if before is not None and weights:
            sizes = before.updates(weights).norm(dim=1, keepdim=True)
            rows, place = self.updates.clone(), torch.zeros(1, dtype=torch.int64, device=sizes.device)
            kernels_for(sizes.device.type).enter_updates(rows, place, sizes)
            self.updates = rows

    @override
    def compute(self) -> Tensor:
        """Return the ratio; NaN where no step counts."""
        return self.updates[0, ParameterColumn.RATIO] / self.updates[0, ParameterColumn.RATIO_STEPS]


def _tensors(parameters: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, nn.Module):
        parameters = (each for each in parameters.parameters() if each.requires_grad)
    return [each for each in parameters if has_values(each)]
