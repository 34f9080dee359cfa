"""From symptoms to causes: which of an epoch's alerts came first, and which only follow from it.

One fault makes many symptoms. A rectifier that died passes no gradient, so every parameter before it is ``zero``; a NaN in one
layer is a NaN in all that come after. What is known of the order of events (the batch at which a value first was not finite, the
order in which modules are called, the direction of the passes) determines which alert is the cause.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning_hooks.alerts.attention_causes import ATTENTION_LINKS
from lightning_hooks.alerts.loss_causes import LOSS_LINKS
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import ClipReport, FeatureReport, GradientFlowReport, Report

FORWARD, BACKWARD, STEP = 0, 1, 2


class Ordered(NamedTuple):
    """Alerts in order of cause."""

    of_report: list[tuple[Alert, ...]]  # for each report its alerts: roots first, then consequences of something, as infos
    roots: list[tuple[int, Alert]]  # (place of the report, alert) of the roots of all reports, first causes first


@dataclass(slots=True, eq=False)
class Node:
    """An alert, and when in a training batch it happens."""

    report: int  # the place of its report
    alert: Alert  # the alert
    place: float  # the site's place in the order of calls; of a parameter that of its module; infinite if unknown
    passing: int  # FORWARD, BACKWARD or STEP
    batch: float = math.inf  # of what is not finite, the batch at which it first was not; infinite if unknown
    every: int = 1  # every so many batches its site is sampled
    held: bool = False  # whether it was raised before and lasts
    number: int = 0  # its number in the order of the reports
    cause: Node | None = None  # what it follows from
    follows: list[Node] = field(default_factory=list)  # its consequences

    @property
    def kind(self) -> str:
        """The alert's kind."""
        return self.alert.kind

    @property
    def serious(self) -> bool:
        """Whether it is more than an info, which can be the cause of infos only."""
        return self.alert.severity != "info"

    @property
    def moment(self) -> tuple[float, int, float]:
        """When it happened: batch, pass, and place along the pass; backward goes from the last module to the first."""
        return self.batch, self.passing, self.place if self.passing == FORWARD else -self.place


def in_order_of_cause(reports: Sequence[Report], held: Callable[[int, Alert], bool] | None = None) -> Ordered:
    """Put the alerts of an epoch's reports in order of cause.

    Args:
        reports: The reports of one epoch, of different monitors.
        held: Whether an alert (the place of its report, and it) was raised in an earlier epoch and lasts. It stays the cause
            of what spread from it: once weights are NaN, the first module is the first to give one, and not why.
    """
    places = _places(reports)
    nodes = [_node(number, report, alert, places) for number, report in enumerate(reports) for alert in report.alerts]
    by_kind: dict[str, list[Node]] = {}
    for number, node in enumerate(nodes):
        node.number = number
        node.held = held is not None and held(node.report, node.alert)
        by_kind.setdefault(node.kind, []).append(node)
    unaffected = _unaffected_parameters(reports, places)
    heads = {kind: _heads_of_all(kind, alike, unaffected) for kind, alike in by_kind.items()}
    for (cause_kind, kind), follows in _LINKS.items():
        for effect in heads.get(kind, ()):
            able = (cause for cause in heads.get(cause_kind, ()) if effect.cause is None and cause.serious >= effect.serious)
            causes = [cause for cause in able if follows(effect, cause)]
            effect.cause = min(causes, key=_rank, default=effect.cause)
    for node in nodes:
        if node.cause is not None:
            _root(node).follows.append(node)
    ordered: list[list[Alert]] = [[] for _ in reports]
    roots = []
    for node in sorted(
        (node for node in nodes if node.cause is None), key=lambda node: (node.alert.severity == "info", _rank(node))
    ):
        alert = dataclasses.replace(node.alert, cause="", consequences=tuple(n.alert.name for n in node.follows))
        earlier = _earlier_step(node, reports)
        if earlier:
            alert = dataclasses.replace(alert, diagnosis=f"{alert.diagnosis}{earlier}".strip())
        ordered[node.report].append(alert)
        roots.append((node.report, alert))
    for node in nodes:
        if node.cause is not None:
            cause = _root(node).alert.name
            ordered[node.report].append(dataclasses.replace(node.alert, severity="info", cause=cause, consequences=()))
    return Ordered([tuple(alerts) for alerts in ordered], roots)


def _root(node: Node) -> Node:
    while node.cause is not None:
        node = node.cause
    return node


def _earlier_step(node: Node, reports: Sequence[Report]) -> str:
    """Of what is not finite, the step at which that began, if it is before the site was sampled."""
    events = [event for report in reports if isinstance(report, ClipReport) for event in report.events.values()]
    first = min((_first(event, "first_nonfinite_batch") for event in events), default=math.inf)
    if node.kind != "nonfinite" or not first < node.batch < math.inf:
        return ""
    return (
        f" A step with such a gradient was taken at training batch {first:.0f}, before this site was sampled: the fault may have "
        "begun elsewhere. Set every_n_steps=1 to find out."
    )


