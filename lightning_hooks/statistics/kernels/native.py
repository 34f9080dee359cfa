"""The kernels in C for tensors in CPU memory: ``native.c``, built when the package is installed.

One read of a tensor gives everything a row needs, where torch's own kernels need one read for each number. Nothing is compiled
here; in a checkout, ``python hatch_build.py`` builds the library.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from array import array
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.hooks.tensors import addresses_of, number
from lightning_hooks.statistics.kernels.host import HostKernels
from lightning_hooks.statistics.kernels.plain import Bounds, Norms, Units
from lightning_hooks.statistics.rows import N_COLUMNS, Clock, empty_table

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = Path(__file__).with_name("libnative.so")  # not native.so, which would be an import of its own

WHAT = str(LIBRARY)
REMEDY = "Install lightning_hooks again, or in a checkout run `python hatch_build.py`."

_ROW_BYTES = 8 * N_COLUMNS
_BOUNDLESS = torch.finfo(torch.float64).max
_DTYPE = attrgetter("dtype")
_LARGE = 1 << 16  # values from which the interpreter is let go while they are read
_Part = ctypes.c_double * 9  # the summary of a tensor, as native.c keeps it


class _Located(NamedTuple):
    """Where dense tensors of one type lie in memory, their sizes, and the number of the type in ``native.c``."""

    addresses: array[int]
    sizes: array[int]
    kind: int


class _Taken(NamedTuple):
    """What was copied of some tensors, one after the other: of what sizes, how many values of each, and at what distance."""

    located: _Located
    counts: array[int]
    strides: array[int]
    values: Tensor


class NativeKernels(HostKernels):
    """The functions of ``native.c``.

    Args:
        path: The shared library.

    Raises:
        OSError: It cannot be loaded, or was built from another ``native.c`` than the one next to it.
    """

    name = "c"

    def __init__(self, path: Path) -> None:
        freely = ctypes.CDLL(str(path))  # lets other threads run meanwhile, which for a small tensor costs more than the work
        at_once = ctypes.PyDLL(str(path))
        freely.source.restype = ctypes.c_uint32
        if freely.source() != zlib.crc32(SOURCE.read_bytes()):  # its functions may take other arguments
            raise OSError("it was built from another native.c")
        address, integer, real, kind = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
        self._accumulate = _taking(at_once.accumulate, address, integer, kind, kind, address, real, real, real, real, real)
        self._measure = _taking(freely.measure, address, integer, kind, kind, address)
        self._stream = _taking(freely.stream, address, address, integer, integer, integer, kind, address, address)
        self._merge = _taking(at_once.merge, address, kind, address, real, real, real, real, real)
        self._beyond = _taking(freely.beyond, address, integer, kind, real, real)
        self._fired = _taking(at_once.fired, address, kind, integer, integer, integer, address)
        self._beyond.restype = self._fired.restype = integer
        self._norms = _taking(freely.norms, address, address, integer, kind, address, address)
        self._sample = _taking(freely.sample, address, address, address, integer, kind, address)
        self._updates = _taking(freely.updates, address, address, address, address, integer, kind, address, address)
        self._enter = _taking(at_once.enter, address, address, integer, address, address, address, real, address)
        self._enter_updates = _taking(at_once.enter_updates, address, address, integer, address)
        self.types: dict[torch.dtype, int] = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2}
        if freely.reads_half():
            self.types[torch.float16] = 3

    @override
    def record(
        self,
        table: Tensor,
        index: int,
        values: Tensor,
        clock: Clock | None = None,
        new_call: bool = True,
        bounds: Bounds | None = None,
        units: Units | None = None,
        moments: bool = False,
    ) -> bool:
        kind, (address,) = self.types.get(values.dtype), addresses_of((values,))
        if kind is None or not address:
            return super().record(table, index, values, clock, new_call, bounds, units, moments)
        n, row, count, complete = values.numel(), table.data_ptr() + index * _ROW_BYTES, 0, False
        if units is not None:
            count, complete = units.n, units.fired is not None and self._mark(values, kind, units)
        at_bound, boundable = (0, 0) if bounds is None else (self.beyond(bounds), bounds.total)
        entered = (new_call, 0 if clock is None else clock.batch, count, at_bound, boundable)
        if n < _LARGE:
            self._accumulate(address, n, kind, moments, row, *entered)
        else:
            found = _Part()  # while values are read other threads run, perhaps in the same layer: the row is for one at a time
            self._measure(address, n, kind, moments, found)
            self._merge(found, moments, row, *entered)
        return complete

    @override
    def stream(self, out: Tensor, entered: Tensor | None, dim: int) -> tuple[Tensor, Tensor | None]:
        both = [tensor for tensor in (out, entered) if tensor is not None]
        kind = self.types.get(out.dtype)
        if kind is None or not all(each.dtype is out.dtype and each.is_contiguous() for each in both) or 0 in addresses_of(both):
            return super().stream(out, entered, dim)
        square, totals = torch.zeros(out.shape[dim], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        sizes = (math.prod(out.shape[:dim]), out.shape[dim], math.prod(out.shape[dim + 1 :]))
        before = None if entered is None else entered.data_ptr()
        self._stream(out.data_ptr(), before, *sizes, kind, square.data_ptr(), totals.data_ptr())
        return square, None if entered is None else totals

    def _mark(self, values: Tensor, kind: int, units: Units) -> bool:
        """Mark the units that fired; whether all have."""
        unit_dim = units.dim
        if not values.is_contiguous():
            values, unit_dim = values.movedim(unit_dim, -1), values.dim() - 1  # channels_last
            if not values.is_contiguous():
                self.mark(values, units._replace(dim=unit_dim))
                return False
        assert units.fired is not None
        shape = values.shape
        sizes = (math.prod(shape[:unit_dim]), units.n, math.prod(shape[unit_dim + 1 :]))
        return int(self._fired(values.data_ptr(), kind, *sizes, units.fired.data_ptr())) == 0

    @override
    def beyond(self, bounds: Bounds) -> Tensor | int:
        values, low, high, _ = bounds
        kind, (address,) = self.types.get(values.dtype), addresses_of((values,))
        if kind is None or not address:
            return super().beyond(bounds)
        limits = (-_BOUNDLESS if low is None else low, _BOUNDLESS if high is None else high)
        return int(self._beyond(address, values.numel(), kind, *limits))

    def _locate(self, tensors: Sequence[Tensor], known: Sequence[int] | None = None) -> _Located | None:
        """Where tensors lie; None if one of them cannot be read as it is, or is of another type."""
        dtype = tensors[0].dtype
        kind = self.types.get(dtype)
        addresses = addresses_of(tensors) if known is None else known
        if kind is None or 0 in addresses or {*map(_DTYPE, tensors)} != {dtype}:
            return None
        return _Located(array("q", addresses), array("q", map(Tensor.numel, tensors)), kind)

    @override
    def norms(self, tensors: Sequence[Tensor], zeros: bool = False, addresses: Sequence[int] | None = None) -> Norms:
        located = self._locate(tensors, addresses)
        if located is None:
            return super().norms(tensors, zeros)
        norms = torch.empty(len(tensors), dtype=torch.float64)
        counts = torch.empty(len(tensors), dtype=torch.float64) if zeros else None
        (at, k), (sizes_at, _) = map(array.buffer_info, (located.addresses, located.sizes))
        self._norms(at, sizes_at, k, located.kind, norms.data_ptr(), None if counts is None else counts.data_ptr())
        return Norms(norms, counts, located.sizes.tolist())

    @override
    def sample(self, tensors: Sequence[Tensor], strides: tuple[int, ...]) -> Any:
        located, dtype = self._locate(tensors), tensors[0].dtype
        if located is None or dtype not in (torch.float32, torch.float64):
            return super().sample(tensors, strides)
        counts = array("q", [-(-size // stride) for size, stride in zip(located.sizes, strides, strict=True)])
        taken = _Taken(located, counts, array("q", strides), torch.empty(sum(counts), dtype=dtype))
        (at, k), (counts_at, _), (strides_at, _) = map(array.buffer_info, (located.addresses, counts, taken.strides))
        self._sample(at, counts_at, strides_at, k, located.kind, taken.values.data_ptr())
        return taken

    @override
    def updates(self, taken: Any, tensors: Sequence[Tensor], strides: tuple[int, ...]) -> Tensor:
        if not isinstance(taken, _Taken):
            return super().updates(taken, tensors, strides)
        located, before = self._locate(tensors), taken.located
        if located is None or (located.kind, located.sizes) != (before.kind, before.sizes):
            return torch.full((3, len(tensors)), math.nan, dtype=torch.float64)  # they became others, or were freed
        found = torch.empty((3, len(tensors)), dtype=torch.float64)
        read = (located.addresses, taken.counts, taken.strides, located.sizes)
        (at, k), (counts_at, _), (strides_at, _), (sizes_at, _) = map(array.buffer_info, read)
        self._updates(at, counts_at, strides_at, sizes_at, k, located.kind, taken.values.data_ptr(), found.data_ptr())
        return found

    @override
    def enter(
        self,
        rows: Tensor,
        total: Tensor,
        indices: Tensor,
        norms: Tensor,
        zeros: Tensor,
        sizes: Tensor,
        global_step: int,
        valid: Tensor | None = None,
    ) -> None:
        if valid is not None and not number(valid):
            return
        read = (norms.data_ptr(), zeros.data_ptr(), sizes.data_ptr())
        self._enter(rows.data_ptr(), indices.data_ptr(), len(indices), *read, float(global_step), total.data_ptr())

    @override
    def enter_updates(self, rows: Tensor, indices: Tensor, updates: Tensor, valid: Tensor | None = None) -> None:
        if valid is None or number(valid):
            self._enter_updates(rows.data_ptr(), indices.data_ptr(), len(indices), updates.data_ptr())


def _taking(function: Any, *types: Any) -> Any:
    """A function of the library, with the types of its arguments."""
    function.argtypes = types
    return function


def load() -> NativeKernels | None:
    """The kernels; None where there is no library.

    Raises:
        OSError: It cannot be loaded, or computes wrong numbers.
    """
    if not LIBRARY.exists():
        return None
    found = NativeKernels(LIBRARY)
    rows = []
    for each in (found, HostKernels()):  # before anything relies on it
        rows.append(empty_table(1))
        values = torch.tensor([0.0, 1.0, -3.0, math.nan, math.inf, 4.0])
        each.record(rows[-1], 0, values, bounds=Bounds(values, -2.0, 3.0, 6), moments=True)
    if not torch.allclose(rows[0], rows[1]):
        raise OSError("it computes wrong numbers")
    return found
