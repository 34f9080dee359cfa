"""Inspection of the autograd graph of a loss, without running it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")

NEAR = 64
"""How many operations of a graph are inspected, nearest to the loss first."""

# An operation that applies a softmax or sigmoid itself -> the operations that must not come right before it.
_SQUASHED = {
    "LogSoftmaxBackward": ("SoftmaxBackward", "SigmoidBackward"),
    "BinaryCrossEntropyWithLogitsBackward": ("SigmoidBackward", "SoftmaxBackward"),
}
# Operations that only move or cast values.
_MOVES = (
    *("View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand", "Slice"),
    *("Select", "Index", "Clone", "ToCopy", "Alias", "AsStrided", "Contiguous", "Split", "Unbind", "MaskedSelect"),
)


def squashed_twice(loss: Tensor) -> Any | None:
    """Return the softmax or sigmoid that is applied before a cross entropy that applies its own, if there is one near the loss.

    Args:
        loss: The loss, before backward.

    Returns:
        The graph node of that softmax or sigmoid, or None.
    """
    for node in _nearest(loss.grad_fn):
        wrong = _SQUASHED.get(_name(node))
        if wrong is not None:
            before = _unmoved(_input(node))
            if before is not None and _name(before) in wrong:
                return before
    return None


def made_by(tensor: Tensor) -> str:
    """Return the operation that computed a tensor, such as ``"sigmoid"``, not one that only moved its values; empty without one."""
    node = _unmoved(tensor.grad_fn)
    return "" if node is None else _name(node).removesuffix("Backward").lower()


def aligns(loss: Tensor) -> bool:
    """Whether a loss is connectionist temporal classification, which sums over alignments of labels with outputs.

    Args:
        loss: The loss, before backward.
    """
    return any("CtcLoss" in _name(node) for node in _nearest(loss.grad_fn))


def nearest_known(node: Any, known: Mapping[Any, T]) -> T | None:
    """Return the entry of ``known`` for the node nearest to ``node`` on the way to the inputs, or None."""
    return next((known[found] for found in _nearest(node) if found in known), None)


def _nearest(node: Any) -> Iterator[Any]:
    """Yield the nodes of a graph from ``node`` on, nearest first."""
    queue, seen = deque([node] if node is not None else []), {node}
    for _ in range(NEAR):
        if not queue:
            return
        current = queue.popleft()
        yield current
        for following, _ in current.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)


def _unmoved(node: Any | None) -> Any | None:
    """The operation that computed values, from one on that may only have moved them."""
    while node is not None and _name(node).removesuffix("Backward") in _MOVES:
        node = _input(node)
    return node


def _input(node: Any) -> Any | None:
    return node.next_functions[0][0] if node.next_functions else None


def _name(node: Any) -> str:
    return str(node.name()).rstrip("0123456789")
