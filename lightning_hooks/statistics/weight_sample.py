"""The size of an update, from a sample of the elements of each parameter, and of rows of large tables.

Of parameters of which each process holds a shard (FSDP2, tensor parallelism), from what each knows to what holds for the whole: a
sharded parameter and its gradient are DTensors. Squares and counts of the shards add up to those of the whole, so one sum over the
processes turns them into norms. A shard that several processes hold alike counts once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from lightning_hooks.hooks.tensors import all_values, as_real, is_distributed, is_freed, plain_values
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.kernels import kernels_for

# Up to so many elements of a parameter are all compared for its update ratio; of a larger one a quarter as many.
UPDATE_SAMPLE = 1 << 14


class WeightSample:
    """Copies of parts of parameters before an update, for its size after it.

    Of a parameter with up to ``UPDATE_SAMPLE`` elements all are taken, so its ratio is exact; of a larger one a quarter as
    many, evenly spread over all its columns. The relative standard error of a norm estimated from n elements is about
    sqrt((kurtosis - 1) / 4n): 1.1 % for normally distributed values.

    Args:
        parameters: Plain dense tensors on one device.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        parameters = _real(parameters)
        self._strides = strides_of(tuple([parameter.shape for parameter in parameters]))
        self._kernels = kernels_for(parameters[0].device.type)
        self._taken = self._kernels.sample(parameters, self._strides)

    def updates(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before of each parameter.

        Args:
            parameters: The same, after the update.

        Returns:
            Shape ``(3, n)``, in the row's dtype; NaN for those that became others.
        """
        return self._kernels.updates(self._taken, _real(parameters), self._strides)

    def lost(self, parameters: Sequence[Tensor], places: Sequence[int]) -> Tensor:
        """How many elements kept their value although they had a gradient.

        Args:
            parameters: All of them, after the update, with their gradients.
            places: Which of them to look at: in half precision, with a dense gradient.

        Returns:
            Shape ``(2, len(places))``, in the row's dtype: such elements, and all with a gradient, of those that were taken.
        """
        now = [every(as_real(parameters[place]), self._strides[place]) for place in places]
        found = [(parameters[place].grad, self._strides[place]) for place in places]
        gradients = [every(as_real(gradient), stride) for gradient, stride in found if gradient is not None]  # each has one
        counts = [part.numel() for part in now]
        then = [self._taken[place].reshape(-1) for place in places]
        had = torch.cat(gradients) != 0
        flags = torch.stack((had & (torch.cat(then) == torch.cat(now)), had)).float()
        # A norm of order 1 of flags counts them, of all tensors in one call.
        lost = torch.stack(torch._foreach_norm([part for row in flags for part in row.split(counts)], 1))
        return lost.to(row_dtype(lost.device)).view(2, -1)


def _real(parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """Complex ones as pairs of real numbers."""
    return [as_real(parameter) for parameter in parameters] if any(map(torch.is_complex, parameters)) else parameters


def every(parameter: Tensor, stride: int) -> Tensor:
    """A copy of every stride-th element, in float32 at least."""
    flat = plain_values(parameter).reshape(-1)[::stride]
    return flat.to(torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other, in float32 at least."""
    found = torch.cat([*parts]) if parts else torch.zeros(0)
    return found if found.dtype == torch.float64 else found.float()


@functools.lru_cache(maxsize=256)
def strides_of(shapes: tuple[torch.Size, ...]) -> tuple[int, ...]:
    """The distance between the elements that are taken of parameters of these shapes: the same at every step."""
    found = []
    for shape in shapes:
        numel = shape.numel()
        found.append(1 if numel <= UPDATE_SAMPLE else spacing(numel, numel // shape[0])[1])
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def spacing(numel: int, columns: int, sample: int = UPDATE_SAMPLE) -> tuple[int, int]:
    """How many elements of a parameter to take, and at what distance: all of up to ``sample``, of more a quarter as many."""
    if numel <= sample:
        return numel, 1
    stride = 4 * numel // sample
    while math.gcd(stride, columns) != 1:  # a common factor would visit some columns only
        stride += 1
    return -(-numel // stride), stride


SPREAD = 1 << 20  # up to so many elements of a table with a dense gradient are all compared; of a larger one a quarter as many

ROWS = 1 << 16  # elements of the rows with the largest gradients that are compared besides


class RowSample:
    """Copies of parts of a table before an update: whole rows that the gradient touches, and elements spread over the others.

    Where the update touches only rows that are taken whole, its size is exact. Rows that move without a gradient of this step,
    as by momentum, are estimated from the spread elements. No host sync, but the one that a sparse gradient's own indices take.

    Args:
        parameter: Plain and dense, of two dimensions or more.
        gradient: Its gradient, dense or sparse in its rows. All rows of a sparse one are taken whole, of a dense one those
            where it is largest.
    """

    def __init__(self, parameter: Tensor, gradient: Tensor) -> None:
        n_rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
        sparse = gradient.layout == torch.sparse_coo
        _, self._stride = spacing(parameter.numel(), columns, UPDATE_SAMPLE if sparse else SPREAD)
        if sparse:
            self._rows = gradient.detach().coalesce().indices()[0]
        else:
            sizes = torch.linalg.vector_norm(gradient.detach().reshape(n_rows, columns), dim=1)
            self._rows = sizes.topk(min(n_rows, max(ROWS // columns, 1)) if self._stride > 1 else 0).indices
        taken = torch.zeros(n_rows, dtype=torch.bool, device=parameter.device).index_fill_(0, self._rows, True)
        spread = torch.arange(0, parameter.numel(), self._stride, device=parameter.device)
        self._counted = (~taken)[spread // columns]
        self._others = float((n_rows - len(self._rows)) * columns)
        self._shape, self._before = parameter.shape, self._parts(parameter)

    def _parts(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        rows = parameter.detach().reshape(parameter.shape[0], -1).index_select(0, self._rows)
        return every(rows, 1), every(parameter, self._stride)

    def updates(self, parameter: Tensor) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before, shape ``(3,)``; NaN if it was resized or freed.

        Args:
            parameter: The same, after the update.
        """
        if parameter.shape != self._shape or is_freed(parameter):
            return torch.full((3,), math.nan, dtype=row_dtype(parameter.device), device=parameter.device)
        (rows, spread), (rows_now, spread_now) = self._before, self._parts(parameter)
        dtype = row_dtype(parameter.device)
        scale = self._others / self._counted.sum(dtype=dtype).clamp(min=1)

        def square(whole: Tensor, part: Tensor) -> Tensor:
            others = torch.linalg.vector_norm(torch.where(self._counted, part, 0), dtype=dtype).square() * scale
            both: Tensor = torch.linalg.vector_norm(whole, dtype=dtype).square() + others
            return both

        before = square(rows, spread)
        return torch.stack((square(rows_now - rows, spread_now - spread), before, before / parameter.numel())).sqrt()


def whole_where_partial(tensor: Tensor) -> Tensor:
    """Add up what processes hold parts of a sum of; a collective, and the same tensor where there is nothing to add."""
    placements: Any = tensor.placements if is_distributed(tensor) else ()  # type: ignore[attr-defined]  # a DTensor's
    if not any(placement.is_partial() for placement in placements):
        return tensor
    from torch.distributed.tensor import Replicate

    wanted = [Replicate() if placement.is_partial() else placement for placement in placements]
    return tensor.redistribute(placements=wanted)  # type: ignore[attr-defined, no-any-return]  # a DTensor's


class Shards:
    """How parameters are spread over all processes.

    Args:
        parameters: All of them, in the same order on every process; None where one is gone.
        device: Where sums are made: one that the process group can send from.
    """

    def __init__(self, parameters: Sequence[Tensor | None], device: torch.device) -> None:
        world = torch.distributed.get_world_size()
        # Of a parameter in k shards, world / k processes hold each: one over that of what they sum up to is the whole's.
        shares = [_shard_count(parameter) / world for parameter in parameters]
        self._shares = torch.tensor(shares, dtype=row_dtype(device), device=device)

    def total(self, values: Tensor) -> Tensor:
        """Sum values of shards into those of whole parameters; a collective.

        Args:
            values: What adds up (squares, counts), shape ``(…, n_parameters)``.

        Returns:
            The same on every process, of the same shape.
        """
        summed = values.to(self._shares) * self._shares
        torch.distributed.all_reduce(summed)
        return summed.to(values.device)

    def agreed(self, stride: int) -> int:
        """The largest of the processes' strides, 0 if one of them has none (0) yet; a collective that waits."""
        ends = torch.tensor([stride, -stride], device=self._shares.device)
        torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX)
        largest, least = ends.tolist()
        return int(largest) if least else 0

    def norms(self, local: Tensor) -> Tensor:
        """Norms of whole tensors from those of the shards, shape ``(n_parameters,)``; a collective."""
        return self.total(local.square()).sqrt()


def _shard_count(parameter: Tensor | None) -> int:
    if parameter is None or not is_distributed(parameter):
        return 1
    mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]  # a DTensor's
    placements: Any = parameter.placements  # type: ignore[attr-defined]
    return math.prod(
        mesh.size(dim) for dim, placement in enumerate(placements) if not (placement.is_replicate() or placement.is_partial())
    )


class ShardedWeightSample:
    """What :class:`WeightSample` is, of sharded parameters: exact where each shard is small, estimated shard by shard elsewhere.

    Args:
        parameters: The parameters of one optimizer step.
        indices: Their places among all, shape ``(k,)``.
        n_parameters: How many there are in all.
        shards: How they are spread.
    """

    def __init__(self, parameters: Sequence[Tensor], indices: Tensor, n_parameters: int, shards: Shards) -> None:
        self._indices, self._n_parameters, self._shards = indices, n_parameters, shards
        local = all_values(parameters, real=True)
        self._strides = strides_of(tuple([p.shape for p in local]))
        self._taken = self._sampled(local)
        # A sample's square stands for that of its shard.
        scales = [p.numel() / max(taken.numel(), 1) for p, taken in zip(local, self._taken, strict=True)]
        self._scales = torch.tensor(scales, dtype=row_dtype(local[0].device)).to(local[0].device, non_blocking=True)

    def _sampled(self, local: Sequence[Tensor]) -> list[Tensor]:
        return [every(p, stride) for p, stride in zip(local, self._strides, strict=True)]

    def updates(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before of each whole parameter, shape ``(3, k)``; a collective."""
        differences = torch._foreach_sub(self._sampled(all_values(parameters, real=True)), self._taken)
        norms = torch.stack([torch.stack(torch._foreach_norm(tensors)) for tensors in (differences, self._taken)])
        squares = norms.to(self._scales).square() * self._scales
        placed = squares.new_zeros((2, self._n_parameters))
        placed[:, self._indices] = squares
        found = self._shards.total(placed)[:, self._indices].sqrt()
        roots = torch.tensor([math.sqrt(parameter.numel()) for parameter in parameters], dtype=found.dtype)
        return torch.cat((found, found[1:] / roots.to(found.device, non_blocking=True)))
