"""Inspection of the autograd graph of a loss, without running it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T")

NEAR = 64  # how many operations of a graph are inspected, nearest to the loss first
MOST = 20_000  # how many are where its parameters are looked for

_DIGITS = "0123456789"  # after the operation and "Backward" in the name of a node

# Operations that apply a softmax or sigmoid themselves, and those that must not come right before them.
_SQUASHING = ("LogSoftmax", "BinaryCrossEntropyWithLogits")
_SQUASHED = ("Softmax", "Sigmoid")
# Losses that say how far outputs are from targets.
_DISTANCES = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")
_PRODUCTS = ("Addmm", "Mm", "Linear")
_MULTIPLIES = (*_PRODUCTS, "T", "Transpose", "Permute", "Convolution")
_SCALES = ("Mul", "Div")
_LINEAR = (*_SCALES, "Add", "Sub", "Neg", "Sum", "Mean", "NativeDropout")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias")
_SHIFTS = ("Slice", "Select", "Narrow", "Cat", "ConstantPadNd")  # by which relative positions are shifted, next to a view
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
    for node, name, _ in _operations(loss.grad_fn, NEAR):
        before, operation = _unmoved(_input(node)) if name in _SQUASHING else (None, "")
        if operation in _SQUASHED:
            return before
    return None


def made_by(tensor: Tensor) -> str:
    """Return the operation that computed a tensor, such as ``"sigmoid"``, not one that only moved its values; empty without one."""
    return _unmoved(tensor.grad_fn)[1].lower()


def viewed(loss: Tensor) -> Any | None:
    """Return a view that mixes up dimensions of a tensor: numbers stay in their order, where a transpose moves them.

    Its sizes are those of the tensor in another order, but for the first one; or the last of three becomes the second of four, as
    channels of tokens do in a picture, or the second the third, as positions do behind heads.

    Args:
        loss: The loss, before backward.

    Returns:
        The node of such a view, or None. Not one of what was cut or padded just before, or is cut next, as relative positions are
        shifted; nor one whose first dimension is moved next, as heads are.
    """
    for node, name, user in _operations(loss.grad_fn, MOST):
        after: Sequence[int] = node._input_metadata[0].shape if name in _VIEWS and user is not None else ()
        if len(after) < 3 or not _mixes_up(node._saved_self_sym_sizes, after):
            continue
        around = {str(user.name()).rstrip(_DIGITS).removesuffix("Backward")}.union(map(itemgetter(1), _operations(_input(node), 3)))
        if around.isdisjoint(_SHIFTS) and getattr(user, "_saved_dim0", 1) != 0:
            return node
    return None


def _mixes_up(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether sizes after a view are those before it in another order, or one of three is at a wrong place among four."""
    one, other = ([size for size in sizes if size > 1] for sizes in (before, after))
    grown = (len(one), len(other)) == (3, 4)
    second = grown and other[-1] != one[-1] == other[1] != one[1]
    heads = grown and other[1] != one[1] == other[2] != other[3]
    return len(other) > 2 and other[0] == before[0] and (second or heads or (one != other and sorted(one) == sorted(other)))


def aligns(loss: Tensor) -> bool:
    """Whether a loss is connectionist temporal classification, which sums over alignments of labels with outputs.

    Args:
        loss: The loss, before backward.
    """
    return "CtcLoss" in " ".join(map(itemgetter(1), _operations(loss.grad_fn, NEAR)))


def distance_sign(loss: Tensor) -> int:
    """Return 1 for a loss that is a distance of outputs from targets, such as a cross entropy, -1 for minus one, 0 for others.

    Args:
        loss: The loss, before backward. It may be divided, or be the mean of distances, but not weighted.
    """
    (node, name), sign = _unmoved(loss.grad_fn), 1
    while node is not None:
        if name.startswith(_DISTANCES):
            return sign
        turned = name == "Neg" or (name == "Mul" and _is_negative(getattr(node, "_saved_other", None)))
        if not turned and name not in ("Div", "Mean", "Sum"):
            return 0
        sign = -sign if turned else sign
        node, name = _unmoved(_input(node))
    return 0


def _is_negative(factor: Any) -> bool:
    """Whether it is a number below 0 in the code: one on a device is not read."""
    return isinstance(factor, Tensor) and not (factor.dim() or factor.requires_grad) and factor.is_cpu and bool(factor < 0)


