"""Batches of any structure: their size, first rows and fields, and running a model on them outside of its training."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.hooks import all_closed, tensors_in
from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.modes import uncompiled
from lightning_hooks.hooks.tensors import MAX_DEPTH


@contextmanager
def undisturbed(model: nn.Module, *, grad: bool = False) -> Iterator[None]:
    """Run ``model`` in this block without side effects.

    In the block every module is in eval mode, with or without gradients (``grad``), also within inference mode; random numbers are
    the same each time; fused attention paths are off and compiled modules run uncompiled, so that every module's hooks run; the
    hooks of this package's callbacks do not record. Afterwards, also when the block raises, each module's mode, the contents of
    buffers, and the random state of torch (CPU and the model's device), NumPy and Python are restored.

    Args:
        model: Any module. Its ``train`` and ``eval`` methods are not called, since overrides may have side effects.
        grad: Whether autograd records. Use ``torch.autograd.grad``, which does not write to ``.grad`` of parameters.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
        >>> with undisturbed(net):
        ...     _ = net(torch.randn(4, 2))
        >>> int(net[1].num_batches_tracked), net.training
        (0, True)
    """
    with ExitStack() as stack:
        stack.enter_context(all_closed())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(grad))
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
            module.training = False
            for name, buffer in module.named_buffers(recurse=False):
                if not buffer.is_inference():  # an inference tensor cannot be written outside inference mode
                    stack.callback(_restore, module, name, buffer, buffer._version, buffer.detach().clone())
        _seed(model, stack)
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(uncompiled())
        # Under a caller's autocast, the next step would reuse the weights that were cast here without gradients.
        stack.callback(torch.clear_autocast_cache)
        yield


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device of the first parameter or buffer; None for a model without any."""
    return next((tensor.device for tensors in (model.parameters(), model.buffers()) for tensor in tensors), None)


@torch.no_grad()
def _restore(module: nn.Module, name: str, buffer: Tensor, version: int, saved: Tensor) -> None:
    # The version counter (it has no public name) shows without a sync whether a buffer was written. Others are not restored: a
    # write would count as a change for a graph that holds the buffer.
    if buffer._version != version:
        buffer.copy_(saved)
    if getattr(module, name, None) is not buffer:
        setattr(module, name, buffer)


def _seed(model: nn.Module, stack: ExitStack) -> None:
    """Seed all generators that a model may use; the stack restores their states."""
    stack.callback(random.setstate, random.getstate())
    stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002  the global state is what models draw from
    stack.enter_context(torch.random.fork_rng(devices=[]))
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.default_generator.manual_seed(0)
    device = device_of(model)
    if device is not None and device.type in ("cuda", "xpu", "mps"):
        backend: Any = torch.get_device_module(device)
        where: tuple[Any, ...] = () if device.type == "mps" else (device,)
        stack.callback(backend.set_rng_state, backend.get_rng_state(*where), *where)
        with nullcontext() if device.type == "mps" else backend.device(device):
            backend.manual_seed(0)


K = TypeVar("K")

# How to run a model on a batch: the name of the submodule or method to call, or a function of (model, batch).
Forward: TypeAlias = str | Callable[[nn.Module, Any], Any]

Field: TypeAlias = str | int | Callable[[Any], Any]  # an entry of a batch: a key, an index, or a function of the batch


def check_forward(forward: object) -> None:
    """Raise TypeError if ``forward`` is neither None, a name, nor a function."""
    if forward is not None and not isinstance(forward, str) and not callable(forward):
        raise TypeError(
            "forward must be the name of a submodule or method of the model, or a function of (model, batch), or None to call "
            f"the model itself; got {forward!r}."
        )


def run_model(model: nn.Module, batch: Any, forward: Forward | None = None) -> Any:
    """Run a model on a batch, which is moved to the model's device.

    Args:
        model: The model.
        batch: A tensor, the input; a tuple or list, whose first entry is the input; or a mapping, passed by keyword without the
            entries that the model does not accept (a label, an id).
        forward: The name of the submodule or method to call instead of the model, or a function of (model, batch), for instance
            with several inputs: ``lambda model, batch: model(*batch)``.

    Returns:
        The output of the model.

    Raises:
        TypeError: If the model accepts no entry of a mapping, or has no ``forward``.
        AttributeError: If the model has nothing named ``forward``.
    """
    device = device_of(model)
    if device is not None:
        batch = map_tensors(batch, lambda tensor: tensor.to(device))
    if forward is not None and not isinstance(forward, str):
        return forward(model, batch)
    call: Any = model
    for part in forward.split(".") if forward else ():
        if not hasattr(call, part):
            raise AttributeError(f"forward={forward!r}: {type(call).__name__} has no {part!r}.")
        call = getattr(call, part)
    try:
        if isinstance(batch, Mapping):
            return call(**_taken(call, batch))
        return call(batch[0] if isinstance(batch, tuple | list) else batch)
    except NotImplementedError as error:
        if call is not model or 'missing the required "forward" function' not in str(error):
            raise
        raise TypeError(
            f"{type(model).__name__} has no forward. Pass forward=: the name of a submodule or method, or a "
            "function of (model, batch)."
        ) from error


def _taken(call: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(call.forward if isinstance(call, nn.Module) else call).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(batch)
    taken = {key: value for key, value in batch.items() if key in parameters}
    if not taken:
        raise TypeError(
            f"{type(call).__name__} takes {', '.join(map(repr, parameters)) or 'nothing'}; the batch has "
            f"{', '.join(map(repr, batch))}. Pass forward=, a function of (model, batch)."
        )
    return taken


def map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return ``value`` with each tensor in its containers and dataclasses replaced by ``function`` of it.

    A container is copied only if one of its tensors is replaced by another.
    """
    return _mapped(value, lambda entry: function(entry) if isinstance(entry, Tensor) else None)


def _mapped(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return ``change`` of a value; where that is None, the value with the same of what it holds."""
    changed = change(value)
    if changed is not None or depth >= MAX_DEPTH:
        return value if changed is None else changed
    of_fields = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if isinstance(value, Mapping):
        entries: Any = value.items()
    elif isinstance(value, tuple | list):
        entries = enumerate(value)
    else:
        entries = [(field.name, stored(value, field.name)) for field in dataclasses.fields(value)] if of_fields else []
    mapped = {key: (entry, _mapped(entry, change, depth + 1)) for key, entry in entries}
    replaced = {key: new for key, (entry, new) in mapped.items() if new is not entry}
    if not replaced:
        return value
    if isinstance(value, tuple | list):
        new = [new for _, new in mapped.values()]
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    if not isinstance(value, Mapping):
        return dataclasses.replace(value, **replaced)
    try:
        copied: Any = copy.copy(value)
        for key, new in replaced.items():
            copied[key] = new
    except TypeError:  # it cannot be changed
        return {key: new for key, (_, new) in mapped.items()}
    return copied


def to_host(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Copy tensors to CPU memory, outside inference mode; from CUDA devices asynchronously, with one sync per device."""
    with torch.inference_mode(False):
        devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
        if not devices:
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        copies = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for name, tensor in tensors.items()
        }
        for device in devices:
            torch.cuda.synchronize(device)
        return {name: copy.clone() for name, copy in copies.items()}  # pinned memory is scarce


def batch_size(batch: Any) -> int | None:
    """Return the first dimension of the first tensor in ``batch`` that has one, or None."""
    return next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim()), None)


def first_rows(batch: Any, n: int) -> Any:
    """Return a copy of the first ``n`` rows of a batch, detached and outside inference mode.

    Tensors whose first dimension is the batch size, and lists of that many strings or numbers, are cut; other entries stay whole.

    Raises:
        ValueError: If there is no tensor in the batch.
    """
    size = batch_size(batch)
    if size is None:
        raise ValueError(f"a batch must hold at least one tensor to take rows from; got {type(batch).__name__}.")

    def cut(value: Any) -> Any:
        if isinstance(value, Tensor):
            return (value[:n] if value.dim() and len(value) == size else value).clone()
        of_samples = isinstance(value, tuple | list) and len(value) == size
        return value[:n] if of_samples and all(isinstance(entry, str | int | float) for entry in value) else None

    with torch.inference_mode(False), torch.no_grad():
        return _mapped(batch, cut)


def images_in(batch: Any) -> Tensor | None:
    """Return the first tensor in ``batch`` that may be images, ``(n, channels, height, width)``, or None."""
    return next((tensor for tensor in tensors_in(batch) if tensor.dim() == 4 and not tensor.is_complex()), None)


def field_of(batch: Any, field: Field, name: str = "") -> Any:
    """Return an entry of a batch.

    Raises:
        ValueError: If the batch has no such entry.
    """
    if callable(field):
        return field(batch)
    try:
        return batch[field]
    except (KeyError, IndexError, TypeError) as error:
        keys = f"the keys {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        has = f"{len(batch)} entries" if isinstance(batch, tuple | list) else keys
        raise ValueError(f"the field {name or field!r} is {field!r}, which the batch does not have; it has {has}.") from error
