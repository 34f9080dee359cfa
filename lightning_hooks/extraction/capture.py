"""Outputs of selected modules in one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from lightning_hooks.extraction.attention import ask_for_attention
from lightning_hooks.extraction.batches import Forward, check_forward, run_model
from lightning_hooks.extraction.pooling import Pool, check_pool, pooled
from lightning_hooks.extraction.undisturbed import undisturbed
from lightning_hooks.hooks import HookManager, Listener, ModuleSelector, float_tensors, select_modules
from lightning_hooks.hooks.tensors import plain_values


def call_name(site: str, call: int) -> str:
    """Return the name of a module's call: the module's for the first, then ``name#2``, ``name#3``, …."""
    return site if call == 0 else f"{site}#{call + 1}"


def output_tensor(output: Any, index: int = 0) -> Tensor | None:
    """Return the ``index``-th floating-point tensor of a module's output, plain and detached, or None if there are fewer."""
    found = float_tensors(output)
    return plain_values(found[index]) if index < len(found) else None


def extract(
    model: nn.Module,
    batch: Any,
    modules: ModuleSelector | None = None,
    *,
    pool: Pool | None = None,
    output: int = 0,
    forward: Forward | None = None,
) -> dict[str, Tensor]:
    """Return the outputs of selected modules for a batch: see :meth:`lightning_hooks.FeatureExtractor.extract`."""
    check_pool(pool)
    check_output(output)

    def take(module: nn.Module, result: Any) -> Tensor | None:
        tensor = output_tensor(result, output)
        if tensor is None:
            return None
        taken = tensor if pool is None else pooled(tensor, pool, module)
        return taken.clone() if taken is tensor else taken.detach().clone()  # later modules may change it in place

    _, found = capture(model, batch, select_modules(model, modules), take, forward=forward)
    check_called([name for name in named_literally(modules) if name not in found], found, model)
    return {call_name(site, call): tensor for site, tensors in found.items() for call, tensor in enumerate(tensors)}


def capture(
    model: nn.Module,
    batch: Any,
    sites: Sequence[tuple[str, nn.Module]],
    take: Callable[[nn.Module, Any], Any],
    *,
    forward: Forward | None = None,
    attention: bool = False,
) -> tuple[Any, dict[str, list[Any]]]:
    """Run a model without side effects, and pass the output of each call of each site to ``take``.

    Args:
        model: The model.
        batch: As for :func:`run_model`.
        sites: (name, module) pairs.
        take: A function of (module, output) that returns what to keep, or None.
        forward: As for :func:`run_model`.
        attention: Whether every ``nn.MultiheadAttention`` returns the weights of each head.

    Returns:
        The output of the model; and site to what was kept of its calls, in the order of ``sites``, without silent sites.
    """
    check_forward(forward)
    found: dict[str, list[Any]] = {name: [] for name, _ in sites}
    with undisturbed(model), HookManager() as hooks:
        if attention:
            ask_for_attention(model, hooks)
        for name, module in sites:
            hooks.register(module, _Taker(found[name], take), "forward", label=name)
        result = run_model(model, batch, forward)
    return result, {name: taken for name, taken in found.items() if taken}


def check_output(output: object) -> None:
    """Raise if ``output`` is not an index from 0 up."""
    if isinstance(output, bool) or not isinstance(output, int) or output < 0:
        raise ValueError(
            f"output must be the index, from 0 up, of a floating-point tensor among what a module returns; got {output!r}."
        )


def named_literally(modules: object) -> list[str]:
    """Return the entries of a selector that are names, not patterns."""
    entries = [modules] if isinstance(modules, str) else modules if isinstance(modules, Sequence) else []
    return [entry for entry in entries if isinstance(entry, str) and not set(entry) & set("*?[")]


def check_called(silent: Sequence[str], found: dict[str, Any], model: nn.Module) -> None:
    """Raise ValueError if there are named modules without an output, ``silent``, or no outputs, ``found``, at all."""
    if not silent and found:
        return
    what = f"the modules {', '.join(map(repr, silent))} of" if silent else "any module selected in"
    kinds = Counter(type(module).__name__ for name, module in model.named_modules() if name in silent)
    types = f" ({', '.join(kinds)})" if kinds else ""
    raise ValueError(
        f"there is no output of {what} {type(model).__name__}{types}: not called in this forward pass, called as .forward(x) or "
        "used only by its weights (hooks run on module(x) only), or without such a floating-point tensor in its output. "
        "Choose another module, or pass forward= to run the model so that it is called."
    )


class _Taker(Listener):
    """Forward hook of one site."""

    def __init__(self, found: list[Any], take: Callable[[nn.Module, Any], Any]) -> None:
        self.found, self.take = found, take

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        taken = self.take(module, output)
        if taken is not None:
            self.found.append(taken)
