"""GradCAM: the image regions that contribute to a class score, after every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.feature_maps import FixedSampleCallback, Stage
from lightning_hooks.extraction.batches import Forward, images_in, to_host
from lightning_hooks.extraction.cam import Reshape, Target, check_reshape, check_target, find_layer, grad_cam, resize
from lightning_hooks.hosts.lightning_api import is_sharded
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.maps import array_of, as_images, cam_figure
from lightning_hooks.session.settings import arguments_in


@dataclass(frozen=True, slots=True)
class CamReport:
    """The Grad-CAM maps of one epoch.

    Attributes:
        epoch: The epoch, from 0.
        step: The step at which Lightning logs what belongs to the end of that epoch.
        module: The name of the layer.
        maps: Shape ``(n, height, width)``, at least 0, of the layer's height and width, CPU.
        scores: The explained score of each sample, shape ``(n,)``, CPU.
        classes: Its class, shape ``(n,)``, CPU; None if the target was a function of the output.
        images: The samples, ``(n, channels, height, width)``, CPU; None if the batch has no images.
    """

    epoch: int
    step: int
    module: str
    maps: Tensor
    scores: Tensor
    classes: Tensor | None = None
    images: Tensor | None = None


class GradCAM(FixedSampleCallback):
    """Draws Grad-CAM maps of a fixed sample over its images, after every epoch.

    Grad-CAM sums the channels of a layer, weighted by the mean gradient of a class score; positive values contribute to the class
    (Selvaraju et al., Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization, ICCV 2017,
    arXiv:1610.02391). In-place operations after the layer, layers called several times (the last call counts) and frozen models are
    supported.

    The sample runs separately, in eval mode; ``.grad`` of parameters is unchanged. Figures are logged to trackers that show images
    as ``grad_cam/<module>``, or ``grad_cam/<module>.class=<class>`` if a class is given, and written to PNG files. :meth:`compute`
    returns the maps of one batch, without a trainer.

    Args:
        module: The name of the layer; None for the last convolution.
        target: The class; a class per sample; None for the predicted one; or a function of the model's output that returns a score
            per sample.
        reshape: For layers of tokens: (height, width) of their grid, or a function from the layer's output to
            ``(n, channels, height, width)``; None for a square grid, with or without a CLS token before it.
        sample: The batch; None for the first rows of the first batch of ``stage``.
        n_samples: The number of rows, at least 1.
        stage: The stage of the batch, ``train`` or ``validate``.
        every_n_epochs: Run after epochs 0, n, 2n, ….
        forward: The name of the submodule or method to call instead of the model, or a function of (model, batch); None to call
            the model with the batch, its first entry, or its entries by name.
        folder: Where to write ``grad_cam/epoch=<epoch>/<module>.png``; None for no files.

    Attributes:
        report: The last :class:`CamReport`; None before the first. ``figures(report)`` draws it again.

    Raises:
        ImportError: At train start, without matplotlib.
        RuntimeError: At train start, under a strategy that shards the model.
        ValueError: If an argument is out of range; at train start, if there is no such layer; in the first batch, if
            there is no map (the layer is not called or has no spatial dimensions, or there is no such class).

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradCAM
        >>> trainer = Trainer(callbacks=[GradCAM(module="features.conv3", stage="validate")], logger=False)
    """

    prefix: ClassVar[str] = "grad_cam"
    reduced: ClassVar[bool] = False  # fewer colours harm photographs
    report: CamReport | None

    def __init__(
        self,
        *,
        module: str | None = None,
        target: Target = None,
        reshape: Reshape = None,
        sample: Any = None,
        n_samples: int = 4,
        stage: Stage = "train",
        every_n_epochs: int = 1,
        forward: Forward | None = None,
        folder: str | Path | None = None,
    ) -> None:
        if module is not None and not isinstance(module, str):
            raise TypeError(f"module must be the name of a layer, or None for the last convolution; got {module!r}.")
        super().__init__(modules=module, **arguments_in(locals(), "module", "target", "reshape"))
        check_target(target)
        check_reshape(reshape)
        self.module, self.target, self.reshape = module, target, reshape

    @staticmethod
    def compute(
        model: nn.Module,
        batch: Any,
        *,
        module: str | None = None,
        target: Target = None,
        reshape: Reshape = None,
        size: Sequence[int] | None = None,
        forward: Forward | None = None,
    ) -> Tensor:
        """Compute the Grad-CAM maps of a batch.

        The model runs in eval mode and is unchanged: modes, buffers, random state and ``.grad`` of parameters are restored.

        Args:
            model: Any module.
            batch: A tensor; a tuple or list, whose first entry is the input; or a mapping, passed by keyword.
            module: The name of the layer; None for the last convolution.
            target: As for the callback.
            reshape: As for the callback.
            size: (height, width) to scale the maps to, bilinearly; None for the layer's own.
            forward: As for the callback.

        Returns:
            Shape ``(n, height, width)``, on the model's device, in float32 at least, not normalised.

        Raises:
            ValueError: If there is no such layer, it was not called, its output has no spatial dimensions, there is no such class,
                or the score does not depend on it.
            TypeError: If an argument is of a wrong type.

        Example:
            >>> import torch
            >>> from lightning_hooks import GradCAM
            >>> head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
            >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), head)
            >>> GradCAM.compute(net, torch.randn(2, 3, 8, 8), module="0", target=3).shape
            torch.Size([2, 6, 6])
        """
        return grad_cam(model, batch, module, target, reshape=reshape, size=size, forward=forward)[0]

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        find_layer(pl_module, self.module)
        if sharded := is_sharded(trainer, pl_module):
            raise RuntimeError(
                f"GradCAM differentiates the model separately from training, which {sharded} does not support. Train with "
                "strategy='ddp' or on one device, or call GradCAM.compute on the whole model afterwards."
            )
        super().attach(trainer, pl_module)

    @override
    def inspect(self, pl_module: LightningModule, sample: Any, epoch: int, step: int) -> CamReport:
        name, _ = find_layer(pl_module, self.module)
        maps, scores, classes = grad_cam(pl_module, sample, name, self.target, reshape=self.reshape, forward=self.forward)
        found = {"maps": maps, "scores": scores, "classes": classes, "images": images_in(sample)}
        return CamReport(epoch, step, name, **to_host({key: tensor for key, tensor in found.items() if tensor is not None}))

    @override
    def figures(self, report: CamReport) -> dict[str, Figure]:
        # Of a volume its middle slice; of a signal one line.
        maps = report.maps[:, report.maps.shape[1] // 2] if report.maps.dim() == 4 else report.maps
        maps = maps.reshape(len(maps), -1, maps.shape[-1])
        pictures = None
        if report.images is not None and len(report.images) == len(maps):
            maps, pictures = resize(maps, report.images.shape[2:]), as_images(array_of(report.images))
        classes = ["score"] * len(maps) if report.classes is None else [f"class {label}" for label in report.classes.tolist()]
        names = [f"{label} {score:.3g}" for label, score in zip(classes, report.scores.tolist(), strict=True)]
        chosen = "the predicted class" if self.target is None else "the class" if report.classes is not None else "the score"
        line = f"Contributions to {chosen}, each map on its own scale; below: the score"
        tag = f"{report.module}.class={self.target}" if isinstance(self.target, int) else report.module
        return {tag: cam_figure(f"Grad-CAM at {report.module}, epoch {report.epoch}", line, maps.numpy(), pictures, names)}
