"""Detection, segmentation and large batches with torchvision's models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import SHORT, STEPS, scheduled


@healthy(
    "torchvision",
    "LR-ASPP on MobileNetV3: which pixels are which digit, edges are ignored, SGD with polynomial rates",
)
def torchvision_segments() -> Built:
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.mobilenetv3 import MobileNetV3, _mobilenet_v3_conf
    from torchvision.models.segmentation import LRASPP

    settings, last = _mobilenet_v3_conf("mobilenet_v3_small", width_mult=0.5)
    features = MobileNetV3(settings[:6], last).features
    channels = [features[index](torch.zeros(2, settings[0].input_channels, 8, 8)).shape[1] for index in (1,)]
    body = IntermediateLayerGetter(features, {"1": "low", str(len(features) - 1): "high"})
    net = LRASPP(body, channels[0], settings[5].out_channels * 6, 11, 32)

    def loss(net: Any, batch: Any) -> Tensor:
        bright = batch[0][:, 0]
        classes = torch.where(bright > 0.4, batch[1][:, None, None] + 1, 0).masked_fill((bright - 0.2).abs() < 0.2, 255)
        return F.cross_entropy(net(batch[0].expand(-1, 3, -1, -1))["out"], classes, ignore_index=255)

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)  # noqa: E731
    rates = scheduled(sgd, lambda chosen: torch.optim.lr_scheduler.PolynomialLR(chosen, 70, 0.9))
    return Built(Recipe(net, loss, rates), in_batches(8, *digits(48)), {"max_epochs": 2, "limit_train_batches": 35}, WELL)


class Places(nn.Module):
    """A small backbone for a detector, sixteen times fewer places in four steps."""

    out_channels = 32

    def __init__(self) -> None:
        super().__init__()
        steps = []
        for before, after in ((3, 8), (8, 16), (16, 32)):
            steps += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.steps = nn.Sequential(*steps)

    def forward(self, x: Tensor) -> Tensor:
        return self.steps(x)


@healthy("torchvision", "FCOS finds two digits in a picture: focal loss from a head whose bias says 1 %, SGD with a warm-up")
def torchvision_fcos() -> Built:
    from torchvision.models.detection import FCOS
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    anchors = AnchorGenerator(sizes=((8,),), aspect_ratios=((1.0,),))
    net = FCOS(Places(), 10, 64, 64, [0.1] * 3, [0.25] * 3, anchor_generator=anchors)

    def loss(net: Any, batch: Any) -> Tensor:
        images, targets = [], []
        for pair, shown in zip(batch[0].split(2), batch[1].split(2), strict=True):
            canvas = torch.zeros(3, 64, 64)
            corners = torch.randint(0, 13, (2, 2)) + torch.tensor([[0, 0], [32, 32]])
            for picture, (x, y) in zip(pair, corners.tolist(), strict=True):
                canvas[:, y : y + 16, x : x + 16] = picture
            images.append(canvas)
            targets.append({"boxes": torch.cat((corners, corners + 16), 1).float(), "labels": shown})
        return torch.stack(list(net(images, targets).values())).sum()

    pixels, shown = digits(16)
    pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min())

    def sgd(module: Any) -> Any:
        chosen = torch.optim.SGD(module.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
        warm_up = torch.optim.lr_scheduler.LinearLR(chosen, 0.01, total_iters=10)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}

    return Built(Recipe(net, loss, sgd), in_batches(16, pixels, shown), SHORT, WELL)


@healthy(
    "torchvision",
    "ShuffleNet in large batches of 256, smoothed labels, a part of each picture erased, five steps of warm-up, then a cosine",
)
def torchvision_shufflenet() -> Built:
    from torchvision.models import ShuffleNetV2
    from torchvision.transforms import RandomErasing

    net, erased = ShuffleNetV2([1, 2, 1], [16, 24, 48, 96, 128], num_classes=10), RandomErasing(0.1)

    def loss(net: Any, batch: Any) -> Tensor:
        images = torch.stack([erased(image) for image in batch[0]])
        return F.cross_entropy(net(images), batch[1], label_smoothing=0.1)

    def sgd(module: Any) -> Any:
        chosen = torch.optim.SGD(module.parameters(), 0.5, momentum=0.9, weight_decay=2e-5)
        parts = [torch.optim.lr_scheduler.LinearLR(chosen, 0.01, total_iters=5)]
        parts.append(torch.optim.lr_scheduler.CosineAnnealingLR(chosen, STEPS - 5))
        schedule = torch.optim.lr_scheduler.SequentialLR(chosen, parts, [5])
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Built(Recipe(net, loss, sgd), pictures(256, 32, 3), {"max_epochs": 7}, WELL)
