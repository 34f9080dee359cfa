"""Train every family of the zoo, on all its seeds, with the monitors on, and compare them with the peers' rules.

``python -m tests.evidence.faults.run [--seeds 0 1] [--only deep_sigmoid gan] [--processes 2] [--no-twins] [--fresh]`` prints a
table and
writes ``runs/faults/table.md`` and ``runs/faults/table.json``. Each fault's twin, the same training without the fault, runs
too: it shows that the fault does harm, and is one more healthy training. Results are kept, one line per training, and are
used again while neither the package nor the zoo has changed; ``--fresh`` discards them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from tests.evidence.faults.catalogue import CASES, FAULTS, HEALTHY
from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.evidence.faults.peers import PEERS
from tests.evidence.faults.recorder import Recorder
from tests.evidence.faults.score import judge, judge_peers, peer_found, serious, summary
from tests.evidence.faults.training import AlertLog, build, observers, train
from tests.evidence.faults.zoo import CALIBRATION, SEEDS, Outcome

FOLDER = Path("runs/faults")
HALVES = {"calibration": CALIBRATION, "report": tuple(seed for seed in SEEDS if seed not in CALIBRATION), "all": SEEDS}


def run_one(job: tuple[str, int, bool]) -> dict[str, Any]:
    """One training, of (name, seed, planted): the alerts of the monitors, those of the peers' rules, and the outcome."""
    name, seed, planted = job
    torch.set_num_threads(1)
    case = CASES[name]
    built, log, recorder = build(case, seed, planted), AlertLog(), Recorder()
    ours = observers(log)
    outcome, seconds = train(built, [log, recorder, *ours] if planted else [log, *ours])
    row = {
        "name": name,
        "seed": seed,
        "planted": planted,
        "healthy": case.healthy,
        "outcome": vars(outcome),
        "seconds": round(seconds, 2),
    }
    if not planted:
        return {**row, "alerts": serious(log.alerts)}
    assert recorder.recording is not None
    history = log.history(built)
    verdict = judge(log.alerts, built.expected, history)
    peers = judge_peers(case.healthy, built.expected, history, recorder.recording)
    return {**row, "kinds": built.expected.kinds, "sites": built.expected.sites, **verdict, "peers": peers}


def percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def _marks(runs: list[dict[str, Any]], key: str) -> str:
    values = [run[key] for run in runs]
    return "-" if all(value is None for value in values) else f"{sum(bool(value) for value in values)}/{len(values)}"


