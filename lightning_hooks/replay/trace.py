"""The first operation of a step that gives values that are not finite: its module, the user's line, its inputs, the rows."""

from __future__ import annotations

import linecache
import math
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # torch's documentation refers users to it

from lightning_hooks.debugging.trace import Trace, entries_of
from lightning_hooks.debugging.tracer import Tracer
from lightning_hooks.diagnostics.nonfinite.bad_step import Failure, Operand, Place
from lightning_hooks.diagnostics.nonfinite.operations import POINTS
from lightning_hooks.hooks import HookManager
from lightning_hooks.hooks.listener import in_backward
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.hooks.tensors import has_values, tensors_in

# Operations that put in a value that was given, as a mask puts in minus infinity: that is meant.
_INSERTS = {
    *("fill", "masked_fill", "full", "full_like", "scalar_tensor", "where", "index_put", "copy", "lift_fresh", "masked_scatter"),
    *("new_full", "constant_pad_nd", "scatter", "index_fill", "detach", "clone", "empty", "empty_like", "new_empty"),
}
_PICKS = {"nll_loss", "nll_loss2d"}  # operations that are to take no value that was put in on purpose: they pick one by a label
# Operations of which it is counted what they reduce.
_REDUCE = ("softmax", "log_softmax", "logsumexp", "std", "var", "std_mean", "var_mean")
_ALIASES = {"to_copy": "to", "linalg_vector_norm": "norm"}
_NOT_USERS = str(Path(torch.__file__).parent), str(Path(__file__).parent.parent)  # torch's folder, and ours
_LIBRARIES = ("/lightning/", "/pytorch_lightning/", "/lightning_fabric/", "/torchmetrics/")
_SITE_PACKAGES, _STANDARD_LIBRARY = (sysconfig.get_paths()[name] for name in ("purelib", "stdlib"))


class NonfiniteTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation of a step, forward and backward, on a batch of ``size`` rows; operations run unchanged."""

    def __init__(self, model: nn.Module, batch: Any, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model, self._size = model, size
        self._sites = [
            (name, module) for name, module in named_sites(model) if name and not isinstance(module, nn.ModuleList | nn.ModuleDict)
        ]
        self._tracer = Tracer(self._sites, statistics=True)
        self._given = {_key(tensor): (source, name, tensor) for source, name, tensor in nonfinite_inputs(model, batch)}
        self._causes: dict[int, Failure | None] = {}  # by storage; None where it was put in on purpose
        self._alive: list[Tensor] = []  # keeps the storages
        self._of_node: dict[int, Place] = {}  # by the number of the autograd node that an operation made
        self._last: Place | None = None
        self._found: dict[str, Failure] = {}  # the first of each phase
        self.trace: Trace | None = None

    @contextmanager
    def within(self) -> Iterator[None]:
        """A context around forward and backward."""
        with HookManager() as hooks:
            self._tracer.attach(self._sites, hooks)
            self._tracer.begin()
            try:
                with self:
                    yield
            finally:
                self.trace = self._tracer.finish(self._model, "The step, run again")

    def failure(self, loss: Tensor | None, gradients: Sequence[Tensor | None], error: Exception | None) -> Failure | None:
        """What made the loss or a gradient not finite, or raised; None where all is finite, or nothing says what it was."""
        if error is not None:
            return self._raised(error)
        if loss is not None and _nonfinite(loss):
            return self._causes.get(_key(loss)) or self._found.get("forward")
        bad = [self._causes.get(_key(gradient)) for gradient in gradients if gradient is not None and _nonfinite(gradient)]
        return next(filter(None, bad), self._found.get("backward") if bad else None)

    def _raised(self, error: Exception) -> Failure | None:
        assert self.trace is not None
        raising = [call for call in self.trace.calls if call.error]
        module = max(raising, key=lambda call: call.depth).site if raising else ""
        frames = [*walk_tb(error.__traceback__)]
        in_operation = any(frame.f_code is NonfiniteTrace.__torch_dispatch__.__code__ for frame, _ in frames)
        place = replace((in_operation and self._last) or Place(""), module=module, **_users_line(reversed(frames)))
        return Failure("error", place, "forward", f"{type(error).__name__}: {error}".splitlines()[0][:300])

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run the operation, and look at what it gave."""
        given = kwargs or {}
        bad_inputs = [tensor for tensor in _floats((args, given)) if _nonfinite(tensor)]
        nans = any(bool(torch.isnan(tensor).any()) for tensor in bad_inputs)
        name = func.overloadpacket.__name__.rstrip("_") if func.overloadpacket.__name__.strip("_") else str(func)
        own = self._place(name, func._schema, args, given) if not in_backward() or _in_users_backward() else None
        place = own or self._place_in_backward()
        output = func(*args, **given)
        for tensor in _floats(output):
            if _nonfinite(tensor):
                self._look(tensor, place, name, bad_inputs, nans, "forward" if own else "backward")
            elif _key(tensor) in self._causes and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
                del self._causes[_key(tensor)]  # written over
        return output

    def _look(self, tensor: Tensor, place: Place, name: str, inputs: list[Tensor], nans: bool, phase: str) -> None:
        is_nan = bool(torch.isnan(tensor).any())
        known = [self._cause_of(value, place) for value in inputs]
        real = [cause for cause in known if cause is not None]
        if real:
            with_nan = [cause for value, cause in zip(inputs, known, strict=True) if cause and bool(torch.isnan(value).any())]
            cause: Failure | None = (with_nan or real)[0]
        elif (inputs and (nans or not is_nan) and place.operation not in _PICKS) or name.strip("_") in _INSERTS:
            cause = None  # what was put in on purpose goes on
        else:
            cause = Failure("operation", place, phase, _value(tensor), "", _bad_rows(tensor, self._size))
        self._causes[_key(tensor)] = cause
        self._alive.append(tensor)
        if cause is not None and is_nan | (cause.source == "operation"):
            self._found.setdefault(phase, cause)

    def _cause_of(self, tensor: Tensor, place: Place) -> Failure | None:
        """Why an input is not finite; None where it was put in on purpose, as minus infinity of a mask that was made before."""
        key = _key(tensor)
        if key not in self._causes:
            source, name, whole = self._given.get(key, ("weights", "a tensor that was made before the step", tensor))
            meant = source == "weights" and not isinstance(whole, nn.Parameter) and not bool(torch.isnan(whole).any())
            rows = _bad_rows(whole, self._size) if source == "data" else None
            self._causes[key] = None if meant else Failure(source, place, "forward", _value(whole), name, rows)
            self._alive.append(tensor)
        return self._causes[key]

    def _place(self, name: str, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Place:
        short = name.removeprefix("native_").removeprefix("_").removesuffix("_forward")
        short = _ALIASES.get(short, short)
        arguments, settings = arguments_of(short, schema, args, kwargs)
        place = Place(
            short,
            self._tracer.innermost,
            arguments=arguments,
            settings=settings,
            **_users_line(walk_stack(sys._getframe(2))),
        )
        if self._last is None or not self._last.operation.startswith("linalg_") or self._last.where != place.where:
            self._last = place  # the operations after it in the same line are how torch checks it
        # torch gives the node of an operation its number before the operation itself runs; there is no public name.
        self._of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        return place

    def _place_in_backward(self) -> Place:
        node: Any = torch._C._current_autograd_node()  # has no public name
        if node is None:
            return Place("backward")
        return self._of_node.get(node._sequence_nr()) or Place(node.name().removesuffix("0").removesuffix("Backward"))


def tensors_of(value: Any, name: str = "", depth: int = 0) -> dict[str, Tensor]:
    """The tensors of a batch by their place in it."""
    if isinstance(value, Tensor):
        return {name: value}
    held = entries_of(value) or [(f".{key}", entry) for key, entry in getattr(value, "__dict__", {}).items()] if depth <= 8 else []
    return {key: tensor for path, entry in held for key, tensor in tensors_of(entry, f"{name}{path}", depth + 1).items()}


def nonfinite_inputs(model: nn.Module, batch: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Yield what is not finite before a step: tensors of the batch first, then parameters, then buffers.

    Yields:
        ``data`` or ``weights``, its place in the batch or its name in the model, and the tensor.
    """
    tensors = [("data", name, tensor) for name, tensor in tensors_of(batch).items()]
    tensors += [("weights", name, tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())]
    return (entry for entry in tensors if _nonfinite(entry[2]))


def _floats(values: Any) -> Iterator[Tensor]:
    return filter(_is_read, tensors_in(values))


def _is_read(tensor: Tensor) -> bool:
    wide = tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype.itemsize > 1)  # torch looks at no float of 8 bits
    return wide and has_values(tensor)


def _nonfinite(tensor: Tensor) -> bool:
    return _is_read(tensor) and not bool(torch.isfinite(tensor).all())


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _value(tensor: Tensor) -> str:
    if bool(torch.isnan(tensor).any()):
        return "NaN"
    return "inf" if tensor.is_complex() or bool(torch.isposinf(tensor).any()) else "-inf"


def _bad_rows(tensor: Tensor, size: int) -> tuple[int, ...] | None:
    """The rows with values that are not finite, where the first dimension is that of the rows, or of equally many for each."""
    if not size or not tensor.dim() or tensor.shape[0] % size or not tensor.shape[0]:
        return None
    return tuple((~torch.isfinite(tensor)).reshape(size, -1).any(1).nonzero().flatten().tolist())


def _users_line(frames: Iterable[tuple[FrameType, int]]) -> dict[str, Any]:
    for frame, line in frames:
        file, code = frame.f_code.co_filename, frame.f_code
        if _is_users(file):
            function = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
            return {"where": f"{Path(file).name}:{line}", "code": linecache.getline(file, line).strip(), "function": function}
    return {}


def _in_users_backward() -> bool:
    """Whether an operation of the backward pass is called by the backward of a ``torch.autograd.Function`` of the user's."""
    frames = takewhile(lambda entry: entry[0].f_code.co_filename != torch.autograd.__file__, walk_stack(sys._getframe(1)))
    return bool(_users_line(frames))


def _is_users(file: str) -> bool:
    if file.startswith(_SITE_PACKAGES):
        return not file.startswith(_NOT_USERS) and not any(part in file for part in _LIBRARIES)
    return not file.startswith((*_NOT_USERS, _STANDARD_LIBRARY, "<"))


def arguments_of(
    name: str, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Operand, ...], dict[str, Any]]:
    """The tensors that an operation was given, in numbers, and its settings: read at once, since values may be written over."""
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
    tensors = [(key, tensor) for key, value in given.items() for tensor in tensors_in(value)]
    dtype, dims = given.get("dtype"), given.get("dim")
    settings: dict[str, Any] = {
        **{key: value for key, value in given.items() if isinstance(value, bool | int | float)},
        **({"dtype": str(dtype).removeprefix("torch.")} if isinstance(dtype, torch.dtype) else {}),
        **({"dims": tuple(dims)} if isinstance(dims, list | tuple) and all(isinstance(one, int) for one in dims) else {}),
    }
    first = tensors[0][1] if tensors else None
    with suppress(IndexError, RuntimeError, TypeError, ValueError):  # arguments that the operation itself raises for
        if first is not None and first.is_floating_point() and first.layout == torch.strided and first.numel():
            if name in _REDUCE:
                settings |= _along(first, settings.get("dims", settings.get("dim")))
            elif name == "ctc_loss":
                settings |= _alignment(**given)
            elif name.startswith("nll_loss") and isinstance(target := given.get("target"), Tensor):
                settings["used"] = int((target != settings.get("ignore_index", -100)).sum())
    return tuple(_measured(key, tensor, name in POINTS or name == "pow") for key, tensor in tensors), settings


def _measured(name: str, tensor: Tensor, points: bool) -> Operand:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), () if tensor.is_nested else tuple(map(int, tensor.shape))
    if not has_values(tensor) or not tensor.numel() or tensor.is_complex() or tensor.dtype == torch.bool:
        return Operand(name, dtype, shape)
    values = tensor.detach()
    finite = values[torch.isfinite(values)] if values.is_floating_point() else values
    low, high = (float(edge) for edge in torch.aminmax(finite)) if finite.numel() else (math.nan, math.nan)
    found = {"nan": values.isnan(), "inf": values.isposinf(), "-inf": values.isneginf()} if values.is_floating_point() else {}
    if points:
        found |= {"zero": values == 0, "negative": values < 0, "outside": (values < 0) | (values > 1)}
        found |= {"one": values.abs() == 1, "beyond": values.abs() > 1}
    counts = {word: count for word, where in found.items() if (count := int(where.sum()))}
    return Operand(name, dtype, shape, low, high, counts)