# When each alert happens.


def _places(reports: Sequence[Report]) -> Mapping[str, float]:
    """The place of every module along the forward pass, as the report that knows most of them says."""
    longest: list[str] = []
    for report in reports:
        if isinstance(report, FeatureReport):
            order = list(dict.fromkeys((*report.order, *report.sites)))
        elif isinstance(report, GradientFlowReport):
            backward = [site for site in report.order if site in report.modules]
            order = backward[::-1] or list(report.modules)
        else:
            continue
        longest = max(longest, order, key=len)
    return {site: place for place, site in enumerate(longest)}


def _unaffected_parameters(reports: Sequence[Report], places: Mapping[str, float]) -> list[float]:
    """The places of the parameters without an alert, in order."""
    affected = {alert.site for report in reports for alert in report.alerts if alert.kind in _IN_A_ROW}
    flows = [report for report in reports if isinstance(report, GradientFlowReport)]
    return sorted(place_of(name, places) for flow in flows for name in flow.parameters if name not in affected)


def place_of(name: str, places: Mapping[str, float]) -> float:
    """The place of a module, or of the module that holds a parameter."""
    while name:
        if name in places:
            return places[name]
        name = name.rpartition(".")[0]
    return math.inf


def _node(number: int, report: Report, alert: Alert, places: Mapping[str, float]) -> Node:
    place = place_of(alert.site, places)
    if isinstance(report, FeatureReport):
        batch = _first(report.sites.get(alert.site), "first_nonfinite_batch")
        return Node(number, alert, place, FORWARD, batch, report.every_n_steps)
    if isinstance(report, GradientFlowReport) and alert.site in report.modules:
        return Node(number, alert, place, BACKWARD, _first(report.modules[alert.site], "first_nonfinite_batch"))
    if isinstance(report, ClipReport) and alert.site in report.events:
        return Node(
            number, alert, place, STEP
        )  # no layer: a site that is sampled later is more precise, and is reported with this batch
    return Node(number, alert, place, STEP, _first(alert, "batch"))


def _first(stats: Any, name: str) -> float:
    batch = getattr(stats, name, None)
    return math.inf if batch is None else float(batch)


# Causes and consequences.

_RANK = {
    kind: rank
    for rank, kind in enumerate(
        (
            "id_out_of_range",
            *("ranks_differ", "unregistered", "eval_mode", "labels_ignored", "batch_repeated", "ranks_same_batch"),
            *("settings", "frozen_statistics"),
            *("softmax_dim", "dropout_in_eval", "precision_not_applied"),
            *("poor_init", "shared", "double_softmax", "output_range", "not_optimized", "optimizer_settings"),  # how it was built
            *("missing", "not_zeroed", "lr_zero", "updates_lost"),
            *("spike", "update_spike", "update_too_large", "weights_growing"),
            *("masked_rows", "attention_logits", "attention_collapse", "attention_uniform"),
            *("exploding", "loss_spike", "loss_diverging", "nonfinite", "loss_nonfinite"),
            *("residual_growth", "activation_outliers"),
            *("constant", "representation_collapse", "dead", "saturated", "vanishing", "zero"),
            *("router_collapse", "dead_experts"),
            *("clip_ineffective", "always_clipped", "steps_skipped", "second_moment_stale"),
            *("update_too_small", "not_updated", "validation_shift", "silent", "loss_plateau", "overfitting"),
        )
    )
}


def _rank(node: Node) -> tuple[int, tuple[float, int, float]]:
    return _RANK.get(node.kind, len(_RANK)), node.moment


def _backward(node: Node) -> tuple[int, float, int]:
    return node.passing, -node.place, node.number


_FIRST: Mapping[str, Callable[[Node], Any]] = {
    "nonfinite": lambda node: (node.moment, node.number),
    "constant": lambda node: (node.place, node.number),
    "labels_ignored": lambda node: node.number,  # as the loss sees them, and as the batch has them
    "representation_collapse": lambda node: (node.place, node.number),
    "saturated": lambda node: (node.place, node.number),
    "vanishing": _backward,
    "exploding": _backward,
    "not_optimized": lambda node: (node.place if node.place < math.inf else -1.0, node.number),  # optimizers first
    "update_too_large": lambda node: node.number,  # the largest
}
"""Kinds that spread from one place over the rest of the model: what comes first along the pass is the cause of the others."""

_IN_A_ROW = frozenset({"zero", "missing"})
"""Kinds that spread from parameter to parameter, up to the one nearest the loss, unless one in between is unaffected."""


