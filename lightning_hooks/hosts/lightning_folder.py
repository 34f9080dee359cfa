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

    @override
    def folder(self, report_dir: Any) -> Path | None:
        if report_dir != "auto":
            return None if report_dir is None else Path(report_dir)
        trainer = self._trainer()
        if trainer is None or trainer.fast_dev_run:  # type: ignore[attr-defined]  # set by one of the trainer's connectors
            return None
        found = next((folder for logger in trainer.loggers if (folder := folder_of(logger)) is not None), None)
        if found is None and self._temporary is None and self._trackers().keep_files:
            logger = trainer.loggers[0]
            root = tempfile.mkdtemp(prefix="lightning_hooks-")
            self._removal = finalize(trainer, shutil.rmtree, root, ignore_errors=True)
            self._temporary = Path(root, safe_path(str(logger.name)), safe_path(str(logger.version)))
        return self._temporary if found is None else found

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
