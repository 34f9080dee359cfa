"""The tables of a window, merged over ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from lightning_hooks.declare.collector import WindowTables
from lightning_hooks.statistics.reduction import Span, all_ranks, all_reduce, largest, merged_over_ranks


def merged(collectors: Sequence[WindowTables[Any]], flags: Sequence[bool] = ()) -> tuple[list[Tensor], list[bool]]:
    """Merge the packed tables of all ranks: three collectives for all of them.

    Args:
        collectors: Whose tables; the same on all ranks.
        flags: What this rank has to say.

    Returns:
        The tables, and whether each flag is set on any rank.
    """
    packed = [(one.tables.spans, one.tables.pack()) for one in collectors]
    if all_ranks() is None:
        return merged_over_ranks(*packed), [*flags]
    raised = packed[0][1].new_tensor([float(flag) for flag in flags]) if packed else torch.empty(0)
    *tables, of_any = merged_over_ranks(*packed, ((Span(len(flags), largest),), raised))
    return tables, [bool(flag) for flag in of_any.tolist()]


def check_ranks_agree(name: str, collector: WindowTables[Any], arguments: Mapping[str, Any]) -> None:
    """Check, when training starts, that every rank has the same sites, parameters and windows; a small collective.

    Args:
        name: The monitor's, for messages.
        collector: Its collector.
        arguments: By name, those by which ranks decide when they merge their tables.

    Raises:
        RuntimeError: If ranks differ, on all of them: their tables could not be merged, or one would wait for the others forever.
    """
    among, names = all_ranks(), collector.names
    if among is None:
        return
    packed = collector.tables.pack()
    compared = repr((names, sorted(arguments.items()))).encode()
    hashed = int.from_bytes(hashlib.sha256(compared).digest()[:6], "big")  # exact in a float64
    marks = torch.tensor([float(hashed), float(len(names)), float(packed.numel())], dtype=packed.dtype, device=packed.device)
    ends = torch.cat((marks, -marks))
    all_reduce(ends, "max")
    if bool((ends[:3] == -ends[3:]).all()):
        return
    of_ranks: list[Any] = [None] * among.count
    torch.distributed.all_gather_object(of_ranks, (names, packed.numel(), dict(arguments)))
    for argument, first in arguments.items():
        values = [of_rank[2][argument] for of_rank in of_ranks]
        if any(value != first for value in values):
            shown = ", ".join(f"{value!r} on rank {rank}" for rank, value in enumerate(values[:8]))
            raise RuntimeError(
                f"{name}: ranks have different values of {argument}: {shown}. They merge their numbers at the same batches, and "
                f"would wait for each other forever: give {argument}= alike on every rank."
            )
    raise RuntimeError(f"{name}: {_what_differs(of_ranks)} Numbers of all ranks are merged by their place: build the model and "
                       "choose modules= alike on every rank.")  # fmt: skip


def _what_differs(of_ranks: Sequence[tuple[Sequence[str], int, Any]]) -> str:
    """Say what the first rank that differs from rank 0 has."""
    first, size, _ = of_ranks[0]
    for rank, (names, other_size, _) in enumerate(of_ranks):
        if list(names) != list(first):
            pairs = enumerate(zip_longest(first, names))
            place, (here, there) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
            return (
                f"ranks have different sites or parameters, {len(first)} on rank 0 and {len(names)} on rank {rank}. Number "
                f"{place + 1} is {here or 'missing'} on rank 0 and {there or 'missing'} on rank {rank}."
            )
        if other_size != size:
            return f"its table has {size} numbers on rank 0 and {other_size} on rank {rank}, for the same sites."
    return "ranks have different sites."
