"""Running a model outside of its training, without side effects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.hooks import all_closed


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
        stack.callback(_restore, _saved_buffers(model))
        _seed(model, stack)
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if hasattr(torch.compiler, "set_stance"):  # torch 2.6
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Under a caller's autocast, the next step would reuse the weights that were cast here without gradients.
        stack.callback(torch.clear_autocast_cache)
        yield


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device of the first parameter or buffer; None for a model without any."""
    return next((tensor.device for tensors in (model.parameters(), model.buffers()) for tensor in tensors), None)


_SavedBuffer = tuple[nn.Module, str, Tensor, int, Tensor]  # module, name, buffer, its version, and a copy


def _saved_buffers(model: nn.Module) -> list[_SavedBuffer]:
    return [
        (module, name, buffer, buffer._version, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if not buffer.is_inference()  # an inference tensor cannot be written outside inference mode
    ]


@torch.no_grad()
def _restore(before: list[_SavedBuffer]) -> None:
    for module, name, buffer, version, saved in before:
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
