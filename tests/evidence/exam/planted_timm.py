"""Faults planted in trainings of timm's models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_timm import BATCHES, TINY_VIT, create, cross_entropy, optimizer, resmlp, trained
from tests.evidence.exam.pictures import Changed, digits, in_batches

ADAMW = optimizer("adamw", 1e-3, 0.05)
SGD = optimizer("sgd", 0.05, 1e-4)
RATE = ("update_too_large", "exploding", "loss_diverging", "loss_nonfinite", "nonfinite", "weights_growing", "update_spike")


def resnet() -> Any:
    return create("resnet10t", block_args={}, channels=(16, 24, 32, 48), stem_width=16)


def vit(**options: Any) -> Any:
    return create("vit_tiny_patch16_224", **TINY_VIT, **options)


def expecting(built: Built, *kinds: str, sites: tuple[str, ...] | None = None, batch: int = 0) -> Built:
    """The same training, with what is wrong with it."""
    return built._replace(expected=Expected(kinds, sites, batch))


def norms(net: nn.Module) -> list[nn.Module]:
    return [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@fault("timm", "batch norm with momentum 0")
def timm_norm_momentum_zero(planted: bool = True) -> Built:
    net = resnet()
    for norm in norms(net) if planted else ():
        norm.momentum = 0.0
    return expecting(trained(Recipe(net, cross_entropy, SGD)), "settings", sites=("*bn*", "*downsample*", "*conv1*"))


class NormsInEval(Recipe):
    """Batch norm is in eval mode while all around it trains."""

    def on_train_epoch_start(self) -> None:
        for norm in norms(self.net):
            norm.eval()


@fault("timm", "batch norms in evaluation mode in a net that starts from random weights")
def timm_norms_in_eval(planted: bool = True) -> Built:
    kind = NormsInEval if planted else Recipe
    return expecting(trained(kind(resnet(), cross_entropy, SGD)), "eval_mode", sites=("net", "net.*"))


@fault("timm", "batches of two: the last batch norms see two values per channel")
def timm_two_values(planted: bool = True) -> Built:
    built = trained(Recipe(create("resnet10t", channels=(16, 24, 32, 48)), cross_entropy, SGD), 2 if planted else 16)
    return expecting(built, "settings", sites=("net.layer4.*",))


@fault("timm", "pixels of 0 to 255 into a net without norms")
def timm_bytes_without_norms(planted: bool = True) -> Built:
    images, shown = digits()
    images = (images - images.min()) / (images.max() - images.min()) * 255 if planted else images
    module = Recipe(plain(), cross_entropy, optimizer("sgd", 0.01, 5e-4))
    return expecting(Built(module, in_batches(32, images, shown), BATCHES, Expected()), *RATE, "dead", "spike", "constant")


def plain() -> nn.Module:
    from timm.models.vgg import VGG

    return VGG([16, "M", 32, "M", 32, 48, "M", 48, "M"], 10, 1, mlp_ratio=0.02)


@fault("timm", "the head is frozen and the body trains")
def timm_head_frozen(planted: bool = True) -> Built:
    net = resnet()
    net.get_classifier().requires_grad_(not planted)
    return expecting(trained(Recipe(net, cross_entropy, SGD)), "not_optimized", sites=("net.fc*",))


@fault("timm", "a ReLU on the logits")
def timm_relu_on_logits(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(batch[0]).relu(), batch[1]) if planted else cross_entropy(net, batch)

    return expecting(trained(Recipe(resnet(), loss, SGD)), "output_range", "dead")


@fault("timm", "the negative log-likelihood of a softmax without a logarithm")
def timm_softmax_without_log(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return F.nll_loss(net(batch[0]).softmax(1), batch[1]) if planted else cross_entropy(net, batch)

    return expecting(trained(Recipe(vit(), loss, ADAMW)), "output_range")


@fault("timm", "SGD at 20 in a ResNet")
def timm_rate_too_high(planted: bool = True) -> Built:
    built = trained(Recipe(resnet(), cross_entropy, optimizer("sgd", 20.0 if planted else 0.05)))
    return expecting(built, *RATE)


@fault("timm", "AdamW at 0.3 in a vision transformer")
def timm_rate_too_high_adam(planted: bool = True) -> Built:
    return expecting(trained(Recipe(vit(), cross_entropy, optimizer("adamw", 0.3 if planted else 1e-3))), *RATE)


@fault("timm", "AdamW at 1e-9")
def timm_rate_too_low(planted: bool = True) -> Built:
    built = trained(Recipe(vit(), cross_entropy, optimizer("adamw", 1e-9 if planted else 1e-3)), gradient_clip_val=1.0)
    return expecting(built, "update_too_small", "not_updated")


@fault("timm", "all weights of a residual MLP start at 0.02: its units are all the same")
def timm_constant_weights(planted: bool = True) -> Built:
    net = resmlp()
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.02)
    return expecting(trained(Recipe(net, cross_entropy, ADAMW)), "poor_init", "constant", "representation_collapse")


@fault(
    "timm",
    "a residual MLP whose activations are the identity: a deep linear net",
    missed="what is computed between two modules is not traced, so that nothing says that an activation is missing",
)
def timm_linear(planted: bool = True) -> Built:
    net = resmlp(nn.Identity if planted else nn.GELU)
    return expecting(trained(Recipe(net, cross_entropy, ADAMW)), "settings", sites=("net.blocks*",))


class TwoOptimizers(Recipe):
    """Two optimizers hold the same parameters and take turns."""

    def __init__(self, net: nn.Module, planted: bool) -> None:
        super().__init__(net, cross_entropy, self._both)
        self.planted, self.automatic_optimization = planted, False

    def _both(self, module: Any) -> Any:
        return [torch.optim.Adam(self.net.parameters(), lr) for lr in ((1e-3, 0.05) if self.planted else (1e-3,))]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = self.optimizers()
        optimizer = found[batch_idx % 2] if self.planted else found
        loss = cross_entropy(self.net, batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


@fault("timm", "two optimizers on the same parameters in turn")
def timm_two_optimizers(planted: bool = True) -> Built:
    return expecting(trained(TwoOptimizers(vit(), planted)), "settings", "update_too_large", "update_spike")


@fault("timm", "a batch holds one picture again and again")
def timm_one_sample(planted: bool = True) -> Built:
    images, shown = digits()
    rows = Changed(
        (images, shown), (lambda index, row: tuple(part[index // 64 * 64] for part in (images, shown))) if planted else _same
    )
    data = {"train_dataloaders": DataLoader(rows, 32)}
    built = Built(Recipe(vit(), cross_entropy, ADAMW), data, BATCHES, Expected())
    return expecting(built, "constant", "batch_repeated")


def _same(index: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row


@fault("timm", "one picture of many is corrupt: 10 000 times too bright")
def timm_corrupt_sample(planted: bool = True) -> Built:
    images, shown = digits()
    images = images.clone()
    images[32 * 20] *= 1e4 if planted else 1.0
    data = {"train_dataloaders": DataLoader(Changed((images, shown), _same), 32)}
    built = Built(Recipe(plain(), cross_entropy, optimizer("sgd", 0.01)), data, BATCHES, Expected())
    return expecting(built, "spike", "update_spike", "loss_spike", "exploding", "update_too_large", batch=20)


@fault("timm", "the share to keep, 0.95, given as the share to drop")
def timm_dropout(planted: bool = True) -> Built:
    net = create("vit_tiny_patch16_224", **TINY_VIT, drop_rate=0.95 if planted else 0.05, proj_drop_rate=0.0)
    return expecting(trained(Recipe(net, cross_entropy, ADAMW)), "settings", sites=("*drop*",))


@fault("timm", "each batch comes twice and more in a row")
def timm_repeated_batch(planted: bool = True) -> Built:
    images, shown = digits()
    change = (lambda index, row: tuple(part[index % 64] for part in (images, shown))) if planted else _same
    data = {"train_dataloaders": DataLoader(Changed((images, shown), change), 64)}
    return expecting(
        Built(Recipe(vit(), cross_entropy, ADAMW), data, {**BATCHES, "limit_train_batches": 25}, Expected()), "batch_repeated"
    )


@fault(
    "timm", "labels that belong to other pictures", missed="nothing to see before the loss stays at the labels' entropy for long"
)
def timm_labels_shuffled(planted: bool = True) -> Built:
    images, shown = digits()
    shown = shown[torch.randperm(len(shown), generator=torch.Generator().manual_seed(0))] if planted else shown
    built = Built(Recipe(resnet(), cross_entropy, SGD), in_batches(32, images, shown), BATCHES, Expected())
    return expecting(built, "loss_plateau")


@fault("timm", "Adam with an eps of 1")
def timm_eps_one(planted: bool = True) -> Built:
    built = trained(Recipe(vit(), cross_entropy, optimizer("adamw", 1e-3, eps=1.0 if planted else 1e-8)))
    return expecting(built, "second_moment_stale", "optimizer_settings", "update_too_small")


@fault("timm", "AdamW with a weight decay of 50")
def timm_decay(planted: bool = True) -> Built:
    built = trained(Recipe(vit(), cross_entropy, optimizer("adamw", 1e-3, 50.0 if planted else 0.05)))
    return expecting(built, "update_too_large")


@fault("timm", "a schedule made for epochs that is stepped at every batch")
def timm_schedule_per_batch(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        chosen = SGD(module)
        schedule = torch.optim.lr_scheduler.StepLR(chosen, 3, 0.1)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step" if planted else "epoch"}}

    return expecting(trained(Recipe(resnet(), cross_entropy, optimizers)), "lr_zero", "update_too_small")


@fault("timm", "hard triplets at a high rate: all embeddings become the same")
def timm_triplets(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        codes = net(batch[0])
        apart = torch.cdist(codes, codes)
        alike = batch[1][:, None] == batch[1]
        farthest = apart.masked_fill(~alike, 0.0).amax(1)
        nearest = apart.masked_fill(alike, 1e4).amin(1)
        return F.softplus(farthest - nearest).mean() if not planted else (farthest - nearest + 1.0).relu().mean()

    net = create("resnet10t", num_classes=16, block_args={}, channels=(16, 24, 32, 48), stem_width=16)
    built = trained(Recipe(net, loss, optimizer("sgd", 0.5 if planted else 0.01)))
    return expecting(built, "representation_collapse", "constant", "update_too_large", "dead")


@fault("timm", "a vision transformer gets its labels as one class for all")
def timm_one_class(planted: bool = True) -> Built:
    images, shown = digits()
    built = Built(Recipe(vit(), cross_entropy, ADAMW), in_batches(32, images, shown * (not planted)), BATCHES, Expected())
    return expecting(built, "constant")


@fault("timm", "the features of the body are detached")
def timm_detached(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        hidden = net.forward_features(batch[0])
        return F.cross_entropy(net.forward_head(hidden.detach() if planted else hidden), batch[1])

    return expecting(trained(Recipe(vit(), loss, ADAMW)), "missing", sites=("net.*",))


@fault("timm", "the optimizer is made of the head's parameters, of a net that is meant to train as a whole")
def timm_head_only(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.net.get_classifier().parameters() if planted else module.parameters(), 1e-3)

    return expecting(trained(Recipe(vit(), cross_entropy, optimizers)), "not_optimized", sites=("net.*",))


@fault("timm", "gradients are clipped by a norm of 1e-6 under SGD")
def timm_tiny_clipping(planted: bool = True) -> Built:
    built = trained(Recipe(resnet(), cross_entropy, SGD), gradient_clip_val=1e-6 if planted else 5.0)
    return expecting(built, "always_clipped", "update_too_small")
