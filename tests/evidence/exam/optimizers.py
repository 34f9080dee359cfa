"""What the optimizers of papers share here: a step that goes through the weights one by one."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor


class ByWeight(torch.optim.Optimizer):
    """An optimizer that updates each weight by itself."""

    @abstractmethod
    def update(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Update a weight in place.

        Args:
            weight: It has a gradient.
            group: The settings of its group.
            state: What is kept of it from step to step.
        """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, group, self.state[weight])
        return loss