def table(runs: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    of: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        of.setdefault(run["name"], []).append(run)
    short = {peer: peer for peer in PEERS}
    lines = ["| fault | in | right kind | right site | first right | batches | " + " | ".join(short.values()) + " |"]
    lines.append("|---|---|---|---|---|---|" + "---|" * len(PEERS))
    for name, case in FAULTS.items():
        mine = of.get(name)
        if not mine:
            continue
        latest = max((run["batches"] for run in mine if run["batches"] is not None), default=None)
        peers = []
        for peer in PEERS:
            hits = [bool(peer_found(run, peer)) for run in mine]
            peers.append(f"{sum(hits)}/{len(hits)}")
        lines.append(
            f"| {case.story} (`{name}`) | {case.family} | {_marks(mine, 'found')} | {_marks(mine, 'site')} | "
            f"{_marks(mine, 'first')} | {latest or '-'} | {' | '.join(peers)} |"
        )
    lines += ["", "| healthy | in | runs with a false alarm | " + " | ".join(short.values()) + " | what |"]
    lines.append("|---|---|---|" + "---|" * len(PEERS) + "---|")
    for name, case in HEALTHY.items():
        mine = of.get(name)
        if not mine:
            continue
        raised = sorted({f"{kind} at {site} ({severity})" for run in mine for kind, site, severity, _ in run["alerts"]})
        alarms = [sum(any(rule["ever"] > 1 for rule in run["peers"][peer].values()) for run in mine) for peer in PEERS]
        lines.append(
            f"| {case.story} (`{name}`) | {case.family} | {sum(bool(run['alerts']) for run in mine)}/{len(mine)} | "
            + " | ".join(f"{alarm}/{len(mine)}" for alarm in alarms)
            + f" | {'; '.join(raised[:3])}{' …' if len(raised) > 3 else ''} |"
        )
    return "\n".join(lines)


def summaries(runs: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The summary of each half, and as Markdown."""
    result, lines = {}, []
    lines.append(
        "| half | rules | faults found | right site | first right | healthy runs with a false alarm | found at zero false alarms |"
    )
    lines.append("|---|---|---|---|---|---|---|")
    for half, seeds in HALVES.items():
        faults = [run for run in runs if not run["healthy"] and run["seed"] in seeds]
        healthy = [run for run in runs if run["healthy"] and run["seed"] in seeds]
        if not faults and not healthy:
            continue
        result[half] = s = summary(faults, healthy)
        mine = percent(s["recall"]) if not s["false_alarms"] else "-"
        lines.append(
            f"| {half} | **lightning_hooks** | {percent(s['recall'])} of {s['faults']} | {percent(s['site'])} of {s['placed']} | "
            f"{percent(s['first'])} | {s['false_alarms']} of {s['healthy']} | {mine} |"
        )
        for peer, p in s["peers"].items():
            lines.append(
                f"| {half} | {peer} | {percent(p['recall'])} | {percent(p['site'])} | | {p['false_alarms']} of {p['healthy']} | "
                f"{percent(p['recall_without_false_alarms'])} |"
            )
    return result, "\n".join(lines)


def misses(runs: list[dict[str, Any]]) -> str:
    """The faults that were not found, or at another site, and the alerts that came instead."""
    lines = []
    for run in runs:
        if run["healthy"] or (run["found"] and run["site"] in (None, True)):
            continue
        what = "another site" if run["found"] else "only an info" if run["info"] else "not found"
        alerts = [f"{kind} at {site}" for kind, site, _, _ in run["alerts"][:3]]
        lines.append(
            f"- `{run['name']}` seed {run['seed']}: {what}; expected {' or '.join(run['kinds'])}; alerts: {alerts or 'nothing'}"
        )
    return "\n".join(lines)


def dishonest(runs: list[dict[str, Any]], twins: list[dict[str, Any]]) -> list[str]:
    """The healthy trainings and twins that do not learn, and the faults that do no harm: mistakes of the zoo itself."""
    clean_outcomes = {(run["name"], run["seed"]): Outcome(**run["outcome"]) for run in twins}
    lines = []
    for run in [*runs, *twins]:
        case, outcome = CASES[run["name"]], Outcome(**run["outcome"])
        where = f"`{case.name}` seed {run['seed']}"
        if (run["healthy"] or not run["planted"]) and not outcome.score >= case.reaches:
            lines.append(f"- {where}{'' if run['healthy'] else ', twin'}: reached {outcome.score:.2f}, not {case.reaches}")
        clean = clean_outcomes.get((run["name"], run["seed"]))
        if run["planted"] and clean is not None and case.hurts is not None and not case.hurts(outcome, clean):
            lines.append(f"- {where}: the fault does no harm ({outcome.score:.2f}, without it {clean.score:.2f})")
    return lines


def results(names: Sequence[str], seeds: Sequence[int], processes: int, fresh: bool, twins: bool = True) -> list[dict[str, Any]]:
    """Of all trainings of these families, with these seeds."""
    jobs = [(name, seed, True) for name in names for seed in seeds]
    if twins:
        jobs += [(name, seed, False) for name in names if name in FAULTS for seed in seeds]
    return run_all(run_one, jobs, FOLDER / f"runs-{fingerprint(Path(__file__).parent)}.jsonl", processes, fresh)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these families")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-twins", action="store_true", help="leave out the faults' twins")
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    unknown = sorted(set(options.only or ()) - CASES.keys())
    if unknown:
        parser.error(f"no such family: {', '.join(unknown)}; python -m tests.evidence.faults.show lists them")
    names = options.only or list(CASES)
    found = results(names, options.seeds, options.processes, options.fresh, twins=not options.no_twins)
    runs, twins = ([run for run in found if run["planted"] is planted] for planted in (True, False))
    result, short = summaries(runs)
    alarms = [run for run in twins if run["alerts"]]
    listed = [f"- `{run['name']}` seed {run['seed']}: {run['alerts'][0][0]} at {run['alerts'][0][1]}" for run in alarms]
    wrong = dishonest(runs, twins)
    parts = [short, table(runs), "Not found, or not there:", misses(runs) or "- nothing"]
    if twins:
        parts += [
            f"Twins (a fault's training without the fault) with a false alarm: {len(alarms)} of {len(twins)}.",
            "\n".join(listed),
        ]
    if wrong:
        parts += ["Not what the zoo says of them:", "\n".join(wrong)]
    parts.append(f"{len(found)} trainings, {sum(run['seconds'] for run in found):.0f} s of one core.")
    text = "\n\n".join(part for part in parts if part)
    publish(text, FOLDER / "table.md")
    (FOLDER / "table.json").write_text(json.dumps({"summary": result, "dishonest": wrong, "runs": runs, "twins": twins}, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
