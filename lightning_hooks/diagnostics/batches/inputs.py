"""What a model is fed: the size of its inputs in training and in validation, and whether its samples differ at all."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.diagnostics.features.stats import feature_stats
from lightning_hooks.hooks.tensors import MAX_DEPTH, plain_values
from lightning_hooks.statistics.columns import MAXIMUM, Columns, RowTable
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import Clock, Column, ValueTable
from lightning_hooks.statistics.tables import Tables

PARTS = ("training", "validation")

COMPARED = 8
"""Samples of a batch that are compared with one another."""

LEAST = 4
"""A batch with fewer samples is not compared: few may be alike by chance."""


class SampleColumn(Columns):
    """What became of comparing the samples of a batch."""

    COMPARED = MAXIMUM  # 0: not compared, 1: the same, 2: not


class SampleTable(RowTable):
    """One row."""

    columns: ClassVar[type[Columns]] = SampleColumn


class InputTable(Tables):
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
        self._samples, self._values = SampleTable(1, device), ValueTable(len(PARTS), device)
        super().__init__(device, samples=self._samples, values=self._values)
        self._kernels = kernels_for(self._values.rows.device.type)
        self._clock = clock
        self.place = ""
        self.images = False

    def train(self, batch: Any, compare: bool) -> None:
        """Record a training batch; no host sync, no tensor is kept.

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
                differ.append((rows != values[:1]).any().to(self._samples.rows.device))
        if differ:
            known = self._samples.rows
            known.copy_(torch.maximum(known, 1 + torch.stack(differ).any().to(known.dtype)))

    def validate(self, batch: Any) -> None:
        """Record a validation batch."""
        found = dict(tensors_in(batch)).get(self.place)
        if found is not None and found.is_floating_point():
            self._add(1, found)

    def _add(self, line: int, tensor: Tensor) -> Tensor:
        values = plain_values(tensor)
        self._kernels.record(self._values.rows, line, values, self._clock)
        return values

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Name the numbers of a packed vector on the host.

        Returns:
            ``inputs``: ``training`` and ``validation`` to the statistics of the inputs, where there were some; ``input_place``:
            where in the batch they are; ``images``: whether they look like images; ``same_samples``: whether all samples compared
            were the same to the bit, None if none were.
        """
        parts = self.split(packed)
        ((same,),) = self._samples.lines(parts["samples"])
        rows = self._values.lines(parts["values"])
        inputs = {part: feature_stats(row) for part, row in zip(PARTS, rows, strict=True) if row[Column.CALLS]}
        return {"inputs": inputs, "input_place": self.place, "images": self.images, "same_samples": same < 2 if same else None}


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
