"""What a model and the functions that it calls put out.

What losses are given, how much samples differ, calls that are not what they are taken to be, and sites of a feature table that are
known from their first call on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # the classes have no public base

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import Functional, FunctionalCall, FunctionalSite
from lightning_hooks.diagnostics.batches.inputs import tensors_in
from lightning_hooks.diagnostics.calls.table import CallChecks, PrecisionTable, dropout_use, softmax_use
from lightning_hooks.diagnostics.features.table import FeatureTable
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputTable, output_stats
from lightning_hooks.diagnostics.loss_inputs.targets import MOST_LOSSES, LossLines, LossTargets
from lightning_hooks.diagnostics.representations.table import RepresentationTable, batch_size_of, representation_stats, samples_in
from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.functions import FUNCTIONS, UNMEASURED, dropped
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.hooks.tensors import float_tensors, in_memory, plain_values, stored_tensor
from lightning_hooks.statistics.tables import ReportedTable
from lightning_hooks.statistics.units import is_rectifier, saturation_of, saturation_of_call

CLASSIFICATION = ("cross_entropy", "nll_loss")
"""The losses with classes for targets."""
COMPARED_BATCHES = 8
"""Sampled batches of a window in which samples are compared and types are noted: the first ones."""
HALF_PRECISION = ("bf16-mixed", "16-mixed", "bf16-true", "16-true")
"""Precisions under which linear and convolution layers compute in half precision."""


class LossInputs(OutputTable):
    """What each ``cross_entropy`` and ``nll_loss`` is given.

    Args:
        functional: The calls of the run.
        context: Of the collector.
    """

    def __init__(self, functional: Functional, context: Context) -> None:
        super().__init__(MOST_LOSSES, context.host.setup.device)
        self._lines = LossLines(functional, CLASSIFICATION)
        context.on_call(CLASSIFICATION, self._record)

    def _record(self, call: FunctionalCall) -> None:
        line = self._lines.of(call.site)
        given, target = call.arguments.get("input"), call.arguments.get("target")
        if line is not None and isinstance(given, Tensor) and isinstance(target, Tensor) and not hasattr(type(given), "to_local"):
            ignored = call.arguments.get("ignore_index", -100)
            self.add(line, plain_values(given), plain_values(target), ignored, call.output, call.function == "nll_loss")

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        return {"outputs": {name: output_stats(row) for name, row in self._lines.named(self.lines(packed)) if row[0]}}

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self._lines.renumbered()
        self.reset()


class CheckedCalls(CallChecks):
    """The calls of softmax and of dropout.

    Args:
        functional: The calls of the run.
        context: Of the collector.
    """

    def __init__(self, functional: Functional, context: Context) -> None:
        super().__init__(functional.capacity, context.host.setup.device)
        self._functional = functional
        self._samples: int | None = None
        context.on_call(("softmax", "log_softmax"), self._softmax, layers=True)
        context.on_call(("dropout", "sdpa"), self._dropout, layers=True)
        context.on_call(("dropout", "sdpa"), self._in_validation, in_validation=True)

    def batch_start(self, batch: Any, size: int | None) -> None:
        """A sampled batch starts, of so many samples."""
        self._samples = size if size and any(_one_per_sample(tensor, size) for _, tensor in tensors_in(batch)) else None

    def _softmax(self, call: FunctionalCall) -> None:
        given = call.arguments.get("input")
        if isinstance(given, Tensor):
            self.softmax(call.site.index, plain_values(given), call.arguments.get("dim"), self._samples)

    def _dropout(self, call: FunctionalCall) -> None:
        self.dropout(call.site.index, dropped(call.function, call.arguments), in_training_mode(call.module))

    def _in_validation(self, call: FunctionalCall) -> None:
        p = dropped(call.function, call.arguments)
        if p and not in_training_mode(call.module):
            self.dropout_in_validation(call.site.index, p)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        softmax, dropout = {}, {}
        for site, row in zip(self._functional.sites, self.lines(packed), strict=False):
            if (use := softmax_use(row)) is not None:
                softmax[site.name] = use
            if (dropped := dropout_use(row)) is not None:
                dropout[site.name] = dropped
        return {"softmax": softmax, "dropout": dropout}

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self.reset()


class Representations(RepresentationTable):
    """How much the outputs of each module differ from sample to sample.

    Args:
        names: Of the modules.
        context: Of the collector.
    """

    def __init__(self, names: Sequence[str], context: Context) -> None:
        super().__init__(len(names), context.host.setup.device)
        self._names = names
        self.size: int | None = None

    def take(self, index: int, output: Any) -> None:
        """Record the output of a module if the samples of the batch lie along its first dimension."""
        if self.size is not None:
            found = output if type(output) is Tensor else next(iter(float_tensors(output)), None)
            if found is not None and in_memory(found) and found.is_floating_point() and samples_in(found, self.size):
                self.add(index, found.detach())

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        named = zip(self._names, self.lines(packed), strict=True)
        return {"representations": {name: representation_stats(row) for name, row in named if row[0]}}


class Precisions(PrecisionTable):
    """In which precision linear and convolution layers compute.

    Args:
        sites: (name, module) of all modules; those of other kinds are left out.
        asked: The precision asked for.
    """

    def __init__(self, sites: Sequence[tuple[str, nn.Module]], asked: str) -> None:
        self._asked = asked
        layers = {
            index: (name, weight.numel())
            for index, (name, module) in enumerate(sites)
            if asked in HALF_PRECISION and (weight := _multiplied(module)) is not None
        }
        self._lines = {index: line for line, index in enumerate(layers)}
        self._names = [name for name, _ in layers.values()]
        super().__init__([size for _, size in layers.values()])

    def take(self, index: int, output: Any) -> None:
        """Record the output of a module."""
        line = self._lines.get(index)
        if line is not None and isinstance(output, Tensor):
            self.add(line, output)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        return {"precision": self.stats(packed, self._names, self._asked)}


class OutputParts:
    """The tables of a feature report that are about outputs.

    Args:
        context: Of the collector.
        sites: (name, module) of the modules that it observes.

    Attributes:
        tables: By name.
        compares: Whether the outputs of modules in the batch under way are to be taken up.
    """

    def __init__(self, context: Context, sites: Sequence[tuple[str, nn.Module]]) -> None:
        functional = context.functional if context.records_functional else None
        self._context = context
        self._representations = Representations([name for name, _ in sites], context)
        self._precisions = Precisions(sites, str(context.host.setup.description.get("precision", "")))
        self._losses = None if functional is None else LossInputs(functional, context)
        self._targets = None if functional is None else LossTargets(functional, context)
        self._calls = None if functional is None else CheckedCalls(functional, context)
        self.tables: dict[str, ReportedTable] = {"representations": self._representations, "precisions": self._precisions}
        if self._losses is not None and self._targets is not None and self._calls is not None:
            self.tables |= {"loss_inputs": self._losses, "loss_targets": self._targets, "calls": self._calls}
        self.batch_start: Callable[..., None] = context.guard(self._batch_start, "the batch (its samples)")
        self.batch_end: Callable[..., None] = context.guard(self._representations.finish, "outputs (whether samples differ)")
        self.compares = False

    def _batch_start(self, batch: Any) -> None:
        self.compares = self._context.sampled_batches <= COMPARED_BATCHES
        size = self._representations.size = batch_size_of(batch)
        if self._calls is not None:
            self._calls.batch_start(batch, size)

    def take(self, index: int, output: Any) -> None:
        """Record the output of a module."""
        self._representations.take(index, output)
        self._precisions.take(index, output)

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites of functional calls."""
        for part in (self._losses, self._targets, self._calls):
            if part is not None:
                part.renumbered()


