"""The architectures that people train, from ``transformers`` and ``diffusers``: unaltered by the monitors, and seen as a whole."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

import pytest
import torch

from docs.make_architectures import PAGE, STEPS, Trained, matches, row, train
from tests.support.architectures import ARCHITECTURES, NEVER_CALLED

each_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@functools.cache
def trained(name: str, monitored: bool) -> Trained:
    return train(name, monitored)


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
    model, monitor, *_ = trained(name, monitored=True)
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
    assert all(NEVER_CALLED in alert.seen for alert in alerts.values())


@each_architecture
def test_every_parameter_has_its_gradient_recorded(name: str) -> None:
    model, monitor, *_ = trained(name, monitored=True)
    recorded = monitor.gradients.parameters
    trains = {parameter: weight for parameter, weight in model.named_parameters() if weight.requires_grad}
    assert set(recorded) == set(trains)
    for parameter, weight in trains.items():
        assert bool(recorded[parameter].missing_steps) == (weight.grad is None), parameter


@each_architecture
def test_what_has_numbers_has_finite_ones(name: str) -> None:
    _, monitor, *_ = trained(name, monitored=True)
    assert all(stats.nonfinite_fraction == 0 and stats.calls >= STEPS for stats in monitor.features.sites.values())
    assert not [str(alert) for alert in monitor.alerts if alert.severity != "info"]


@pytest.mark.parametrize("name", [name for name, architecture in ARCHITECTURES.items() if architecture.attention])
def test_attention_is_found(name: str) -> None:
    report = trained(name, monitored=True).attention.report
    assert len(report.sites) == ARCHITECTURES[name].attention
    assert all(stats.calls == STEPS and stats.nonfinite_rows == 0 for stats in report.sites.values())


@each_architecture
def test_the_documentation_says_what_is_seen(name: str) -> None:
    """``python -m docs.make_architectures`` writes it again."""
    assert row(name, trained(name, monitored=True)) in PAGE.read_text(encoding="utf-8").splitlines()
