"""Names of sites as people read them; sites, tags and mutes keep their own."""

from __future__ import annotations

import re

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
