"""A capsule: a bad step on disk, in JSON and tensors. It may hold training samples, and only its owner may read it.

torch loads its tensors with ``weights_only=True``: nothing that is in it is run.
"""

from __future__ import annotations

import collections
import json
import os
import platform
import shutil
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.declare.host import Host
from lightning_hooks.declare.plain import to_plain
from lightning_hooks.declare.warn import Once, info
from lightning_hooks.hooks.generators import Generators
from lightning_hooks.hooks.tensors import copied, tensors_in
from lightning_hooks.replay.blame import Blame
from lightning_hooks.replay.rows import BatchUnderWay
from lightning_hooks.run_report.lines import FOLDER

VERSION = 4
CAPSULE, TENSORS, STATE = "capsule.json", "tensors.pt", "state.pt"
_MB = 1_000_000
_GOES_ON = "Training goes on, and this warning is shown once."


@dataclass(slots=True)
class CapsuleWriter:
    """Writes the capsules of one run, one of each kind."""

    where: str | os.PathLike[str]  # auto, rows (without samples), or a folder
    max_mb: float  # the most that one may take, in millions of bytes
    report_dir: Any = "auto"  # where the run's files go: as for the monitors
    written: set[str] = field(default_factory=set)  # the kinds that are written, also before the run was resumed
    _warn_once: Once = field(default_factory=Once)

    def write(
        self,
        host: Host,
        kind: str,
        guilty: BatchUnderWay,
        found: Blame | None,
        buffers: Sequence[tuple[str, Tensor]],
        with_state: bool,
    ) -> None:
        """Write a capsule, unless one of the kind was written.

        Args:
            host: The training loop.
            kind: ``nonfinite``, ``error``, or the kind of an alert about a single step.
            guilty: The batch, or the guilty micro-batch.
            found: What running the step again has shown; None where it was not run again.
            buffers: By name, with their values before the forward pass.
            with_state: Whether the model and the optimizers are as they were when the step was taken, so that they are written.
        """
        folder = self._folder(host)
        if kind in self.written or folder is None:
            return
        self.written.add(kind)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = f"-rank{torch.distributed.get_rank()}" if distributed and host.setup.world_size > 1 else ""
        step = guilty.evidence.step
        path = folder / f"{kind}-step{step}{rank}"
        partial = path.with_name(f"{path.name}.partial")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(mode=0o700)
            partial.chmod(0o700)  # whatever the umask
            self._fill(partial, host, kind, guilty, found, buffers, with_state)
            for file in partial.iterdir():
                file.chmod(0o600)
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
        except Exception as error:  # noqa: BLE001  of the disk; the run goes on
            shutil.rmtree(partial, ignore_errors=True)
            self._warn_once(
                f"The capsule of step {step} could not be written to {path}: {type(error).__name__}: {error}. {_GOES_ON}"
            )
        else:
            samples = "It holds training samples." if guilty.batch is not None and self.where != "rows" else "It holds no samples."
            info(
                f"A capsule of step {step} is in {path}. {samples} To run the step again: lightning-hooks replay {path} --model "
                "package.module:factory"
            )

    def _folder(self, host: Host) -> Path | None:
        if self.where not in ("auto", "rows"):
            return Path(self.where)
        folder = None if self.report_dir is False else host.files.folder(self.report_dir)
        return None if folder is None else folder / FOLDER / "capsules"

    def _fill(
        self,
        folder: Path,
        host: Host,
        kind: str,
        guilty: BatchUnderWay,
        found: Blame | None,
        buffers: Sequence[tuple[str, Tensor]],
        with_state: bool,
    ) -> None:
        left_out: list[str] = []
        evidence, given = guilty.evidence, self._given(guilty, left_out)
        tensors = {
            "given": given,
            "generators": generators_stored(evidence.generators),
            "before": {name: value.cpu().clone() for name, value in buffers if name},
        }
        torch.save(tensors, folder / TENSORS)
        state = _state(host) if with_state else {}
        if state and _size(tensors) + _size(state) > self.max_mb * _MB:
            left_out.append(f"the model's state: the capsule would be larger than max_capsule_mb={self.max_mb:g}")
        elif state:
            torch.save(state, folder / STATE)
        scaler = host.loss_scaling.scaler
        samples = list(evidence.rows.samples()) if evidence.rows else []
        record = {
            "format": "lightning_hooks capsule",
            "version": VERSION,
            "kind": kind,
            **{name: getattr(evidence, name) for name in ("epoch", "batch", "step")},
            "model": f"{type(host.model).__module__}.{type(host.model).__qualname__}",
            "device": str(host.setup.device),
            "loop": dict(host.setup.description),
            "accumulation": host.loss_scaling.accumulation,
            "loss_scale": None if scaler is None or with_state is False else float(scaler.get_scale()),
            "versions": {
                "python": platform.python_version(),
                **{name: version_of(name) for name in ("torch", "numpy", "lightning-hooks", "lightning")},
            },
            "samples": samples,
            "bad_samples": samples if found is None else found.samples,
            "batch_at_hand": given is not None and given["batch"] is not None,
            "blame": None if found is None else found.record(),
            "left_out": left_out,
        }
        (folder / CAPSULE).write_text(json.dumps(to_plain(record), default=str), encoding="utf-8")

    def _given(self, guilty: BatchUnderWay, left_out: list[str]) -> dict[str, Any] | None:
        known = guilty.batch is not None and self.where != "rows"
        if not known:
            left_out.append("the batch: " + ("capsule='rows'" if self.where == "rows" else "it was not at hand (see keep_batches)"))
        try:
            args, kwargs = guilty.rest
            found: dict[str, Any] = to_stored({"batch": guilty.batch if known else None, "args": list(args), "kwargs": kwargs})
        except NotStorableError as error:
            left_out.append(f"the batch: it holds {error}")
            self._warn_once(
                f"The batch of step {guilty.evidence.step} holds {error}, and is not in its capsule, which names its samples. "
                f"{_GOES_ON}"
            )
            return None
        if _size(found) > self.max_mb * _MB:
            left_out.append(f"the batch: the capsule would be larger than max_capsule_mb={self.max_mb:g}")
            return None
        return found


