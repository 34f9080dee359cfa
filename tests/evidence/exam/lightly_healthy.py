"""Self-supervised methods of lightly."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.schedules import adamw, warm_cosine
from tests.evidence.exam.views import BYOL, SimSiam, backbone, siamese, trained_on_views, views_adam, views_sgd


@healthy("lightly", "SimCLR, SGD")
def lightly_simclr() -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, contrast = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), NTXentLoss(temperature=0.5)
    return trained_on_views(Recipe(net, lambda net, batch: contrast(net(batch[0]), net(batch[1])), views_sgd()))


class MoCo(Recipe):
    """A queue of keys, made by a net that follows."""

    def __init__(self) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import MoCoProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        net = nn.Sequential(backbone(), MoCoProjectionHead(48, 48, 32))
        super().__init__(net, lambda *_: None, views_sgd())
        self.followers = copy.deepcopy(net)
        deactivate_requires_grad(self.followers)
        self.contrast = NTXentLoss(temperature=0.1, memory_bank_size=(512, 32))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.followers, m=0.99)
        return self.contrast(self.net(batch[0]), self.followers(batch[1]).detach())


@healthy("lightly", "MoCo with a queue, SGD")
def lightly_moco() -> Built:
    return trained_on_views(MoCo())


@healthy("lightly", "BYOL, SGD")
def lightly_byol() -> Built:
    return trained_on_views(BYOL())


@healthy("lightly", "SimSiam, SGD")
def lightly_simsiam() -> Built:
    return trained_on_views(Recipe(SimSiam(), siamese, views_sgd(0.03)))


@healthy("lightly", "Barlow Twins, Adam")
def lightly_barlow() -> Built:
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64)), BarlowTwinsLoss()
    return trained_on_views(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), views_adam()))


@healthy("lightly", "VICReg, AdamW")
def lightly_vicreg() -> Built:
    from lightly.loss import VICRegLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64)), VICRegLoss()
    adamw = lambda module: torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-6)  # noqa: E731
    return trained_on_views(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), adamw))


class DINO(Recipe):
    """Self-distillation with a teacher that follows; two large views, two small ones."""

    def __init__(self) -> None:
        from lightly.loss import DINOLoss
        from lightly.models.modules import DINOProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        super().__init__(
            nn.Sequential(backbone(), DINOProjectionHead(48, 64, 24, 64, freeze_last_layer=-1)), lambda *_: None, views_adam()
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
    return trained_on_views(DINO(), 3)


@healthy("lightly", "SwAV with prototypes, Adam")
def lightly_swav() -> Built:
    from lightly.loss import SwaVLoss
    from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes

    net = nn.Sequential(backbone(), SwaVProjectionHead(48, 48, 32))
    criterion = SwaVLoss()

    class SwaV(Recipe):
        def __init__(self) -> None:
            super().__init__(net, lambda *_: None, views_adam())
            self.prototypes = SwaVPrototypes(32, 24, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.prototypes.normalize()
            outputs = [self.prototypes(nn.functional.normalize(self.net(view), dim=1), self.current_epoch) for view in batch]
            return criterion(outputs[:2], outputs[2:])

    return trained_on_views(SwaV(), 3)


@healthy("lightly", "LeJEPA: views lie near their mean, and random projections of all are to be Gaussian, AdamW and a cosine")
def lightly_gaussian() -> Built:
    from lightly.loss import LeJEPALoss
    from lightly.models.modules import LeJEPAProjectionHead

    criterion = LeJEPALoss(sigreg_num_vectors=128)

    def loss(net: Any, batch: Any) -> Tensor:
        said = net(torch.cat(list(batch))).view(len(batch), len(batch[0]), -1)
        return criterion(local_proj=said[2:], global_proj=said[:2])

    net = nn.Sequential(backbone(), LeJEPAProjectionHead(48, 64, 16))
    return trained_on_views(Recipe(net, loss, warm_cosine(adamw(2e-3, 0.05), 50, 5)), 4, limit_train_batches=25)


class Manifolds(Recipe):
    """A net, and one that follows it, whose means over four views are to fill the sphere, as in lightly's example."""

    def __init__(self) -> None:
        from lightly.loss import MMCRLoss
        from lightly.models.modules import MMCRProjectionHead

        net = nn.Sequential(backbone(), MMCRProjectionHead(48, 64, 32, num_layers=2))
        super().__init__(net, lambda *_: None, lambda module: torch.optim.SGD(module.net.parameters(), 0.06, momentum=0.9))
        self.follower, self.criterion = copy.deepcopy(net).requires_grad_(False), MMCRLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.follower, m=0.996)
        own, followed = (torch.stack([F.normalize(net(view)) for view in batch], 1) for net in (self.net, self.follower))
        return self.criterion(own, followed)


