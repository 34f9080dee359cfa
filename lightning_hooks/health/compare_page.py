"""Two runs side by side as one HTML page, and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lightning_hooks.health.charts import Line, chart
from lightning_hooks.health.compare import Comparison, Difference
from lightning_hooks.health.html import DASH, Markup, number, percent, tag
from lightning_hooks.health.limits import Limits
from lightning_hooks.health.page import MOST_BYTES, document
from lightning_hooks.health.parts import Row, card, mark, name, rows, table
from lightning_hooks.health.run import Run
from lightning_hooks.health.verdict import Course, Verdict
from lightning_hooks.plots.names import shortened
from lightning_hooks.trackers.console import table_lines

MOST = 25
"""How many differences are shown as those that matter most."""
MOST_OF_A_CAUSE = 5
"""How many of them under one cause."""

LAYERS = (
    ("rms", "Gradient RMS at each module's output"),
    ("update_ratio", "Update ratio of each parameter"),
    ("std", "Spread (std) of each module's output"),
)
SHARES = (
    ("dead_fraction", "Dead units of each rectifier"),
    ("saturated_fraction", "Saturated values of each bounded activation"),
    ("zero_fraction", "Zeros in each module's output"),
)


def compare_page(found: Comparison) -> str:
    """Return two runs side by side: a whole HTML document of less than 2 MB."""
    limits = Limits()
    while True:
        page = _page(found, limits)
        if len(page.encode("utf-8", "backslashreplace")) <= MOST_BYTES or limits.rows < 8:
            return page
        limits = limits.halved()


def _page(found: Comparison, limits: Limits) -> str:
    names = tag(
        "p", tag("b", "A ", class_="a"), found.a.name, " · ", tag("b", "B ", class_="b"), found.b.name, f" · epoch {found.epoch}"
    )
    parts: list[tuple[str, Any]] = [
        ("What differs most", _most(found)),
        ("Alerts at the end", _alerts(found)),
        ("Layer by layer", _layers(found, limits)),
        ("Clipping", _clipping(found)),
        ("Set up differently", _settings(found)),
        ("Only in one", _only(found)),
    ]
    body: list[Any] = [tag("header", tag("h1", "Two runs side by side"), names)]
    body += [_verdict(letter, run, verdict) for letter, run, verdict in zip("AB", (found.a, found.b), found.verdicts, strict=True)]
    body += [tag("section", tag("h2", title), content) for title, content in parts if content]
    return document(f"{found.a.name} and {found.b.name}", body)


def _verdict(letter: str, run: Run, verdict: Verdict) -> Markup:
    lead = tag("p", tag("b", f"{letter} ", class_=letter.lower()), run.name, class_="soft")
    sentence = tag("p", tag("b", mark(verdict.status), " ", verdict.headline))
    return card(lead, sentence, [tag("p", detail, class_="soft") for detail in verdict.details], kind=f"verdict {verdict.status}")


def _shown(difference: Difference, value: float) -> str:
    return percent(value) if difference.share else number(value)


def _most(found: Comparison) -> Markup:
    content: list[Any] = []
    for title, told, more in _groups(found):
        lines = [([name(d.name), tag("br"), tag("small", d.what)], _shown(d, d.a), _shown(d, d.b), d.change) for d in told]
        content += [tag("h3", title) if title else None, table(("layer", "A", "B", "A to B"), lines, numeric=(1, 2, 3))]
        content.append(tag("p", f"and {more} more", class_="soft") if more else None)
    return card(content or tag("p", "All numbers that both runs have are the same."))


def _groups(found: Comparison) -> Iterator[tuple[str, list[Difference], int]]:
    """What differs most, by cause: a title, the differences that are shown, and how many more there are."""
    groups = found.by_cause()
    for course, group in groups:
        most = MOST if course is None else MOST_OF_A_CAUSE
        title = "Without an alert that explains it" if len(groups) > 1 else ""
        if course is not None:
            title = f"{course.alert.name}, only in {'A' if course in found.alerts_a else 'B'}, and what follows"
        yield title, group[:most], len(group[most:])


def _alerts(found: Comparison) -> Markup | None:
    groups = (("Only in A", found.alerts_a), ("Only in B", found.alerts_b), ("In both", found.alerts_both))
    content = [[tag("h3", f"{title} ({len(alerts)})"), _courses(alerts)] for title, alerts in groups if alerts]
    return card(content) if content else None


def _courses(alerts: Sequence[Course]) -> list[Markup]:
    lines = [
        tag("p", mark(course.severity), f" {course.alert.kind} at ", name(course.alert.site), f", since epoch {course.since}")
        for course in alerts[:20]
    ]
    return [*lines, tag("p", f"and {len(alerts) - 20} more", class_="soft")] if len(alerts) > 20 else lines


def _layers(found: Comparison, limits: Limits) -> Markup | None:
    key = tag(
        "p",
        "Dot: ",
        tag("b", "A", class_="a"),
        ". Diamond: ",
        tag("b", "B", class_="b"),
        ". The number is the change.",
        class_="soft",
    )
    content: list[Any] = []
    for linear, group in ((False, LAYERS), (True, SHARES)):
        for stat, title in group:
            differences = found.of(stat)
            if linear and not any(difference.a or difference.b for difference in differences):
                continue
            if differences:
                kept = set(sorted(differences, key=lambda difference: -difference.size)[: limits.rows])
                lines = [Row(d.name, d.a, other=d.b, shown=d.change) for d in differences if d in kept]
                left = f"The {len(kept)} of {len(differences)} that differ most." if len(kept) < len(differences) else None
                content.append(
                    tag("details", tag("summary", title), rows(lines, "A to B", linear), left, open=len(content) < 2 or None)
                )
    return card(key, content) if content else None


def _clipping(found: Comparison) -> Markup | None:
    content: list[Any] = []
    for optimizer in dict.fromkeys(difference.name for difference in found.of("norm_before")):
        curves, epochs = [], sorted({epoch for run in (found.a, found.b) for epoch in run.epochs})
        for letter, run, color in (("A", found.a, "var(--blue)"), ("B", found.b, "var(--amber)")):
            known: dict[int, float] = {}
            for recorded in run.of("gradient_clip"):
                series = recorded.series("optimizers", "norm_before")
                if optimizer in series.names:
                    known |= dict(zip(series.epochs, map(float, series.values[series.names.index(optimizer)]), strict=True))
            kept = [epoch for epoch in epochs if epoch in known]
            curves.append((f"{letter}: norm before clipping", color, known, kept))
        both = sorted({epoch for *_, kept in curves for epoch in kept})
        lines = [Line(label, [known.get(epoch, float("nan")) for epoch in both], color) for label, color, known, _ in curves]
        content += [tag("h3", name(optimizer)), chart(lines, both)]
    return card(content) if content else None


def _settings(found: Comparison) -> Markup | None:
    lines = [(key, DASH if a is None else a, DASH if b is None else b) for key, a, b in found.settings]
    return card(table(("", "A", "B"), lines)) if lines else None


def _only(found: Comparison) -> Markup | None:
    content = []
    for letter, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            rest = f" and {len(names) - 60} more" if len(names) > 60 else ""
            content.append(tag("p", f"Only in {letter} ({len(names)}): ", [[name(text), " "] for text in names[:60]], rest))
    return card(content) if content else None


def compare_lines(found: Comparison) -> list[str]:
    """Two runs side by side as plain lines."""
    lines = [f"A  {found.a.name}: {found.verdicts[0].headline}", f"B  {found.b.name}: {found.verdicts[1].headline}", ""]
    groups = list(_groups(found))
    if groups:
        lines.append(f"What differs most, epoch {found.epoch}:")
    for title, told, more in groups:
        cells = [(shortened(d.name, 44), d.what, _shown(d, d.a), _shown(d, d.b), d.change) for d in told]
        lines += [f"  {title}:"] * bool(title)
        lines += [f"  {line}" for line in table_lines(("layer", "of it", "A", "B", "A to B"), cells)]
        lines += [f"  and {more} more"] * bool(more)
    if not groups:
        lines.append(f"All numbers of epoch {found.epoch} that both runs have are the same.")
    for title, alerts in (("Alerts only in A", found.alerts_a), ("Alerts only in B", found.alerts_b)):
        if alerts:
            lines += ["", f"{title} ({len(alerts)}):"]
            lines += [
                f"  [{course.severity}] {course.alert.kind} at {course.alert.site}, since epoch {course.since}"
                for course in alerts[:10]
            ]
    for letter, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            lines += ["", f"Only in {letter}: {', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}"]
    for key, a, b in found.settings:
        lines.append(f"{key}: {a} in A, {b} in B")
    return lines
