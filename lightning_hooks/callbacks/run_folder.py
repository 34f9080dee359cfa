"""Where a run's files belong."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary, finalize

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_hooks.callbacks.shared_trackers import trackers_of
from lightning_hooks.trackers.names import safe_path

ReportDir = str | os.PathLike[str] | Literal[False] | None
"""Where a run's reports are written: ``auto``, a directory, or None (or False) for nowhere."""

_TEMPORARY: WeakKeyDictionary[Trainer, TemporaryFolder | None] = WeakKeyDictionary()
"""None where it could not be made."""


class TemporaryFolder:
    """A run's folder where loggers keep files only elsewhere, as MLflow's in a database or on a server. It goes with the trainer.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        logger = trainer.loggers[0]
        below = Path(safe_path(str(logger.name)), safe_path(str(logger.version)))
        root = tempfile.mkdtemp(prefix="lightning_hooks-")
        self._removal = finalize(trainer, shutil.rmtree, root, ignore_errors=True)
        self.path = Path(root) / below

    def keep(self) -> None:
        """Leave the folder where it is: no logger took what is in it."""
        self._removal.detach()


def run_folder(trainer: Trainer, report_dir: str | os.PathLike[str] | None) -> Path | None:
    """Where a run's files belong; None if nowhere, as where a folder cannot be made: a warning says so once.

    Args:
        trainer: The trainer.
        report_dir: A directory, or ``auto`` for that of the first logger that has one: its ``log_dir`` where it has, else
            ``save_dir/name/version``, where Lightning puts the run's checkpoints. A remote address is passed over. Where none
            has a directory, but one keeps files with its run, as MLflow does, it is a :func:`temporary_folder`. Without a logger,
            or in a fast_dev_run, nothing is written unasked, least of all into the working directory.
    """
    if report_dir != "auto":
        return None if report_dir is None else Path(report_dir)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by one of the trainer's connectors
        return None
    for logger in trainer.loggers:
        try:
            folder = _folder_of(logger)
        except Exception as error:  # noqa: BLE001  a logger's trouble is not the training's
            rank_zero_warn(
                f"{type(logger).__name__} cannot say where its files are ({type(error).__name__}: {error}), so there will be no "
                "health report there. Training goes on; report_dir= names a directory."
            )
            continue
        if folder is not None:
            return folder
    if trainer not in _TEMPORARY:
        try:
            if not trackers_of(trainer).keep_files:
                return None
            _TEMPORARY[trainer] = TemporaryFolder(trainer)
        except Exception as error:  # noqa: BLE001  no room for it, or a logger's trouble
            _TEMPORARY[trainer] = None  # the next callback that asks need not warn again
            rank_zero_warn(
                f"There is no folder for the health report and the alerts ({type(error).__name__}: {error}). Training goes on "
                "without them; report_dir= names a directory."
            )
    temporary = _TEMPORARY[trainer]
    return None if temporary is None else temporary.path


def temporary_folder(trainer: Trainer) -> TemporaryFolder | None:
    """The folder that :func:`run_folder` made for a trainer; None if there is none."""
    return _TEMPORARY.get(trainer)


def _folder_of(logger: Any) -> Path | None:
    own: Any = getattr(logger, "log_dir", None)
    if _is_local(own):
        return Path(own)
    save_dir: Any = getattr(logger, "save_dir", None)
    if _is_local(save_dir):
        version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
        return Path(save_dir) / str(logger.name) / version
    return None


def _is_local(place: Any) -> bool:
    return isinstance(place, (str, os.PathLike)) and "://" not in str(place)  # not one of fsspec's addresses, such as s3://