def _along(tensor: Tensor, dim: Any) -> dict[str, Any]:
    """What lies along the dimensions that an operation reduces: how many slices, of what size, and what they hold.

    A mask of queries in place of keys leaves some rows of a sample empty, and hides nothing of the others.
    """
    dims = tuple(range(tensor.dim())) if dim in (None, ()) else (dim,) if isinstance(dim, int) else tuple(dim)
    low, high = tensor.amin(dims), tensor.amax(dims)
    empty, clear = high.isneginf(), ~low.isneginf()
    queries = empty.dim() > 1 and bool((empty.any(-1) & (empty | clear).all(-1) & clear.any(-1)).any())
    count = low.numel()
    return {"slices": count, "size": tensor.numel() // max(count, 1), "empty": int(empty.sum()), "queries": queries}


def _alignment(targets: Any = None, input_lengths: Any = (), target_lengths: Any = (), **_: Any) -> dict[str, Any]:
    """The first sequence of a ``ctc_loss`` that is too short for its target: a repeated label needs a blank in between."""
    lengths, wanted = (torch.as_tensor(each).flatten().tolist() for each in (input_lengths, target_lengths))
    start = 0
    for row, (length, target_length) in enumerate(zip(lengths, wanted, strict=True)):
        labels = targets[row, :target_length] if targets.dim() == 2 else targets[start : start + target_length]
        start += target_length
        repeats = int((labels[1:] == labels[:-1]).sum())
        if target_length + repeats > length:
            return {"row": row, "steps": length, "labels": target_length, "repeats": repeats}
    return {}
