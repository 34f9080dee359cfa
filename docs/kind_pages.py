"""One page for each kind of alert, from its declaration, its rules, the fault zoo's results and the figures."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from lightning_hooks.alerts import ALERT_KINDS, RULES, Rule, explain
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.hosts.observers import OF_TRAINING
from lightning_hooks.judge.weights import record_of

ROOT = Path(__file__).parents[1]
ZOO = json.loads((ROOT / "docs/figures/zoo.json").read_text(encoding="utf-8"))
"""What `make_figures.py` wrote: the kinds that each fault of the zoo expects, and the figure of each kind."""
MONITORS = {kind.report_type.__name__: kind.monitor for group in OF_TRAINING for kind in group}
"""The monitor that makes each class of reports."""
GROUPS = (
    *("Set-up", "Data", "Loss", "Forward", "Backward", "Updates", "Clipping", "Attention, experts, residual streams"),
    "Several processes",
)
"""The headings of the table, in the order in which a user looks for what went wrong; each kind names its own."""
CAPTIONS: dict[str, str] = {
    "gradient_flow": "RMS of the gradient at each module, from the input (left) to the loss (right).",
    "update_ratios": "Update over weight of each parameter, around 1e-3 in many healthy runs.",
    "clip_history": "Gradient norm before and after clipping, and the share of clipped steps.",
    "loss": "Training loss by optimizer step.",
    "ratio": "Variance over the samples of a batch over that within a sample, of each module in the last epoch.",
    "outputs": "What the cross entropy was given in the last epoch.",
    "dropped": "Share that each call of dropout drops in evaluation.",
    "full_precision": "Share of the weights of linear and convolution layers whose outputs are in float32.",
    "along": "Share of the calls of each softmax that are along the wrong dimension.",
    "max_logit_by_head": "Largest logit of each attention head in the last epoch.",
    "entropy_by_head": "Entropy of each attention head over its maximum in the last epoch: 0 for one key, 1 for all keys alike.",
    "masked_rows_by_head": "Share of the queries of each attention head that may attend to no key, in the last epoch.",
    "calls": "Calls of each module in the sampled batches of the last epoch.",
    "initial": "Gain of each layer's initial weights: RMS times the root of the fan-in.",
    "statistics": "How far the running statistics of frozen batch norms have moved; none where they are in eval mode.",
    "expert_load": "Share of the choices that each expert gets, in the last epoch.",
    "residual": "The residual stream behind each block, in the last epoch.",
    "inputs": "RMS of the model's input in training and in validation.",
}


def paths() -> list[str]:
    """The pages, in the order of the tables."""
    return [f"alerts/{kind}.md" for group in GROUPS for kind in _kinds(group)]


def pages() -> dict[str, str]:
    """Path to text."""
    return {f"alerts/{kind}.md": page(kind) for kind in ALERT_KINDS}


def table() -> str:
    """All kinds in groups, in the order in which a reader looks for what went wrong: a line each."""
    return "\n\n".join(
        "\n".join([f"### {group}", "", "| what you see | kind | severity |", "|---|---|---|", *map(_row, _kinds(group))])
        for group in GROUPS
    )


def _kinds(group: str) -> list[str]:
    return [name for name, kind in KINDS.items() if kind.group == group]


def _row(kind: str) -> str:
    return f"| {KINDS[kind].title} | [`{kind}`]({kind}.md) | {explain.severities(kind).partition(';')[0]} |"


def page(kind: str) -> str:
    """The page about a kind."""
    known = KINDS[kind]
    monitors = [MONITORS[report.__name__] for report, rules in RULES.items() if any(rule.kind == kind for rule in rules)]
    parts = [
        f"---\ntitle: {kind}\n---\n\n# {known.title}",
        f"Kind `{kind}`, raised by {' and '.join(f'`{name}`' for name in monitors)}. Severity: {explain.severities(kind)}.",
        "## What it means",
        known.meaning,
        "## Formula and threshold",
        f"```text\n{explain.formula(kind)}\n```",
        *(
            ["The numbers are the defaults; each is a field of a rule:"]
            if any(map(explain.thresholds_of, explain.rules_that_raise(kind)))
            else []
        ),
        *(_rule(rule) for rule in explain.rules_that_raise(kind)),
        *_figure(kind),
        "## How to fix it",
        "\n".join(f"- {step}." for step in known.advice),
        *_causes(kind),
        "## Its record",
        _record(kind),
        "## How to change or mute it",
        _change(kind),
    ]
    return "\n\n".join(parts) + "\n"


def _rule(rule: Rule) -> str:
    about, explained = explain.documented(type(rule))
    rows = [f"| `{name}` | `{default!r}` | {explained.get(name, '')} |" for name, default in explain.thresholds_of(rule).items()]
    table = "\n".join(["| field | default | meaning |", "|---|---|---|", *rows]) if rows else "It has no threshold."
    return f"### `{type(rule).__name__}` {{ #{type(rule).__name__.lower()} }}\n\n{about}\n\n{table}"


def _causes(kind: str) -> list[str]:
    judged = KINDS[kind].causes
    if not judged:
        return []
    rows = "\n".join(f"| `{one.name}` | {one.title} | {'; '.join(one.remedies)} |" for one in judged)
    return [
        "When an alert is new, these causes are judged by what is known of the training "
        "([causes and remedies](../guides/remedies.md)):",
        f"| cause | what it supposes | remedies |\n|---|---|---|\n{rows}",
    ]


def _figure(kind: str) -> list[str]:
    made = ZOO["figures"].get(kind)
    if made is None:
        return []
    caption = CAPTIONS.get(made["plot"], f"`{made['plot']}` by layer and epoch.")
    images = "\n".join(f'<figure markdown="span">![{label} run]({path})\n<figcaption>{label}</figcaption></figure>'
                       for label, path in made["files"].items())  # fmt: skip
    return [
        "## An affected and a healthy run",
        f"From the fault zoo (`{made['fault']}`, {made['family']}): {made['story']}. The healthy run is the same training without "
        f"it. {caption}",
        f'<div class="pair" markdown="1">\n{images}\n</div>',
    ]


@cache
def zoo_results() -> tuple[dict[str, tuple[str, str]], str]:
    """From the fault zoo's results: fault to its story and how often it was found, and the false alarms of healthy runs."""
    text = (ROOT / "tests/evidence/faults/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \(`(\w+)`\) \| [\w-]+ \| (\d/\d) \| (?:\d/\d|-) \|", text, re.MULTILINE)
    (healthy,) = re.findall(r"^\| report \| \*\*lightning_hooks\*\* \|.*\| (\d+ of \d+) \|", text, re.MULTILINE)
    return {fault: (story, found) for story, fault, found in rows}, healthy


