"""A bad step in words: what gave the first value that is not finite, where, and why."""

from __future__ import annotations

from typing import NamedTuple

from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep
from lightning_hooks.diagnostics.nonfinite.operations import explained, name_of, place_of


class Statement(NamedTuple):
    """What an alert says of a bad step."""

    title: str  # a few words: Log of 0
    what: str  # a sentence: log of 0 gives -inf in Log.forward, net.py:12.
    why: str = ""  # a sentence: 1 of 8 inputs is 0.; empty where the first says it all


def state(step: BadStep) -> Statement:
    """What an alert says of a bad step."""
    failure = step.failure
    name, where = name_of(failure), place_of(failure.place)
    if failure.source in ("data", "weights"):
        first = f"The first operation with it is {name} in {where}."
        if failure.source == "data":
            return Statement(f"{failure.value} in batch{failure.name}", f"batch{failure.name} has {failure.value} in it.", first)
        what = f"{failure.name} was {failure.value} before the step, and no step makes it finite again."
        return Statement(f"{failure.value} in {failure.name}", what, first)
    found = explained(step)
    why = "" if found is None else found.why
    if failure.source == "error":
        error = failure.value.partition(":")[0].lstrip("_")  # its text may hold values of the data
        name = name if failure.place.operation else "the code"
        return Statement(f"{error} in {name}", f"{name} raises {error} in {where}.", why)
    if failure.phase == "forward":
        title = f"{name} {'by' if name == 'division' else 'of'} {found.of}" if found is not None else f"{failure.value} from {name}"
        return Statement(title[:1].upper() + title[1:], f"{title if found else name} gives {failure.value} in {where}.", why)
    title = f"gradient of {name}{f' at {found.of}' if found is not None else ''}"
    return Statement(f"G{title[1:]}", f"the {title} is {failure.value} in {where}.", why)
