"""Loading a checkpoint without running what is in it."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

MOST_NAMED = 5


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
    zipped = zipfile.is_zipfile(path)
    try:
        _check_size(path, zipped)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on formats that it wrote earlier
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except (FileNotFoundError, PermissionError):
        raise
    except pickle.UnpicklingError as error:
        needed = _needed(path, str(error), zipped)
        if not needed:
            raise ValueError(_unreadable(path, error)) from error
        raise ValueError(
            f"{path} is not loaded: next to tensors and plain types it holds {needed}, and loading that can run any code. If you "
            "trust who wrote it, save it without: c = torch.load(FILE, weights_only=False), then torch.save({key: c[key] for key "
            "in ('state_dict', 'optimizer_states') if key in c}, NEW_FILE), and check NEW_FILE."
        ) from error
    except Exception as error:  # a damaged file can make torch raise anything
        raise ValueError(_unreadable(path, error)) from error


def _unreadable(path: Path, error: Exception) -> str:
    text = str(error).rpartition("WeightsUnpickler error:")[2].partition("Check the doc")[0]
    text = " ".join(text.split()) or "it is empty, or cut off"
    return f"{path} cannot be read as a checkpoint: {type(error).__name__}: {text[:160]}. Expected a file that torch.save wrote."


def _check_size(path: Path, zipped: bool) -> None:
    """Check that what a file holds is not larger than the file: ``torch.save`` does not compress."""
    if not zipped:
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > path.stat().st_size:
        raise ValueError(f"its {path.stat().st_size} bytes unpack to {size}")


def _needed(path: Path, text: str, zipped: bool) -> str:
    """The names of the classes and functions that a file needs; empty where none is known."""
    found: list[str] = []
    list_globals = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)  # torch 2.5 and later
    if zipped and list_globals is not None:
        try:
            found = list_globals(path)
        except Exception:  # noqa: BLE001  of a damaged file
            found = []
    found = found or re.findall(r"GLOBAL ([\w.]+)", text)
    names = list(dict.fromkeys(name[:100] for name in found))
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
