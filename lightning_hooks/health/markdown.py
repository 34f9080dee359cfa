"""The health report of a run as Markdown: the same findings and numbers, for a terminal, an issue or a tracker's text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_hooks.alerts import ClipReport, FeatureReport, GradientFlowReport
from lightning_hooks.health import training
from lightning_hooks.health.cost import costs
from lightning_hooks.health.html import number, percent
from lightning_hooks.health.limits import severities
from lightning_hooks.health.run import Run
from lightning_hooks.health.scale import numbered
from lightning_hooks.health.telling import measured
from lightning_hooks.health.verdict import GRAVITY, Finding, courses, judge
from lightning_hooks.trackers.console import visible
from lightning_hooks.trackers.names import markdown_text

MOST_ROWS = 30
MOST_ALERTS = 50
SIGNS = {"failed": "✖", "critical": "✖", "warning": "▲", "info": "●", "healthy": "✔", "unknown": "?"}


def health_markdown(run: Run) -> str:
    """Return the health report of a run as Markdown."""
    verdict = judge(run)
    lines = [f"# Health report: {_text(run.fit.get('model', 'training'))} · {_text(run.name)}", ""]
    lines += [
        f"**{SIGNS[verdict.status]} {_text(verdict.headline)}**",
        "",
        *(f"{_text(detail)}  " for detail in verdict.details),
        "",
    ]
    lines += [line for finding in verdict.findings if finding.severity != "info" for line in _finding(finding)]
    for title, part in (
        ("Alerts", _alerts(run)),
        ("Loss and learning rate", _training(run)),
        ("Gradient flow", _gradient_flow(run)),
        ("Outputs", _features(run)),
        ("Clipping", _clipping(run)),
        ("Silent", _silent(run)),
        ("Model and set-up", [f"- {what}: {_text(value)}" for what, value in training.settings(run)]),
        ("Coverage", _coverage(run)),
        ("Cost", [f"- {much} {what}" for what, much in costs(run)]),
    ):
        if part:
            lines += [f"## {title}", "", *part, ""]
    return "\n".join(lines).rstrip() + "\n"


def _text(value: Any) -> str:
    return markdown_text(visible(str(value)))


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    lines = [list(header), ["---"] * len(header), *([_text(value) for value in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _finding(finding: Finding) -> list[str]:
    state = finding.severity if finding.lasts else "passed"
    lines = [f"## {SIGNS.get(finding.severity, '●')} {_text(finding.title)} ({state})", ""]
    lines += [f"At {_text(finding.where)}, {finding.when}. {_text(finding.seen)}", ""]
    steps = [f"- {_text(step)}" for step in finding.advice]
    return [*lines, "**What to try:**", "", *steps, ""] if steps else lines


def _alerts(run: Run) -> list[str]:
    found = sorted(courses(run), key=lambda course: (GRAVITY.get(course.severity, 3), not course.lasts, course.since))
    rows = [
        (course.severity, course.alert.kind, course.alert.site, f"{course.since} to {course.until}", *measured(course.alert))
        for course in found[:MOST_ALERTS]
    ]  # fmt: skip
    lines = _table(("severity", "alert", "where", "epochs", "value", "limit"), rows) if rows else []
    return [*lines, *_more(len(found) - len(rows), "alerts")]


def _training(run: Run) -> list[str]:
    epochs, losses = training.loss_by_epoch(run)
    rates = training.rates_by_group(run)
    if not rates and not any(map(math.isfinite, losses)):
        return []
    places = numbered(len(epochs), 10)
    rows = [(epochs[place], number(losses[place]), *(number(values[place]) for values in rates.values())) for place in places]
    return _table(("epoch", "loss", *(f"learning rate of {_text(group)}" for group in rates)), rows)


def _more(rest: int, what: str) -> list[str]:
    return ["", f"{rest} more {what} are in reports.jsonl."] if rest > 0 else []


def _gradient_flow(run: Run) -> list[str]:
    lines: list[str] = []
    for recorded in run.of("gradient_flow"):
        report, ill = recorded.last, severities(recorded)
        if isinstance(report, GradientFlowReport) and report.modules:
            lines += [f"RMS of the gradient at modules in epoch {report.epoch}; total norm {number(report.total_norm)}.", ""]
            shown = _worst(report.modules, lambda stats: stats.rms, ill)
            rows = [
                (site, number(report.modules[site].rms), number(report.modules[site].norm), ill.get(site, "")) for site in shown
            ]
            lines += [*_table(("module", "rms", "norm", "alert"), rows), *_more(len(report.modules) - len(shown), "modules"), ""]
    return lines


def _features(run: Run) -> list[str]:
    lines: list[str] = []
    for recorded in run.of("features"):
        report, ill = recorded.last, severities(recorded)
        if isinstance(report, FeatureReport) and report.sites:
            shown = _worst(report.sites, lambda stats: -max(stats.dead_fraction or 0, stats.saturated_fraction or 0), ill)
            rows = [
                (site, number(stats.mean), number(stats.std), percent(stats.zero_fraction), percent(stats.dead_fraction),
                 percent(stats.saturated_fraction), percent(stats.nonfinite_fraction), ill.get(site, ""))
                for site, stats in ((site, report.sites[site]) for site in shown)
            ]  # fmt: skip
            header = ("module", "mean", "std", "zeros", "dead", "saturated", "non-finite", "alert")
            lines += [*_table(header, rows), *_more(len(report.sites) - len(shown), "modules"), ""]
    return lines


def _worst(table: Any, key: Any, ill: dict[str, str]) -> list[str]:
    """The names that are shown, in the model's order: all of few; of many those with an alert and those at the end of the scale."""
    if len(table) <= MOST_ROWS:
        return list(table)

    def rank(site: str) -> tuple[int, float]:
        value = key(table[site])
        return GRAVITY.get(ill.get(site, ""), 3), value if math.isfinite(value) else -math.inf

    kept = set(sorted(table, key=rank)[:MOST_ROWS])
    return [site for site in table if site in kept]


