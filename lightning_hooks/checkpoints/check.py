"""What is wrong in a checkpoint, for a run that died and left one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_hooks.checkpoints.load import load_checkpoint
from lightning_hooks.checkpoints.numbers import TensorNumbers, read_numbers, unread
from lightning_hooks.declare.kinds import Severity, gravity
from lightning_hooks.hooks.values import read_number

MOST_SHOWN = 30
LONGEST_NAME = 120
SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum", "momentum_buffer")
"""What an optimizer adds gradients up in, by its name in the optimizers of torch."""
_STATE_DICT = "state_dict."


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
    content = load_checkpoint(path)
    weights = dict(_weights(content))
    optimizers = list(_optimizers(content))
    if not weights and not optimizers:
        raise ValueError(f"{path} holds no weights: expected a mapping of names to tensors, as it is or under 'state_dict'.")
    problems = [problem for name, tensor in weights.items() for problem in _of_weight(name, tensor)]
    problems += [problem for name, state in optimizers for problem in _of_optimizer(name, state)]
    numbers = sum(tensor.numel() for tensor in weights.values())
    about = [f"{key} {content[key]}" for key in ("epoch", "global_step") if isinstance(content.get(key), int)]
    about.append(f"{_count(len(weights), 'tensor')} with {numbers:,} numbers")
    about.append(_count(len(optimizers), "optimizer"))
    return CheckedCheckpoint(path, ", ".join(about), tuple(sorted(problems, key=lambda problem: gravity(problem.severity))))


def _weights(content: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the mappings that hold weights: the content itself, its ``state_dict``, or each entry that is one."""
    if not isinstance(content, Mapping):
        return
    if any(isinstance(value, Tensor) for value in content.values()):
        holders = {"": content}
    else:
        found = {key: value for key, value in content.items() if isinstance(value, Mapping) and not _is_optimizer(value)}
        holders = {f"{key}.": value for key, value in found.items() if any(isinstance(entry, Tensor) for entry in value.values())}
    for prefix, holder in ({"": holders[_STATE_DICT]} if _STATE_DICT in holders else holders).items():
        yield from ((_cut(f"{prefix}{name}"), value) for name, value in holder.items() if isinstance(value, Tensor))


def _optimizers(content: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The states of optimizers by name: entries of the content, alone or in a list."""
    if not isinstance(content, Mapping):
        return
    for key, value in content.items():
        entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        found = [entry for entry in entries if _is_optimizer(entry)]
        yield from ((f"optimizer {place}" if len(found) > 1 else f"{_cut(str(key))}", entry) for place, entry in enumerate(found))


def _is_optimizer(value: Any) -> bool:
    known = isinstance(value, Mapping) and isinstance(value.get("state"), Mapping)
    groups = value.get("param_groups") if known else None
    return isinstance(groups, Sequence) and all(isinstance(group, Mapping) for group in groups)


def _of_weight(name: str, tensor: Tensor) -> Iterator[CheckpointProblem]:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return
    skipped = unread(tensor)
    if skipped:
        yield CheckpointProblem("info", name, f"{skipped}, and is not checked")
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
        text = f"{found.zero_rows:,} of its {found.rows:,} rows are zero"
        yield CheckpointProblem("warning" if found.zero_rows > 1 else "info", name, text)  # one is that of padding


def _of_optimizer(name: str, content: Mapping[str, Any]) -> Iterator[CheckpointProblem]:
    state = content["state"]
    for parameter, entries in state.items():
        for key, value in entries.items() if isinstance(entries, Mapping) else ():
            where = _cut(f"{name}: {key} of parameter {parameter}")
            if not isinstance(value, Tensor):
                if isinstance(value, float) and not math.isfinite(value):
                    yield CheckpointProblem("critical", where, f"it is {value}")
            elif value.is_floating_point() and value.numel() and not unread(value):
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
