"""An optimizer step that changes nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class UndoneUpdate:
    """Lets one step of an optimizer run on gradients of zeros, and undoes what it did.

    No optimizer offers to leave a step out once it is under way, and not all of them expect parameters without a gradient.

    Args:
        optimizer: Its ``step`` is under way; it has not yet looked at the gradients.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        parameters = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
        self._before = [(parameter, parameter.detach().clone(), parameter.grad) for parameter in parameters.values()]
        self._state = {key: _copied(value) for key, value in optimizer.state.items()}
        self._settings = [
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter.grad)

    @torch.no_grad()
    def undo(self) -> None:
        """Weights, gradients and the optimizer's state are as they were."""
        for parameter, weights, gradient in self._before:
            parameter.copy_(weights)
            parameter.grad = gradient
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=True):
            group.update(settings)


def _copied(value: Any) -> Any:
    """A copy of the tensors in an optimizer's state."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(entry) for entry in value)
    return value
