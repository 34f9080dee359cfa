"""Normalisation of the inputs of chosen modules by hooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightning_hooks.extraction.batches import to_host
from lightning_hooks.extraction.extracted import gather_by_name
from lightning_hooks.hooks import Gate, Listener
from lightning_hooks.transforms.normalization import Argument, Normalization, given_numbers, merge_moments


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """The statistics that normalise the input of one module.

    Attributes:
        mean: One per channel.
        std: One per channel, above 0.
        count: Number of finite values per channel that they were learned from; () if they were given.
        frozen: Whether they are final.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    count: tuple[int, ...]
    frozen: bool


class NormalizedInputs:
    """The normalised inputs of several modules.

    Args:
        mean: A number or one per channel; None to learn.
        std: A number or one per channel, above 0; None to learn.
        dim: The dimension of the channels; None for one mean and one standard deviation over all values.

    Attributes:
        given: The mean and the standard deviation, ``(channels,)``; None where they are learned.
        of: The normalisation of each module's input, by the module's name.

    Raises:
        TypeError: As :func:`given_numbers`.
        ValueError: Also if there are several means without a dimension.
    """

    def __init__(self, mean: object, std: object, dim: int | None) -> None:
        self.given, self._dim = given_numbers(mean, std), dim
        if self.given is not None and dim is None and self.given[0].numel() > 1:
            raise ValueError(f"dim=None takes one mean and one std over all values; got {self.given[0].numel()} of each.")
        self.of: dict[str, Normalization] = {}

    def add(self, module: str) -> Normalization:
        """The normalisation of a module's input, a new one at first."""
        return self.of.setdefault(module, Normalization(module, self._dim, *(self.given or ())))

    def keep(self, modules: Collection[str]) -> None:
        """Forget the inputs of other modules than these."""
        self.of = {name: site for name, site in self.of.items() if name in modules}

    def named(self, module: str | None) -> Normalization:
        """The normalisation of a module that a user names; None for the only one."""
        if module is None and len(self.of) == 1:
            return next(iter(self.of.values()))
        if module is None and not self.of and self.given:
            return Normalization("x", self._dim, *self.given)
        if module is None or module not in self.of:
            known = ", ".join(self.of) or "none yet: fit, load a checkpoint, or apply_to() a model first"
            raise ValueError(f"module must name one whose input is normalised ({known}); got {module!r}.")
        return self.of[module]

    @property
    def frozen(self) -> bool:
        """Whether the statistics are final."""
        return self.given is not None or (bool(self.of) and all(site.frozen for site in self.of.values()))

    def freeze(self, moments: Mapping[str, Tensor | None] | None = None) -> None:
        """Stop learning, and normalise with these moments, or with those learned here."""
        for name, site in self.of.items():
            site.freeze(None if moments is None else moments[name])

    def merged(self, rank_zero: bool) -> dict[str, Tensor | None]:
        """Return the moments of all ranks by module, ``(3, channels)`` each. A collective: every rank must call it."""
        # Moments of a checkpoint are those of all ranks: only one rank adds them.
        own = {name: site.everything if rank_zero else site.moments for name, site in self.of.items()}
        ranks = gather_by_name(to_host({name: known for name, known in own.items() if known is not None}))
        merged = {name: merge_moments(found) if len(found) > 1 else found[0] for name, found in ranks.items()}
        return {name: merged.get(name) for name in own}  # a module may run on some ranks only

    def statistics(self) -> dict[str, InputStatistics]:
        """Those that are known, by module."""
        found = {}
        for name, site in self.of.items():
            if site.mean is not None and site.std is not None:
                count = () if site.everything is None else tuple(map(int, site.everything[0].tolist()))
                found[name] = InputStatistics(tuple(site.mean.tolist()), tuple(site.std.tolist()), count, site.frozen)
        return found


class NormalizeInput(Listener):
    """Forward pre-hook of one module: normalises one of its arguments."""

    def __init__(self, site: Normalization, argument: Argument, gate: Gate) -> None:
        self.site, self.argument, self.gate, self.called = site, argument, gate, False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments, one of them normalised."""
        self.called = True
        return self.argument.replace(args, kwargs, self._change)

    def _change(self, x: Tensor) -> Tensor:
        if self.gate.open:
            self.site.learn(x)  # unless they are final
        return self.site.normalize(x)


class InvertOutput(Listener):
    """Forward hook of a module: maps its output back to the units of the input."""

    def __init__(self, site: Normalization, name: str) -> None:
        self.site, self.name = site, name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        """Return the output in the units of the input."""
        if not isinstance(output, Tensor):
            raise TypeError(f"inverse_modules: the output of {self.name!r} must be a tensor; got {type(output).__name__}.")
        return self.site.inverse(output)
