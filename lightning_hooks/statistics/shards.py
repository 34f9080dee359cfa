"""Parameters of which each process holds a shard (FSDP2, tensor parallelism): from what each knows to what holds for the whole.

A sharded parameter and its gradient are DTensors. Squares and counts of the shards add up to those of the whole, so one sum over
the processes turns them into norms. A shard that several processes hold alike counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from lightning_hooks.hooks.tensors import as_real, plain_values
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.weight_sample import every, spacing


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, by the attributes its class has, since the class would take a while to import."""
    return hasattr(type(tensor), "placements") and hasattr(type(tensor), "device_mesh")


def whole_where_partial(tensor: Tensor) -> Tensor:
    """Add up what processes hold parts of a sum of; a collective, and the same tensor where there is nothing to add."""
    placements: Any = tensor.placements if is_distributed(tensor) else ()  # type: ignore[attr-defined]  # a DTensor's
    if not any(placement.is_partial() for placement in placements):
        return tensor
    from torch.distributed.tensor import Replicate

    wanted = [Replicate() if placement.is_partial() else placement for placement in placements]
    redistributed: Tensor = tensor.redistribute(placements=wanted)  # type: ignore[attr-defined]  # a DTensor's
    return redistributed


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
        local = [as_real(plain_values(parameter)) for parameter in parameters]
        self._strides = [spacing(p.numel(), p.numel() // p.shape[0] if p.dim() and p.shape[0] else 1)[1] for p in local]
        self._taken = self._sampled(local)
        # A sample's square stands for that of its shard.
        scales = [p.numel() / max(taken.numel(), 1) for p, taken in zip(local, self._taken, strict=True)]
        self._scales = torch.tensor(scales, dtype=row_dtype(local[0].device)).to(local[0].device, non_blocking=True)

    def _sampled(self, local: Sequence[Tensor]) -> list[Tensor]:
        return [every(p, stride) for p, stride in zip(local, self._strides, strict=True)]

    def updates(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before of each whole parameter, shape ``(3, k)``; a collective."""
        after = self._sampled([as_real(plain_values(parameter)) for parameter in parameters])
        differences = torch._foreach_sub(after, self._taken)
        norms = torch.stack([torch.stack(torch._foreach_norm(tensors)) for tensors in (differences, self._taken)])
        squares = norms.to(self._scales).square() * self._scales
        placed = squares.new_zeros((2, self._n_parameters))
        placed[:, self._indices] = squares
        found = self._shards.total(placed)[:, self._indices].sqrt()
        roots = torch.tensor([math.sqrt(parameter.numel()) for parameter in parameters], dtype=found.dtype)
        return torch.cat((found, found[1:] / roots.to(found.device, non_blocking=True)))