def linear_layers(loss: Tensor) -> list[nn.Parameter]:
    """Return the weights of a network that is linear as a whole, from the loss on; none if anything but linear maps is in it.

    Args:
        loss: The loss, before backward.

    Returns:
        Two weights and more, of layers none of which is narrower than what is before and after it: a narrow one is an own model, as
        a linear autoencoder is, and an adapter of low rank.
    """
    weights: dict[int, nn.Parameter] = {}
    products = [node for node, name, _ in _operations(loss.grad_fn, NEAR) if name in _PRODUCTS]
    for node, name, _ in _operations(products[0], MOST) if products else ():
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter):
            weights |= {id(variable): variable} if variable.dim() > 1 else {}
        elif name not in (*_PRODUCTS, *_MOVES, *_LINEAR):
            return []
        elif name in _SCALES and sum(following is not None for following, _ in node.next_functions) != 1:
            return []  # else by numbers that nothing learns, as dropout does
    found = [*weights.values()]
    widths = [found[0].shape[0], *(weight.shape[1] for weight in found)] if found else []
    fits = all(weight.dim() == 2 for weight in found) and [w.shape[0] for w in found[1:]] == widths[1:-1]
    wide = all(inner >= min(before, after) for before, inner, after in zip(widths, widths[1:], widths[2:], strict=False))
    return found if len(found) > 1 and fits and wide else []


def nearest_known(node: Any, known: Mapping[Any, T]) -> T | None:
    """Return the entry of ``known`` for the node nearest to ``node`` on the way to the inputs, or None."""
    return next((known[found] for found, _, _ in _operations(node, NEAR) if found in known), None)


def parameters_behind(loss: Tensor, known: Mapping[Any, T]) -> list[tuple[nn.Parameter, T | None]]:
    """Return the parameters that a loss has a gradient for, whoever holds them.

    Args:
        loss: The loss, before backward.
        known: Entries for some nodes of its graph.

    Returns:
        Each parameter, with the entry that is nearest to it on some way to the loss.
    """
    nearest: dict[Any, T | None] = {}
    found = []
    for node, _, user in _operations(loss.grad_fn, MOST):
        nearest[node] = known.get(node, nearest.get(user))
        variable = getattr(node, "variable", None)  # of nodes that accumulate the gradient of a leaf
        if isinstance(variable, nn.Parameter):
            found.append((variable, nearest[node]))
    return found


def weights_of_targets(loss: Tensor, compared: Sequence[tuple[Any, Any, Any]]) -> list[nn.Parameter]:
    """Return the weights of layers that a loss has a gradient for through the targets of some calls alone.

    Args:
        loss: The loss, before backward.
        compared: Of each call the nodes of its output, its input and its target.
    """
    if not compared:
        return []
    cut = {(node, target) for output, given, target in compared for node, _, _ in _operations(output, NEAR, ends=(given, target))}
    elsewhere = {node for node, _, _ in _operations(loss.grad_fn, MOST, cut=cut)}
    graph = _operations(loss.grad_fn, MOST)
    multiplies = {node for node, name, _ in graph if name in _MULTIPLIES}
    variables = (getattr(node, "variable", None) for node, _, user in graph if node not in elsewhere and user in multiplies)
    return [variable for variable in variables if isinstance(variable, nn.Parameter)]


def _operations(
    node: Any, most: int, ends: Collection[Any] = (), cut: Collection[tuple[Any, Any]] = ()
) -> list[tuple[Any, str, Any]]:
    """Return the nodes of a graph from ``node`` on, nearest first, each with its operation and with a node that uses it.

    Args:
        node: Where to begin.
        most: How many.
        ends: Nodes that are not entered.
        cut: Edges, from a node to one before it, that are not followed.
    """
    known, seen, found = [] if node is None else [(node, None)], {node}, []
    for current, user in known:  # which grows
        found.append((current, str(current.name()).rstrip(_DIGITS).removesuffix("Backward"), user))
        for following, _ in current.next_functions if len(known) < most else ():
            if following is not None and not (following in seen or following in ends or (current, following) in cut):
                seen.add(following)
                known.append((following, current))
    return found[:most]


def _unmoved(node: Any | None) -> tuple[Any | None, str]:
    """The node that computed values, from one on that may only have moved them, and its operation; None and "" without one."""
    while node is not None:
        name = str(node.name()).rstrip(_DIGITS).removesuffix("Backward")
        if name not in _MOVES:
            return node, name
        node = _input(node)
    return None, ""


def _input(node: Any) -> Any | None:
    return node.next_functions[0][0] if node.next_functions else None
