"""One table of the monitors and the peers over all that was trained: what is found, at which site, and the false alarms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scipy.stats import binomtest

from tests.evidence.faults.peers import PEERS
from tests.evidence.faults.score import peer_found

Run = dict[str, Any]


class Section(NamedTuple):
    """Trainings that are counted together.

    Attributes:
        name: In the table.
        runs: The results of ``run_one`` of the zoo, the exam or the bugs of others.
    """

    name: str
    runs: Sequence[Run]


def interval(hits: int, of: int) -> str:
    """A share with its 95 % confidence interval (Wilson), in percent."""
    if not of:
        return "-"
    low, high = binomtest(hits, of).proportion_ci(method="wilson")
    return f"{hits}/{of} = {hits / of:.0%} ({100 * low:.0f} to {100 * high:.0f})"


def row(name: str, who: str, runs: Sequence[Run], found: Callable[[Run], bool], site: Any, alarm: Callable[[Run], bool]) -> str:
    """One line: faults found, right site, false alarms in healthy trainings and in twins."""
    faults = [run for run in runs if not run["healthy"] and run["planted"]]
    placed = [run for run in faults if run["site"] is not None]
    healthy = [run for run in runs if run["healthy"]]
    twins = [run for run in runs if not run["healthy"] and not run["planted"]]
    cells = [
        interval(sum(map(found, faults)), len(faults)),
        "-" if site is None else interval(sum(map(site, placed)), len(placed)),
        interval(sum(map(alarm, healthy)), len(healthy)),
        interval(sum(map(alarm, twins)), len(twins)) if all("alerts" in run or "peers" in run for run in twins) else "-",
    ]
    return f"| {name} | {who} | " + " | ".join(cells) + " |"


def table(sections: Sequence[Section]) -> str:
    """All sections as Markdown, the monitors first."""
    lines = ["| trainings | rules | faults found | right site | healthy with a false alarm | twins with a false alarm |"]
    lines.append("|---|---|---|---|---|---|")
    for name, runs in sections:
        lines.append(row(name, "**lightning_hooks**", runs, lambda run: run["found"], lambda run: bool(run["site"]), _alerted))
    for peer in PEERS:
        for name, runs in sections:
            judged = [run for run in runs if "peers" in run]
            lines.append(row(name, peer, judged, _found_by(peer), None, _alarm_of(peer)))
    return "\n".join(lines)


def _alerted(run: Run) -> bool:
    return bool(run["alerts"])


def _found_by(peer: str) -> Callable[[Run], bool]:
    return lambda run: bool(peer_found(run, peer))


def _alarm_of(peer: str) -> Callable[[Run], bool]:
    return lambda run: any(rule["ever"] > 1 for rule in run["peers"][peer].values())


def missed(sections: Sequence[Section]) -> str:
    """The faults that were not found or at another site, and the false alarms, each a line."""
    lines = []
    for name, runs in sections:
        for run in runs:
            where = f"- {name}: `{run['name']}`" + (f" seed {run['seed']}" if "seed" in run else "")
            said = "; ".join(f"{kind} at {site}" for kind, site, *_ in run["alerts"][:3]) or "nothing"
            if run["healthy"] or not run["planted"]:
                if run["alerts"]:
                    lines.append(f"{where}{'' if run['healthy'] else ', twin'}: false alarm: {said}")
            elif not run["found"]:
                reason = run.get("missed") or f"expected {' or '.join(run['kinds'])}; said: {said}"
                lines.append(f"{where}: not found: {reason}")
            elif run["site"] is False:
                lines.append(f"{where}: another site: {said}")
    return "\n".join(lines) or "- nothing"
