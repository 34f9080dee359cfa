"""The architectures that people train, from ``transformers`` and ``diffusers``: unaltered by the monitors, and seen as a whole."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from lightning_hooks import TrainingMonitor
from tests.support.architectures import ARCHITECTURES, NEVER_CALLED, ArchitectureModule, batches_of
from tests.support.models import trainer

STEPS = 2

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


class Trained(NamedTuple):
    model: ArchitectureModule
    monitor: TrainingMonitor | None
    random_state: Tensor


@functools.cache
def trained(name: str, monitored: bool) -> Trained:
    architecture = ARCHITECTURES[name]
    model, batches = ArchitectureModule(architecture), batches_of(architecture, STEPS)
    monitor = TrainingMonitor(every_n_steps=1, summary=False, report_dir=None) if monitored else None
    trainer([monitor] if monitor else []).fit(model, batches)
    return Trained(model, monitor, torch.get_rng_state())


def matches(name: str, patterns: object) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)  # type: ignore[attr-defined]


@each_architecture
def test_training_is_unaltered(name: str) -> None:
    plain, seen = trained(name, monitored=False), trained(name, monitored=True)
    assert len(plain.model.losses) == STEPS
    assert torch.equal(torch.stack(plain.model.losses), torch.stack(seen.model.losses))
    expected, found = plain.model.state_dict(), seen.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert torch.equal(plain.random_state, seen.random_state)


@each_architecture
def test_every_module_with_parameters_is_recorded_or_silent_for_a_reason(name: str) -> None:
    model, monitor, _ = trained(name, monitored=True)
    architecture, report = ARCHITECTURES[name], monitor.features
    assert not any(member.faults.errors for member in monitor.members)
    holders = [site for site, module in model.named_modules() if list(module.parameters(recurse=False))]
    assert [
        site for site in holders if site not in report.sites and not matches(site, (*architecture.uncalled, *architecture.around))
    ] == []
    assert [site for site in report.silent if not matches(site, architecture.uncalled)] == []
    for pattern in (*architecture.uncalled, *architecture.around):
        assert any(fnmatchcase(site, pattern) for site, _ in model.named_modules()), f"{pattern} names nothing"
    alerts = {alert.site: alert for alert in report.alerts if alert.kind == "silent"}
    assert set(alerts) == set(report.silent)
    assert all(NEVER_CALLED in alert.diagnosis for alert in alerts.values())


@each_architecture
def test_every_parameter_has_its_gradient_recorded(name: str) -> None:
    model, monitor, _ = trained(name, monitored=True)
    recorded = monitor.gradients.parameters
    trains = {parameter: weight for parameter, weight in model.named_parameters() if weight.requires_grad}
    assert set(recorded) == set(trains)
    for parameter, weight in trains.items():
        assert bool(recorded[parameter].missing_steps) == (weight.grad is None), parameter


@each_architecture
def test_what_has_numbers_has_finite_ones(name: str) -> None:
    _, monitor, _ = trained(name, monitored=True)
    assert all(stats.nonfinite_fraction == 0 and stats.calls >= STEPS for stats in monitor.features.sites.values())
    assert not [str(alert) for alert in monitor.alerts if alert.severity != "info"]
