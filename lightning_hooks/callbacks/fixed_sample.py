"""Base class of callbacks that run the model on the same few samples after every epoch."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.extraction.batches import Forward, batch_size, check_forward, first_rows
from lightning_hooks.hooks.checks import check_choice, check_count
from lightning_hooks.hooks.selection import ModuleSelector
from lightning_hooks.hosts.lightning_api import log_step
from lightning_hooks.plots.canvas import Figure, style
from lightning_hooks.trackers import Trackers

Stage = Literal["train", "validate"]


class FixedSampleCallback(HookedCallback):
    """Runs the model on a fixed sample after every epoch, separately from training, and logs figures of the result.

    The arguments are those of :class:`~lightning_hooks.FeatureMapVisualizer`. The sample stays the same for the whole fit. PNG
    files are ``<folder>/<prefix>/epoch=<epoch>/<name>.png``.
    """

    prefix: ClassVar[str]
    fit_only: ClassVar[tuple[str, ...]] = ("_taken",)

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        sample: Any = None,
        n_samples: int = 4,
        stage: Stage = "train",
        every_n_epochs: int = 1,
        forward: Forward | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(modules=modules)
        self.n_samples = check_count("n_samples", n_samples, least=1)
        self.every_n_epochs = check_count("every_n_epochs", every_n_epochs, least=1)
        check_choice("stage", stage, get_args(Stage))
        check_forward(forward)
        if sample is not None and batch_size(sample) is None:
            raise ValueError(f"sample must be a batch with at least one tensor; got {type(sample).__name__} without one.")
        self.sample, self.stage, self.forward = sample, stage, forward
        self.folder = None if folder is None else Path(folder)
        self._taken: Any = None  # the sample of this fit
        self._disabled = False
        self.report: Any = None

    @abstractmethod
    def inspect(self, pl_module: LightningModule, sample: Any, epoch: int, step: int) -> Any:
        """Run the model on the sample and return a report; called on every rank, since a sharded model needs all of them."""

    @abstractmethod
    def figures(self, report: Any) -> dict[str, Figure]:
        """Return the figures of a report by tag, without the ``prefix``."""

    def show(self, trackers: Trackers, tag: str, figure: Figure, step: int) -> None:
        """Log a figure."""
        trackers.figure(tag, figure, step)

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with style():  # raises now if matplotlib is missing
            pass
        self.report = None
        self._disabled = False
        if self.sample is not None:
            self._take(trainer, pl_module, self.sample)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._taken = None  # here: the sanity check, which may provide the sample, is before train start

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().teardown(trainer, pl_module, stage)
        self._taken = None

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self._taken is None and self.stage == "train":
            self._take(trainer, pl_module, batch)

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._taken is None and self.stage == "validate" and trainer.state.fn == "fit":
            self._take(trainer, pl_module, batch)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self._taken is None or self._disabled or trainer.current_epoch % self.every_n_epochs:
            return
        try:
            self.report = self._run(trainer, pl_module, trainer.current_epoch, log_step(trainer))
            if trainer.is_global_zero:
                self._show(trainer)
        except Exception as error:  # noqa: BLE001  a figure must not end the training
            self._disabled = True
            rank_zero_warn(
                f"{type(self).__name__} raised {type(error).__name__}: {error} It is disabled for the rest of this fit; "
                "training continues without it."
            )

    def _take(self, trainer: Trainer, pl_module: LightningModule, batch: Any) -> None:
        self._taken = first_rows(batch, self.n_samples)
        # Wrong arguments raise here, in the first batch, and not after an epoch.
        self._run(trainer, pl_module, 0, 0)

    def _run(self, trainer: Trainer, pl_module: LightningModule, epoch: int, step: int) -> Any:
        precision = trainer.precision_plugin
        with precision.forward_context():
            return self.inspect(pl_module, precision.convert_input(self._taken), epoch, step)

    def _show(self, trainer: Trainer) -> None:
        trackers = self.trackers(trainer)
        for name, figure in self.figures(self.report).items() if trackers or self.folder else ():
            self.show(trackers, f"{self.prefix}/{name}", figure, self.report.step)
            if self.folder is not None:
                path = self.folder / self.prefix / f"epoch={self.report.epoch}" / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=100)
        trackers.save()
