"""Outputs of selected modules in one forward pass, pooled to one vector per sample."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from lightning_hooks.extraction.batches import Forward, check_forward, run_model, undisturbed
from lightning_hooks.hooks import HookManager, ModuleSelector, float_tensors, select_modules
from lightning_hooks.hooks.listener import OutputTo
from lightning_hooks.hooks.tensors import plain_values

Pool: TypeAlias = str | Callable[[Tensor], Tensor]  # one of POOLS, or a function of a module's output, (n, …) to (n, …)

POOLS = ("mean", "space", "tokens", "cls")  # the named poolings; see pooled()

POOLING: tuple[type[nn.Module], ...] = (
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)
# Modules whose outputs have channels first, also with three dimensions.
_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, *POOLING)


def check_pool(pool: object) -> None:
    """Raise ValueError if ``pool`` is neither None, one of ``POOLS``, nor a function."""
    if pool is not None and not callable(pool) and pool not in POOLS:
        raise ValueError(f"pool must be None, one of {', '.join(map(repr, POOLS))}, or a function of the output; got {pool!r}.")


def channels_first(module: nn.Module, dims: int) -> bool:
    """Whether an output of ``dims`` dimensions of ``module`` is (n, channels, space …) rather than (n, tokens …, features)."""
    return dims >= 4 or isinstance(module, _CHANNELS_FIRST)


def pooled(values: Tensor, pool: Pool | None, module: nn.Module) -> Tensor:
    """Pool one output of ``module``.

    Args:
        values: The output, samples first: ``(n, channels, space …)``, ``(n, tokens, features)`` or ``(n, features)``.
        pool: None for no pooling. ``space`` is the mean over dimensions 2 and up; ``tokens`` the mean over all but the
            first and the last; ``cls`` the first token; ``mean`` is ``space`` for four or more dimensions and for
            one-dimensional convolutions, norms and pools, ``tokens`` otherwise. Two-dimensional outputs are unchanged.
        module: The module of the output.

    Returns:
        Shape ``(n, channels)`` or ``(n, features)``; that of ``values`` with ``pool=None``.

    Raises:
        ValueError: If the output has too few dimensions for ``cls``.
    """
    if pool is None:
        return values
    if callable(pool):
        return pool(values)
    dims = values.dim()
    if pool == "cls" and dims < 3:
        raise ValueError(f"pool='cls' takes the first token of (n, tokens, features); got shape {tuple(values.shape)}.")
    if pool == "cls" or dims < 3:
        return values[:, 0] if pool == "cls" else values
    space = pool == "space" or (pool == "mean" and channels_first(module, dims))
    return values.mean(dim=tuple(range(2, dims) if space else range(1, dims - 1)))


def call_name(site: str, call: int) -> str:
    """Return the name of a module's call: the module's for the first, then ``name#2``, ``name#3``, …."""
    return site if call == 0 else f"{site}#{call + 1}"


def output_tensor(output: Any) -> Tensor | None:
    """Return the first floating-point tensor of a module's output, plain and detached, or None if there is none."""
    return next(map(plain_values, float_tensors(output)), None)


def extract(
    model: nn.Module, batch: Any, modules: ModuleSelector | None = None, *, pool: Pool | None = None, forward: Forward | None = None
) -> dict[str, Tensor]:
    """Return the outputs of selected modules for a batch, in eval mode without gradients.

    The model is unchanged: modes, buffers, random state and gradients are restored.

    Args:
        model: Any module.
        batch: A tensor; a tuple or list, whose first entry is the input; or a mapping, passed by keyword.
        modules: The modules to observe; None for every leaf that computes something.
        pool: ``mean``, ``space``, ``tokens``, ``cls``, a function, or None: see :func:`lightning_hooks.extraction.pooled`.
        forward: The name of the submodule or method to call instead of the model, or a function of (model, batch).

    Returns:
        Module name to its output (of several tensors the first), a detached copy on the model's device, in the model's order. A
        module called several times has an entry per call: ``name``, ``name#2``, ….

    Raises:
        ValueError: If ``modules`` matches nothing, a module given by name was not called, or no selected module was.
        TypeError: If an argument is of a wrong type.

    Example:
        >>> import torch
        >>> from lightning_hooks import FeatureExtractor
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))
        >>> FeatureExtractor.extract(net, torch.zeros(2, 3, 8, 8), modules="0", pool="mean")["0"].shape
        torch.Size([2, 4])
    """
    check_pool(pool)

    def take(module: nn.Module, result: Any) -> Tensor | None:
        tensor = output_tensor(result)
        return None if tensor is None else pooled(tensor, pool, module).detach().clone()  # later modules may change it in place

    return capture(model, batch, select_modules(model, modules), take, modules=modules, forward=forward)


def capture(
    model: nn.Module,
    batch: Any,
    sites: Sequence[tuple[str, nn.Module]],
    take: Callable[[nn.Module, Any], Any],
    *,
    modules: ModuleSelector | None = None,
    forward: Forward | None = None,
    attention: bool = False,
) -> dict[str, Any]:
    """Run a model without side effects, and pass the output of each call of each site to ``take``.

    Args:
        model: The model.
        batch: As for :func:`run_model`.
        sites: (name, module) pairs.
        take: A function of (module, output) that returns what to keep, or None.
        modules: The selector of the sites.
        forward: As for :func:`run_model`.
        attention: Whether every ``nn.MultiheadAttention`` returns the weights of each head. Its output is equal up to rounding:
            PyTorch then uses another algorithm.

    Returns:
        What was kept by :func:`call_name`, in the order of ``sites``.

    Raises:
        ValueError: If nothing was kept, or nothing of a module that ``modules`` gives by name.
    """
    check_forward(forward)
    found: dict[str, list[Any]] = {name: [] for name, _ in sites}

    def keep(place: int, output: Any) -> None:
        name, module = sites[place]
        taken = take(module, output)
        if taken is not None:
            found[name].append(taken)

    with undisturbed(model), HookManager() as hooks:
        for name, module in model.named_modules() if attention else ():
            if isinstance(module, nn.MultiheadAttention):
                hooks.register(module, _request_weights, "forward_pre", with_kwargs=True, label=name)
        for place, (name, module) in enumerate(sites):
            hooks.register(module, OutputTo(keep, place), "forward", label=name)
        run_model(model, batch, forward)
    entries = [modules] if isinstance(modules, str) else modules if isinstance(modules, Sequence) else []
    named = [entry for entry in entries if isinstance(entry, str) and not set(entry) & set("*?[")]
    check_called([name for name in named if not found.get(name)], any(found.values()), model)
    return {call_name(site, call): kept for site, calls in found.items() for call, kept in enumerate(calls)}


def check_called(silent: Sequence[str], anything: bool, model: nn.Module) -> None:
    """Raise ValueError if there are named modules without an output, ``silent``, or there is not ``anything`` at all."""
    if not silent and anything:
        return
    what = f"the modules {', '.join(map(repr, silent))} of" if silent else "any module selected in"
    kinds = Counter(type(module).__name__ for name, module in model.named_modules() if name in silent)
    types = f" ({', '.join(kinds)})" if kinds else ""
    raise ValueError(
        f"there is no output of {what} {type(model).__name__}{types}: not called in this forward pass, called as .forward(x) or "
        "used only by its weights (hooks run on module(x) only), or without such a floating-point tensor in its output. "
        "Choose another module, or pass forward= to run the model so that it is called."
    )


def _request_weights(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook of an attention layer."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.arguments.update(need_weights=True, average_attn_weights=False)
    return bound.args, bound.kwargs
