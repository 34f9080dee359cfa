"""FeatureMapVisualizer: what layers make of a few samples, drawn after every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.fixed_sample import FixedSampleCallback, Stage
from lightning_hooks.extraction import ExtractedFeatures, Forward, call_name, capture, first_rows, images_in, to_host
from lightning_hooks.extraction.capture import check_called, named_literally
from lightning_hooks.extraction.pooling import channels_first
from lightning_hooks.hooks import ModuleSelector, float_tensors, select_modules
from lightning_hooks.hooks.checks import check_count
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.plots.maps import feature_map, kind_of
from lightning_hooks.plots.overlay import array_of, as_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_MODULES = 12
"""Pictures an epoch, where nobody said of which modules."""


class FeatureMapVisualizer(FixedSampleCallback):
    """Draws what layers put out for a fixed sample, after every epoch: maps, tokens by features, attention.

    Maps ``(n, channels, height, width)`` become a grid, each map from its own minimum to its maximum; tokens
    ``(n, tokens, features)`` and vectors heat maps around zero; attention weights a grid of heads. ``nn.MultiheadAttention`` is
    made to return its weights; other attention layers are drawn where they do (in transformers:
    ``attn_implementation="eager"``).

    The sample runs separately, in eval mode: see :func:`lightning_hooks.extraction.undisturbed`. Figures go to trackers
    that show pictures as ``feature_maps/<module>``, and to PNG files. :meth:`draw` does it for one batch, without a trainer.

    Args:
        modules: Which layers; None for twelve of the leaves that compute something, evenly spread over the depth.
        sample: The batch to look at; None for the first rows of the first batch of ``stage``.
        n_samples: How many rows of it.
        max_maps: How many channels or heads of each layer, from the first.
        stage: Where the batch comes from, ``train`` or ``validate``.
        every_n_epochs: Look after epochs 0, n, 2n, ….
        forward: The name of the submodule or method to call instead of the model, or a function of (model, batch); None to call
            the model with the batch, its first entry, or its entries by name.
        folder: Where to write ``feature_maps/epoch=<epoch>/<module>.png``; None for trackers alone.

    Attributes:
        report: The last look, an :class:`~lightning_hooks.extraction.ExtractedFeatures` of the whole outputs, with the images as
            the field ``input``; None before. ``figures(report)`` draws it again.

    Raises:
        ImportError: At train start, without matplotlib.
        ValueError: If an argument is out of range; at train start, if ``modules`` matches nothing; when the sample is there, if a
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
        super().__init__(
            modules=modules,
            sample=sample,
            n_samples=n_samples,
            stage=stage,
            every_n_epochs=every_n_epochs,
            forward=forward,
            folder=folder,
        )
        check_count("max_maps", max_maps, least=1)
        self.max_maps = max_maps
        self._channels_first: dict[str, bool] = {}

    @staticmethod
    def draw(
        model: nn.Module,
        batch: Any,
        modules: ModuleSelector | None = None,
        *,
        n_samples: int = 4,
        max_maps: int = 8,
        forward: Forward | None = None,
    ) -> dict[str, Figure]:
        """Run a model on a batch, in eval mode without gradients, and draw what chosen modules put out.

        Args:
            model: Any module; nothing of it changes.
            batch: A tensor; a tuple or list, whose first entry is the input; or a mapping, passed by keyword.
            modules: Which layers; None for twelve leaves, evenly spread over the depth.
            n_samples: How many rows of the batch.
            max_maps: How many channels or heads of each layer.
            forward: As for the callback.

        Returns:
            Module name to its figure.

        Raises:
            ImportError: Without matplotlib.
            ValueError: If ``modules`` matches nothing, or nothing was heard.
        """
        sample = first_rows(batch, n_samples)
        sites, _ = _spread(select_modules(model, modules), modules)
        outputs = _outputs(model, sample, sites, modules, forward)
        first = {name: channels_first(module, 3) for name, module in sites}
        return {name: _figure(name, values, images_in(sample), first, max_maps, "") for name, values in outputs.items()}

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sites, left_out = _spread(self.select(pl_module), self.modules)
        if left_out:
            rank_zero_info(
                f"FeatureMapVisualizer draws {len(sites)} of {len(sites) + left_out} modules, spread over the depth. "
                "Choose with modules=."
            )
        self._channels_first = {name: channels_first(module, 3) for name, module in sites}
        super().attach(trainer, pl_module)

    @override
    def look(self, pl_module: LightningModule, sample: Any, epoch: int, step: int) -> ExtractedFeatures:
        sites, _ = _spread(self.select(pl_module), self.modules)
        outputs = _outputs(pl_module, sample, sites, self.modules, self.forward)
        images = images_in(sample)
        return ExtractedFeatures(epoch, step, outputs, {} if images is None else to_host({"input": images}), seen=self.n_samples)

    @override
    def figures(self, report: ExtractedFeatures) -> dict[str, Figure]:
        images, when = report.fields.get("input"), f"epoch {report.epoch}"
        return {
            name: _figure(name, values, images, self._channels_first, self.max_maps, when) for name, values in report.sites.items()
        }


def _spread(sites: list[tuple[str, nn.Module]], modules: ModuleSelector | None) -> tuple[list[tuple[str, nn.Module]], int]:
    """Of the sites of an open choice, some; and how many are left out."""
    if modules is not None or len(sites) <= MAX_MODULES:
        return sites, 0
    places = sorted({round(place) for place in np.linspace(0, len(sites) - 1, MAX_MODULES)})
    return [sites[place] for place in places], len(sites) - len(places)


def _outputs(
    model: nn.Module, sample: Any, sites: list[tuple[str, nn.Module]], modules: ModuleSelector | None, forward: Forward | None
) -> dict[str, Tensor]:
    """What each call of each site put out, on the host: its first tensor, and attention weights as ``<name>#weights``."""
    _, heard = capture(model, sample, sites, _copies, forward=forward, attention=True)
    check_called([name for name in named_literally(modules) if name not in heard], heard, model)
    found: dict[str, Tensor] = {}
    for site, calls in heard.items():
        for call, tensors in enumerate(calls):
            found |= {f"{call_name(site, call)}{'#weights' if index else ''}": tensor for index, tensor in enumerate(tensors)}
    on_host = to_host(found)
    return {
        name: values for name, values in on_host.items() if not name.endswith("#weights") or _kind(name, values, {}) == "attention"
    }


def _copies(_: nn.Module, output: Any) -> list[Tensor] | None:
    """The first tensor of an output, and the second if it has the shape of attention weights."""
    found = [plain_values(tensor) for tensor in float_tensors(output)[:2]]
    return [tensor.clone() for tensor in found[:1] + [tensor for tensor in found[1:] if tensor.dim() in (3, 4)]] or None


def _kind(name: str, values: Tensor, first: Mapping[str, bool]) -> Any:
    return kind_of(values.float().numpy(), first.get(name.partition("#")[0], False))


def _figure(name: str, values: Tensor, images: Tensor | None, first: Mapping[str, bool], max_maps: int, when: str) -> Figure:
    pictures = None if images is None else as_images(array_of(images))
    return feature_map(name, values.float().numpy(), _kind(name, values, first), images=pictures, max_maps=max_maps, when=when)
