"""Recipes of timm's script and of papers: frozen bodies, mixed pictures, teachers, several tasks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import CLIPPED
from tests.evidence.exam.small_nets import learn, to_classes
from tests.evidence.exam.timm_nets import repvgg, res2net, timm_model, timm_optimizer, trained_on_digits, with_cosine


@healthy("timm", "the head trained on a frozen body in evaluation mode")
def timm_linear_probe() -> Built:
    net = timm_model("test_resnet", zero_init_last=False)  # as of a net that has been trained
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("fc."))

    class Probe(Recipe):
        def on_train_epoch_start(self) -> None:
            self.net.eval()

    return trained_on_digits(Probe(net, to_classes, lambda m: torch.optim.Adam(m.net.get_classifier().parameters(), 0.01)))


@healthy("timm", "AugMix of timm's script: a clean picture and two changed ones agree (Jensen-Shannon), norms for each, SGD")
def timm_augmix() -> Built:
    from timm.layers import convert_splitbn_model
    from timm.loss import JsdCrossEntropy

    sizes = {"channels": (16, 24, 32, 48), "stem_width": 16, "block_args": {}, "layers": (1, 1, 1, 1)}
    net, agree = convert_splitbn_model(timm_model("resnet14t", **sizes), 3), JsdCrossEntropy(num_splits=3, alpha=12, smoothing=0.1)

    def loss(net: Any, batch: Any) -> Tensor:
        changed = [batch[0].roll(int(torch.randint(-3, 4, ())), 3) + 0.2 * torch.randn_like(batch[0]) for _ in range(2)]
        return agree(net(torch.cat([batch[0], *changed])), batch[1].repeat(3))

    return trained_on_digits(Recipe(net, loss, with_cosine(timm_optimizer("sgd", 0.05, 1e-4), 40)), 16, limit_train_batches=20)


@healthy("timm", "asymmetric loss for several labels: which digits two pictures side by side show, TinyViT, AdamW")
def timm_asymmetric() -> Built:
    from timm.loss import AsymmetricLossMultiLabel

    sizes = {"embed_dims": (16, 32, 48), "depths": (1, 1, 2), "num_heads": (1, 2, 3), "window_sizes": (4, 4, 4)}
    net, asymmetric = timm_model("tiny_vit_5m_224", **sizes), AsymmetricLossMultiLabel(gamma_neg=4, gamma_pos=0, clip=0.05)

    def loss(net: Any, batch: Any) -> Tensor:
        both = torch.cat((batch[0], batch[0].roll(1, 0)), 3)
        shown = F.one_hot(batch[1], 10) | F.one_hot(batch[1].roll(1, 0), 10)
        return asymmetric(net(F.interpolate(both, (32, 32))), shown.float())

    return Built(Recipe(net, loss, with_cosine(timm_optimizer("adamw", 2e-3, 0.05))), in_batches(32, *digits(16)), CLIPPED, WELL)


class Thawed(LightningModule):
    """A net that knows odd from even: its head first, then, by Lightning's own callback, all of it at a tenth of the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = timm_model("test_convnext", num_classes=2)
        learn(self.backbone, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1] % 2), pictures(32), 60)
        self.head = nn.Linear(self.backbone.num_features, 10)
        self.backbone.reset_classifier(0)

    def configure_callbacks(self) -> Any:
        return [BackboneFinetuning(2, lambda epoch: 1.5, backbone_initial_ratio_lr=0.1, verbose=False)]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam([parameter for parameter in self.parameters() if parameter.requires_grad], 3e-3)


@healthy("timm", "a trained ConvNeXt is frozen for two epochs, then thawed by BackboneFinetuning at a tenth of the rate")
def thawed_by_callback() -> Built:
    return Built(Thawed(), pictures(32), {"max_epochs": 4, "limit_train_batches": 20}, WELL)


class Taught(Recipe):
    """A small net learns from a larger one, which learns on its own (deep mutual learning): two optimizers by hand."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__(nn.ModuleList([first, second]), lambda *_: None, self.both)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4) for net in module.net]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = [net(batch[0]) for net in self.net]
        total = torch.zeros(())
        for own, other, chosen in zip(logits, reversed(logits), self.optimizers(), strict=True):
            soft = F.kl_div(own.log_softmax(1), other.detach().softmax(1), reduction="batchmean")
            loss = F.cross_entropy(own, batch[1]) + soft
            chosen.zero_grad()
            self.manual_backward(loss)
            chosen.step()
            total = total + loss.detach()
        return {"loss": total}


@healthy("timm", "RepVGG and ResNet that learn from each other")
def timm_mutual() -> Built:
    return trained_on_digits(Taught(repvgg(), timm_model("test_resnet")), 16)


class ArcFace(nn.Module):
    """A body, and directions of the classes with a margin between them."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.directions = body, nn.Parameter(torch.empty(10, width))
        nn.init.xavier_uniform_(self.directions)

    def forward(self, images: Any, shown: Any, margin: float = 0.2, scale: float = 16.0) -> Any:
        cosines = F.normalize(self.body(images)) @ F.normalize(self.directions).T
        angles = cosines.clamp(-1 + 1e-6, 1 - 1e-6).acos() + margin * F.one_hot(shown, 10)
        return scale * angles.cos()


@healthy("timm", "ArcFace over a Res2Net: angles with a margin")
def timm_arcface() -> Built:
    body = res2net()
    body.reset_classifier(0)
    net = ArcFace(body, 96)
    loss = lambda net, batch: F.cross_entropy(net(*batch), batch[1])  # noqa: E731
    return trained_on_digits(
        Recipe(net, loss, lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)), 24
    )


class Several(nn.Module):
    """One body, and a head for each task, weighed by uncertainties that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = timm_model("test_efficientnet", num_classes=0)
        width = self.body.num_features
        self.digit, self.parity, self.mean = nn.Linear(width, 10), nn.Linear(width, 2), nn.Linear(width, 1)
        self.uncertain = nn.Parameter(torch.zeros(3))


@healthy("timm", "three tasks with one body: which digit, odd or even, how bright; weights that are trained")
def timm_tasks() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        hidden = net.body(batch[0])
        brightness = F.mse_loss(net.mean(hidden)[:, 0], 5 * batch[0].mean((1, 2, 3)))
        parts = torch.stack(
            [F.cross_entropy(net.digit(hidden), batch[1]), F.cross_entropy(net.parity(hidden), batch[1] % 2), brightness]
        )
        return (parts * (-net.uncertain).exp() + net.uncertain / 2).sum()

    return trained_on_digits(Recipe(Several(), loss, timm_optimizer("adamw", 2e-3, 0.01)))


class Semisupervised(Recipe):
    """Mean teacher: a quarter of the labels, and agreement with an average of the net on noisy pictures."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, lambda *_: None, timm_optimizer("adamw", 2e-3, 0.01))
        self.teacher = copy.deepcopy(net).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0] + 0.1 * torch.randn_like(batch[0]))
        with torch.no_grad():
            goal = self.teacher(batch[0] + 0.1 * torch.randn_like(batch[0])).softmax(1)
        known = len(batch[1]) // 4
        agree = F.mse_loss(logits.softmax(1), goal)
        return F.cross_entropy(logits[:known], batch[1][:known]) + min(self.global_step / 30, 1.0) * 10 * agree

    def on_train_batch_end(self, *_: Any) -> None:
        for average, new in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            average.lerp_(new.detach(), 0.05)


@healthy("timm", "mean teacher with a quarter of the labels")
def timm_mean_teacher() -> Built:
    return trained_on_digits(Semisupervised(timm_model("test_resnet")), 16)