def _record(kind: str) -> str:
    record = record_of(kind)
    results, healthy = zoo_results()
    alarms, _, runs = healthy.partition(" of ")
    lines = [f"In the fault zoo's {runs} healthy trainings {'no' if alarms == '0' else alarms} run had a false alarm of any kind."]
    lines += [f"{record}."] if record else []
    faults = [fault for fault, kinds in ZOO["expected"].items() if kind in kinds and fault in results]
    if not faults:
        return f"{' '.join(lines)} The zoo plants no fault of this kind: how often it is found has not been measured."
    lines.append(
        "Faults for which this kind is a right answer:\n\n| planted fault | seeds in which a right kind was found |\n|---|---|"
    )
    lines[-1] += "".join(f"\n| {results[fault][0]} (`{fault}`) | {results[fault][1]} |" for fault in faults)
    return "\n\n".join([*lines, "More: [what you can rely on](../about/evidence.md)."])


def _change(kind: str) -> str:
    found = [threshold for rule in explain.rules_that_raise(kind) for threshold in explain.thresholds_of(rule).items()]
    lines = [f'        "-{kind}",  # mute it everywhere', f'        "-{kind} at encoder.*",  # or at some sites']
    if found:
        name, default = found[0]
        lines.append(f'        {{"kind": "{kind}", "{name}": {default!r}}},  # or set another threshold')
    lines.append(f'        {{"kind": "{kind}", "severity": "info"}},  # or never notify, only keep it in the report')
    code = "\n".join(
        ["from lightning_hooks import TrainingMonitor", "", "monitor = TrainingMonitor(", "    rules=[", *lines, "    ]", ")"]
    )
    return f"```python\n{code}\n```\n\nAll forms: [alerts](index.md#other-thresholds-mutes-your-own-rules)."
