"""Checks of a checkpoint: what is wrong in one that a run left, and which of its names fit a model.

It is loaded without running what is in it, and read a part at a time: a checkpoint may be larger than the memory.
"""

from __future__ import annotations

import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.declare.kinds import Severity, gravity
from lightning_hooks.declare.rule import grouped
from lightning_hooks.hooks.tensors import read_number
from lightning_hooks.trackers.console import some

__all__ = ["CheckedCheckpoint", "LoadedNames", "check_checkpoint", "check_loaded"]

CHUNK = 1 << 22  # numbers that are looked at together
MOST_SHOWN = 30
LONGEST_NAME = 120
# What an optimizer adds gradients up in, by its name in the optimizers of torch.
SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum", "momentum_buffer")


def load_checkpoint(path: Path) -> Any:
    """Load a file that ``torch.save`` wrote, on the CPU, with ``weights_only=True``: tensors and plain types, and no code.

    Args:
        path: The file.

    Raises:
        ValueError: If the file needs more than that, or is no checkpoint; with what to do.
        OSError: If it cannot be read.
    """
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder. A sharded checkpoint has to be put together first: python -m lightning.pytorch.utilities."
            "consolidate_checkpoint FOLDER, or torch.distributed.checkpoint.format_utils.dcp_to_torch_save."
        )
    if not path.is_file():  # a FIFO or a device may have no end
        raise FileNotFoundError(f"there is no file {path}; name a checkpoint, such as last.ckpt.")
    zipped = zipfile.is_zipfile(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on formats that it wrote earlier
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except PermissionError:
        raise
    except Exception as error:  # a damaged file can make torch raise anything
        needed = re.findall(r"GLOBAL ([\w.]{1,100})", str(error))
        if needed:
            raise ValueError(
                f"{path} is not loaded: next to tensors and plain types it holds {needed[0]}, and loading that can run any code. "
                "If you trust who wrote it, save it without: c = torch.load(FILE, weights_only=False), then "
                "torch.save({key: c[key] for key in ('state_dict', 'optimizer_states') if key in c}, NEW_FILE), and check NEW_FILE."
            ) from error
        text = str(error).rpartition("WeightsUnpickler error:")[2].partition("Check the doc")[0]
        text = f"{type(error).__name__}: {(' '.join(text.split()) or 'it is empty, or cut off')[:160]}"
        raise ValueError(f"{path} cannot be read as a checkpoint: {text}. Expected a file that torch.save wrote.") from error


@dataclass(frozen=True, slots=True)
class TensorNumbers:
    """What is in a tensor."""

    nans: int  # how many numbers are NaN
    infinite: int  # how many are infinite
    first: tuple[int, ...] | None  # the index of the first that is not finite; None where all are
    constant: float | None  # the number that all are; None where they differ or are not finite, and for a single number
    zero_rows: int  # how many rows (along the first dimension) are zero; 0 for a tensor of fewer than two dimensions


def unread(tensor: Tensor) -> bool:
    """Whether a tensor is not looked at, since it does not hold each of its numbers in the file."""
    odd = tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta
    return odd or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


@torch.no_grad()
def read_numbers(tensor: Tensor) -> TensorNumbers:
    """Read a strided floating-point or complex tensor that is not empty."""
    nans = infinite = done = zero_rows = 0
    first: int | None = None
    low, high = float("inf"), float("-inf")
    rows = tensor.reshape(len(tensor), -1) if tensor.dim() > 1 else tensor.reshape(-1, 1)
    for part in map(_real, torch.split(rows, max(1, CHUNK // rows.shape[1]))):
        bad = ~part.isfinite()
        if bool(bad.any()):
            nans += int(part.isnan().sum())
            infinite += int(part.isinf().sum())
            first = done + int(bad.flatten().nonzero()[0]) if first is None else first
        low, high = min(low, float(part.min())), max(high, float(part.max()))
        zero_rows += int((part == 0).all(-1).sum())
        done += part.numel()
    sound = not nans and not infinite and tensor.numel() > 1 and not tensor.is_complex()
    constant = low if sound and low == high else None
    index = None if first is None else tuple(map(int, np.unravel_index(first, tensor.shape)))
    return TensorNumbers(nans, infinite, index, constant, zero_rows if tensor.dim() > 1 else 0)


def _real(part: Tensor) -> Tensor:
    """Numbers in float32 or float64; of complex ones the larger part."""
    if part.is_complex():
        return torch.view_as_real(part.to(torch.complex128)).abs().amax(-1)
    return part.to(torch.float64 if part.dtype == torch.float64 else torch.float32)


@dataclass(frozen=True, slots=True)
class CheckpointProblem:
    """One thing in a checkpoint.

    Attributes:
        severity: ``critical`` where training cannot go on from it, ``warning`` where something is wrong, ``info`` where it may be
            meant.
        name: The tensor, or the part of an optimizer.
        text: What was found.
    """

    severity: Severity
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckedCheckpoint:
    """A checkpoint that was checked.

    Attributes:
        path: The file.
        about: What it holds, in words.
        problems: What was found, the most severe first.
    """

    path: Path
    about: str
    problems: tuple[CheckpointProblem, ...]

    @property
    def wrong(self) -> bool:
        """Whether anything is wrong: a problem above info."""
        return any(problem.severity != "info" for problem in self.problems)

    def lines(self) -> list[str]:
        """It as lines for a terminal."""
        lines = [f"{self.path.name}: {self.about}."]
        lines += [f"[{problem.severity}] {problem.name}: {problem.text}." for problem in self.problems[:MOST_SHOWN]]
        lines += [f"and {len(self.problems) - MOST_SHOWN} more"] * (len(self.problems) > MOST_SHOWN)
        return lines if self.wrong else [*lines, "Nothing wrong was found."]


def check_checkpoint(path: Path) -> CheckedCheckpoint:
    """Look for non-finite and constant weights, rows of zeros, and what is wrong in the state of optimizers.

    Args:
        path: A file that ``torch.save``, Lightning or another trainer on top of it wrote: a mapping of names to tensors, or one
            that holds such mappings and the states of optimizers.

    Raises:
        ValueError: If the file is no checkpoint, needs more than tensors and plain types to be loaded, or holds no weights.
        OSError: If it cannot be read.
    """
    loaded = load_checkpoint(path)
    content = loaded if isinstance(loaded, Mapping) else {}
    weights = {_cut(name): tensor for name, tensor in weights_in(content)}
    optimizers = list(_optimizers(content))
    if not weights and not optimizers:
        raise ValueError(f"{path} holds no weights: expected a mapping of names to tensors, as it is or under 'state_dict'.")
    problems = [problem for name, tensor in weights.items() for problem in _of_weight(name, tensor)]
    problems += [problem for name, state in optimizers for problem in _of_optimizer(name, state)]
    about = [f"{key} {content[key]}" for key in ("epoch", "global_step") if isinstance(content.get(key), int)]
    about.append(f"{_count(len(weights), 'tensor')} with {sum(map(Tensor.numel, weights.values())):,} numbers")
    about.append(_count(len(optimizers), "optimizer"))
    return CheckedCheckpoint(path, ", ".join(about), tuple(sorted(problems, key=lambda problem: gravity(problem.severity))))


def weights_in(content: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the mappings that hold weights: the content itself, its ``state_dict``, or each entry that is one."""
    inner = {f"{key}.": value for key, value in content.items() if isinstance(value, Mapping) and not _is_optimizer(value)}
    holders = {
        prefix: value
        for prefix, value in {"": content, **inner}.items()
        if any(isinstance(entry, Tensor) for entry in value.values())
    }
    whole = holders.get("", holders.get("state_dict."))
    for prefix, holder in (holders if whole is None else {"": whole}).items():
        yield from ((f"{prefix}{name}", value) for name, value in holder.items() if isinstance(value, Tensor))


def _optimizers(content: Mapping[Any, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key, value in content.items():
        entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        found = [entry for entry in entries if _is_optimizer(entry)]
        yield from ((f"optimizer {place}" if len(found) > 1 else _cut(str(key)), entry) for place, entry in enumerate(found))


def _is_optimizer(value: Any) -> bool:
    known = isinstance(value, Mapping) and isinstance(value.get("state"), Mapping)
    groups = value.get("param_groups") if known else None
    return isinstance(groups, Sequence) and all(isinstance(group, Mapping) for group in groups)


def _of_weight(name: str, tensor: Tensor) -> Iterator[CheckpointProblem]:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return
    if unread(tensor):
        yield CheckpointProblem("info", name, "it is sparse, quantized, or repeats numbers, and is not checked")
        return
    found = read_numbers(tensor)
    last = name.rpartition(".")[2]
    is_weight = "weight" in last
    if found.nans or found.infinite:
        mask = not found.nans and not (is_weight or "bias" in last)  # attention masks hold -inf
        yield CheckpointProblem("info" if mask else "critical", name, _nonfinite(found, tensor.numel()))
    elif found.constant is not None and tensor.dim() > 1:
        text = f"all its {tensor.numel():,} numbers are {found.constant:g}"
        yield CheckpointProblem("warning" if is_weight else "info", name, text)
    elif is_weight and found.zero_rows:
        text = f"{found.zero_rows:,} of its {len(tensor):,} rows are zero"
        yield CheckpointProblem("warning" if found.zero_rows > 1 else "info", name, text)  # one is that of padding


def _of_optimizer(name: str, content: Mapping[str, Any]) -> Iterator[CheckpointProblem]:
    state = content["state"]
    for parameter, entries in state.items():
        for key, value in entries.items() if isinstance(entries, Mapping) else ():
            where = _cut(f"{name}: {key} of parameter {parameter}")
            if isinstance(value, float) and not math.isfinite(value):
                yield CheckpointProblem("critical", where, f"it is {value}")
            elif isinstance(value, Tensor) and value.is_floating_point() and value.numel() and not unread(value):
                found = read_numbers(value)
                if found.nans or found.infinite:
                    yield CheckpointProblem("critical", where, _nonfinite(found, value.numel()))
                elif key in SECOND_MOMENTS and found.constant == 0:
                    yield CheckpointProblem("warning", where, "it is zero: the parameter never had a gradient other than zero")
    held = 0
    for place, group in enumerate(content["param_groups"]):
        held += len(group["params"]) if isinstance(group.get("params"), Sequence) else 0
        for key, value in group.items():
            settings = value if isinstance(value, tuple) else (value,)
            numbers = [number for setting in settings if (number := read_number(setting)) is not None]
            if not all(map(math.isfinite, numbers)):
                yield CheckpointProblem("critical", f"{name}: group {place}", f"{_cut(str(key))} is {value}")
            elif key == "lr" and numbers == [0.0]:
                yield CheckpointProblem("info", f"{name}: group {place}", "its learning rate is 0")
    if state and len(state) < held:
        text = f"{held - len(state)} of its {_count(held, 'parameter')} have no state: no gradient arrived at them"
        yield CheckpointProblem("info", name, text)


def _nonfinite(found: TensorNumbers, numbers: int) -> str:
    count = found.nans + found.infinite
    what = "NaN or infinite" if found.nans and found.infinite else "NaN" if found.nans else "infinite"
    return f"{count:,} of its {numbers:,} numbers {'are' if count > 1 else 'is'} {what}, the first at {list(found.first or ())}"


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True)
class LoadedNames:
    """How the names of a checkpoint fit those of a model.

    Attributes:
        fits: The names that both have, with tensors of one shape.
        missing: Those of the model that the checkpoint does not have: what they name stays as it is.
        unexpected: Those of the checkpoint that the model does not have: they are passed over.
        shapes: Those that both have with other shapes, to that of the model and that of the checkpoint.
        prefix: What unexpected names begin with, and what they must begin with in its place to fit; None where that helps none.
        renamed: How many of them fit then.
    """

    fits: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    prefix: tuple[str, str] | None = None
    renamed: int = 0

    @property
    def wrong(self) -> bool:
        """Whether a name of the model is missing, or has another shape."""
        return bool(self.missing or self.shapes)

    def lines(self) -> list[str]:
        """It as lines for a terminal."""
        lines = [f"{len(self.fits)} of the model's {len(self.fits) + len(self.missing) + len(self.shapes)} names fit."]
        for what, names in (("Missing", self.missing), ("Passed over", self.unexpected)):
            lines += [f"{what} ({len(names)}): {some(names, 5)}."] * bool(names)
        lines += [f"{name} is {list(ours)} in the model and {list(theirs)} here." for name, (ours, theirs) in self.shapes.items()]
        if self.prefix is not None:
            old, new = self.prefix
            how = f"'{old}' is to be '{new}'" if old and new else f"'{old}' is too much" if old else f"'{new}' is missing"
            new_name = f"{new!r} + " * bool(new) + f"name.removeprefix({old!r})"
            lines.append(f"{self.renamed} more fit if names begin otherwise: {how}. {{{new_name}: value for name, value in …}}")
        return lines


def check_loaded(model: nn.Module, state_dict: Mapping[str, Any]) -> LoadedNames:
    """Compare the names and shapes of a checkpoint with those of a model. Nothing is loaded.

    Args:
        model: The model.
        state_dict: What ``load_state_dict`` is given, or a whole checkpoint that holds it.

    Returns:
        Which names fit, which do not, and what prefix is too much or missing.
    """
    ours = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if hasattr(tensor, "shape")}
    theirs = {name: tuple(tensor.shape) for name, tensor in weights_in(state_dict)}
    missing, unexpected = (tuple(name for name in one if name not in other) for one, other in ((ours, theirs), (theirs, ours)))
    ends = grouped((end, name) for name in missing for end in _ends(name))  # missing names, by each of their ends
    votes: Counter[tuple[str, str]] = Counter()
    for name in unexpected:
        end = next((end for end in _ends(name) if end in ends), "")
        fitting = [other for other in ends.get(end, ()) if ours[other] == theirs[name]]
        votes.update((name.removesuffix(end), other.removesuffix(end)) for other in fitting)
    prefix, renamed = next(iter(votes.most_common(1)), (None, 0))
    known = {name: (shape, theirs[name]) for name, shape in ours.items() if name in theirs}
    return LoadedNames(
        tuple(name for name, (one, other) in known.items() if one == other),
        missing,
        unexpected,
        {name: shapes for name, shapes in known.items() if shapes[0] != shapes[1]},
        *((prefix, renamed) if renamed > 1 else ()),
    )


def _ends(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
