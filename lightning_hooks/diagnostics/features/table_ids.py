"""The id beyond the table of an embedding that ended a training: found in the frames of the exception, when it is too late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag

from lightning_hooks.diagnostics.batches.inputs import tensors_in
from lightning_hooks.hooks.selection import clean_name

_LOOKUPS = (embedding.__code__, embedding_bag.__code__)  # what the frames of an exception hold, whatever the functions are now


@dataclass(frozen=True, slots=True)
class MissedRow:
    """An id that an embedding has no row for.

    Attributes:
        site: The module with the table; ``embedding`` for a table that is in no module.
        id: The id.
        rows: The rows of the table.
        index: Where the id is in the tensor, one number for each dimension.
        place: Where that tensor is in the batch, such as ``[0]``; empty if the id is not in the batch, and ``index`` is that in
            the call's input.
        batch: The index of the training batch in the epoch; None outside of one.
    """

    site: str
    id: int
    rows: int
    index: tuple[int, ...]
    place: str = ""
    batch: int | None = None


def id_out_of_range(error: BaseException, model: nn.Module, batch: Any, batch_idx: int | None) -> MissedRow | None:
    """Find the id for which a lookup on the CPU raised; on CUDA the context is lost, and nothing is read.

    Args:
        error: What ended training. Its frames hold what the lookup was called with.
        model: The model.
        batch: The training batch under way.
        batch_idx: Its index.
    """
    for ids, table in _lookups(error.__traceback__) if isinstance(error, IndexError | RuntimeError) else ():
        if ids.device.type != "cpu" or table.device.type != "cpu":
            continue
        bad = _first((ids < 0) | (ids >= table.shape[0]))
        if bad is not None:
            number = int(ids[bad])
            owners = (name for name, module in model.named_modules() if module._parameters.get("weight") is table)
            site = clean_name(next(owners, "")) or "embedding"
            found = ((place, _first(values == number)) for place, values in tensors_in(batch) if _holds_ids(values))
            place, index = next(((place, index) for place, index in found if index is not None), ("", bad))
            return MissedRow(site, number, table.shape[0], index, place, batch_idx)
    return None


def _lookups(traceback: TracebackType | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The ids and the table of each lookup among the frames."""
    while traceback is not None:
        if traceback.tb_frame.f_code in _LOOKUPS:
            given = traceback.tb_frame.f_locals
            ids, table = given.get("input"), given.get("weight")
            if isinstance(ids, Tensor) and isinstance(table, Tensor) and _holds_ids(ids):
                yield ids, table
        traceback = traceback.tb_next


def _holds_ids(values: Tensor) -> bool:
    return values.dtype in (torch.int64, torch.int32) and values.device.type == "cpu"


def _first(mask: Tensor) -> tuple[int, ...] | None:
    """The index of the first number for which a mask holds."""
    found = mask.nonzero()
    return tuple(found[0].tolist()) if len(found) else None
