"""Checks of arguments."""

from __future__ import annotations


def check_count(name: str, value: object, least: int) -> int:
    """Return ``value`` if it is an integer of at least ``least``.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it is below.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer of at least {least}; got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value!r}.")
    return value
