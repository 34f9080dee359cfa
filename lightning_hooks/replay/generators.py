"""The states of the random number generators: torch's, and those of NumPy and Python if they are imported."""

from __future__ import annotations

import ctypes
import sys
from array import array
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
        kinds = {"torch": 5056, "device": 16, "numpy": 2520, "python": 2520}
        return sum(
            size
            for name, size in kinds.items()
            if getattr(self, name) is not None and (before is None or getattr(self, name) is not getattr(before, name))
        )


@dataclass(slots=True)
class GeneratorWatch:
    """Reads the states, and keeps those that have not changed.

    Args:
        device: Where the model is.
    """

    device: torch.device
    last: Generators | None = None
    _numpy: bytes = b""  # the Mersenne twister's own memory: NumPy takes 30 µs to say what its state is
    _address: int = 0
    _python: tuple[Any, ...] = ()

    def read(self) -> Generators:
        """The states now; no host sync."""
        last = self.last
        state = torch.get_rng_state()
        if last is not None and torch.equal(state, last.torch):
            state = last.torch
        own = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        self.last = Generators(state, own, self._of_numpy(), self._of_python())
        return self.last

    def _of_numpy(self) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        if not self._address:
            twister = numpy.random.mtrand._rand._bit_generator  # has no public name
            self._address = twister.ctypes.state_address if type(twister).__name__ == "MT19937" else -1
        now = ctypes.string_at(self._address, 2500) if self._address > 0 else b""
        if self.last is None or not now or now != self._numpy:
            self._numpy = now
            return numpy.random.get_state()
        return self.last.numpy

    def _of_python(self) -> Any:
        python = sys.modules.get("random")
        if python is None:
            return None
        version, numbers, gauss = python.getstate()
        # The place in the twister's memory moves with every number that is drawn; the memory itself changes each 624 of them.
        place = numbers[-1], numbers[0], numbers[1], gauss
        if self.last is not None and self.last.python is not None and place == self._python:
            return self.last.python
        self._python = place
        return version, array("I", numbers), gauss


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
