"""Reports of one healthy site, changed at one number."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import Alert, ClipReport, FeatureReport, GradientFlowReport, Rule
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import GradientStats, ParameterGradientStats
from tests.support.limits import assert_beyond

FEATURE = FeatureStats(
    calls=4, count=100, mean=0.1, std=1.0, min=-2.0, max=2.0, rms=1.0, zero_fraction=0.0, nonfinite_fraction=0.0,
    dead_fraction=0.0, saturated_fraction=0.0,
)  # fmt: skip
MODULE = GradientStats(
    calls=4, count=100, mean=0.0, std=0.1, min=-1.0, max=1.0, rms=0.1, norm=1.0, norm_max=2.0, zero_fraction=0.0,
    nonfinite_fraction=0.0,
)  # fmt: skip
PARAMETER = ParameterGradientStats(
    steps=4, norm=1.0, norm_max=2.0, rms=0.1, zero_fraction=0.0, nonfinite_steps=0, missing_steps=0, update_ratio=1e-3
)
CLIP = ClipStats(
    steps=100, clipped_steps=10, rate=0.1, norm_before=2.0, norm_before_max=9.0, norm_after=0.9, norm_after_max=1.0,
    coefficient=0.9, nonfinite_steps=0, skipped_steps=0, top_parameters=(("head.weight", 0.8),), limit=1.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Alert]]:
    """The findings that a test makes rules state; their values are beyond the limits that they state."""
    found: list[tuple[Rule, Alert]] = []
    finding = Rule.finding

    def kept(self: Rule, *args: Any, **kwargs: Any) -> Alert:
        found.append((self, finding(self, *args, **kwargs)))
        alerts.append(found[-1][1])
        return alerts[-1]

    alerts: list[Alert] = []
    monkeypatch.setattr(Rule, "finding", kept)
    yield alerts
    for rule, one in found:
        assert_beyond(rule, one)


@pytest.fixture(autouse=True)
def short_texts(made: list[Alert]) -> Iterator[None]:
    """Whatever a test makes a rule raise: its message is one sentence of at most 40 words, which does not repeat the advice, and no
    number has more than three significant digits. Why it is so is for the judge to say."""
    yield
    for one in made:
        assert len(one.message.split()) <= 40, one.message
        assert re.search(r"\. [A-Z]|[^.]$", one.message) is None, f"not one sentence: {one.message}"
        assert one.diagnosis == ""
        assert not any(step in one.message for step in one.advice), one
        for number in re.findall(r"(?<![\w.])\d+\.\d+(?!\.)", one.message):
            assert len(number.replace(".", "").lstrip("0")) <= 3, f"{number} in: {one}"


@pytest.fixture
def features():
    """Report of several sites: a dict of changes for each."""

    def make(*changes, silent=()):
        sites = {f"site{i}": replace(FEATURE, **change) for i, change in enumerate(changes)}
        return FeatureReport(epoch=3, step=120, sites=sites, silent=silent)

    return make


@pytest.fixture
def gradients():
    """Report of several modules, in model order, and parameters: a dict of changes for each."""

    def make(*modules, parameters=()):
        return GradientFlowReport(
            epoch=3,
            step=120,
            modules={f"site{i}": replace(MODULE, **change) for i, change in enumerate(modules)},
            parameters={f"weight{i}": replace(PARAMETER, **change) for i, change in enumerate(parameters)},
            total_norm=1.0,
        )

    return make


@pytest.fixture
def clips():
    """Report of several optimizers: a dict of changes for each."""

    def make(*changes):
        return ClipReport(3, 120, {f"{i}-SGD": replace(CLIP, **change) for i, change in enumerate(changes)})

    return make
