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
        stack.enter_context(_modes(model))
        stack.enter_context(_buffers(model))
        stack.enter_context(_random_state(model))
        stack.enter_context(_every_module_called())
        try:
            yield
        finally:
            # Under a caller's autocast, the next step would reuse the weights that were cast here without gradients.
            torch.clear_autocast_cache()


def device_of(model: nn.Module) -> torch.device | None:
    """Return the device of the first parameter or buffer; None for a model without any."""
    return next((tensor.device for tensors in (model.parameters(), model.buffers()) for tensor in tensors), None)


@contextmanager
def _modes(model: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = False
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def _buffers(model: nn.Module) -> Iterator[None]:
    before = []
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_inference():  # an inference tensor cannot be written outside inference mode
                before.append((module, name, buffer, buffer._version, buffer.detach().clone()))
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, version, saved in before:
                # The version counter (it has no public name) shows without a sync whether a buffer was written. Others are not
                # restored: a write would count as a change for a graph that holds the buffer.
                if buffer._version != version:
                    buffer.copy_(saved)
                if getattr(module, name, None) is not buffer:
                    setattr(module, name, buffer)


@contextmanager
def _random_state(model: nn.Module) -> Iterator[None]:
    device = device_of(model)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  the global state is what models draw from
    with _device_random_state(device), torch.random.fork_rng(devices=[]):
        try:
            torch.default_generator.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _device_random_state(device: torch.device | None) -> Iterator[None]:
    if device is None or device.type not in ("cuda", "xpu", "mps"):
        yield
        return
    backend: Any = torch.get_device_module(device)
    where: tuple[Any, ...] = () if device.type == "mps" else (device,)
    state: Tensor = backend.get_rng_state(*where)
    try:
        with nullcontext() if device.type == "mps" else backend.device(device):
            backend.manual_seed(0)
        yield
    finally:
        backend.set_rng_state(state, *where)


@contextmanager
def _every_module_called() -> Iterator[None]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    set_stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with nullcontext() if set_stance is None else set_stance("force_eager"):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
