"""FeatureExtractor: outputs of layers, stored by sample."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.extraction.batches import Field
from lightning_hooks.extraction.capture import Pool, check_pool, extract, output_tensor, pooled
from lightning_hooks.extraction.extracted import FORMATS, ExtractedFeatures, FeatureStore, merge_ranks, safetensors_for
from lightning_hooks.hooks import Listener, ModuleSelector
from lightning_hooks.hooks.checks import check_choice, check_count
from lightning_hooks.hosts.lightning_api import log_step
from lightning_hooks.trackers import Trackers, some

Stage = Literal["train", "validate", "test", "predict"]


class FeatureExtractor(HookedCallback):
    """Stores the outputs of selected layers for a bounded number of samples of each epoch, with their labels.

    The features are those of the stage itself: of training batches, with dropout, or of validation, test or prediction. They stay
    on the device during the epoch and are copied to the host at its end. With several ranks every rank has the features of all,
    selected as one process would. :meth:`extract` returns the features of one batch, without a trainer.

    Args:
        modules: The modules to observe; None for every leaf that computes something.
        every_n_steps: Sample batches 0, n, 2n, …; 1 for all.
        stage: ``train``, ``validate`` (within ``fit`` or by ``trainer.validate``), ``test`` or ``predict``.
        pool: ``mean`` over space or tokens, ``space``, ``tokens``, ``cls``, or a function of the output; None for no pooling, which
            takes device memory for ``max_samples`` whole outputs. See :func:`lightning_hooks.extraction.pooled`.
        max_samples: The number of samples stored in an epoch, the first of all ranks together, at least 1. A larger
            ``every_n_steps`` spreads them over the epoch.
        fields: Entries of the batch to store with the features: name to index, key, or function of the batch, as in
            ``{"label": 1}``; tensors ``(n, …)`` or lists of n entries.
        folder: Where to save ``epoch=<epoch>.<file_format>`` after each epoch, one for each FeatureExtractor; None for no files.
        file_format: ``npz`` or ``safetensors``.
        projector: Whether to log each module's features to TensorBoard's projector (a table in W&B), labelled by the first field.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.extraction.ExtractedFeatures`; None before the first.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range; at train start, if ``modules`` matches nothing; in the first batch, if it
            does not have a field.
        ImportError: If ``file_format`` is ``safetensors`` and safetensors is not installed.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import FeatureExtractor
        >>> keep = FeatureExtractor(modules="encoder", pool="mean", stage="validate", fields={"label": 1}, max_samples=500)
        >>> trainer = Trainer(callbacks=[keep], logger=False)
    """

    prefix: ClassVar[str] = "extracted"
    fit_only: ClassVar[tuple[str, ...]] = ("_store",)

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 1,
        stage: Stage = "train",
        pool: Pool | None = None,
        max_samples: int = 1000,
        fields: Mapping[str, Field] | None = None,
        folder: str | Path | None = None,
        file_format: Literal["npz", "safetensors"] = "npz",
        projector: bool = False,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        check_pool(pool)
        check_choice("stage", stage, get_args(Stage))
        check_choice("file_format", file_format, FORMATS)
        check_count("max_samples", max_samples, least=1)
        if fields is not None and not isinstance(fields, Mapping):
            raise TypeError(
                f"fields must map a name to an index, a key or a function of the batch, as {{'label': 1}}; got {fields!r}."
            )
        if file_format == "safetensors" and folder is not None:
            safetensors_for("write")
        self.stage, self.pool, self.max_samples, self.fields = stage, pool, max_samples, dict(fields or {})
        self.folder = None if folder is None else Path(folder)
        self.file_format, self.projector = file_format, projector
        self.report: ExtractedFeatures | None = None
        self._store: FeatureStore | None = None

    extract = staticmethod(extract)
    """Return the outputs of selected modules for a batch, without a trainer: :func:`lightning_hooks.extraction.extract`."""

    @property
    def features(self) -> dict[str, Tensor]:
        """The last epoch's features by module; empty before the first."""
        return {} if self.report is None else self.report.sites

    def clear(self) -> None:
        """Discard the features of the last epoch."""
        self.report = None

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sites = self.select(pl_module)
        self._store = store = FeatureStore(self.max_samples, self.fields, self._site_fault)
        self._sites = [name for name, _ in sites]
        self._warned: set[str] = set()  # sites
        self._first, self._disabled = True, False
        self.clear()
        for name, module in sites:
            self.listen(name, module, _Keep(store, name, self.pool))

    @override
    def released(self) -> None:
        self._store = None

    def _site_fault(self, site: str, error: Exception) -> None:
        if site not in self._warned:
            self._warned.add(site)
            rank_zero_warn(f"FeatureExtractor stores nothing of {site!r} from here on: {error}. Training continues.")

    def _stage_start(self, stage: Stage, trainer: Trainer, pl_module: LightningModule) -> None:
        if stage == self.stage and trainer.state.fn != "fit":
            super().on_train_start(trainer, pl_module)

    def _batch_start(
        self, stage: Stage, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.gate.stop()
        if self._store is None or self._disabled or stage != self.stage or batch_idx % self.every_n_steps:
            return
        self._suspension.restore()
        try:
            self.gate.start(self._store.start(batch))
        except Exception as error:
            if self._first:
                raise
            self._disabled = True  # collectives still include this rank
            rank_zero_warn(f"FeatureExtractor stores nothing from batch {batch_idx} on: {error} Training continues.")
        self._first = False

    def _batch_end(self, stage: Stage, *_: Any) -> None:
        if stage == self.stage and self._store is not None:
            self._store.commit()
        self.gate.stop()
        self.warn_of_faults()

    def _epoch_end(self, stage: Stage, trainer: Trainer, pl_module: LightningModule) -> None:
        if stage == "train":
            super().on_train_epoch_end(trainer, pl_module)
        self._suspension.suspend(pl_module)
        if self._store is None or stage != self.stage or trainer.sanity_checking:
            return
        with torch.inference_mode(False), torch.no_grad():
            sites, fields, seen = merge_ranks(self._store)
        self._store.reset()
        silent = tuple(name for name in self._sites if name not in sites)
        self.report = ExtractedFeatures(trainer.current_epoch, log_step(trainer), sites, fields, silent, seen)
        unexplained = [name for name in silent if name not in self._warned and name not in self.faults.errors]
        if unexplained:
            self._warned.update(unexplained)
            rank_zero_warn(
                f"FeatureExtractor: there is no output of {some(unexplained)}: not called in the sampled {stage} batches, "
                "called as .forward(x), or without a floating-point output."
            )
        if trainer.is_global_zero:
            self._write(trainer, self.report)

    def _write(self, trainer: Trainer, report: ExtractedFeatures) -> None:
        try:
            if self.folder is not None:
                report.save(self.folder / f"epoch={report.epoch}.{self.file_format}")
        except OSError as error:
            self._site_fault(str(self.folder), error)
        if self.projector:
            _log_embeddings(self.trackers(trainer), self.prefix, report)

    # Lightning has separate methods for each stage.

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.stage in ("train", "validate"):
            super().on_train_start(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batch_end("train")
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        self._stage_start("validate", trainer, pl_module)

    on_test_start = partialmethod(_stage_start, "test")
    on_predict_start = partialmethod(_stage_start, "predict")
    on_train_batch_start = partialmethod(_batch_start, "train")
    on_validation_batch_start = partialmethod(_batch_start, "validate")
    on_test_batch_start = partialmethod(_batch_start, "test")
    on_predict_batch_start = partialmethod(_batch_start, "predict")
    on_validation_batch_end = partialmethod(_batch_end, "validate")
    on_test_batch_end = partialmethod(_batch_end, "test")
    on_predict_batch_end = partialmethod(_batch_end, "predict")
    on_train_epoch_end = partialmethod(_epoch_end, "train")
    on_validation_epoch_end = partialmethod(_epoch_end, "validate")
    on_test_epoch_end = partialmethod(_epoch_end, "test")
    on_predict_epoch_end = partialmethod(_epoch_end, "predict")


def _log_embeddings(trackers: Trackers, prefix: str, report: ExtractedFeatures) -> None:
    field = next(iter(report.fields.values()), None)
    labels = None if field is None else [str(value) for value in (field.tolist() if isinstance(field, Tensor) else field)]
    for name, values in report.sites.items():
        points = values.reshape(len(values), -1).float()
        finite = points.isfinite().all(1)  # a nonfinite point would hide the others
        if finite.any():
            shown = None if labels is None else [label for label, keep in zip(labels, finite.tolist(), strict=True) if keep]
            trackers.embedding(f"{prefix}/{name}", points[finite].numpy(), shown, report.step)
    trackers.save()


class _Keep(Listener):
    """Forward hook of one site: stores the selected rows."""

    def __init__(self, store: FeatureStore, name: str, pool: Pool | None) -> None:
        self.store, self.name, self.pool = store, name, pool

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        values = output_tensor(output)
        if values is not None:
            with torch.no_grad():
                self.store.outputs.append((self.name, pooled(self.store.take(self.name, values), self.pool, module)))
