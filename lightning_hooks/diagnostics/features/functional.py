"""What functions put out: sites of a feature table that are known from their first call on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import FunctionalCall, FunctionalSite
from lightning_hooks.diagnostics.features.table import FeatureTable
from lightning_hooks.hooks.functions import FUNCTIONS, UNMEASURED
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.statistics.units import is_rectifier, saturation_of, saturation_of_call

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