@healthy("lightly", "MMCR: the nuclear norm of means over four views, a loss that is below 0 from the start, SGD")
def lightly_manifolds() -> Built:
    return trained_on_views(Manifolds(), 4, limit_train_batches=16)


def two_views(net: nn.Module, criterion: Any, optimizers: Any) -> Built:
    """A loss of what a net makes of two views."""
    return trained_on_views(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), optimizers))


@healthy("lightly", "decoupled contrastive loss, LARS")
def lightly_decoupled() -> Built:
    from lightly.loss import DCLLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.utils.lars import LARS

    net = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32))
    return two_views(net, DCLLoss(0.1), lambda m: LARS(m.parameters(), 0.3, momentum=0.9, weight_decay=1e-6))


class Neighbours(Recipe):
    """NNCLR: the positive is the nearest of a queue."""

    def __init__(self) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import NNCLRPredictionHead, NNCLRProjectionHead, NNMemoryBankModule

        net = nn.Sequential(backbone(), NNCLRProjectionHead(48, 64, 32))
        super().__init__(net, lambda *_: None, views_sgd())
        self.predictor, self.memory = NNCLRPredictionHead(32, 64, 32), NNMemoryBankModule(size=(256, 32))
        self.criterion = NTXentLoss(0.2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        codes = [self.net(view) for view in batch]
        said = [self.predictor(code) for code in codes]
        near = [self.memory(code.detach(), update=number == 0) for number, code in enumerate(codes)]
        return 0.5 * (self.criterion(near[0], said[1]) + self.criterion(near[1], said[0]))


@healthy("lightly", "NNCLR with a queue of 256")
def lightly_neighbours() -> Built:
    return trained_on_views(Neighbours())


@healthy("lightly", "FroSSL: the norms of the covariances of three views, Adam")
def lightly_frobenius() -> Built:
    from lightly.loss import FroSSLLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 48, 24)), FroSSLLoss()
    return trained_on_views(Recipe(net, lambda net, batch: criterion([net(view) for view in batch]), views_adam(2e-3)), 3)


@healthy("lightly", "whitened embeddings (W-MSE), Adam")
def lightly_whitened() -> Built:
    from lightly.loss import WMSELoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 48, 8))
    criterion = WMSELoss(embedding_dim=8, w_size=32)
    loss = lambda net, batch: criterion(torch.cat([net(view) for view in batch]))  # noqa: E731
    return trained_on_views(Recipe(net, loss, views_adam(1e-3)))


@healthy("lightly", "alignment and uniformity on the hypersphere, a loss that falls below 0, SGD", learned_from=False)
def lightly_hypersphere() -> Built:
    from lightly.loss.hypersphere_loss import HypersphereLoss

    net, criterion = nn.Sequential(backbone(), nn.Linear(48, 32)), HypersphereLoss()
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.06, momentum=0.9, weight_decay=5e-4)  # noqa: E731
    return trained_on_views(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), sgd))


@healthy(
    "lightly", "EMP-SSL: six views of each picture lie near their mean, and a coding rate keeps all apart, Adam", learned_from=False
)
def lightly_many_views() -> Built:
    from lightly.loss.emp_ssl_loss import EMPSSLLoss

    net, criterion = nn.Sequential(backbone(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 32)), EMPSSLLoss()

    def loss(net: Any, batch: Any) -> Tensor:
        said = F.normalize(net(torch.cat(list(batch))), dim=1)
        return criterion(list(said.chunk(len(batch))))

    return trained_on_views(Recipe(net, loss, warm_cosine(adamw(1e-3, 1e-4), 50, 5)), 6, limit_train_batches=25)
