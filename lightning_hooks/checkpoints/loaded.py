"""Which names of a checkpoint fit a model: ``load_state_dict(strict=False)`` passes over those that do not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightning_hooks.checkpoints.check import weights_in
from lightning_hooks.trackers.console import some


@dataclass(frozen=True, slots=True)
class LoadedNames:
    """How the names of a checkpoint fit those of a model.

    Attributes:
        fits: The names that both have, with tensors of one shape.
        missing: Those of the model that the checkpoint does not have: what they name stays as it is.
        unexpected: Those of the checkpoint that the model does not have: they are passed over.
        shapes: Those that both have with other shapes, to that of the model and that of the checkpoint.
        prefix: What unexpected names begin with, and what they must begin with in its place to fit; None where that helps none.
        renamed: How many of them fit then.
    """

    fits: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    prefix: tuple[str, str] | None = None
    renamed: int = 0

    @property
    def wrong(self) -> bool:
        """Whether a name of the model is missing, or has another shape."""
        return bool(self.missing or self.shapes)

    def lines(self) -> list[str]:
        """It as lines for a terminal."""
        lines = [f"{len(self.fits)} of the model's {len(self.fits) + len(self.missing) + len(self.shapes)} names fit."]
        for what, names in (("Missing", self.missing), ("Passed over", self.unexpected)):
            lines += [f"{what} ({len(names)}): {some(names, 5)}."] * bool(names)
        lines += [f"{name} is {list(ours)} in the model and {list(theirs)} here." for name, (ours, theirs) in self.shapes.items()]
        if self.prefix is not None:
            old, new = self.prefix
            how = f"'{old}' is to be '{new}'" if old and new else f"'{old}' is too much" if old else f"'{new}' is missing"
            new_name = f"{new!r} + " * bool(new) + f"name.removeprefix({old!r})"
            lines.append(f"{self.renamed} more fit if names begin otherwise: {how}. {{{new_name}: value for name, value in …}}")
        return lines


def check_loaded(model: nn.Module, state_dict: Mapping[str, Any]) -> LoadedNames:
    """Compare the names and shapes of a checkpoint with those of a model. Nothing is loaded.

    Args:
        model: The model.
        state_dict: What ``load_state_dict`` is given, or a whole checkpoint that holds it.

    Returns:
        Which names fit, which do not, and what prefix is too much or missing.
    """
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if hasattr(tensor, "shape")}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights_in(state_dict)}
    missing, unexpected = (tuple(name for name in one if name not in other) for one, other in ((ours, theirs), (theirs, ours)))
    ends = defaultdict[str, list[str]](list)  # of missing names, by each of their ends
    for name in missing:
        for end in _ends(name):
            ends[end].append(name)
    votes: Counter[tuple[str, str]] = Counter()
    for name in unexpected:
        end = next((end for end in _ends(name) if end in ends), "")
        fitting = [other for other in ends.get(end, ()) if ours[other] == theirs[name]]
        votes.update((name.removesuffix(end), other.removesuffix(end)) for other in fitting)
    prefix, renamed = next(iter(votes.most_common(1)), (None, 0))
    known = {name: (shape, theirs[name]) for name, shape in ours.items() if name in theirs}
    return LoadedNames(
        tuple(name for name, (one, other) in known.items() if one == other),
        missing,
        unexpected,
        {name: shapes for name, shapes in known.items() if shapes[0] != shapes[1]},
        *((prefix, renamed) if renamed > 1 else ()),
    )


def _ends(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
