"""Conditions under which one alert is a consequence of another, and how alerts of one kind spread: what kinds are declared with."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from lightning_hooks.declare.kinds import Node, Spread


def always(_: Node, __: Node) -> bool:
    """Wherever the two are."""
    return True


def at_the_same_site(effect: Node, cause: Node) -> bool:
    """Both at one site."""
    return effect.site == cause.site


def downstream(effect: Node, cause: Node) -> bool:
    """The effect comes later in the forward pass."""
    return effect.place > cause.place


def upstream(effect: Node, cause: Node) -> bool:
    """The effect comes earlier in the forward pass, or at the same place: the gradient reaches it later."""
    return effect.place <= cause.place


def of_whole(_: Node, cause: Node) -> bool:
    """The cause lets nothing through."""
    return cause.whole


def downstream_of_whole(effect: Node, cause: Node) -> bool:
    """The effect comes later in the forward pass than what lets nothing through."""
    return cause.whole and downstream(effect, cause)


def not_later(effect: Node, cause: Node) -> bool:
    """The cause began at the same batch or before; where that of the cause is not known, it may have."""
    return cause.began <= effect.began or cause.began == float("inf")


def forward(node: Node) -> tuple[float, int]:
    """A sort key: along the forward pass."""
    return node.place, node.number


def backward(node: Node) -> tuple[int, float, int]:
    """A sort key: along the backward pass."""
    return node.passing, -node.place, node.number


def from_first(key: Callable[[Node], Any]) -> Spread:
    """Over the rest of the model from one site: that of an alert which lasts from before, else what comes first by a sort key."""

    def spread(nodes: Sequence[Node], _: Sequence[float]) -> None:
        first, *others = sorted(nodes, key=lambda node: (not node.held, key(node)))
        for node in others:
            node.cause = first

    return spread


def in_a_row(nodes: Sequence[Node], unaffected: Sequence[float]) -> None:
    """From parameter to parameter, up to the one nearest the loss, unless one in between is unaffected."""
    head, *others = sorted(nodes, key=lambda node: (node.place, node.number), reverse=True)
    for node in others:
        if bisect_left(unaffected, head.place) > bisect_right(unaffected, node.place):
            head = node
        else:
            node.cause = head
