"""The tables of a feature report about outputs, and what functions put out: sites that are known from their first call on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import Tensor, nn

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls, FunctionalSite
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.calls import CheckedCalls, PrecisionTable
from lightning_hooks.diagnostics.features.activations import is_activation, saturation_of_call
from lightning_hooks.diagnostics.features.table import FeatureTable
from lightning_hooks.diagnostics.loss_inputs.leaks import TargetCopyTable
from lightning_hooks.diagnostics.loss_inputs.predictions import LossInputs
from lightning_hooks.diagnostics.loss_inputs.targets import LossTargets
from lightning_hooks.diagnostics.loss_inputs.validated import ValidatedClasses, ValidatedNumbers
from lightning_hooks.diagnostics.representations import RepresentationTable, batch_size_of
from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.functions import FUNCTIONS, UNMEASURED
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.statistics.tables import ReportedTable


class OutputParts:
    """The tables of a feature report that are about outputs.

    Attributes:
        tables: By name.
        representations, precisions, copies: Those that record the outputs of modules; None for the last without functional calls.
        compares: Whether the outputs of modules in the batch under way are to be taken up.
    """

    def __init__(self, functional: FunctionalCalls | None, context: Context, sites: Sequence[tuple[str, nn.Module]]) -> None:
        time_first = {place for place, (_, module) in enumerate(sites) if stored(module, "batch_first", True) is False}
        self.representations = RepresentationTable([name for name, _ in sites], context.host.setup.device, time_first)
        self.precisions = PrecisionTable(sites, str(context.host.setup.description.get("precision", "")))
        self._calls = self.copies = None
        self.tables: dict[str, ReportedTable] = {"representations": self.representations, "precisions": self.precisions}
        if functional is not None:
            self._calls = CheckedCalls(functional, context)
            self.copies = TargetCopyTable(functional, context, [name for name, _ in sites])
            losses, targets = LossInputs(functional, context), LossTargets(functional, context)
            self.tables |= {"loss_inputs": losses, "loss_targets": targets, "calls": self._calls, "copies": self.copies}
            self.tables["validated"] = ValidatedClasses(functional, context)
            self.tables["agreement"] = ValidatedNumbers(functional, context)
        self.batch_start: Callable[..., None] = context.guard(self._batch_start, "the batch (its samples)")
        self.batch_end: Callable[..., None] = context.guard(self._batch_end, "outputs (whether samples differ)")
        self.compares = False

    def _batch_start(self, batch: BatchTensors) -> None:
        size = self.representations.size = batch_size_of(batch)
        self.representations.labelled = 1 in map(Tensor.dim, map(itemgetter(1), batch))
        if self._calls is not None:
            self._calls.batch_start(batch, size)

    def _batch_end(self) -> None:
        self.representations.finish()
        if self.copies is not None:
            self.copies.held.clear()

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites of functional calls."""
        for table in self.tables.values():
            if isinstance(table, CallTable):
                table.renumbered()


MEASURED = tuple(name for name in FUNCTIONS if name not in UNMEASURED)


class FunctionalFeatures:
    """Records the calls of functions in spare lines of a feature table, one for each site.

    Calls made by a layer that is an activation itself are left out: its output is the same.
    """

    def __init__(self, functional: FunctionalCalls, context: Context, table: FeatureTable) -> None:
        self._functional, self._context, self._table = functional, context, table
        self._wanted: dict[str, bool] = {}
        context.on_call(MEASURED, self._record, detailed=False)

    @property
    def functions(self) -> dict[str, str]:
        """Site to function, of those in the table."""
        return {site.name: site.function for site in self._functional.sites if self._line(site) in self._table.named}

    def numbered(self, changed: bool) -> None:
        """Ranks have numbered the sites alike."""
        if changed:
            self._table.drop_spare()
            self._wanted.clear()
        modules = dict(named_sites(self._context.host.model))
        for site in self._functional.sites:
            if site.function in MEASURED and site.name not in self._wanted:
                self._choose(site, modules[site.module], {})

    def state_dict(self) -> dict[str, Any]:
        """The sites, and which of them are in the table, in plain types."""
        return {"sites": self._functional.state(), "recorded": list(self.functions)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sites of an earlier run."""
        self._functional.restore(state["sites"])
        for site in self._functional.sites:
            if site.name in state["recorded"]:
                self._add(site, {})

    def _add(self, site: FunctionalSite, arguments: Mapping[str, Any]) -> None:
        self._table.add_site(self._line(site), site.name, site.function == "relu", saturation_of_call(site.function, arguments))

    def _line(self, site: FunctionalSite) -> int:
        return self._table.n_modules + site.index

    def _choose(self, site: FunctionalSite, module: nn.Module, arguments: Mapping[str, Any]) -> bool:
        wanted = self._wanted[site.name] = not is_activation(module) and self._context.selects_call(site, module)
        if wanted:
            self._add(site, arguments)
        return wanted

    def _record(self, call: FunctionalCall) -> None:
        wanted = self._wanted.get(call.site.name)
        if wanted is None:
            wanted = self._choose(call.site, call.module, call.arguments)
        if wanted:
            self._table.add(self._line(call.site), (call.arguments.get("input"),), call.output)
