"""One page for each kind of alert, from the table of kinds, the rules, the fault zoo's results and the figures."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from docs.kind_texts import CAPTIONS, FORMULAS, MEANINGS, SEVERITIES
from lightning_hooks import alerts
from lightning_hooks.alerts import RULES, Rule
from lightning_hooks.alerts.causes import _LINKS as LINKS  # (cause, consequence); private because users never need it
from lightning_hooks.reports.kinds import KINDS, page_of

ROOT = Path(__file__).parents[1]
ZOO = json.loads((ROOT / "docs/figures/zoo.json").read_text(encoding="utf-8"))
"""What `make_figures.py` wrote: the kinds that each fault of the zoo expects, and the figure of each kind."""
MONITORS = {
    "FeatureReport": "FeatureStatsMonitor",
    "AttentionReport": "AttentionMonitor",
    "GradientFlowReport": "GradientFlowMonitor",
    "ClipReport": "GradientClipMonitor",
    "RouterReport": "RouterMonitor",
}
GROUPS = {
    "Set-up": (
        *("not_optimized", "unregistered", "eval_mode", "frozen_statistics", "shared", "silent", "settings", "optimizer_settings"),
        "precision_not_applied",
    ),
    "Data": ("id_out_of_range", "batch_repeated", "labels_ignored", "validation_shift"),
    "Loss": ("loss_nonfinite", "loss_spike", "loss_diverging", "loss_plateau", "overfitting", "double_softmax", "output_range"),
    "Forward": (
        *("dead", "saturated", "constant", "nonfinite", "representation_collapse", "poor_init", "softmax_dim", "dropout_in_eval"),
    ),
    "Backward": ("vanishing", "exploding", "zero", "missing", "spike"),
    "Updates": (
        *("lr_zero", "update_too_small", "not_updated", "update_too_large", "update_spike", "weights_growing", "updates_lost"),
        *("second_moment_stale", "not_zeroed", "steps_skipped"),
    ),
    "Clipping": ("always_clipped", "clip_ineffective"),
    "Attention, experts, residual streams": (
        *("attention_logits", "attention_collapse", "attention_uniform", "masked_rows", "router_collapse", "dead_experts"),
        *("activation_outliers", "residual_growth"),
    ),
    "Several processes": ("ranks_same_batch", "ranks_differ"),
}
"""Where in a training a user looks for what each kind is about."""
EVERY_RULE = tuple(field.name for field in dataclasses.fields(Rule))


def paths() -> list[str]:
    """The pages, in the order of the tables."""
    return [f"{page_of(kind)}.md" for kinds in GROUPS.values() for kind in kinds]


def pages() -> dict[str, str]:
    """Path to text."""
    return {f"{page_of(kind)}.md": page(kind) for kind in KINDS}


def rules_of(kind: str) -> list[Rule]:
    """The built-in rules that raise a kind."""
    return [rule for rules in RULES.values() for rule in rules if rule.kind == kind]


def table() -> str:
    """All kinds in groups, in the order in which a reader looks for what went wrong: a line each."""
    return "\n\n".join(
        "\n".join([f"### {group}", "", "| what you see | kind | severity |", "|---|---|---|", *map(_row, kinds)])
        for group, kinds in GROUPS.items()
    )


def _row(kind: str) -> str:
    return f"| {KINDS[kind].title} | [`{kind}`]({kind}.md) | {SEVERITIES[kind].partition(';')[0].partition(' ')[0]} |"


def page(kind: str) -> str:
    """The page about a kind."""
    known = KINDS[kind]
    monitors = [MONITORS[report.__name__] for report, rules in RULES.items() if any(rule.kind == kind for rule in rules)]
    parts = [
        f"---\ntitle: {kind}\n---\n\n# {known.title}",
        f"Kind `{kind}`, raised by {' and '.join(f'`{name}`' for name in monitors)}. Severity: {SEVERITIES[kind]}.",
        "## What it means",
        MEANINGS[kind],
        "## Formula and threshold",
        f"```text\n{formula(kind)}\n```",
        *(["The numbers are the defaults; each is a field of a rule:"] if any(map(_limits, rules_of(kind))) else []),
        *(_rule(rule) for rule in rules_of(kind)),
        *_figure(kind),
        "## How to fix it",
        "\n".join(f"- {step}." for step in advice(kind)),
        *_causes(kind),
        "## False alarms",
        _record(kind),
        "## How to change or mute it",
        _change(kind),
    ]
    return "\n\n".join(parts) + "\n"


def formula(kind: str) -> str:
    """The formula, with the default thresholds in it."""

    def value(found: re.Match[str]) -> str:
        default = getattr(getattr(alerts, found[1])(), found[2])
        return " to ".join(f"{part:g}" for part in default) if isinstance(default, tuple) else f"{default:g}"

    return re.sub(r"\{(\w+)\.(\w+)\}", value, FORMULAS[kind])


def advice(kind: str) -> list[str]:
    """What to try: the table's, then that of single rules."""
    return list(dict.fromkeys([*KINDS[kind].advice, *(step for rule in rules_of(kind) for step in rule.advice)]))


