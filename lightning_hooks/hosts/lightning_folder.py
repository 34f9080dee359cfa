"""Where a run's files belong."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from weakref import finalize, ref

from lightning.pytorch import Trainer

from lightning_hooks.declare.warn import warn
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.console import safe_path


class TemporaryFolder:
    """A run's folder where loggers keep files only elsewhere, as MLflow's in a database or on a server.

    It is made when it is first asked for, and removed with the trainer.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = ref(trainer)
        self._removal: Any = None
        self._failed = False
        self._path: Path | None = None

    def path(self, trackers: Trackers) -> Path | None:
        """Return the folder; None where no tracker keeps files, and, with one warning, where it cannot be made."""
        trainer = self._trainer()
        if self._path is None and not self._failed and trainer is not None:
            try:
                if not trackers.keep_files:
                    return None
                logger = trainer.loggers[0]
                below = Path(safe_path(str(logger.name)), safe_path(str(logger.version)))
                root = tempfile.mkdtemp(prefix="lightning_hooks-")
                self._removal = finalize(trainer, shutil.rmtree, root, ignore_errors=True)
                self._path = Path(root) / below
            except Exception as error:  # noqa: BLE001  no room for it, or a logger's error
                self._failed = True  # the next callback that asks need not warn again
                warn(
                    f"There is no folder for the health report and the alerts ({type(error).__name__}: {error}). Training goes on "
                    "without them; report_dir= names a directory."
                )
        return self._path

    def holds(self, file: Path) -> bool:
        """Whether a file lies in it."""
        return self._path is not None and file.is_relative_to(self._path)

    def keep(self) -> None:
        """Leave the folder where it is: no logger took what is in it."""
        self._removal.detach()


def run_folder(
    trainer: Trainer, report_dir: str | os.PathLike[str] | None, trackers: Trackers, temporary: TemporaryFolder
) -> Path | None:
    """Where a run's files belong; None if nowhere, as where a folder cannot be made: a warning says so once.

    Args:
        trainer: The trainer.
        report_dir: A directory, or ``auto`` for that of the first logger that has one: its ``log_dir`` where it has, else
            ``save_dir/name/version``, where Lightning puts the run's checkpoints. A remote address is skipped. Where none
            has a directory, but one keeps files with its run, as MLflow does, it is ``temporary``. Without a logger,
            or in a fast_dev_run, nothing is written unasked, least of all into the working directory.
        trackers: The trainer's loggers.
        temporary: The folder for files that loggers keep elsewhere.
    """
    if report_dir != "auto":
        return None if report_dir is None else Path(report_dir)
    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by one of the trainer's connectors
        return None
    for logger in trainer.loggers:
        try:
            folder = folder_of(logger)
        except Exception as error:  # noqa: BLE001  a logger's error is not the training's
            warn(
                f"{type(logger).__name__} cannot say where its files are ({type(error).__name__}: {error}), so there will be no "
                "health report there. Training goes on; report_dir= names a directory."
            )
            continue
        if folder is not None:
            return folder
    return temporary.path(trackers)


def folder_of(logger: Any) -> Path | None:
    """The directory of a logger's run; None where it has none, or a remote one."""
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
