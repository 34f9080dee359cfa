"""The compiled path for tensors in CPU memory: ``native.c``, built when the package is installed.

One read of a tensor gives everything a row needs, where torch's own kernels need one read for each number. Nothing is compiled
here: without the library (there was no C compiler at installation), or with ``LIGHTNING_HOOKS_NATIVE=0`` in the environment,
:mod:`.host` does the same with torch's kernels. In a checkout, ``python hatch_build.py`` builds it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import warnings
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from lightning_hooks.statistics.rows import N_COLUMNS, Column, fixed

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = Path(__file__).with_name("libnative.so")  # not native.so, which would be an import of its own

_PLAIN = (Tensor, Parameter)
_BOUNDLESS = float(np.finfo(np.float64).max)
_Part = ctypes.c_double * 7  # the summary of a tensor, as native.c keeps it
_LARGE = 1 << 16  # values from which the interpreter is let go while they are read


class Places(NamedTuple):
    """Where tensors of one type lie in memory.

    Attributes:
        numbers: Their addresses; it lives as long as ``address`` is used.
        address: Where those addresses lie.
        n: How many tensors.
        kind: Their type, as ``native.c`` numbers it.
        dtype: Their type, as torch names it.
        counts: How many values each has.
        sizes: The same, int64, shape ``(n,)``.
    """

    numbers: array[int]
    address: int
    n: int
    kind: int
    dtype: torch.dtype
    counts: tuple[int, ...]
    sizes: Tensor


class Native:
    """The functions of ``native.c``, for plain dense CPU tensors of the types in ``types``.

    Args:
        path: The shared library.

    Raises:
        OSError: It cannot be loaded, or was built from another ``native.c`` than the one next to it.
    """

    def __init__(self, path: Path) -> None:
        freely = ctypes.CDLL(str(path))  # lets other threads run meanwhile, which for a small tensor costs more than the work
        at_once = ctypes.PyDLL(str(path))
        address, integer, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        freely.source.restype = ctypes.c_uint32
        if freely.source() != zlib.crc32(SOURCE.read_bytes()):  # its functions may take other arguments
            raise OSError("it was built from another native.c")
        signatures = {
            "accumulate": (None, (address, integer, ctypes.c_int, address, real, real, real, real, real)),
            "measure": (None, (address, integer, ctypes.c_int, address)),
            "merge": (None, (address, address, real, real, real, real, real)),
            "beyond": (integer, (address, integer, ctypes.c_int, real, real)),
            "fired": (integer, (address, ctypes.c_int, integer, integer, integer, address)),
            "sample": (None, (address, address, address, integer, ctypes.c_int, address)),
            "ratios": (None, (address, address, address, integer, ctypes.c_int, address, address)),
            "enter": (None, (address, address, integer, address, address, address, real, address)),
            "enter_ratios": (None, (address, address, integer, address)),
            "norms": (None, (address, address, integer, ctypes.c_int, address, address)),
        }
        for library in (freely, at_once):
            for name, (result, arguments) in signatures.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        self._accumulate, self._measure, self._merge = at_once.accumulate, freely.measure, at_once.merge
        self._beyond, self._fired, self._norms = freely.beyond, at_once.fired, freely.norms
        self._sample, self._ratios = freely.sample, freely.ratios
        self._enter, self._enter_ratios = at_once.enter, at_once.enter_ratios
        self.types: dict[torch.dtype, int] = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
        if freely.reads_half():
            self.types[torch.float16] = 3

    def readable(self, values: Tensor) -> bool:
        """Whether ``values``, a strided CPU tensor, can be read where it lies. A subclass may have its data elsewhere."""
        return type(values) in _PLAIN and values.dtype in self.types and not values.is_neg() and dense(values) and _lies(values)

    def reads(self, found: object) -> bool:
        """Whether ``found`` is a tensor that can be read as it is, without detaching it or looking into it."""
        return (
            isinstance(found, Tensor)
            and type(found) in _PLAIN
            and found.is_cpu
            and found.layout is torch.strided
            and not found.is_nested
            and found.dtype in self.types
            and found.is_contiguous()
            and not found.is_neg()
            and _lies(found)
        )

    def _dense_on_the_host(self, tensor: Tensor) -> bool:
        return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested and self.readable(tensor)

    def places(self, tensors: Sequence[Tensor]) -> Places | None:
        """Where tensors of one type lie; None if one of them cannot be read as it is.

        Whoever keeps the answer keeps the tensors too, as they are.
        """
        if not tensors:
            return None
        dtype = tensors[0].dtype
        found = array("q")
        for tensor in tensors:
            if tensor.dtype is not dtype or not (self.reads(tensor) or self._dense_on_the_host(tensor)):
                return None
            found.append(tensor.data_ptr())
        counts = tuple([tensor.numel() for tensor in tensors])
        return Places(found, found.buffer_info()[0], len(tensors), self.types[dtype], dtype, counts, fixed(counts))

    def moved(self, tensors: Sequence[Tensor], known: Places) -> Places | None:
        """Where contiguous tensors lie that are of the type and the sizes of those at ``known``; None where they are not.

        It is ``known`` itself if they lie where those do. Quicker than :meth:`places`, which asks more of each: a tensor outside
        the nearest cache takes its time to answer.
        """
        dtype = known.dtype
        try:
            now = [
                tensor.data_ptr()
                for tensor in tensors
                if type(tensor) in _PLAIN
                and tensor.is_contiguous()
                and tensor.dtype is dtype
                and tensor.is_cpu
                and not tensor.is_neg()
            ]
        except RuntimeError:  # one is sparse by now
            return None
        if 0 in now or len(now) != len(tensors) or tuple([tensor.numel() for tensor in tensors]) != known.counts:
            return None
        found = array("q", now)
        return known if found == known.numbers else known._replace(numbers=found, address=found.buffer_info()[0])

    def accumulate(
        self, values: Tensor, row: int, calls: float, now: float, units: int = 0, saturated: int = 0, saturable: int = 0
    ) -> None:
        """Merge the summary of ``values`` into the row at address ``row``.

        Args:
            values: Readable, of any shape.
            row: Where the row's float64 numbers lie.
            calls: What to add to the count of calls.
            now: The training batch's index.
            units: How many units a rectifier has.
            saturated: How many values are at a bound.
            saturable: How many could be.
        """
        n = values.numel()
        if n < _LARGE:
            self._accumulate(values.data_ptr(), n, self.types[values.dtype], row, calls, now, units, saturated, saturable)
            return
        found = _Part()  # while the values are read other threads run, perhaps in the same layer: the row is for one at a time
        self._measure(values.data_ptr(), n, self.types[values.dtype], found)
        self._merge(found, row, calls, now, units, saturated, saturable)

    def beyond(self, values: Tensor, low: float | None, high: float | None) -> int:
        """How many values are at or below ``low`` or at or above ``high``."""
        bounds = (-_BOUNDLESS if low is None else low, _BOUNDLESS if high is None else high)
        found: int = self._beyond(values.data_ptr(), values.numel(), self.types[values.dtype], *bounds)
        return found

    def fired(self, values: Tensor, unit_dim: int, known: Tensor) -> int:
        """Mark in ``known`` (boolean, one per unit) the units with a value other than zero; return how many never had one.

        Args:
            values: Contiguous.
            unit_dim: The dimension of the units.
            known: Boolean, contiguous, shape ``(n_units,)``.
        """
        shape = values.shape
        inner, outer = math.prod(shape[unit_dim + 1 :]), math.prod(shape[:unit_dim])
        asleep: int = self._fired(values.data_ptr(), self.types[values.dtype], outer, shape[unit_dim], inner, known.data_ptr())
        return asleep

    def norms(self, places: Places, zeros: bool = False) -> tuple[Tensor, Tensor | None]:
        """L2 norms of tensors, NaN where a value is not finite, and how many values are zero.

        Returns:
            Two float64 tensors of shape ``(n,)``; None for the second unless asked for.
        """
        norms = torch.empty(places.n, dtype=torch.float64)
        none = torch.empty(places.n, dtype=torch.float64) if zeros else None
        at_zeros = None if none is None else none.data_ptr()
        self._norms(places.address, places.sizes.data_ptr(), places.n, places.kind, norms.data_ptr(), at_zeros)
        return norms, none

    def sample(self, places: Places, counts: Tensor, strides: Tensor, total: int) -> Tensor:
        """Copy values of float32 or float64 tensors, by their order in memory.

        Args:
            places: Of the tensors.
            counts: How many values of each, int64, shape ``(n,)``.
            strides: How far apart, int64, shape ``(n,)``.
            total: How many values in all.

        Returns:
            One-dimensional: those of the first, then of the second, and so on.
        """
        taken = torch.empty(total, dtype=places.dtype)
        self._sample(places.address, counts.data_ptr(), strides.data_ptr(), places.n, places.kind, taken.data_ptr())
        return taken

    def ratios(self, places: Places, counts: Tensor, strides: Tensor, taken: Tensor) -> Tensor:
        """‖now - then‖ / ‖then‖ of each tensor, over what :meth:`sample` took; float64, shape ``(n,)``."""
        ratios = torch.empty(places.n, dtype=torch.float64)
        at = (places.address, counts.data_ptr(), strides.data_ptr())
        self._ratios(*at, places.n, places.kind, taken.data_ptr(), ratios.data_ptr())
        return ratios

    def enter(
        self, rows: Tensor, total: Tensor, indices: Tensor, norms: Tensor, zeros: Tensor, sizes: Tensor, global_step: int
    ) -> None:
        """Enter the gradients of one optimizer step into the rows of their parameters, and into the optimizer's total.

        Args:
            rows: The parameter table, float64, contiguous, shape ``(n_parameters, n_columns)``.
            total: Finite steps and sum of norms, float64, shape ``(2,)``.
            indices: Which rows, int64, shape ``(k,)``.
            norms: L2 norms, float64, shape ``(k,)``; not finite where a gradient is not.
            zeros: Zero elements, float64, shape ``(k,)``.
            sizes: Elements, float64, shape ``(k,)``.
            global_step: The trainer's, before the step.
        """
        places = (norms.data_ptr(), zeros.data_ptr(), sizes.data_ptr())
        self._enter(rows.data_ptr(), indices.data_ptr(), len(indices), *places, float(global_step), total.data_ptr())

    def enter_ratios(self, rows: Tensor, indices: Tensor, ratios: Tensor) -> None:
        """Enter update ratios, float64, shape ``(k,)``; those that are not finite do not count."""
        self._enter_ratios(rows.data_ptr(), indices.data_ptr(), len(indices), ratios.data_ptr())


def _lies(values: Tensor) -> bool:
    """Whether the values are in memory: for some zeros torch keeps none."""
    return values.data_ptr() != 0 or not values.numel()


def dense(values: Tensor) -> bool:
    """Whether the values fill their memory without gaps, in whatever order of dimensions."""
    if values.is_contiguous():
        return True
    if values.dim() == 4:
        return values.is_contiguous(memory_format=torch.channels_last)
    expected = 1
    for stride, size in sorted(zip(values.stride(), values.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


@functools.cache
def native() -> Native | None:
    """The compiled path; None where the library is missing, cannot be loaded or is switched off."""
    if os.environ.get("LIGHTNING_HOOKS_NATIVE", "1") == "0" or not LIBRARY.exists():
        return None
    try:
        found = Native(LIBRARY)
        if not _answers(found):
            raise OSError("it computes wrong numbers")
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"{LIBRARY} is not used: {error}. torch's kernels do its work, more slowly. Install lightning_hooks again, or in a "
            "checkout run `python hatch_build.py`.",
            stacklevel=2,
        )
        return None
    return found


def _answers(found: Native) -> bool:
    """Whether it counts right, before anything relies on it."""
    values = torch.tensor([0.0, 1.0, -3.0, float("nan"), float("inf"), 4.0])
    row = np.zeros(N_COLUMNS)
    row[[Column.MIN, Column.FIRST_NONFINITE]] = np.inf
    row[Column.MAX] = -np.inf
    found.accumulate(values, row.ctypes.data, 1.0, 7.0)
    expected = {
        Column.CALLS: 1.0,
        Column.COUNT: 4.0,
        Column.MEAN: 0.5,
        Column.M2: 25.0,
        Column.MIN: -3.0,
        Column.MAX: 4.0,
        Column.ZEROS: 1.0,
        Column.NONFINITE: 2.0,
        Column.FIRST_NONFINITE: 7.0,
    }
    return all(abs(row[column] - value) < 1e-9 for column, value in expected.items()) and found.beyond(values, -2.0, 3.0) == 3