def _multiplied(module: nn.Module) -> Tensor | None:
    """What a linear or convolution layer multiplies with."""
    return stored_tensor(module, "weight") if isinstance(module, nn.Linear | _ConvNd) else None


def _one_per_sample(tensor: Tensor, size: int) -> bool:
    """Whether a tensor of a batch holds one number for each of its samples, as targets do."""
    return tensor.numel() == size == tensor.shape[0] if tensor.dim() else False


MEASURED = tuple(name for name in FUNCTIONS if name not in UNMEASURED)


class FunctionalFeatures:
    """Records the calls of functions in spare lines of a feature table, one for each site.

    Calls made by a layer that is an activation itself are left out: its output is the same.

    Args:
        context: Its collector's part of the session.
        table: With as many spare lines as there can be sites.
    """

    def __init__(self, context: Context, table: FeatureTable) -> None:
        self._context, self._table, self._functional = context, table, context.functional
        self._wanted: dict[str, bool] = {}
        context.on_call(MEASURED, self._record, detailed=False)

    @property
    def functions(self) -> dict[str, str]:
        """Site to function, of those in the table."""
        return {site.name: site.function for site in self._sites if self._line(site) in self._table.named}

    @property
    def _sites(self) -> list[FunctionalSite]:
        return [] if self._functional is None else self._functional.sites

    def numbered(self, changed: bool) -> None:
        """Ranks have numbered the sites alike."""
        if changed:
            self._table.drop_spare()
            self._wanted.clear()
        modules = dict(named_sites(self._context.host.model))
        for site in self._sites:
            if site.function in MEASURED and site.name not in self._wanted:
                self._choose(site, modules[site.module], {})

    def state_dict(self) -> dict[str, Any]:
        """Return the sites, and which of them are in the table, in plain types."""
        return {"sites": [] if self._functional is None else self._functional.state(), "recorded": list(self.functions)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sites of an earlier run."""
        if self._functional is None:
            return
        self._functional.restore(state["sites"])
        for site in self._sites:
            if site.name in state["recorded"]:
                self._add(site, {})

    def _add(self, site: FunctionalSite, arguments: Mapping[str, Any]) -> None:
        self._table.add_site(self._line(site), site.name, site.function == "relu", saturation_of_call(site.function, arguments))

    def _line(self, site: FunctionalSite) -> int:
        return self._table.n_modules + site.index

    def _choose(self, site: FunctionalSite, module: nn.Module, arguments: Mapping[str, Any]) -> bool:
        wanted = self._wanted[site.name] = not _is_activation(module) and self._context.selects_call(site, module)
        if wanted:
            self._add(site, arguments)
        return wanted

    def _record(self, call: FunctionalCall) -> None:
        wanted = self._wanted.get(call.site.name)
        if wanted is None:
            wanted = self._choose(call.site, call.module, call.arguments)
        if wanted:
            self._table.add(self._line(call.site), (call.arguments.get("input"),), call.output)


def _is_activation(module: nn.Module) -> bool:
    return is_rectifier(module) or saturation_of(module) is not None
