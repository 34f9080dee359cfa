"""The parts of a health report that tell: the verdict, the findings, the alerts, what is silent, covered, and spent."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_hooks.alerts.alert import Alert
from lightning_hooks.alerts.kinds import KINDS
from lightning_hooks.health.charts import strip
from lightning_hooks.health.cost import costs
from lightning_hooks.health.html import DASH, Markup, number, percent, tag
from lightning_hooks.health.limits import Limits, listed
from lightning_hooks.health.parts import card, facts, mark, name, table
from lightning_hooks.health.run import Run
from lightning_hooks.health.verdict import GRAVITY, Course, Finding, Verdict, courses

SHOWN_ALERTS = 20
"""More are folded."""


def headline(verdict: Verdict) -> Markup:
    """The verdict."""
    return card(
        tag("div", mark(verdict.status), " ", verdict.headline, class_="headline"),
        [tag("p", detail) for detail in verdict.details],
        kind=f"verdict {verdict.status}",
    )


def findings(verdict: Verdict) -> list[Markup]:
    """What is wrong, since when, and what to try; what is only worth knowing is folded."""
    serious = [_finding(finding) for finding in verdict.findings if finding.severity != "info"]
    infos = [_finding(finding) for finding in verdict.findings if finding.severity == "info"]
    folded = tag("details", tag("summary", f"Worth knowing ({len(infos)})"), infos) if infos else None
    return [*serious, *([folded] if folded else [])]


def _finding(finding: Finding) -> Markup:
    state = tag(
        "span", finding.severity if finding.lasts else "passed", class_=f"pill {finding.severity if finding.lasts else 'past'}"
    )
    more = finding.sites[1:]
    places = [tag("p", "Also at ", listed(more), ".", class_="soft")] if more else []
    if finding.consequences:
        places.append(tag("p", "What follows from it: ", listed(finding.consequences), ".", class_="soft"))
    steps = tag("ul", [tag("li", step) for step in finding.advice])
    return card(
        tag("h3", mark(finding.severity), " ", finding.title, state),
        tag("p", name(finding.sites[0]), f" · {finding.when}"),
        tag("p", finding.seen),
        tag("div", tag("b", "What to try"), steps, class_="try") if finding.advice else None,
        places,
        kind=f"finding {finding.severity}{'' if finding.lasts else ' past'}",
    )


def alerts(run: Run, limits: Limits) -> Markup | None:
    """All alerts over the epochs, the gravest that last first."""
    found = sorted(courses(run), key=lambda course: (GRAVITY.get(course.severity, 3), not course.lasts, course.since))
    if not found:
        return None
    shown = found[: limits.alerts]
    serious = [_alert(course, run.epochs) for course in shown if course.severity != "info"]
    infos = [_alert(course, run.epochs) for course in shown if course.severity == "info"]
    more = serious[SHOWN_ALERTS:]
    content = [serious[:SHOWN_ALERTS], tag("details", tag("summary", f"{len(more)} more"), more) if more else None]
    folded = None
    if infos:
        follow = sum(bool(getattr(course.alert, "cause", "")) for course in shown if course.severity == "info")
        title = f"{len(infos)} infos" if len(infos) > 1 else "1 info"
        if follow and serious:
            title += ", which follow from the above" if follow == len(infos) > 1 else f", {follow} of which follow from the above"
        folded = tag("details", tag("summary", title), infos, open=not serious or None)
    rest = len(found) - len(shown)
    note = tag("p", f"{rest} more are in reports.jsonl.", class_="soft") if rest > 0 else None
    return card(content, folded, note)


def _alert(course: Course, epochs: Sequence[int]) -> Markup:
    return tag(
        "div",
        tag("span", mark(course.severity), " ", course.alert.kind),
        tag("span", name(course.alert.site), tag("br"), tag("small", _against(course)), class_="where"),
        tag("span", tag("span", _when(course), class_="when"), strip(course.epochs, epochs, _color(course))),
        class_="alert",
    )


def _color(course: Course) -> str:
    return {"critical": "var(--red)", "warning": "var(--amber)"}.get(course.severity, "var(--sky)")


def _when(course: Course) -> str:
    whole = f"{course.since}" if course.since == course.until else f"{course.since} to {course.until}"
    what = "epoch" if course.since == course.until else "epochs"
    return f"{what} {whole}, lasts" if course.lasts else f"{what} {whole}"


def _against(course: Course) -> str:
    value, limit = measured(course.alert)
    parts = [f"{value} against a limit of {limit}"] if value else []
    cause = getattr(course.alert, "cause", "")
    return "; ".join([*parts, *([f"follows from {cause}"] if cause else [])])


def measured(alert: Alert) -> tuple[str, str]:
    """An alert's value and its limit in the unit of its kind; empty where there is nothing to measure."""
    measures = KINDS[alert.kind].measures if alert.kind in KINDS else "number"
    if measures == "nothing":
        return "", ""
    share = measures == "share" or (alert.kind == "nonfinite" and 0 < alert.value < 1)
    return (percent(alert.value), percent(alert.threshold)) if share else (number(alert.value), number(alert.threshold))


def silent(run: Run) -> Markup | None:
    """Modules that were never called, or that no gradient came to."""
    found: list[Markup] = []
    for prefix, text in (("features", "Never called in a sampled batch"), ("gradient_flow", "Reached by no gradient")):
        names = list(dict.fromkeys(site for recorded in run.of(prefix) for site in getattr(recorded.last, "silent", ())))
        if names:
            found.append(tag("h3", f"{text} ({len(names)})"))
            found.append(tag("p", listed(names, 60)))
    missing = [
        site
        for recorded in run.of("gradient_flow")
        for site, stats in getattr(recorded.last, "parameters", {}).items()
        if stats.missing_steps and not stats.steps
    ]
    if missing:
        found += [tag("h3", f"Parameters without a gradient ({len(missing)})"), tag("p", listed(missing, 60))]
    if not found:
        return None
    note = (
        "A module is silent if hooks do not see it: not used in forward, called as module.forward(x), replaced by a function "
        "(F.relu), frozen or detached, or compiled before the hooks came. Silent is not dead: nothing is known of it."
    )
    return card(found, tag("p", note, class_="soft"))


def coverage(run: Run) -> Markup:
    """What was listened to, and how much of training that is."""
    lines = []
    for recorded in run.monitors:
        report = recorded.last
        listened = [
            len(getattr(report, what)) for what in ("sites", "modules", "parameters", "optimizers") if hasattr(report, what)
        ]
        missing = len(getattr(report, "silent", ()))
        batches, sampled = getattr(report, "batches", None), getattr(report, "sampled_batches", None)
        lines.append((
            [recorded.prefix, tag("br"), tag("small", recorded.modules)],
            " + ".join(map(str, listened)) or DASH,
            number(missing), f"{sampled} of {batches}" if batches else "every step", number(len(recorded.epochs)),
        ))  # fmt: skip
    header = ("monitor", "heard", "silent", "batches", "epochs")
    note = "Batches are those listened to of the last epoch's; what happens between two of them shows only if its effects last."
    return card(table(header, lines, numeric=(1, 2, 3, 4)), tag("p", note, class_="soft"))


def cost(run: Run) -> Markup | None:
    """What the monitors took."""
    found = costs(run)
    if not found:
        return None
    note = "Of the first process, as its host sees them."
    return card(facts(found), tag("p", note, class_="soft"))
