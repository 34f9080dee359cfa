"""Healthy trainings with lightly's losses and heads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import views

BATCHES = {"max_epochs": 2, "limit_train_batches": 30}


def backbone(width: int = 48) -> nn.Module:
    """A small residual net of timm, without a head, shape ``(batch, width)``."""
    import timm

    channels = (8, 16, 24, width)
    return timm.create_model("resnet10t", in_chans=1, num_classes=0, block_args={}, channels=channels, stem_width=8)


def sgd(lr: float = 0.06) -> Callable[[Any], Any]:
    return lambda module: torch.optim.SGD(module.parameters(), lr, momentum=0.9, weight_decay=5e-4)


def adam(lr: float = 1e-3) -> Callable[[Any], Any]:
    return lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr)


def trained(module: Recipe, number: int = 2, **kwargs: Any) -> Built:
    """On views of the digits, for two epochs of 30 batches."""
    return Built(module, views(32, number), {**BATCHES, **kwargs}, Expected())


@healthy("lightly", "SimCLR, SGD")
def lightly_simclr() -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, contrast = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), NTXentLoss(temperature=0.5)
    return trained(Recipe(net, lambda net, batch: contrast(net(batch[0]), net(batch[1])), sgd()))


class MoCo(Recipe):
    """A queue of keys, made by a net that follows."""

    def __init__(self) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import MoCoProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        net = nn.Sequential(backbone(), MoCoProjectionHead(48, 48, 32))
        super().__init__(net, lambda *_: None, sgd())
        self.followers = copy.deepcopy(net)
        deactivate_requires_grad(self.followers)
        self.contrast = NTXentLoss(temperature=0.1, memory_bank_size=(512, 32))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.followers, m=0.99)
        return self.contrast(self.net(batch[0]), self.followers(batch[1]).detach())


@healthy("lightly", "MoCo with a queue, SGD")
def lightly_moco() -> Built:
    return trained(MoCo())


class BYOL(Recipe):
    """A target net follows the online one, as lightly's example has it."""

    follows = 0.99

    def __init__(self) -> None:
        from lightly.loss import NegativeCosineSimilarity
        from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        online = nn.Sequential(backbone(), BYOLProjectionHead(48, 64, 32))
        super().__init__(online, lambda *_: None, sgd())
        self.predictor = BYOLPredictionHead(32, 64, 32)
        self.target = copy.deepcopy(online)
        deactivate_requires_grad(self.target)
        self.criterion = NegativeCosineSimilarity()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.target, m=self.follows)
        first, second = (self.predictor(self.net(view)) for view in batch)
        goal_first, goal_second = (self.target(view).detach() for view in batch)
        return 0.5 * (self.criterion(first, goal_second) + self.criterion(second, goal_first))


@healthy("lightly", "BYOL, SGD")
def lightly_byol() -> Built:
    return trained(BYOL())


class SimSiam(nn.Module):
    """A projector and a predictor of it, with or without the stop-gradient between both views."""

    def __init__(self, stops: bool = True) -> None:
        from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead

        super().__init__()
        self.stops, self.backbone = stops, backbone()
        self.projector, self.predictor = SimSiamProjectionHead(48, 48, 32), SimSiamPredictionHead(32, 16, 32)

    def forward(self, view: Any) -> tuple[Any, Any]:
        projected = self.projector(self.backbone(view))
        return (projected.detach() if self.stops else projected), self.predictor(projected)


def siamese(net: Any, batch: Any) -> Any:
    from lightly.loss import NegativeCosineSimilarity

    criterion = NegativeCosineSimilarity()
    (first, of_first), (second, of_second) = net(batch[0]), net(batch[1])
    return 0.5 * (criterion(of_first, second) + criterion(of_second, first))


@healthy("lightly", "SimSiam, SGD")
def lightly_simsiam() -> Built:
    return trained(Recipe(SimSiam(), siamese, sgd(0.03)))


@healthy("lightly", "Barlow Twins, Adam")
def lightly_barlow() -> Built:
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64)), BarlowTwinsLoss()
    return trained(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), adam()))


@healthy("lightly", "VICReg, AdamW")
def lightly_vicreg() -> Built:
    from lightly.loss import VICRegLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64)), VICRegLoss()
    adamw = lambda module: torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-6)  # noqa: E731
    return trained(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), adamw))


class DINO(Recipe):
    """Self-distillation with a teacher that follows; two large views, two small ones."""

    def __init__(self) -> None:
        from lightly.loss import DINOLoss
        from lightly.models.modules import DINOProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        super().__init__(
            nn.Sequential(backbone(), DINOProjectionHead(48, 64, 24, 64, freeze_last_layer=-1)), lambda *_: None, adam()
        )
        self.teacher = nn.Sequential(backbone(), DINOProjectionHead(48, 64, 24, 64))
        deactivate_requires_grad(self.teacher)
        self.criterion = DINOLoss(output_dim=64, warmup_teacher_temp_epochs=1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.teacher, m=0.996)
        taught = [self.teacher(view) for view in batch[:2]]
        return self.criterion(taught, [self.net(view) for view in batch], epoch=self.current_epoch)


@healthy("lightly", "DINO with four views, Adam")
def lightly_dino() -> Built:
    return trained(DINO(), 3)


@healthy("lightly", "SwAV with prototypes, Adam")
def lightly_swav() -> Built:
    from lightly.loss import SwaVLoss
    from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes

    net = nn.Sequential(backbone(), SwaVProjectionHead(48, 48, 32))
    criterion = SwaVLoss()

    class SwaV(Recipe):
        def __init__(self) -> None:
            super().__init__(net, lambda *_: None, adam())
            self.prototypes = SwaVPrototypes(32, 24, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.prototypes.normalize()
            outputs = [self.prototypes(nn.functional.normalize(self.net(view), dim=1), self.current_epoch) for view in batch]
            return criterion(outputs[:2], outputs[2:])

    return trained(SwaV(), 3)
