"""Normalisation of the inputs of chosen modules by hooks, with the statistics of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightning_hooks.hooks import Gate, HookManager, Listener, ModuleSelector, select_modules
from lightning_hooks.hooks.checks import check_optional_integer
from lightning_hooks.transforms.normalization import Argument, Normalization


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


class NormalizedInputs(dict[str, Normalization]):
    """Module name to the normalisation of its input.

    Args:
        dim: The dimension of the channels; None for one mean and one standard deviation over all values.
        given: Given means and standard deviations, both ``(channels,)``; None to learn them.
        argument: Name of the parameter of ``forward`` to normalise; None for the first floating-point tensor.

    Raises:
        TypeError: If ``dim`` or ``argument`` is of a wrong type.
        ValueError: If ``dim`` is None and several means are given.
    """

    def __init__(self, dim: int | None, given: tuple[Tensor, Tensor] | None, argument: str | None) -> None:
        super().__init__()
        check_optional_integer("dim", dim, "the dimension of the channels")
        if given is not None and dim is None and given[0].numel() > 1:
            raise ValueError(f"dim=None takes one mean and one std over all values; got {given[0].numel()} of each.")
        if argument is not None and not isinstance(argument, str):
            raise TypeError(f"argument must be the name of a parameter of forward, or None; got {argument!r}.")
        self.dim, self.given, self.argument = dim, given, argument

    @property
    def frozen(self) -> bool:
        """Whether all statistics are final."""
        return self.given is not None or (bool(self) and all(site.frozen for site in self.values()))

    @property
    def statistics(self) -> dict[str, InputStatistics]:
        """Module name to its statistics; modules without any are left out."""
        found = {}
        for name, site in self.items():
            if site.mean is not None and site.std is not None:
                count = () if site.everything is None else tuple(int(n) for n in site.everything[0].tolist())
                found[name] = InputStatistics(tuple(site.mean.tolist()), tuple(site.std.tolist()), count, site.frozen)
        return found

    def __missing__(self, name: str) -> Normalization:
        """Add and return the normalisation of another module."""
        self[name] = Normalization(name, self.dim, *(self.given or (None, None)))
        return self[name]

    def find(self, module: str | None) -> Normalization:
        """Return the normalisation of a module; None for the only one.

        Raises:
            ValueError: If the module is unknown, or not named and there are several.
        """
        if module is None and len(self) == 1:
            return next(iter(self.values()))
        if module is None and not self and self.given:
            return Normalization("x", self.dim, *self.given)
        if module is None or module not in self:
            known = ", ".join(self) or "none yet: fit, load a checkpoint, or apply_to() a model first"
            raise ValueError(f"module must name one whose input is normalised ({known}); got {module!r}.")
        return self[module]

    def freeze(self, moments: Mapping[str, Tensor | None] | None = None) -> None:
        """Stop learning; ``moments``, ``(3, channels)`` by module, replace those learned here."""
        for name, site in self.items():
            site.freeze(None if moments is None else moments[name])

    def hook(
        self, model: nn.Module, hooks: HookManager, gate: Gate, modules: ModuleSelector, inverse_modules: ModuleSelector | None
    ) -> list[NormalizeInput]:
        """Register the hooks.

        Args:
            model: The model.
            hooks: Where to register them.
            gate: While it is open, the hooks learn.
            modules: The modules whose input is normalised.
            inverse_modules: The modules whose output is mapped back; None for none.

        Returns:
            The hooks of ``modules``.

        Raises:
            ValueError: If a pattern matches nothing, ``forward`` has no such parameter, or ``inverse_modules`` is given with
                several ``modules``.
        """
        chosen = select_modules(model, modules)
        hooked = []
        for name, module in chosen:
            hooked.append(NormalizeInput(self[name], Argument(module, name, self.argument), gate))
            hooks.register(module, hooked[-1], "forward_pre", label=name, with_kwargs=True)
        if inverse_modules is None:
            return hooked
        if len(chosen) > 1:
            raise ValueError(f"inverse_modules needs one normalised module; modules={modules!r} selects {len(chosen)}.")
        for name, module in select_modules(model, inverse_modules):
            hooks.register(module, InvertOutput(self[chosen[0][0]], name), "forward", label=name)
        return hooked


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
