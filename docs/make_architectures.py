"""Generate docs/about/architectures.md: what the monitors record in the models of other libraries.

    python -m docs.make_architectures

Each model is trained for two steps. tests/callbacks/models/test_architectures.py does the same, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import torch

from lightning_hooks import AttentionMonitor, TrainingMonitor
from lightning_hooks.diagnostics.routers.collector import find_routers
from tests.support.architectures import ARCHITECTURES, ArchitectureModule, batches_of
from tests.support.models import trainer

PAGE = Path(__file__).parent / "about/architectures.md"
STEPS = 2
HEADER = (
    *("architecture", "class", "modules with parameters", "recorded", "inside", "silent", "unexplained"),
    *("calls of functions", "attention", "routers"),
)

TEXT = """# Models of transformers and diffusers

What the monitors record in models of `transformers` and `diffusers`, with tiny configurations and random weights. Each is trained
for two steps with and without the monitors, and every step is sampled. Weights, losses and the state of the random generator are
the same, bit for bit. `python -m docs.make_architectures` generates this page, and a test compares it.
"""
WORDS = """\
- *Inside*: modules that have both their own parameter and child modules with parameters, such as the class token of a ViT. The
  child modules and the gradients of all parameters are recorded. To record the outputs of such modules too, select them with
  `modules=`.
- *Silent*: modules that training does not call. A `silent` info names each.
- *Calls of functions*: sites such as `layers.0.self_attn/sdpa`.
- *Attention*: the sites of `AttentionMonitor`.
- *Routers*: the routers that `RouterMonitor` finds by itself.

The silent modules:
"""


class Trained(NamedTuple):
    """A training of an architecture that is over.

    Attributes:
        model: The model.
        monitor: All monitors; None of a training without.
        attention: The attention monitor; likewise, and of an architecture without attention.
        random_state: Of the generator, after training.
    """

    model: ArchitectureModule
    monitor: TrainingMonitor | None
    attention: AttentionMonitor | None
    random_state: torch.Tensor


def train(name: str, monitored: bool = True) -> Trained:
    """Train an architecture for two steps."""
    architecture = ARCHITECTURES[name]
    model, batches = ArchitectureModule(architecture), batches_of(architecture, STEPS)
    monitor = TrainingMonitor(every_n_steps=1, summary=False, report_dir=None) if monitored else None
    looks = monitored and architecture.attention  # without any it warns
    attention = AttentionMonitor(every_n_steps=1, summary=False, report_dir=None) if looks else None
    trainer([callback for callback in (monitor, attention) if callback is not None]).fit(model, batches)
    return Trained(model, monitor, attention, torch.get_rng_state())


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of several patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def row(name: str, trained: Trained) -> str:
    """The line of the table for an architecture."""
    assert trained.monitor is not None
    architecture, report = ARCHITECTURES[name], trained.monitor.features
    assert report is not None
    holders = [site for site, module in trained.model.named_modules() if list(module.parameters(recurse=False))]
    recorded = [site for site in holders if site in report.sites]
    around = [site for site in holders if site not in recorded and matches(site, architecture.around)]
    silent = [site for site in holders if site not in recorded and matches(site, architecture.uncalled)]
    calls = [site for site in report.sites if "/" in site]
    found = None if trained.attention is None else trained.attention.report
    cells = (
        *(name, f"`{type(trained.model.net).__name__}`", len(holders), len(recorded), len(around), len(silent)),
        *(len(holders) - len(recorded) - len(around) - len(silent), len(calls), 0 if found is None else len(found.sites)),
        len(find_routers(trained.model)),
    )
    return f"| {' | '.join(map(str, cells))} |"


def page(rows: Iterable[str]) -> str:
    """The page."""
    reasons = [
        f"- {name}: `{pattern}`: {reason}."
        for name, architecture in ARCHITECTURES.items()
        for pattern, reason in architecture.uncalled.items()
    ]
    head = f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}"
    return "\n".join([TEXT, head, *rows, "", WORDS, *reasons, ""])


def main() -> None:
    """Write it."""
    PAGE.write_text(page(row(name, train(name)) for name in ARCHITECTURES), encoding="utf-8")


if __name__ == "__main__":
    main()
