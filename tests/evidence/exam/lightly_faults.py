"""Faults of self-supervised methods of lightly: what keeps views apart, whose gradient stops, what follows."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import BROKEN, JUMPS, RATE, UNMOVED, expecting
from tests.evidence.exam.schedules import plain_sgd
from tests.evidence.exam.timm_nets import TINY_VIT, timm_model
from tests.evidence.exam.views import BYOL, SimSiam, backbone, siamese, trained_on_views, views_adam, views_sgd


@fault(
    "lightly",
    "SimSiam without the stop-gradient: all views become the same",
    missed="under way when the fit ends: samples differ by 0.15 in the projector, and by 0.003 at the end, as in healthy heads",
)
def lightly_no_stop_gradient(planted: bool = True) -> Built:
    built = trained_on_views(Recipe(SimSiam(stops=not planted), siamese, views_sgd(0.3 if planted else 0.03)))
    return expecting(built, "representation_collapse", sites=("net.*",))


class Still(BYOL):
    """Its target keeps the weights that it started with."""

    follows = 1.0


@fault(
    "lightly", "BYOL whose target net never moves", missed="a frozen copy of the first weights is also what reference models are"
)
def lightly_target_still(planted: bool = True) -> Built:
    return expecting(trained_on_views(Still() if planted else BYOL()), "not_updated", sites=("target*",))


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
    built = trained_on_views(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), views_adam(5e-3)))
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

    return expecting(trained_on_views(Recipe(net, loss, views_sgd())), "constant", "batch_repeated")


@fault("lightly", "Barlow Twins at a learning rate of 10")
def lightly_rate_too_high(planted: bool = True) -> Built:
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 64)), BarlowTwinsLoss()
    loss = lambda net, batch: criterion(net(batch[0]), net(batch[1]))  # noqa: E731
    return expecting(trained_on_views(Recipe(net, loss, views_sgd(10.0 if planted else 1e-3))), *RATE)


@fault("lightly", "SimCLR with a temperature of 1e-4: the softmax of its loss saturates")
def lightly_temperature(planted: bool = True) -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32))
    contrast = NTXentLoss(temperature=1e-4 if planted else 0.5)
    built = trained_on_views(Recipe(net, lambda net, batch: contrast(net(batch[0]), net(batch[1])), views_sgd()))
    return expecting(built, "exploding", "output_range", "update_too_large", "saturated")


@fault("lightly", "the projector is left out of the optimizer")
def lightly_projector_left_out(planted: bool = True) -> Built:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, contrast = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), NTXentLoss(temperature=0.5)

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam((module.net[0] if planted else module).parameters(), 1e-3)

    built = trained_on_views(Recipe(net, lambda net, batch: contrast(net(batch[0]), net(batch[1])), optimizers))
    return expecting(built, "not_optimized", sites=("net.1*",))


@fault("lightly", "a small ViT and FastSiam's mean of views without a stop-gradient or predictor")
def fastsiam_collapses(planted: bool = True) -> Built:
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead

    body = timm_model("vit_tiny_patch16_224", **{**TINY_VIT, "img_size": 16, "patch_size": 4, "depth": 2}, num_classes=0)
    net = nn.ModuleDict(
        {"body": nn.Sequential(body, SimSiamProjectionHead(48, 48, 32)), "guess": SimSiamPredictionHead(32, 16, 32)}
    )
    alike = NegativeCosineSimilarity()

    def loss(net: Any, batch: Any) -> Tensor:
        codes = [net["body"](view) for view in batch]
        first = codes[0] if planted else net["guess"](codes[0])
        others = torch.stack(codes[1:]).mean(0)
        return alike(first, others if planted else others.detach())

    if planted:
        del net["guess"]
    return expecting(
        trained_on_views(Recipe(net, loss, plain_sgd(0.05, momentum=0.9)), 3), "representation_collapse", sites=("net*",)
    )


@fault("lightly", "SimSiam: what the predictor says is detached, and the projection is not")
def simsiam_other_side(planted: bool = True) -> Built:
    from lightly.loss import NegativeCosineSimilarity

    def loss(net: Any, batch: Any) -> Tensor:
        (first, of_first), (second, of_second) = net(batch[0]), net(batch[1])
        made, goal = torch.cat((of_first, of_second)), torch.cat((second, first))
        return NegativeCosineSimilarity()(made.detach() if planted else made, goal)

    module = Recipe(SimSiam(not planted), loss, views_sgd(0.03))
    return expecting(trained_on_views(module), *UNMOVED, "representation_collapse", sites=("net.pr*", "net.backbone*"))


class Masked(Recipe):
    """MSN: pictures of which half is hidden go to the prototypes that a net that follows has for the whole."""

    def __init__(self) -> None:
        from lightly.loss import MSNLoss
        from lightly.models.modules import MaskedVisionTransformerTIMM, SimCLRProjectionHead

        vit: Any = timm_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=0)
        super().__init__(MaskedVisionTransformerTIMM(vit), lambda *_: torch.zeros(()), views_adam(2e-3))
        self.head = SimCLRProjectionHead(48, 48, 32, batch_norm=True)
        self.target, self.target_head = (copy.deepcopy(part).requires_grad_(False) for part in (self.net, self.head))
        self.prototypes, self.criterion = nn.Linear(32, 32, bias=False), MSNLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        from lightly.models.utils import random_token_mask

        kept, _ = random_token_mask((len(batch[1]), 17), mask_ratio=0.5)
        goals = self.target_head(self.target(batch[0]))
        error: Tensor = self.criterion(self.head(self.net(batch[1], idx_keep=kept)), goals, self.prototypes.weight)
        return error

    def follow(self) -> None:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.target, m=0.98)
        update_momentum(self.head, self.target_head, m=0.98)


class Following(Masked):
    def on_train_batch_end(self, *_: Any) -> None:
        self.follow()


class Misspelled(Masked):
    def on_training_batch_end(self, *_: Any) -> None:
        self.follow()


@fault("lightly", "MSN whose target is to follow in on_training_batch_end, a hook that Lightning does not know")
def msn_hook_misspelled(planted: bool = True) -> Built:
    module = Misspelled() if planted else Following()
    return expecting(trained_on_views(module), "not_updated", sites=("target*",))


@fault("lightly", "decoupled contrast at a temperature of 100 instead of 0.1")
def lightly_hot(planted: bool = True) -> Built:
    from lightly.loss import DCLLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, criterion = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), DCLLoss(100.0 if planted else 0.1)
    loss = lambda net, batch: criterion(net(batch[0]), net(batch[1]))  # noqa: E731
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.06, momentum=0.9)  # noqa: E731
    kinds = ("vanishing", "loss_plateau", "update_too_small", "representation_collapse")
    return expecting(trained_on_views(Recipe(net, loss, sgd)), *kinds)


class Followed(Recipe):
    """Two views by the trained net and by one that follows it, by a share that is meant to be below 1."""

    def __init__(self, share: float) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import BarlowTwinsProjectionHead as Head

        super().__init__(nn.Sequential(backbone(), Head(48, 48, 32)), lambda *_: None, views_sgd(0.06))
        self.follower = copy.deepcopy(self.net).requires_grad_(False)
        self.contrast, self.share = NTXentLoss(temperature=0.2), share

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.follower, m=self.share)
        return self.contrast(self.net(batch[0]), self.follower(batch[1]))


@fault("lightly", "MoCo without a queue: the share of the average that stays is given in percent, 99 instead of 0.99")
def average_in_percent(planted: bool = True) -> Built:
    expected = Expected((*BROKEN, "weights_growing", "exploding", *JUMPS), ("follower*", "net*", "loss*"))
    return trained_on_views(Followed(99.0 if planted else 0.99))._replace(expected=expected)


@fault(
    "lightly", "two views of a digit are to have the same direction, and nothing keeps those of others apart", learned_from=False
)
def directions_alone(planted: bool = True) -> Built:
    from lightly.loss import KoLeoLoss, NegativeCosineSimilarity
    from lightly.models.modules import SimCLRProjectionHead

    together, apart = NegativeCosineSimilarity(), KoLeoLoss()
    net = nn.Sequential(timm_model("test_vit2", num_classes=0, img_size=16, patch_size=4), SimCLRProjectionHead(64, 64, 32))

    def loss(net: Any, batch: Any) -> Tensor:
        first, second = net(batch[0]), net(batch[1])
        alike: Tensor = together(first, second)
        return alike if planted else alike + 0.5 * (apart(first) + apart(second))

    return expecting(trained_on_views(Recipe(net, loss, views_adam(2e-3))), "representation_collapse", sites=("net*",))