def _heads_of_all(kind: str, alike: list[Node], unaffected: Sequence[float]) -> list[Node]:
    """As :func:`_heads`; infos separately: no warning follows from one."""
    groups = ([node for node in alike if node.serious is serious] for serious in (True, False))
    return [head for group in groups if group for head in _heads(kind, group, unaffected)]


def _heads(kind: str, alike: list[Node], unaffected: Sequence[float]) -> list[Node]:
    """Of the alerts of one kind, those that the others follow from."""
    if kind in _FIRST:
        first = _FIRST[kind]
        alike = sorted(alike, key=lambda node: (not node.held, first(node)))
        for node in alike[1:]:
            node.cause = alike[0]
    elif kind == "dead":
        alike = sorted(alike, key=lambda node: (node.place, node.number))
        head = alike[0]
        for node in alike[1:]:
            if _whole(head) or not _whole(node):
                node.cause = head
            else:  # what is wholly dead has a cause of its own
                head = node
    elif kind in _IN_A_ROW:
        alike = sorted(alike, key=lambda node: (node.place, node.number), reverse=True)
        head = alike[0]
        for node in alike[1:]:
            if bisect_left(unaffected, head.place) > bisect_right(unaffected, node.place):
                head = node
            else:
                node.cause = head
    return [node for node in alike if node.cause is None]


def _whole(node: Node) -> bool:
    """Whether a module lets nothing through."""
    return node.kind == "constant" or node.alert.value >= 1.0


def _always(_: Node, __: Node) -> bool:
    return True


def _at_the_same_site(effect: Node, cause: Node) -> bool:
    return effect.alert.site == cause.alert.site


def _let_nothing_through(_: Node, cause: Node) -> bool:
    return _whole(cause)


def _not_whole(effect: Node, _: Node) -> bool:
    return not _whole(effect)


def _nothing_moved(effect: Node, _: Node) -> bool:
    return effect.alert.value == 0.0


def _downstream(effect: Node, cause: Node) -> bool:
    return effect.place > cause.place


def _upstream(effect: Node, cause: Node) -> bool:
    return effect.place <= cause.place


def _blocked(effect: Node, cause: Node) -> bool:
    return _whole(cause) and _downstream(effect, cause)


_LINKS: Mapping[tuple[str, str], Callable[[Node, Node], bool]] = {
    # (cause, effect): whether this effect follows from this cause
    ("labels_ignored", "zero"): _let_nothing_through,
    ("double_softmax", "output_range"): _always,
    ("softmax_dim", "nonfinite"): _downstream,
    ("constant", "representation_collapse"): _always,
    ("update_too_large", "representation_collapse"): _always,
    ("dead", "representation_collapse"): _blocked,
    ("representation_collapse", "dead"): _not_whole,
    ("constant", "dead"): _downstream,
    ("constant", "saturated"): _downstream,
    ("constant", "zero"): _let_nothing_through,
    ("dead", "constant"): _blocked,
    ("dead", "saturated"): _blocked,
    ("dead", "zero"): _let_nothing_through,
    ("dead", "vanishing"): _upstream,
    ("saturated", "vanishing"): _upstream,
    ("saturated", "zero"): _upstream,
    ("vanishing", "zero"): _upstream,
    ("constant", "exploding"): _upstream,  # the normalisation after a constant divides by next to nothing
    ("missing", "update_too_small"): _always,
    ("constant", "update_too_small"): _always,
    ("dead", "update_too_small"): _let_nothing_through,
    ("vanishing", "update_too_small"): _always,
    ("zero", "update_too_small"): _always,
    ("always_clipped", "update_too_small"): _always,
    ("updates_lost", "update_too_small"): _always,
    ("updates_lost", "not_updated"): _always,
    ("not_updated", "update_too_small"): _nothing_moved,
    ("lr_zero", "update_too_small"): _always,
    ("optimizer_settings", "second_moment_stale"): _always,
    ("optimizer_settings", "update_too_small"): _always,
    ("second_moment_stale", "update_too_small"): _always,
    ("spike", "update_spike"): _always,
    ("update_spike", "weights_growing"): _always,
    ("update_too_large", "weights_growing"): _always,
    ("router_collapse", "dead_experts"): _at_the_same_site,
    ("vanishing", "not_updated"): _always,
    ("zero", "not_updated"): _always,
    **ATTENTION_LINKS,
    **LOSS_LINKS,
}
"""From kind to kind. All of it in one place, so that it can be seen to be free of circles: forward kinds follow from what is before
them, backward kinds from what is after them or from a forward kind, and no forward kind from a backward one; where a kind can be
the cause of another and follow from it, the two conditions exclude each other."""
