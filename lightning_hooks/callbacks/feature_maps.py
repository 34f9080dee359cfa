"""Figures of the same few samples after every epoch, and FeatureMapVisualizer, which draws the outputs of layers."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.extraction.batches import Forward, check_forward, first_rows, images_in, to_host
from lightning_hooks.extraction.capture import capture, channels_first
from lightning_hooks.extraction.extracted import ExtractedFeatures
from lightning_hooks.hooks import ModuleSelector, float_tensors, select_modules
from lightning_hooks.hooks.checks import check_choice, check_count
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.hosts.lightning_api import log_step
from lightning_hooks.plots.canvas import Figure, style
from lightning_hooks.plots.maps import array_of, as_images, feature_map, kind_of
from lightning_hooks.session.settings import arguments_in

Stage = Literal["train", "validate"]


class FixedSampleCallback(HookedCallback):
    """Runs the model on a fixed sample after every epoch, separately from training, and logs figures of the result.

    The arguments are those of :class:`~lightning_hooks.FeatureMapVisualizer`. The sample stays the same for the whole fit. PNG
    files are ``<folder>/<prefix>/epoch=<epoch>/<name>.png``.
    """

    prefix: ClassVar[str]
    reduced: ClassVar[bool] = True  # whether figures are logged in fewer colours
    fit_only: ClassVar[tuple[str, ...]] = ("_taken",)

    def __init__(
        self,
        *,
        modules: ModuleSelector | None,
        sample: Any,
        n_samples: int,
        stage: Stage,
        every_n_epochs: int,
        forward: Forward | None,
        folder: str | Path | None,
    ) -> None:
        super().__init__(modules=modules)
        self.n_samples = check_count("n_samples", n_samples, least=1)
        self.every_n_epochs = check_count("every_n_epochs", every_n_epochs, least=1)
        check_choice("stage", stage, get_args(Stage))
        check_forward(forward)
        self.sample, self.stage, self.forward = sample, stage, forward
        self.folder = None if folder is None else Path(folder)
        self._taken: Any = None  # the sample of this fit
        self.report: Any = None

    @abstractmethod
    def inspect(self, pl_module: LightningModule, sample: Any, epoch: int, step: int) -> Any:
        """Run the model on the sample and return a report; called on every rank, since a sharded model needs all of them."""

    @abstractmethod
    def figures(self, report: Any) -> dict[str, Figure]:
        """Return the figures of a report by tag, without the ``prefix``."""

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        with style():  # raises now if matplotlib is missing
            pass
        self.report, self._disabled = None, False
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
            trackers.figure(f"{self.prefix}/{name}", figure, self.report.step, reduced=self.reduced)
            if self.folder is not None:
                path = self.folder / self.prefix / f"epoch={self.report.epoch}" / f"{name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(path, dpi=100)
        trackers.save()


MAX_MODULES = 12  # the number of modules drawn if modules is None


class FeatureMapVisualizer(FixedSampleCallback):
    """Draws the outputs of layers for a fixed sample after every epoch: maps, tokens by features, attention.

    Maps ``(n, channels, height, width)`` are drawn as a grid, each map from its minimum to its maximum; tokens
    ``(n, tokens, features)`` and vectors as heat maps around zero; attention weights as a grid of heads. ``nn.MultiheadAttention``
    returns its weights for this; those of other attention layers are drawn if they return them (in transformers:
    ``attn_implementation="eager"``).

    The sample runs separately, in eval mode: see :func:`lightning_hooks.extraction.undisturbed`. Figures are logged as
    ``feature_maps/<module>`` to trackers that show images, and written to PNG files. :meth:`draw` returns the figures of one batch,
    without a trainer.

    Args:
        modules: The layers; None for twelve of the leaves that compute something, evenly spread over the depth.
        sample: The batch; None for the first rows of the first batch of ``stage``.
        n_samples: The number of rows, at least 1.
        max_maps: The number of channels or heads of each layer, from the first, at least 1.
        stage: The stage of the batch, ``train`` or ``validate``.
        every_n_epochs: Run after epochs 0, n, 2n, ….
        forward: The name of the submodule or method to call instead of the model, or a function of (model, batch); None to call
            the model with the batch, its first entry, or its entries by name.
        folder: Where to write ``feature_maps/epoch=<epoch>/<module>.png``; None for no files.

    Attributes:
        report: The last :class:`~lightning_hooks.extraction.ExtractedFeatures`, of whole outputs, with the images as the field
            ``input``; None before the first. ``figures(report)`` draws it again.

    Raises:
        ImportError: At train start, without matplotlib.
        ValueError: If an argument is out of range; at train start, if ``modules`` matches nothing; in the first batch, if a
            module given by name is not called.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import FeatureMapVisualizer
        >>> trainer = Trainer(callbacks=[FeatureMapVisualizer(modules="*conv*", n_samples=2)], logger=False)
    """

    prefix: ClassVar[str] = "feature_maps"
    report: ExtractedFeatures | None

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        sample: Any = None,
        n_samples: int = 4,
        max_maps: int = 8,
        stage: Stage = "train",
        every_n_epochs: int = 1,
        forward: Forward | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(**arguments_in(locals(), "max_maps"))
        self.max_maps = check_count("max_maps", max_maps, least=1)
        self._channels_first: dict[str, bool] = {}

    @classmethod
    def draw(
        cls,
        model: nn.Module,
        batch: Any,
        modules: ModuleSelector | None = None,
        *,
        n_samples: int = 4,
        max_maps: int = 8,
        forward: Forward | None = None,
    ) -> dict[str, Figure]:
        """Draw the outputs of selected modules for a batch, in eval mode without gradients.

        Args:
            model: Any module; it is unchanged.
            batch: A tensor; a tuple or list, whose first entry is the input; or a mapping, passed by keyword.
            modules: The layers; None for twelve leaves, evenly spread over the depth.
            n_samples: The number of rows of the batch.
            max_maps: The number of channels or heads of each layer.
            forward: As for the callback.

        Returns:
            Module name to its figure.

        Raises:
            ImportError: Without matplotlib.
            ValueError: If ``modules`` matches nothing, or no selected module was called.
        """
        drawing = cls(modules=modules, n_samples=n_samples, max_maps=max_maps, forward=forward)
        return drawing._figures(drawing.inspect(model, first_rows(batch, n_samples), 0, 0), "")

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sites(pl_module)
        super().attach(trainer, pl_module)

    def _sites(self, model: nn.Module) -> list[tuple[str, nn.Module]]:
        """The layers: of all at most ``MAX_MODULES``."""
        sites = select_modules(model, self.modules)
        if self.modules is None and len(sites) > MAX_MODULES:
            sites = [sites[round(place)] for place in np.linspace(0, len(sites) - 1, MAX_MODULES)]
        self._channels_first = {name: channels_first(module, 3) for name, module in sites}
        return sites

    @override
    def inspect(self, pl_module: nn.Module, sample: Any, epoch: int, step: int) -> ExtractedFeatures:
        """Return the output of each call of each layer: its first tensor, and attention weights as ``<name>#weights``."""
        calls = capture(
            pl_module, sample, self._sites(pl_module), _copies, modules=self.modules, forward=self.forward, attention=True
        )
        found = to_host({f"{name}{'#weights' * index}": each for name, kept in calls.items() for index, each in enumerate(kept)})
        outputs = {
            name: values
            for name, values in found.items()
            if not name.endswith("#weights") or kind_of(values.float().numpy(), False) == "attention"
        }
        images = images_in(sample)
        return ExtractedFeatures(epoch, step, outputs, {} if images is None else to_host({"input": images}), seen=self.n_samples)

    @override
    def figures(self, report: ExtractedFeatures) -> dict[str, Figure]:
        return self._figures(report, f"epoch {report.epoch}")

    def _figures(self, report: ExtractedFeatures, when: str) -> dict[str, Figure]:
        images = report.fields.get("input")
        pictures = None if images is None else as_images(array_of(images))
        arrays = {name: values.float().numpy() for name, values in report.sites.items()}
        kinds = {name: kind_of(array, self._channels_first.get(name.partition("#")[0], False)) for name, array in arrays.items()}
        return {
            name: feature_map(name, array, kinds[name], images=pictures, max_maps=self.max_maps, when=when)
            for name, array in arrays.items()
        }


def _copies(_: nn.Module, output: Any) -> list[Tensor] | None:
    """Return copies of the first tensor of an output, and of the second if it has the shape of attention weights."""
    found = [plain_values(tensor) for tensor in float_tensors(output)[:2]]
    return [tensor.clone() for tensor in found[:1] + [tensor for tensor in found[1:] if tensor.dim() in (3, 4)]] or None