@dataclass(frozen=True, slots=True)
class Capsule:
    """A capsule that was read."""

    record: Mapping[str, Any]  # what capsule.json says
    batch: Any  # None without
    args: Sequence[Any]  # the other arguments of training_step
    kwargs: Mapping[str, Any]  # those by name
    generators: Generators | None  # the states at the forward pass; None without
    before: Mapping[str, Tensor]  # buffers by name with their values before the forward pass
    state: Mapping[str, Tensor]  # of the model, by name; empty without


def read_capsule(path: str | os.PathLike[str]) -> Capsule:
    """Read a capsule; nothing that is in it is run.

    Raises:
        ValueError: If it is not one, is of another version, or is damaged.
    """
    folder = Path(path)
    file = folder / CAPSULE
    check(file.is_file(), f"expected the folder of a capsule, with a {CAPSULE} in it; got {str(folder)!r}.")
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {error}. Was it cut off?") from None
    ours = isinstance(record, dict) and record.get("format") == "lightning_hooks capsule"
    check(ours, f"{file} is not that of a capsule of lightning_hooks.")
    of = record.get("version")
    check(of == VERSION, f"{file} is of version {of!r}; this lightning_hooks reads version {VERSION}.")
    tensors = _load(folder / TENSORS)
    try:
        given = from_stored(tensors["given"] or {"batch": None, "args": [], "kwargs": {}})
        states = tensors["generators"]
        return Capsule(
            record=record,
            batch=given["batch"],
            args=list(given["args"]),
            kwargs=dict(given["kwargs"]),
            before=_by_name(tensors["before"]),
            generators=None if states is None else Generators(**from_stored(states)),
            state=_by_name(_load(folder / STATE)) if (folder / STATE).is_file() else {},
        )
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the tensors in {folder} cannot be read: {error}.") from None