def _clipping(run: Run) -> list[str]:
    rows = []
    for recorded in run.of("gradient_clip"):
        if isinstance(recorded.last, ClipReport):
            for optimizer, stats in recorded.last.optimizers.items():
                norms = number(stats.norm_before), number(stats.norm_after)
                rows.append((optimizer, stats.steps, percent(stats.rate), *norms, stats.skipped_steps, stats.nonfinite_steps))
    header = ("optimizer", "steps", "clipped", "norm before", "norm after", "skipped", "non-finite")
    return _table(header, rows) if rows else []


def _silent(run: Run) -> list[str]:
    lines = []
    for prefix, text in (("features", "Never called in a sampled batch"), ("gradient_flow", "Reached by no gradient")):
        names = list(dict.fromkeys(site for recorded in run.of(prefix) for site in getattr(recorded.last, "silent", ())))
        if names:
            rest = f" and {len(names) - MOST_ROWS} more" if len(names) > MOST_ROWS else ""
            lines.append(f"- {text}: {', '.join(_text(name) for name in names[:MOST_ROWS])}{rest}")
    return lines


def _coverage(run: Run) -> list[str]:
    rows = []
    for recorded in run.monitors:
        report = recorded.last
        heard = [len(getattr(report, what)) for what in ("sites", "modules", "parameters", "optimizers") if hasattr(report, what)]
        batches = getattr(report, "batches", None)
        listened = f"{getattr(report, 'sampled_batches', None)} of {batches}" if batches else "every step"
        silent = len(getattr(report, "silent", ()))
        rows.append((recorded.prefix, recorded.modules, " + ".join(map(str, heard)), silent, listened, len(recorded.epochs)))
    return _table(("monitor", "modules", "heard", "silent", "batches", "epochs"), rows) if rows else []
