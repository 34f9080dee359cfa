"""What is read of one optimizer step: gradients before it, and the update it made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_hooks.declare.step import OptimizerSteps, Step
from lightning_hooks.diagnostics.gradients.tables import ParameterTable
from lightning_hooks.diagnostics.optimizer.watch import OptimizerWatch
from lightning_hooks.statistics.rows import fixed
from lightning_hooks.statistics.weight_sample import UPDATE_SAMPLE, RowSample, ShardedWeightSample, WeightSample


class MeasuredStep:
    """What was read of one optimizer step before its update.

    Args:
        step: The step.
        tables: The places of parameters of which a batch touches some rows.
    """

    def __init__(self, step: Step, tables: set[int | None]) -> None:
        self.missing = step.missing
        self.weights: WeightSample | ShardedWeightSample | None = None
        if not step.indices:
            return
        zeros = step.zeros()
        norms = step.norms()
        self.parameters = step.parameters
        self.places = step.indices
        self.indices = indices = step.index_tensor(norms.device)
        here = norms if len(step.indices) == step.n_parameters else norms[self.indices]
        self.read = (here, zeros, step.sizes(), step.global_step)
        self.rows: dict[int, RowSample] = {}
        if step.shards is not None:
            self.weights = ShardedWeightSample(step.parameters, indices, step.n_parameters, step.shards)
            return
        self.weights = WeightSample(step.parameters)
        for place, (index, parameter) in enumerate(zip(step.indices, step.parameters, strict=True)):
            gradient = parameter.grad
            if gradient is None or parameter.numel() <= UPDATE_SAMPLE or parameter.dim() < 2 or parameter.is_complex():
                continue
            by_row = gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1
            if by_row or (gradient.layout == torch.strided and index in tables):
                self.rows[place] = RowSample(parameter, gradient)

    def enter(self, table: ParameterTable, optimizers: OptimizerWatch, step: Step, valid: Tensor | None) -> None:
        """The step was taken: enter it, with the updates it made."""
        table.add_missing(self.missing)
        if self.weights is None:
            return
        table.add(step.optimizer, self.indices, *self.read, valid)
        updates = self.weights.updates(self.parameters)
        for place, rows in self.rows.items():
            updates[:, place] = rows.updates(self.parameters[place])
        table.add_updates(self.indices, updates, valid)
        optimizers.updated(step, self.parameters, updates[0], valid)
        places = optimizers.rounding(step, self.parameters)
        if places and isinstance(self.weights, WeightSample):
            lost = self.weights.lost(self.parameters, places)
            table.add_lost(fixed(tuple([self.places[place] for place in places])).to(lost.device, non_blocking=True), lost, valid)


def embedding_weights(steps: OptimizerSteps, model: nn.Module) -> set[int | None]:
    """The places of the weights of embeddings."""
    tables = (module._parameters.get("weight") for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return {steps.index_of(table) for table in tables if table is not None}