def _by_name(tensors: Any) -> dict[str, Tensor]:
    if not isinstance(tensors, dict) or not all(isinstance(name, str) and type(t) is Tensor for name, t in tensors.items()):
        raise TypeError("they are something other than tensors by name")
    return tensors


def _load(file: Path) -> Any:
    check(file.is_file(), f"there is no file {file}: the capsule is not whole.")
    check(zipfile.is_zipfile(file), f"{file} cannot be read. Was it cut off?")  # loading an older format of torch's can run code
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make torch raise anything
        raise ValueError(f"{file} cannot be read: {type(error).__name__}. Was it cut off, or changed?") from error


def _size(content: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(content))


def _state(host: Host) -> dict[str, Tensor]:
    owned = [*host.model.named_parameters(remove_duplicate=False), *host.model.named_buffers(remove_duplicate=False)]
    found = {name: tensor.detach().cpu() for name, tensor in owned if copied(tensor) is not None}
    return {name: t.clone() if t.untyped_storage().nbytes() > t.nbytes else t for name, t in found.items()}


def version_of(package: str) -> str:
    """The version of a package that is installed; else ``unknown``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


DEEPEST = 16
_ARRAY, _FIELDS, _ENTRIES = "__array__", "__fields__", "__entries__"


def check(fine: bool, text: str) -> None:
    """Raise a :class:`ValueError` with this text, unless all is fine."""
    if not fine:
        raise ValueError(text)


class NotStorableError(TypeError):
    """Raised for a batch with an object that is neither a tensor, an array, a number, a text nor a container of these."""


def to_stored(value: Any, depth: int = 0) -> Any:
    """A value in the types that ``torch.load`` takes with ``weights_only=True``, its tensors on the CPU.

    Raises:
        NotStorableError: If it holds something other than tensors and plain types, or is too deep.
    """
    if depth > DEEPEST:
        raise NotStorableError(f"containers more than {DEEPEST} deep")
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise NotStorableError(f"a tensor of layout {value.layout}")
        return value.detach().cpu().contiguous().clone()
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {_ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str | int) for key in value):
            raise NotStorableError(f"a {type(value).__name__} with keys that are no texts or numbers")
        return {key: to_stored(value[key], depth + 1) for key in value}
    if isinstance(value, list | tuple):
        entries = [to_stored(entry, depth + 1) for entry in value]
        if hasattr(value, "_fields"):
            return {_FIELDS: list(value._fields), _ENTRIES: entries}
        return tuple(entries) if isinstance(value, tuple) else entries
    if value is not None:
        raise NotStorableError(f"a {type(value).__module__}.{type(value).__name__}")
    return None


def from_stored(stored: Any) -> Any:
    """Make the value that :func:`to_stored` was given; a named tuple is one of the same fields."""
    if isinstance(stored, dict) and _ARRAY in stored:
        return stored[_ARRAY].numpy()
    if isinstance(stored, dict) and _FIELDS in stored:
        return collections.namedtuple("Batch", stored[_FIELDS])(
            *map(from_stored, stored[_ENTRIES])
        )  # its fields are known only now
    if isinstance(stored, dict):
        return {key: from_stored(entry) for key, entry in stored.items()}
    return type(stored)(map(from_stored, stored)) if isinstance(stored, list | tuple) else stored


def generators_stored(states: Generators | None) -> dict[str, Any] | None:
    """The states in types that can be stored, numbers as 64-bit integers."""
    if states is None:
        return None
    numpy = states.numpy and tuple(part.astype(np.int64) if isinstance(part, np.ndarray) else part for part in states.numpy)
    python = states.python and tuple(list(part) if isinstance(part, array) else part for part in states.python)
    return dict(to_stored({"torch": states.torch, "device": states.device, "numpy": numpy, "python": python}))
