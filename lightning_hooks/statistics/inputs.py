"""What a model is fed: the size of its inputs in training and in validation, and whether its samples differ at all."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import MAX_DEPTH, plain_values
from lightning_hooks.statistics.feature_stats import feature_stats
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.reduction import Stretch, Stretches, largest
from lightning_hooks.statistics.rows import N_COLUMNS, Clock, Column, empty_table, merged_rows

PARTS = ("training", "validation")

COMPARED = 8
"""Samples of a batch that are compared with one another."""

LEAST = 4
"""A batch with fewer samples is not compared: few may be alike by chance."""


class InputTable:
    """A row for the inputs of training, one for those of validation, and what became of comparing the samples of a batch.

    The input is the floating-point tensor of the batch with the most elements; in validation, the one at the same place. The
    samples are taken to be along its first dimension, and that of all tensors of the same size with more than one dimension: a mask
    of ones may come with token ids. Of whole numbers all samples are compared, since a few may hold one prompt on purpose.

    Args:
        clock: Of the training batch.
        device: Where the numbers live.

    Attributes:
        place: Where in the batch the input is, such as ``[0]`` or ``['image']``; empty while none was found.
        images: Whether it looks like images: four dimensions, of which the second or the last one has 1, 3 or 4 channels.
    """

    def __init__(self, clock: Clock, device: torch.device | str = "cpu") -> None:
        self._rows = empty_table(len(PARTS), device)
        self._kernels = kernels_for(self._rows.device.type)
        self._same = torch.zeros(1, dtype=self._rows.dtype, device=device)  # 0: not compared, 1: the same, 2: not
        self._clock = clock
        self.place = ""
        self.images = False

    def train(self, batch: Any, compare: bool) -> None:
        """Take up a training batch; no host sync, no tensor is kept.

        Args:
            batch: As the model gets it.
            compare: Whether to compare its samples.
        """
        tensors = {place: tensor for place, tensor in tensors_in(batch) if tensor.dim() > 1}
        found = {place: tensor for place, tensor in tensors.items() if tensor.is_floating_point()}
        if found:
            self.place = self.place if self.place in found else max(found, key=lambda place: found[place].numel())
            values = self._add(0, found[self.place])
            self.images = values.dim() == 4 and not {values.shape[1], values.shape[-1]}.isdisjoint((1, 3, 4))
        if compare:
            self._compare(tensors)

    def _compare(self, tensors: Mapping[str, Tensor]) -> None:
        """Compare the samples of a batch: they are the same where those of each of its tensors are."""
        compared = {
            place: tensor
            for place, tensor in tensors.items()
            if tensor.shape[0] >= LEAST and (tensor.numel() > tensor.shape[0] or not tensor.is_floating_point())
        }
        if not compared:
            return
        self.place = self.place or next(iter(compared))
        size = tensors[self.place].shape[0] if self.place in tensors else None
        differ = []
        for tensor in compared.values():
            if tensor.shape[0] == size:
                values = unexpanded(plain_values(tensor))
                rows = values[1:COMPARED] if tensor.is_floating_point() else values[1:]
                differ.append((rows != values[:1]).any().to(self._same.device))
        if differ:
            self._compared(torch.stack(differ).any())

    def _compared(self, differs: Tensor) -> None:
        """Note whether the samples of a batch differ."""
        self._same.copy_(torch.maximum(self._same, 1 + differs.to(self._same.device, self._same.dtype)))

    def validate(self, batch: Any) -> None:
        """Take up a validation batch."""
        found = dict(tensors_in(batch)).get(self.place)
        if found is not None and found.is_floating_point():
            self._add(1, found)

    def _add(self, line: int, tensor: Tensor) -> Tensor:
        values = plain_values(tensor)
        self._kernels.record(self._rows, line, values, self._clock)
        return values

    def pack(self) -> Tensor:
        """Return everything as one vector."""
        return torch.cat((self._same, self._rows.flatten()))

    def unpack(self, packed: Tensor) -> None:
        """Take up a vector that :meth:`pack` or a merge gave."""
        self._same.copy_(packed[:1])
        self._rows.copy_(packed[1:].view_as(self._rows))

    @property
    def stretches(self) -> Stretches:
        """How the packed vectors of ranks and of windows merge; samples are the same if they are in each of them."""
        return Stretch(1, largest), Stretch(self._rows.numel(), merged_rows)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Name the numbers of a packed vector on the host.

        Returns:
            ``inputs``: ``training`` and ``validation`` to the statistics of the inputs, where there were some; ``input_place``:
            where in the batch they are; ``images``: whether they look like images; ``same_samples``: whether all samples compared
            were the same to the bit, None if none were.
        """
        rows = packed[1:].view(-1, N_COLUMNS).tolist()
        same = packed[0].item()
        inputs = {part: feature_stats(row) for part, row in zip(PARTS, rows, strict=True) if row[Column.CALLS]}
        return {"inputs": inputs, "input_place": self.place, "images": self.images, "same_samples": same < 2 if same else None}

    def reset(self) -> None:
        """Start a new epoch."""
        self._rows.copy_(empty_table(len(PARTS), self._rows.device))
        self._same.zero_()


def tensors_in(batch: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch of lists, tuples, dictionaries and dataclasses, each with the place where it is.

    What a class of the user's computes when it is asked (``__getitem__``, ``items``, a property) is not read.
    """
    kind = type(batch)  # also isinstance asks an object for its class
    if issubclass(kind, Tensor):
        if batch.layout == torch.strided and not (batch.is_nested or batch.is_quantized):
            yield place or "batch", batch
        return
    for key, inner in _entries(batch, kind) if depth < MAX_DEPTH else ():
        yield from tensors_in(inner, f"{place}{key}", depth + 1)


def _entries(batch: Any, kind: type) -> Iterable[tuple[str, Any]]:
    """What a container stores, with its place in it."""
    if issubclass(kind, UserDict):  # such as transformers' BatchEncoding
        batch = _stored(batch).get("data")
        kind = type(batch)
    if issubclass(kind, dict):
        return [(f"[{key!r}]", inner) for key, inner in dict.items(batch) if isinstance(key, str | int)]
    if issubclass(kind, list):
        return [(f"[{number}]", inner) for number, inner in enumerate(list.__iter__(batch))]
    if issubclass(kind, tuple):
        return [(f"[{number}]", inner) for number, inner in enumerate(tuple.__iter__(batch))]
    if is_dataclass(kind):
        stored = _stored(batch)
        return [(f".{field.name}", stored[field.name]) for field in fields(kind) if field.name in stored]
    return ()


def _stored(batch: Any) -> Mapping[str, Any]:
    try:
        return object.__getattribute__(batch, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:  # it has slots
        return {}


def unexpanded(values: Tensor) -> Tensor:
    """A view of each number once: without the dimensions along which a tensor is expanded."""
    return values[tuple([slice(None, 1 if step == 0 else None) for step in values.stride()])]
