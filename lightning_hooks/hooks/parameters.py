"""Selection of parameters by pattern or predicate."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import nn

from lightning_hooks.hooks.selection import clean_name

ParameterSelector: TypeAlias = str | Sequence[str] | Callable[[str, nn.Parameter], bool]
"""A glob pattern on parameter names, several of these, or a predicate of (name, parameter)."""


def check_parameter_selector(parameters: object) -> None:
    """Raise if ``parameters`` is not a valid selector for :func:`select_parameters`.

    Raises:
        TypeError: If it is neither a pattern, a sequence of patterns, nor a predicate.
        ValueError: If it is empty.
    """
    expected = "parameters must be a glob pattern on parameter names (str), several of these, or a predicate of (name, parameter)"
    if callable(parameters) and not isinstance(parameters, type):
        return
    if not isinstance(parameters, Sequence):
        raise TypeError(f"{expected}; got {parameters!r}.")
    entries: list[Any] = [parameters] if isinstance(parameters, str) else list(parameters)
    wrong = [entry for entry in entries if not isinstance(entry, str)]
    if wrong:
        raise TypeError(f"{expected}; got {wrong[0]!r} in {parameters!r}.")
    if not entries or "" in entries:
        raise ValueError(f"{expected}; got {parameters!r}, which names nothing.")


def select_parameters(root: nn.Module, parameters: ParameterSelector) -> list[tuple[str, nn.Parameter]]:
    """Select parameters of ``root`` in the order of ``named_parameters()``, frozen ones included.

    Names are those of the uncompiled, unwrapped model. A tied parameter appears once, under its first name.

    Args:
        root: The model.
        parameters: The selector.

    Returns:
        (name, parameter) pairs.

    Raises:
        ValueError: If a pattern matches nothing (the message has the closest names), or a predicate selects nothing.
        TypeError: If the selector is of a wrong type.
    """
    check_parameter_selector(parameters)
    named = [(clean_name(name), parameter) for name, parameter in root.named_parameters()]
    if not isinstance(parameters, str | Sequence):
        chosen = [(name, parameter) for name, parameter in named if parameters(name, parameter)]
        if not chosen:
            raise ValueError(
                f"The predicate parameters={parameters!r} selects none of the {len(named)} parameters of {type(root).__name__}. "
                "It is called with (name, parameter) and returns True for those to select."
            )
        return chosen
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    for pattern in patterns:
        if not any(_matches(pattern, name) for name, _ in named):
            names = [name for name, _ in named]
            inside = [name for name in names if name.startswith(f"{pattern}.")]
            closest = (
                inside[:3] or difflib.get_close_matches(pattern.replace("*", "").strip("."), names, n=3, cutoff=0.3) or names[:3]
            )
            listed = ", ".join(map(repr, closest)) or "none: the model has no parameters"
            hint = f"{pattern}.*" if inside else "encoder.*"
            raise ValueError(
                f"parameters={pattern!r} matches no parameter of {type(root).__name__}. Closest names: {listed}. Patterns are "
                f"globs on the names of named_parameters(), such as {hint!r}."
            )
    return [(name, parameter) for name, parameter in named if any(_matches(pattern, name) for pattern in patterns)]


def _matches(pattern: str, name: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)
