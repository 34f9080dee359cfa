"""Names of sites as people read them; sites, tags and mutes keep their own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_OF_OPTIMIZER = re.compile(r"(\d+)-(\w+?)(?:\.group(\d+)\.(\d+)(?::\d+)?)?")


def readable(site: str) -> str:
    """The name of a site in a message.

    Example:
        >>> readable("0-AdamW"), readable("1-SGD.group0.46"), readable("net.0.weight")
        ('optimizer AdamW', 'parameter 46 of SGD 1 (group 0)', 'net.0.weight')
    """
    found = _OF_OPTIMIZER.fullmatch(site)
    if found is None:
        return site
    place, name, group, parameter = found.groups()
    optimizer = name if place == "0" else f"{name} {place}"
    return f"optimizer {optimizer}" if group is None else f"parameter {parameter} of {optimizer} (group {group})"


def place_of(name: str, places: Mapping[str, float]) -> float:
    """The place of a module along the forward pass, or of the module that holds it, or a parameter; infinite if unknown."""
    while name:
        if name in places:
            return places[name]
        name = name.rpartition(".")[0]
    return math.inf
