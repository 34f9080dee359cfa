"""Views of digits, and methods of lightly that several families share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.evidence.exam.cases import Built, Expected, Recipe
from tests.evidence.exam.pictures import views
from tests.evidence.exam.schedules import TWICE_30


def backbone(width: int = 48) -> nn.Module:
    """A small residual net of timm, without a head, shape ``(batch, width)``."""
    import timm

    channels = (8, 16, 24, width)
    return timm.create_model("resnet10t", in_chans=1, num_classes=0, block_args={}, channels=channels, stem_width=8)


def views_sgd(lr: float = 0.06) -> Callable[[Any], Any]:
    return lambda module: torch.optim.SGD(module.parameters(), lr, momentum=0.9, weight_decay=5e-4)


def views_adam(lr: float = 1e-3) -> Callable[[Any], Any]:
    return lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr)


def trained_on_views(module: Recipe, number: int = 2, **kwargs: Any) -> Built:
    """On views of the digits, for two epochs of 30 batches."""
    return Built(module, views(32, number), {**TWICE_30, **kwargs}, Expected())


class BYOL(Recipe):
    """A target net follows the online one, as lightly's example has it."""

    follows = 0.99

    def __init__(self) -> None:
        from lightly.loss import NegativeCosineSimilarity
        from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        online = nn.Sequential(backbone(), BYOLProjectionHead(48, 64, 32))
        super().__init__(online, lambda *_: None, views_sgd())
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
