"""Where a run's files belong."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize, ref

from lightning.pytorch import Trainer
from typing_extensions import override

from lightning_hooks.declare.host import RunFiles
from lightning_hooks.declare.warn import warn
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.console import safe_path


class LightningFiles(RunFiles):
    """Where the files of a Trainer's run belong: the directory of the first logger that has one, or a temporary folder.

    That directory is the logger's ``log_dir`` where it has one, else ``save_dir/name/version``, where Lightning puts the run's
    checkpoints. A remote address is skipped. Where none has a directory, but one keeps files with its run, as MLflow does in a
    database or on a server, it is a temporary folder, removed with the trainer. Without a logger, or in a fast_dev_run, nothing is
    written unasked, least of all into the working directory.
    """

    def __init__(self, trainer: Trainer, trackers: Callable[[], Trackers]) -> None:
        self._trainer, self._trackers = ref(trainer), trackers
        self._temporary: Path | None = None
        self._removal: Any = None
        self._failed = False

    @override
    def folder(self, report_dir: Any) -> Path | None:
        if report_dir != "auto":
            return None if report_dir is None else Path(report_dir)
        trainer = self._trainer()
        if trainer is None or trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by one of the trainer's connectors
            return None
        for logger in trainer.loggers:
            try:
                folder = folder_of(logger)
            except Exception as error:  # noqa: BLE001  a logger's error is not the training's
                warn(
                    f"{type(logger).__name__} cannot say where its files are ({type(error).__name__}: {error}), so there will be "
                    "no health report there. Training goes on; report_dir= names a directory."
                )
                continue
            if folder is not None:
                return folder
        if self._temporary is None and not self._failed:
            try:
                self._temporary = self._make_temporary(trainer)
            except Exception as error:  # noqa: BLE001  no room for it, or a logger's error
                self._failed = True  # the next callback that asks need not warn again
                warn(
                    f"There is no folder for the health report and the alerts ({type(error).__name__}: {error}). Training goes on "
                    "without them; report_dir= names a directory."
                )
        return self._temporary

    def _make_temporary(self, trainer: Trainer) -> Path | None:
        if not self._trackers().keep_files:
            return None
        logger = trainer.loggers[0]
        below = Path(safe_path(str(logger.name)), safe_path(str(logger.version)))
        root = tempfile.mkdtemp(prefix="lightning_hooks-")
        self._removal = finalize(trainer, shutil.rmtree, root, ignore_errors=True)
        return Path(root) / below

    @override
    def place(self, file: Path, kept_in: Sequence[str], everything: bool) -> str:
        if not self.keeps(file):
            if everything:
                return f"{file.name} is among {kept_in[0]}."
            self._removal.detach()  # no logger took what is in it: the folder stays
        return str(file)

    @override
    def keeps(self, folder: Path) -> bool:
        return self._temporary is None or not folder.is_relative_to(self._temporary)


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
