"""What a remedy says about a call in the code, done to every call of a training's steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tests.evidence.faults.zoo import Built

Change = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""From a function and its arguments to what it returns now."""
LEAST = 1e-8
MOST = 10.0


class _Calls(TorchFunctionMode):
    """Calls some functions, by their names, otherwise.

    Args:
        changes: Name to what is done instead.
    """

    def __init__(self, changes: Mapping[str, Change]) -> None:
        super().__init__()
        self.changes = changes

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        change = self.changes.get(getattr(func, "__name__", "").strip("_"))
        return func(*args, **(kwargs or {})) if change is None else change(func, args, kwargs or {})


def with_calls(built: Built, changes: Mapping[str, Change]) -> Built:
    """A training in whose steps some functions do something else."""
    for name in ("training_step", "validation_step"):
        step = getattr(built.module, name)

        def wrapped(*args: Any, _step: Callable[..., Any] = step, **kwargs: Any) -> Any:
            with _Calls(changes):
                return _step(*args, **kwargs)

        setattr(built.module, name, functools.wraps(step)(wrapped))
    return built


def on_first(change: Callable[[Any], Any]) -> Change:
    """Change the first argument."""

    def changed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(change(args[0]), *args[1:], **kwargs)

    return changed


def _divided(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    by = args[1].clamp_min(LEAST) if isinstance(args[1], torch.Tensor) and args[1].is_floating_point() else args[1]
    return func(args[0], by, *args[2:], **kwargs)


def _as_shaped(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("input", "target"), args, strict=False)) | kwargs
    given["target"] = given["target"].view_as(given["input"])
    return func(**given)


def _passing(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    return value + (func(*args, **kwargs) - value).detach()


def _one_over(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("input", "target", "weight"), args, strict=False)) | kwargs
    for name in ("weight", "pos_weight"):
        weight = given.get(name)
        if isinstance(weight, torch.Tensor):
            given[name] = 1 / weight if name == "pos_weight" else weight.mean() / weight
    return func(**given)


def _signed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = "input" if func.__name__ in ("hinge_embedding_loss", "soft_margin_loss") else "input1"
    names = (first, "target") if first == "input" else (first, "input2", "target")
    given = dict(zip(names, args, strict=False)) | kwargs
    given["target"] = torch.where(given["target"] == 0, -torch.ones_like(given["target"]), given["target"])
    return func(**given)


def _transposed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("input", "target"), args, strict=False)) | kwargs
    logits = given["input"]
    if logits.dim() == 3:
        given["input"] = logits.reshape(len(logits), -1, logits.shape[1]).transpose(1, 2)
    return func(**given)


SAFE: dict[str, dict[str, Change]] = {
    "log": {"log": on_first(lambda x: x.clamp_min(LEAST))},
    "sqrt": {"sqrt": on_first(lambda x: x.clamp_min(LEAST))},
    "rsqrt": {"rsqrt": on_first(lambda x: x.clamp_min(LEAST))},
    "std": {"std": lambda func, args, kwargs: (torch.var(*args, **kwargs) + LEAST).sqrt()},
    "acos": {"acos": on_first(lambda x: x.clamp(-1 + 1e-6, 1 - 1e-6))},
    "exp": {"exp": on_first(lambda x: x.clamp_max(MOST))},
    "division": dict.fromkeys(("div", "true_divide", "truediv"), _divided)
    | dict.fromkeys(("rdiv", "rtruediv", "reciprocal"), on_first(lambda x: x.clamp_min(LEAST))),
}
"""Operations to what holds where their argument is at its bound, as the remedies' lines of code say."""
FINITE_SCORES: dict[str, Change] = {"softmax": on_first(lambda x: x.clamp_min(torch.finfo(x.dtype).min))}
NO_DETACH: dict[str, Change] = {"detach": lambda func, args, kwargs: args[0]}
PASSING: dict[str, Change] = dict.fromkeys(("round", "floor", "ceil", "sign"), _passing)
ONE_SHAPE: dict[str, Change] = dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), _as_shaped)
ONE_OVER: dict[str, Change] = dict.fromkeys(("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits"), _one_over)
TRANSPOSED: dict[str, Change] = dict.fromkeys(("cross_entropy", "nll_loss"), _transposed)
SIGNED_LABELS: dict[str, Change] = dict.fromkeys(
    ("cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss"), _signed
)
