"""What chosen modules put out in one forward pass."""

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
    """The name of a module's call: the module's for the first, then ``name#2``, ``name#3``, …."""
    return site if call == 0 else f"{site}#{call + 1}"


def output_tensor(output: Any, index: int = 0) -> Tensor | None:
    """The ``index``-th floating-point tensor of a module's output, plain and detached; None if it has fewer."""
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
    """Run a model on a batch and return what chosen modules put out.

    Args:
        model: Any module. It runs in eval mode without gradients, and is left as it was: see :func:`undisturbed`.
        batch: A tensor; a tuple or list, whose first entry is the input; or a mapping, passed by keyword.
        modules: Where to listen; None for every leaf that computes something.
        pool: ``mean``, ``space``, ``tokens``, ``cls``, a function, or None: see :func:`pooled`.
        output: Which of the floating-point tensors, of a module that returns several.
        forward: How to run the model if not by calling it: see :func:`run_model`.

    Returns:
        Module name to its output, detached copies on the model's device, in the model's order. A module called several times has
        an entry per call: ``name``, ``name#2``, ….

    Raises:
        ValueError: If a module given by its name was not called, or nothing was heard at all.
        TypeError: If an argument is of a wrong type.
    """
    check_pool(pool)
    check_output(output)

    def take(module: nn.Module, result: Any) -> Tensor | None:
        tensor = output_tensor(result, output)
        if tensor is None:
            return None
        taken = tensor if pool is None else pooled(tensor, pool, module)
        return taken.clone() if taken is tensor else taken.detach().clone()  # what comes next may work in place

    _, heard = capture(model, batch, select_modules(model, modules), take, forward=forward)
    check_called([name for name in named_literally(modules) if name not in heard], heard, model)
    return {call_name(site, call): tensor for site, tensors in heard.items() for call, tensor in enumerate(tensors)}


def capture(
    model: nn.Module,
    batch: Any,
    sites: Sequence[tuple[str, nn.Module]],
    take: Callable[[nn.Module, Any], Any],
    *,
    forward: Forward | None = None,
    attention: bool = False,
) -> tuple[Any, dict[str, list[Any]]]:
    """Run a model undisturbed, and hand what each site's calls put out to ``take``.

    Args:
        model: The model.
        batch: As for :func:`extract`.
        sites: (name, module) pairs.
        take: Takes (module, output) and returns what to keep, or None for nothing.
        forward: As for :func:`run_model`.
        attention: Whether ``nn.MultiheadAttention`` returns the weights of each head, asked for or not.

    Returns:
        What the model returned; and site to what was kept of its calls, in the order of ``sites``, silent ones left out.
    """
    check_forward(forward)
    heard: dict[str, list[Any]] = {name: [] for name, _ in sites}
    with undisturbed(model), HookManager() as hooks:
        if attention:
            ask_for_attention(model, hooks)
        for name, module in sites:
            hooks.register(module, _Taker(heard[name], take), "forward", label=name)
        result = run_model(model, batch, forward)
    return result, {name: taken for name, taken in heard.items() if taken}


def check_output(output: object) -> None:
    """Raise if ``output`` is not an index from 0 up."""
    if isinstance(output, bool) or not isinstance(output, int) or output < 0:
        raise ValueError(
            f"output must be the index, from 0 up, of a floating-point tensor among what a module returns; got {output!r}."
        )


def named_literally(modules: object) -> list[str]:
    """The entries of a selector that are plain names, not patterns."""
    entries = [modules] if isinstance(modules, str) else modules if isinstance(modules, Sequence) else []
    return [entry for entry in entries if isinstance(entry, str) and not set(entry) & set("*?[")]


def check_called(silent: Sequence[str], heard: dict[str, Any], model: nn.Module) -> None:
    """Raise ValueError if named modules were silent, or all were."""
    if not silent and heard:
        return
    what = f"the modules {', '.join(map(repr, silent))} of" if silent else "any module selected in"
    kinds = Counter(type(module).__name__ for name, module in model.named_modules() if name in silent)
    told = f" ({', '.join(kinds)})" if kinds else ""
    raise ValueError(
        f"nothing was heard from {what} {type(model).__name__}{told}: not called in this forward pass, called as .forward(x) or "
        "used through its weights alone (hooks run on module(x) only), or without such a floating-point tensor in its output. "
        "Choose another module, or say with forward= how to run the model so that it is called."
    )


class _Taker(Listener):
    """Forward hook of one site."""

    def __init__(self, heard: list[Any], take: Callable[[nn.Module, Any], Any]) -> None:
        self.heard, self.take = heard, take

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        taken = self.take(module, output)
        if taken is not None:
            self.heard.append(taken)