def _limits(rule: Rule) -> list[str]:
    """The fields that only this rule has."""
    return [field.name for field in dataclasses.fields(rule) if field.name not in EVERY_RULE]


def _rule(rule: Rule) -> str:
    about, explained = documented(type(rule))
    rows = [f"| `{name}` | `{getattr(rule, name)!r}` | {explained.get(name, '')} |" for name in _limits(rule)]
    table = "\n".join(["| field | default | meaning |", "|---|---|---|", *rows]) if rows else "It has no threshold."
    return f"### `{type(rule).__name__}` {{ #{type(rule).__name__.lower()} }}\n\n{about}\n\n{table}"


def documented(rule: type[Any]) -> tuple[str, dict[str, str]]:
    """A rule's docstring: its text, and what it says of each field."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", inspect.getdoc(rule) or "").replace("``", "`")
    about, _, listed = text.partition("\n\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return " ".join(about.split("\n")).replace("  ", "\n\n"), {name: " ".join(words.split()) for name, words in entries}


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


def _causes(kind: str) -> list[str]:
    causes = [cause for cause, effect in LINKS if effect == kind]
    effects = [effect for cause, effect in LINKS if cause == kind]
    lines = []
    if causes:
        lines.append(f"- It can be a consequence of {_links(causes)}. Fix that first.")
    if effects:
        lines.append(f"- It can cause {_links(effects)}. Those are listed as its consequences and not shown separately.")
    return ["## Causes and consequences", "\n".join(lines)] if lines else []


def _links(kinds: list[str]) -> str:
    return ", ".join(f"[{kind}]({kind}.md)" for kind in kinds)


@cache
def zoo_results() -> tuple[dict[str, tuple[str, str]], str]:
    """From the fault zoo's results: fault to its story and how often it was found, and the false alarms of healthy runs."""
    text = (ROOT / "tests/faults/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \(`(\w+)`\) \| [\w-]+ \| (\d/\d) \| (?:\d/\d|-) \|", text, re.MULTILINE)
    (healthy,) = re.findall(r"^\| report \| \*\*lightning_hooks\*\* \|.*\| (\d+ of \d+) \|", text, re.MULTILINE)
    return {fault: (story, found) for story, fault, found in rows}, healthy


def _record(kind: str) -> str:
    results, healthy = zoo_results()
    alarms, _, runs = healthy.partition(" of ")
    lines = [f"In the fault zoo's {runs} healthy trainings {'no' if alarms == '0' else alarms} run had a false alarm of any kind."]
    faults = [fault for fault, kinds in ZOO["expected"].items() if kind in kinds and fault in results]
    if not faults:
        return f"{lines[0]} The zoo plants no fault of this kind: how often it is found has not been measured."
    lines.append(
        "Faults for which this kind is a right answer:\n\n| planted fault | seeds in which a right kind was found |\n|---|---|"
    )
    lines[-1] += "".join(f"\n| {results[fault][0]} (`{fault}`) | {results[fault][1]} |" for fault in faults)
    return "\n\n".join([*lines, "More: [evidence](../about/evidence.md)."])


def _change(kind: str) -> str:
    found = [(rule, f.name) for rule in rules_of(kind) for f in dataclasses.fields(rule) if f.name not in EVERY_RULE]
    lines = [f'        "-{kind}",  # mute it everywhere', f'        "-{kind} at encoder.*",  # or at some sites']
    if found:
        rule, name = found[0]
        lines.append(f'        {{"kind": "{kind}", "{name}": {getattr(rule, name)!r}}},  # or set another threshold')
    lines.append(f'        {{"kind": "{kind}", "severity": "info"}},  # or never notify, only keep it in the report')
    code = "\n".join(
        ["from lightning_hooks import TrainingMonitor", "", "monitor = TrainingMonitor(", "    rules=[", *lines, "    ]", ")"]
    )
    return f"```python\n{code}\n```\n\nAll forms: [alerts](index.md#other-thresholds-mutes-your-own-rules)."
