"""The inputs of a model: how large they are, whether samples differ, how the sizes of features differ, ids beyond a table."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag
from typing_extensions import override

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.rule import in_batch
from lightning_hooks.diagnostics.features.table import FeatureStats, feature_stats
from lightning_hooks.hooks.attributes import contents, stored_count
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import MAX_DEPTH, in_memory, plain_values
from lightning_hooks.statistics.columns import MAXIMUM, Columns, RowTable
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import Clock, Column
from lightning_hooks.statistics.tables import Tables

BatchTensors = Sequence[tuple[str, Tensor]]  # the tensors of a batch, each with the place where it is, such as ``[0]``
PARTS = ("training", "validation")
COMPARED = 8  # samples of a batch that are compared with one another
LEAST = 4  # a batch with fewer samples is not compared: few may be alike by chance


class SampleColumn(Columns):
    """The result of comparing the samples of a batch."""

    COMPARED = MAXIMUM  # 0: not compared, 1: the same, 2: not


class InputTable(Tables):
    """A row for the inputs of training, one for those of validation, and the result of comparing the samples of a batch.

    The input is the floating-point tensor of the batch with the most elements; in validation, the one at the same place. The
    samples are taken to be along its first dimension, and that of all tensors of the same size with more than one dimension: a mask
    of ones may come with token ids. Of whole numbers all samples are compared, since a few may hold one prompt on purpose.

    Attributes:
        place: Where in the batch the input is, such as ``[0]`` or ``['image']``; empty while none was found.
        images: Whether it looks like images: four dimensions, of which the second or the last one has 1, 3 or 4 channels.
    """

    def __init__(self, clock: Clock, device: torch.device | str = "cpu") -> None:
        self._samples, self._values = RowTable(1, device, SampleColumn), RowTable(len(PARTS), device, Column)
        super().__init__(device, samples=self._samples, values=self._values)
        self._kernels = kernels_for(self._values.rows.device.type)
        self._clock = clock
        self.place, self.images = "", False
        self._nonfinite: Tensor | None = None  # whether there was such a value in this window, and the place of the first

    def train(self, batch: BatchTensors, compare: bool) -> None:
        """Record a training batch; no host sync, no tensor is kept."""
        tensors, found = {}, {}
        for place, tensor in batch:
            if tensor.dim() > 1:
                tensors[place] = tensor
                if tensor.is_floating_point():
                    found[place] = tensor
        if found:
            self.place = self.place if self.place in found else max(found, key=lambda place: found[place].numel())
            values = found[self.place] if self._kernels.proves else plain_values(found[self.place])
            self._kernels.record(self._values.rows, 0, values, self._clock)
            # On the CPU the counts say at once whether a value is not finite; the first such place of the window is kept.
            rows = self._values.rows
            if not rows.is_cpu or (self._nonfinite is None and rows.numpy()[0, Column.NONFINITE]):
                self._look_for_nonfinite(plain_values(values))
            self.images = values.dim() == 4 and not {values.shape[1], values.shape[-1]}.isdisjoint((1, 3, 4))
        if compare:
            self._compare(tensors)

    def _look_for_nonfinite(self, values: Tensor) -> None:
        known, bad = self._nonfinite, values.isfinite().logical_not()
        new = torch.stack((bad.any().long(), *indices_of(bad.flatten().to(torch.uint8).argmax(), values.shape)))
        self._nonfinite = new if known is None or known.shape != new.shape else torch.where(known[0] > 0, known, new)

    def _compare(self, tensors: Mapping[str, Tensor]) -> None:
        """Compare the samples of a batch: they are the same where those of each of its tensors are."""
        compared = {
            place: tensor
            for place, tensor in tensors.items()
            if tensor.shape[0] >= LEAST and (tensor.numel() > tensor.shape[0] or not tensor.is_floating_point())
        }
        self.place = self.place or next(iter(compared), "")
        size, differ = len(tensors[self.place]) if self.place in tensors else None, []
        for tensor in compared.values():
            if len(tensor) == size:
                values = plain_values(tensor)  # each number once: without the dimensions along which a tensor is expanded
                values = values[tuple([slice(None, 1 if step == 0 else None) for step in values.stride()])]
                rows = values[1:COMPARED] if tensor.is_floating_point() else values[1:]
                differ.append((rows != values[:1]).any().to(self._samples.rows.device))
        if differ:
            self._samples.rows.clamp_(min=1 + torch.stack(differ).any().to(self._samples.rows.dtype))

    def validate(self, batch: Any) -> None:
        """Record a validation batch."""
        found = dict(tensors_in(batch)).get(self.place)
        if found is not None and found.is_floating_point():
            self._kernels.record(self._values.rows, 1, plain_values(found), self._clock)

    @override
    def reset(self) -> None:
        super().reset()
        self._nonfinite = None

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Name the numbers of a packed vector on the host.

        Returns:
            ``inputs``: ``training`` and ``validation`` to the statistics of the inputs, where there were some; ``input_place``:
            where in the batch they are; ``input_nonfinite``: where the first such value is; ``images``: whether they look like
            images; ``same_samples``: whether all samples compared were the same to the bit, None if none were.
        """
        parts = self.split(packed)
        ((same,),) = self._samples.lines(parts["samples"])
        inputs = by_part(self._values.lines(parts["values"]))
        bad, *index = (0,) if self._nonfinite is None else self._nonfinite.tolist()
        where = {"input_place": self.place, "input_nonfinite": tuple(index) if bad else ()}
        return {"inputs": inputs, **where, "images": self.images, "same_samples": same < 2 if same else None}


