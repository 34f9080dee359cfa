"""Checks of arguments."""

from __future__ import annotations

from collections.abc import Iterable
from reprlib import Repr

_REPR = Repr()
_REPR.maxother = _REPR.maxstring = 80


def brief(value: object) -> str:
    """An object's ``repr`` in one line, shortened, for an error that says what came."""
    return " ".join(_REPR.repr(value).split())


def check_count(name: str, value: object, least: int, otherwise: str = "") -> int:
    """Return ``value`` if it is an integer of at least ``least``; ``otherwise`` says what else it may be, for the message.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is too small.
    """
    expected = f"{least}{f', {otherwise}' * bool(otherwise)}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer of at least {expected}; got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {expected}; got {value!r}.")
    return value


def check_bools(**values: object) -> None:
    """Raise TypeError if one of the named arguments is not a bool."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False; got {value!r}.")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ValueError if ``value`` is not one of ``choices``."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.")


def check_optional_integer(name: str, value: object, meaning: str = "") -> None:
    """Raise TypeError if ``value`` is neither an integer nor None; ``meaning`` explains the integer in the message."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} must be an integer{f' ({meaning})' * bool(meaning)} or None; got {value!r}.")
