"""The states of the random number generators: torch's, and those of NumPy and Python if they are imported."""

from __future__ import annotations

import ctypes
import struct
import sys
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Generators:
    """States of the generators at one moment. A state that has not changed since is the same object.

    Attributes:
        torch: Of the CPU.
        device: Of the CUDA device; None without.
        numpy: What ``numpy.random.get_state()`` returns; None where NumPy is not imported.
        python: What ``random.getstate()`` returns, its 625 numbers as an array; None likewise.
    """

    torch: Tensor
    device: Tensor | None = None
    numpy: Any = None
    python: Any = None


_Twister = ctypes.c_char * 2500  # the memory of a Mersenne twister: its 624 numbers, and its place among them


class GeneratorWatch:
    """Reads the states, and keeps those that have not changed.

    Python and NumPy take 9 and 30 µs to build their states; that they have not changed is read from the memory of their generators.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device if device.type == "cuda" else None
        self._last: Generators | None = None
        self._torch = self._numpy = self._python = b""

    def read(self) -> Generators:
        """The states now; no host sync."""
        last, modules = self._last, sys.modules
        state = torch.default_generator.get_state()
        now = ctypes.string_at(state.data_ptr(), state.numel())  # of bytes; torch.equal takes ten times as long
        if last is not None and now == self._torch:
            state = last.torch
        else:
            self._torch = now
        numpy = python = None
        if "numpy" in modules:
            now = b"" if self._twister_of_numpy is None else self._twister_of_numpy.raw
            if now and last is not None and now == self._numpy and not last.numpy[3]:  # the second of a pair leaves it as it is
                numpy = last.numpy
            else:
                numpy, self._numpy = modules["numpy"].random.get_state(), now
        if "random" in modules:
            now, random = b"" if self._twister_of_python is None else self._twister_of_python.raw, modules["random"]
            if now and last is not None and now == self._python and last.python[2] == random._inst.gauss_next:
                python = last.python
            else:
                version, numbers, gauss = random.getstate()
                python, self._python = (version, array("I", numbers), gauss), now
        self._last = Generators(state, None if self._cuda is None else torch.cuda.get_rng_state(self._cuda), numpy, python)
        return self._last

    def restore(self, states: Generators) -> None:
        """Put the generators into the states that :meth:`read` gave last, where they are in others now."""
        now = self.read()
        same = now.device is None or torch.equal(now.device, states.device)  # type: ignore[arg-type]  # both are there
        if not same or now.torch is not states.torch or now.numpy is not states.numpy or now.python is not states.python:
            set_generators(states, self._device)

    @cached_property
    def _twister_of_numpy(self) -> Any:
        """The memory of NumPy's generator; None where it is of another kind."""
        twister = sys.modules["numpy"].random.mtrand._rand._bit_generator  # has no public name
        return _Twister.from_address(int(twister.ctypes.state_address)) if type(twister).__name__ == "MT19937" else None

    @cached_property
    def _twister_of_python(self) -> Any:
        """The state in Python's generator: behind the head of the object, if what is there is the state; else None."""
        python = sys.modules["random"]
        generator, (_, numbers, _) = python._inst, python.getstate()  # the generator of the module's functions
        if sys.implementation.name != "cpython" or type(generator).__mro__[1].__basicsize__ < object.__basicsize__ + 2500:
            return None
        twister = _Twister.from_address(id(generator) + object.__basicsize__)
        return twister if struct.unpack("i624I", twister.raw) == (numbers[-1], *numbers[:-1]) else None


def set_generators(states: Generators, device: torch.device) -> None:
    """Put the generators into these states."""
    torch.set_rng_state(states.torch)
    if states.device is not None:
        torch.cuda.set_rng_state(states.device, device)
    if states.numpy is not None:
        sys.modules["numpy"].random.set_state(states.numpy)
    if states.python is not None:
        version, numbers, gauss = states.python
        sys.modules["random"].setstate((version, tuple(numbers), gauss))
