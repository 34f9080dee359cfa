"""Faults planted in trainings with lightly's losses and heads."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.evidence.exam.cases import Built, Recipe, fault
from tests.evidence.exam.healthy_lightly import BYOL, SimSiam, adam, backbone, sgd, siamese, trained
from tests.evidence.exam.planted_timm import RATE, expecting


@fault(
    "lightly",
    "SimSiam without the stop-gradient: all views become the same",
    missed="under way when the fit ends: samples differ by 0.15 in the projector, and by 0.003 at the end, as in healthy heads",
)
def lightly_no_stop_gradient(planted: bool = True) -> Built:
    built = trained(Recipe(SimSiam(stops=not planted), siamese, sgd(0.3 if planted else 0.03)))
    return expecting(built, "representation_collapse", sites=("net.*",))


class Still(BYOL):
    """Its target keeps the weights that it started with."""

    follows = 1.0


@fault(
    "lightly", "BYOL whose target net never moves", missed="a frozen copy of the first weights is also what reference models are"
)
def lightly_target_still(planted: bool = True) -> Built:
    return expecting(trained(Still() if planted else BYOL()), "not_updated", sites=("target*",))


@fault(
    "lightly",
    "VICReg without its variance and covariance terms",
    missed="under way when the fit ends: the codes are a third of their size, and samples still differ in direction by 0.07",
)
def lightly_no_variance(planted: bool = True) -> Built:
    from lightly.loss import VICRegLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    criterion = VICRegLoss(mu_param=0.0, nu_param=0.0) if planted else VICRegLoss()
    net = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64))
    built = trained(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), adam(5e-3)))
    return expecting(built, "representation_collapse", sites=("net.*",))


@fault(
    "lightly",
    "SimCLR whose two views are the same picture",
    missed="the two calls are of one batch; that views should differ is known to the user only",
)
def lightly_same_views(planted: bool = True) -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, contrast = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), NTXentLoss(temperature=0.5)

    def loss(net: Any, batch: Any) -> Any:
        return contrast(net(batch[0]), net(batch[0] if planted else batch[1]))

    return expecting(trained(Recipe(net, loss, sgd())), "constant", "batch_repeated")


@fault("lightly", "Barlow Twins at a learning rate of 10")
def lightly_rate_too_high(planted: bool = True) -> Built:
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64)), BarlowTwinsLoss()
    loss = lambda net, batch: criterion(net(batch[0]), net(batch[1]))  # noqa: E731
    return expecting(trained(Recipe(net, loss, sgd(10.0 if planted else 1e-3))), *RATE)


@fault("lightly", "SimCLR with a temperature of 1e-4: the softmax of its loss saturates")
def lightly_temperature(planted: bool = True) -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32))
    contrast = NTXentLoss(temperature=1e-4 if planted else 0.5)
    built = trained(Recipe(net, lambda net, batch: contrast(net(batch[0]), net(batch[1])), sgd()))
    return expecting(built, "exploding", "output_range", "update_too_large", "saturated")


@fault("lightly", "the projector is left out of the optimizer")
def lightly_projector_left_out(planted: bool = True) -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, contrast = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), NTXentLoss(temperature=0.5)

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam((module.net[0] if planted else module).parameters(), 1e-3)

    built = trained(Recipe(net, lambda net, batch: contrast(net(batch[0]), net(batch[1])), optimizers))
    return expecting(built, "not_optimized", sites=("net.1*",))
