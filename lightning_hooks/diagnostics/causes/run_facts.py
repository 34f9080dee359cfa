"""The facts of a run: what its model and its optimizers are like when alerts are raised, and when training started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.step import groups_of
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep
from lightning_hooks.diagnostics.optimizer.table import OptimizerStats
from lightning_hooks.diagnostics.optimizer.watch import schedules_of, settings_of
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import as_number, has_values, is_distributed

MOST_ELEMENTS = 1 << 22  # of a larger parameter every so many elements are read


class RunFacts:
    """Reads the facts of a run, on the host between windows."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._start: Mapping[str, TensorFacts] = {}
        self._first_rates: dict[tuple[int, int], float] = {}
        with suppress(Exception):  # a model whose parameters cannot be read is none whose biases are known
            self._start = measured(host.model.named_parameters())
            self._first_rates = {
                (place, number): rate
                for place, (_, groups) in enumerate(groups_of(host.optimizers))
                for number, group in enumerate(groups)
                if (rate := as_number(group.get("lr"))) is not None
            }

    def at(self, window: Window, alerts: Sequence[Alert], bad_step: BadStep | None, earlier: Sequence[Alert]) -> Facts:
        """The facts at the end of a window.

        Args:
            window: The reports of all monitors.
            alerts: Those at whose sites parameters are read as they are.
            bad_step: What running the first bad step again has shown.
            earlier: Alerts of earlier windows that are open.
        """
        host, read = self._host, Facts.of(window)
        classes = {clean_name(name): type(module).__name__ for name, module in host.model.named_modules() if name}
        called = [site for site in read.features.sites if site in classes]
        facts = dataclasses.replace(
            read,
            optimizers=self._optimizers() if window.report(GradientFlowReport) is None else read.flow.optimizers,
            modules={name: classes[name] for name in (*called, *(name for name in classes if name not in called))},
            start=self._start,
            others=[(alert.kind, alert.site) for alert in (*window.alerts, *earlier)],
            setup=host.setup,
            precision=str(host.setup.description.get("precision", "")),
            schedules=[each for scheduled in host.schedulers for each in schedules_of(scheduled)],
            bad_step=bad_step,
            first_rates=self._first_rates,
            time_first=[
                clean_name(name) for name, module in host.model.named_modules() if stored(module, "batch_first", True) is False
            ],
            places_first=_places_first(host.model),
            strided=[clean_name(name) for name, p in host.model.named_parameters() if has_values(p) and not p.is_contiguous()],
        )
        near = {module for alert in alerts for module in (facts.module_of(alert.site), *facts.before(alert.site))}
        parameters = [(name, p) for name, p in host.model.named_parameters() if clean_name(name).rpartition(".")[0] in near]
        return dataclasses.replace(facts, now=measured(parameters))

    def _optimizers(self) -> dict[str, OptimizerStats]:
        """The settings of the optimizers, where no monitor of gradients has them."""
        return {
            name: OptimizerStats(groups=tuple(map(settings_of, groups)))
            for name, groups in groups_of(self._host.optimizers)
            if groups
        }


def measured(parameters: Iterable[tuple[str, Tensor]]) -> dict[str, TensorFacts]:
    """Parameters in a few numbers; those of which a rank holds a shard are left out. One copy from the device."""
    names, sizes, rows = [], [], []
    for name, parameter in parameters:
        if not has_values(parameter) or is_distributed(parameter) or not parameter.is_floating_point() or not parameter.numel():
            continue
        flat = parameter.detach().reshape(-1)
        flat = flat[:: -(-flat.numel() // MOST_ELEMENTS)].float()
        low, high = torch.aminmax(flat)
        bad = (flat - flat).count_nonzero().float()  # NaN - NaN is no zero
        rows.append(torch.stack([flat.mean(), low, high, bad, flat.norm() / flat.numel() ** 0.5]))
        names.append(clean_name(name))
        sizes.append(flat.numel())
    values = torch.stack([row.to(rows[0].device) for row in rows]).tolist() if rows else []
    return {
        name: TensorFacts(size, row[0], row[1], row[2], int(row[3]), row[4])
        for name, size, row in zip(names, sizes, values, strict=True)
    }


def _places_first(model: nn.Module) -> list[str]:
    """Tensors of one vector per place, for sequences with their places first, in a model whose attention has the samples first."""
    widths = {stored(module, "embed_dim") for module in model.modules() if stored(module, "batch_first", False) is True}
    held = [*model.named_buffers(), *model.named_parameters()]
    shapes = {clean_name(name): tuple(tensor.shape) for name, tensor in held if has_values(tensor)}
    return [name for name, shape in shapes.items() if len(shape) == 3 and shape[0] > shape[1] == 1 and shape[2] in widths]
