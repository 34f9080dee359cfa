"""The states of the random number generators: torch's, and those of NumPy and Python if they are imported."""

from __future__ import annotations

import ctypes
import struct
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
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

    def nbytes(self, before: Generators | None) -> int:
        """How much memory the states take that are not those of ``before``."""
        known = (None,) * 4 if before is None else (before.torch, before.device, before.numpy, before.python)
        size = 0 if self.torch is known[0] else 5056
        size += 0 if self.device is known[1] else 16
        size += 0 if self.numpy is known[2] else 2520
        return size + (0 if self.python is known[3] else 2520)


class GeneratorWatch:
    """Reads the states, and keeps those that have not changed.

    Python and NumPy take 9 and 30 µs to build their states; that they have not changed is read from the memory of their generators.

    Args:
        device: Where the model is.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._last: Generators | None = None
        self._torch = self._numpy = self._python = b""
        self._addresses: dict[str, int] = {}  # of the Mersenne twisters; 0 where it is not known

    def read(self) -> Generators:
        """The states now; no host sync."""
        last, state = self._last, torch.default_generator.get_state()
        now = state.numpy().tobytes()
        if last is not None and now == self._torch:
            state = last.torch
        self._torch = now
        own = None if self._cuda is None else torch.cuda.get_rng_state(self._cuda)
        self._last = Generators(state, own, self._of_numpy(last), self._of_python(last))
        return self._last

    def _of_numpy(self, last: Generators | None) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        now, before = self._memory("numpy", _twister_of_numpy), self._numpy
        if last is not None and now and now == before and not last.numpy[3]:  # a second number of a pair leaves the memory as it is
            return last.numpy
        self._numpy = now
        return numpy.random.get_state()

    def _of_python(self, last: Generators | None) -> Any:
        python = sys.modules.get("random")
        if python is None:
            return None
        now, before = self._memory("python", _twister_of_python), self._python
        if last is not None and now and now == before and last.python[2] == python._inst.gauss_next:
            return last.python
        self._python = now
        version, numbers, gauss = python.getstate()
        return version, array("I", numbers), gauss

    def _memory(self, name: str, address: Callable[[], int]) -> bytes:
        """The 624 numbers of a twister and its place among them; empty where its address is not known."""
        if name not in self._addresses:
            self._addresses[name] = address()
        found = self._addresses[name]
        return ctypes.string_at(found, 2500) if found else b""


def _twister_of_numpy() -> int:
    twister = sys.modules["numpy"].random.mtrand._rand._bit_generator  # has no public name
    return int(twister.ctypes.state_address) if type(twister).__name__ == "MT19937" else 0


def _twister_of_python() -> int:
    """The address of the state in Python's generator: behind the head of the object, if what is there is the state."""
    python = sys.modules["random"]
    generator, (_, numbers, _) = python._inst, python.getstate()  # the generator of the module's functions
    if sys.implementation.name != "cpython" or type(generator).__mro__[1].__basicsize__ < object.__basicsize__ + 2500:
        return 0
    address = id(generator) + object.__basicsize__
    found = struct.unpack("i624I", ctypes.string_at(address, 2500))
    return address if found == (numbers[-1], *numbers[:-1]) else 0


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
