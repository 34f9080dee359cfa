"""What is measured of the optimizer steps of sampled batches: gradients, the updates they make, and what these bring."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.parameter_places import ParameterPlaces
from lightning_hooks.declare.step import EarlierOptimizers, Step
from lightning_hooks.diagnostics.gradients.tables import ParameterTable
from lightning_hooks.diagnostics.learning.report import LearningWatch
from lightning_hooks.diagnostics.optimizer.watch import OptimizerWatch
from lightning_hooks.diagnostics.ranks import ReplicaTable
from lightning_hooks.statistics.rows import fixed
from lightning_hooks.statistics.weight_sample import UPDATE_SAMPLE, RowSample, ShardedWeightSample, WeightSample


class SampledSteps:
    """Measures the next step of each optimizer after a sampled batch has started.

    Attributes:
        parameters: The table of the parameters' gradients and updates.
        optimizers: What the optimizers do.
        learning: What each parameter brings.
        replicas: Whether ranks have the same gradients and weights.
        due: The optimizers whose next step is to be measured.
        runs_again: Whether steps that are not sampled are run again, too.
        under_way: What was read of the steps under way, by the place of their optimizer.
    """

    def __init__(self, context: Context) -> None:
        self._host, self._steps = context.host, context.steps
        self._embeddings = embedding_weights(context.steps, context.host.model)
        self.parameters = ParameterTable(context.steps.names, len(context.steps.optimizer_names), context.host.setup.device)
        self.optimizers = OptimizerWatch(context)
        self.replicas = ReplicaTable(len(context.steps.names), context.host.setup.device)
        self.learning, self.runs_again = LearningWatch(context, self._embeddings), context.learning is True
        self.due: set[int] = set()
        self.under_way: dict[int, MeasuredStep] = {}
        # Guarded separately from checks: ranks come to their collective together, whatever fails on one of them.
        self.gradients = context.guard(self._gradients, "optimizer step (what is measured)")
        self.window_end = context.guard(self._window_end, "weights (whether they are the same on every rank)")

    def _gradients(self, step: Step) -> None:
        if step.optimizer in self.due and not (step.again and step.optimizer in self.under_way):
            self.under_way.pop(step.optimizer, None)
            self.under_way[step.optimizer] = MeasuredStep(step, self._embeddings)
            self.learning.under_way.pop(step.optimizer, None)
            if self.learning.detailed or self.runs_again:
                self.learning.gradients(step)
        elif self.runs_again and not step.again:
            self.learning.under_way.pop(step.optimizer, None)
            self.learning.gradients(step, sampled=False)

    def taken(self, step: Step, valid: Tensor | None) -> None:
        """A step was taken."""
        measured = self.under_way.pop(step.optimizer, None)
        if step.optimizer in self.learning.under_way:
            self.learning.taken(step, valid, sampled=measured is not None)
        if measured is not None:
            self.due.discard(step.optimizer)
            measured.enter(self.parameters, self.optimizers, step, valid)
            if measured.weights is not None and self._host.setup.world_size > 1:
                # They were read after the reduction over ranks, and before clipping.
                self.replicas.add_gradients(measured.indices, measured.read[0], step.global_step)

    def skipped(self, step: Step) -> None:
        """A step was not taken."""
        self.under_way.pop(step.optimizer, None)
        self.learning.skipped(step)

    def _window_end(self) -> None:
        places = [(self._steps.index_of(parameter), parameter) for parameter in self._host.replicated_parameters()]
        known = [(place, parameter) for place, parameter in places if place is not None]
        self.replicas.add_weights([place for place, _ in known], [parameter for _, parameter in known])

    def follow(self, kept: EarlierOptimizers) -> None:
        """There are new parameters, or other optimizers than before."""
        self.parameters.follow(self._steps.names, kept)
        self.replicas.grow(len(self._steps.names))
        self.under_way = {now: self.under_way[old] for now, old in enumerate(kept) if old in self.under_way}
        due = {now for now, old in enumerate(kept) if old in self.due}
        self.due.clear()
        self.due.update(due)
        self.optimizers.follow(kept)
        self.learning.follow()


class MeasuredStep:
    """What was read of one optimizer step before its update; ``tables``: the parameters of which a batch touches some rows."""

    def __init__(self, step: Step, tables: set[int | None]) -> None:
        self.missing = step.missing
        self.weights: WeightSample | ShardedWeightSample | None = None
        if not step.indices:
            return
        zeros, norms = step.zeros(), step.norms()
        self.parameters, self.places = step.parameters, step.indices
        self.indices = step.index_tensor(norms.device)
        self.read = (norms if step.in_order else norms[self.indices], zeros, step.sizes(), step.global_step)
        self.rows: dict[int, RowSample] = {}
        if step.shards is not None:
            self.weights = ShardedWeightSample(step.parameters, self.indices, step.n_parameters, step.shards)
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


def embedding_weights(steps: ParameterPlaces, model: nn.Module) -> set[int | None]:
    """The places of the weights of embeddings."""
    tables = (module._parameters.get("weight") for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    return {steps.index_of(table) for table in tables if table is not None}