def by_part(rows: Sequence[Sequence[float]]) -> dict[str, FeatureStats]:
    """The statistics of the inputs of training, and of those of validation, where there were some."""
    return {part: feature_stats(row) for part, row in zip(PARTS, rows, strict=True) if row[Column.CALLS]}


def tensors_in(batch: Any) -> BatchTensors:
    """The tensors of a batch of lists, tuples, dictionaries and dataclasses, each with the place where it is.

    What a class of the user's computes when it is asked (``__getitem__``, ``items``, a property) is not read.
    """
    found, waiting = [], [("", batch, 0)]
    while waiting:
        place, each, depth = waiting.pop()
        kind = type(each)  # also isinstance asks an object for its class
        if issubclass(kind, Tensor):
            if each.layout == torch.strided and not (each.is_nested or each.is_quantized):
                found.append((place or "batch", each))
            continue
        if issubclass(kind, UserDict):  # such as transformers' BatchEncoding
            each = contents(each).get("data")
            kind = type(each)
        inner: list[tuple[str, Any, int]] = []
        if depth >= MAX_DEPTH:
            continue
        if issubclass(kind, dict):
            for key, value in dict.items(each):
                if isinstance(key, str | int):
                    inner.append((f"{place}[{key!r}]", value, depth + 1))
        elif issubclass(kind, list | tuple):
            for number, value in enumerate(list.__iter__(each) if issubclass(kind, list) else tuple.__iter__(each)):
                inner.append((f"{place}[{number}]", value, depth + 1))
        elif is_dataclass(kind):
            stored = contents(each)
            inner += [(f"{place}.{field.name}", stored[field.name], depth + 1) for field in fields(kind) if field.name in stored]
        waiting += reversed(inner)
    return found


def indices_of(places: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """The indices of places in a flattened tensor of a shape: as torch.unravel_index, which waits for the device."""
    found = []
    for size in reversed(shape):
        found.append(places % size)
        places = places // size
    return tuple(reversed(found))


MOST_FEATURES = 4096  # layers with more inputs are not measured


@dataclass(frozen=True, slots=True)
class FeatureScales:
    """The sizes of the features that a layer is given, in the first sampled batches of a window.

    Attributes:
        ratio: Root mean square of the largest over the median of all that are not 0, in a batch; the largest.
        feature: Which is the largest, by its place in the last dimension.
        features: How many there are.
        rms: Root mean square of the largest.
    """

    ratio: float
    feature: int
    features: int
    rms: float


class ScaleColumn(Columns):
    """What each number of a row holds."""

    RATIO = MAXIMUM
    FEATURE = MAXIMUM
    RMS = MAXIMUM


class ScaleTable(RowTable):
    """A row for each linear layer. Its input is measured where it requires no gradient: data, and what is computed from them."""

    columns = ScaleColumn

    def __init__(self, context: Context, sites: Sequence[tuple[str, nn.Module]]) -> None:
        sizes = {name: stored_count(module, "in_features") for name, module in sites if isinstance(module, nn.Linear)}
        self._features = {name: size for name, size in sizes.items() if 1 < size <= MOST_FEATURES}
        self.lines_of = {name: line for line, name in enumerate(self._features)}
        self._context = context
        super().__init__(len(self._features), context.host.setup.device)

    def take(self, line: int, args: tuple[Any, ...]) -> None:
        """Record the input of a layer, features last, in a batch in which costly statistics are taken. No host sync."""
        values = args[0] if args else None
        if (
            not (self._context.detailed and torch.is_grad_enabled() and in_memory(values) and values.is_floating_point())
            or values.requires_grad
            or values.dim() < 2
            or not values.numel()
        ):
            return
        sizes = values.detach().reshape(-1, values.shape[-1]).to(self.rows.dtype).square().mean(0).sqrt()
        usual = torch.where(sizes > 0, sizes, torch.nan).nanmedian()
        largest, feature = sizes.max(0)
        found = torch.stack((largest / usual, feature, largest)).nan_to_num(0.0, 0.0, 0.0).to(self.rows)
        torch.maximum(self.rows[line], found, out=self.rows[line])

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        lines = zip(self._features.items(), self.lines(packed), strict=True)
        found = {name: FeatureScales(row[0], int(row[1]), features, row[2]) for (name, features), row in lines if row[0]}
        return {"feature_scales": found}


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

    @property
    def where(self) -> str:
        """The tensor that holds the id, and the batch, in words."""
        when = "" if self.batch is None else f", in training batch {self.batch} of the epoch"
        return f"{in_batch(self.place) if self.place else 'its input'}{when}"


def id_out_of_range(error: BaseException, model: nn.Module, batch: Any, batch_idx: int | None) -> MissedRow | None:
    """Find the id for which a lookup on the CPU raised; on CUDA the context is lost, and nothing is read.

    The frames of the error that ended training hold what the lookup was called with.
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
    found = mask.nonzero()
    return tuple(found[0].tolist()) if len(found) else None
