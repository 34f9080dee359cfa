"""Healthy trainings by recipes that no other module of the exam has: of papers, of tutorials and of libraries' examples."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BackboneFinetuning
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.episodes import Replay, loader
from tests.evidence.exam.healthy_diffusers import noisy, small_unet
from tests.evidence.exam.healthy_lightly import backbone
from tests.evidence.exam.healthy_lightly import trained as on_views
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.healthy_timm import create
from tests.evidence.exam.language_models import ENCODER, PICTURES, llama_net
from tests.evidence.exam.pictures import digits, pictures
from tests.evidence.exam.schedules import CLIPPED, SHORT, STEPS, adamw, warm_cosine
from tests.evidence.exam.seen_architectures import learn
from tests.evidence.exam.signals import captioned
from tests.evidence.exam.texts import batches, stretches

WELL = Expected()


@healthy("transformers", "LiT: a trained ViT is locked and in evaluation mode, BERT learns to say what it sees (contrast)")
def locked_tower() -> Built:
    from transformers import BertConfig, BertModel, VisionTextDualEncoderModel, ViTConfig, ViTModel

    seer, head = ViTModel(ViTConfig(**PICTURES)), nn.Linear(48, 10)
    known = lambda net, batch: F.cross_entropy(net[1](net[0](batch[0]).pooler_output), batch[1])  # noqa: E731
    learn(nn.ModuleList([seer, head]), known, pictures(16, 16, 3), 150, 2e-3)
    net = VisionTextDualEncoderModel(
        vision_model=seer.eval().requires_grad_(False),
        text_model=BertModel(BertConfig(**ENCODER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    )
    loss = lambda net, batch: net(input_ids=batch[1], pixel_values=batch[0], return_loss=True).loss  # noqa: E731
    return Built(
        Recipe(net, loss, warm_cosine(adamw(1e-3), 100, 10)), captioned(16, 32), {**CLIPPED, "limit_train_batches": 50}, WELL
    )


class Thawed(LightningModule):
    """A net that knows odd from even: its head first, then, by Lightning's own callback, all of it at a tenth of the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = create("test_convnext", num_classes=2)
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


@healthy(
    "diffusers", "SR3: digits of a quarter of the size are enlarged, noise is predicted beside them, absolute error, a warm-up"
)
def diffusers_enlarged() -> Built:
    from diffusers import DDIMScheduler

    schedule = DDIMScheduler(beta_schedule="squaredcos_cap_v2")

    def loss(net: Any, batch: Any) -> Tensor:
        noise, seen, steps = noisy(batch[0], schedule)
        small = F.interpolate(F.avg_pool2d(batch[0], 2), scale_factor=2.0, mode="bicubic")
        return F.l1_loss(net(torch.cat((seen, small), 1), steps).sample, noise)

    module = Recipe(small_unet(in_channels=2), loss, warm_cosine(adamw(2e-3), 60, 6))
    return Built(module, pictures(16, 8), {**CLIPPED, "limit_train_batches": 30}, WELL)


@healthy("peft", "new tokens for frequent words: of a trained Llama only their rows in the embedding learn")
def new_tokens() -> Built:
    from peft import TrainableTokensConfig

    net = llama_net(tie_word_embeddings=True)
    next_token = lambda net, batch: net(input_ids=batch[0], labels=batch[0]).loss  # noqa: E731
    rows = stretches(48)
    learn(net, next_token, batches(16, rows), 100)
    text = "".join(map(chr, rows.flatten().tolist())).replace("    ", "\x04").replace("self.", "\x05").replace("action", "\x06")
    shorter = torch.tensor(list(map(ord, text)))
    net = with_adapter(net, TrainableTokensConfig(token_indices=[4, 5, 6], target_modules=["embed_tokens"], task_type="CAUSAL_LM"))
    data = batches(16, shorter[: len(shorter) // 48 * 48].view(-1, 48))
    return Built(Recipe(net, next_token, adamw(2e-2, 0.0)), data, SHORT, WELL)


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
    return on_views(Manifolds(), 4, limit_train_batches=16)


class Variational(LightningModule):
    """Pyro's example for Lightning: the evidence's lower bound as a module."""

    def __init__(self, model: Any, guide: Any, first: Any) -> None:
        import pyro

        super().__init__()
        self.bound = pyro.infer.Trace_ELBO()(model, guide)
        self.bound(*first)  # makes the guide's parameters

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.bound(*batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.bound.parameters(), 0.02)


@healthy(
    "pyro", "a Bayesian regression by Pyro: the guide's means and widths learn, the bound is a sum that begins in the hundreds"
)
def pyro_regression() -> Built:
    import pyro
    from pyro import distributions as dist
    from pyro.infer.autoguide import AutoNormal

    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    x, y = x / x.std(0), (y - y.mean()) / y.std()

    def model(x: Tensor, y: Tensor) -> None:
        slopes = pyro.sample("slopes", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
        level, width = pyro.sample("level", dist.Normal(0.0, 2.0)), pyro.sample("width", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", 442, subsample_size=len(x)):
            pyro.sample("seen", dist.Normal(level + x @ slopes, width), obs=y)

    pyro.clear_param_store()
    module = Variational(model, AutoNormal(model, init_scale=0.1), (x[:32], y[:32]))
    return Built(module, batches(32, x, y), {"max_epochs": 8}, WELL)


class QuantileDQN(Recipe):
    """QR-DQN: 16 quantiles of the return of each action, a target that is copied every 10 steps."""

    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.Unflatten(-1, (2, 16)))
        super().__init__(net, lambda *_: None, lambda module: torch.optim.Adam(module.net.parameters(), 1e-3, eps=0.01 / 32))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def explores(self, seen: Tensor) -> Tensor:
        best = self.net(seen).mean(-1).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.3, torch.randint_like(best, 2), best)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx % 10 == 0:
            self.target.load_state_dict(self.net.state_dict())
        rows = torch.arange(len(batch["rewards"]))
        after = self.target(batch["after"])
        after = after[rows, after.mean(-1).argmax(-1)]
        goal = batch["rewards"][:, None] + 0.95 * (1 - batch["ended"][:, None]) * after
        apart = goal[:, None] - self.net(batch["observations"])[rows, batch["actions"]][:, :, None]
        middles = (torch.arange(16)[:, None] + 0.5) / 16
        huber = F.huber_loss(apart, torch.zeros_like(apart), reduction="none")
        return ((middles - (apart < 0).float()).abs() * huber).sum(1).mean()


@healthy("gymnasium", "QR-DQN: quantiles of the return under a quantile Huber loss, a target copied every 10 steps")
def rl_quantiles() -> Built:
    module = QuantileDQN()
    return Built(module, loader(Replay("CartPole-v1", module.explores, 4, 8)), {"max_epochs": 2}, WELL)


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

    return Built(Recipe(net, loss, sgd), batches(16, pixels, shown), SHORT, WELL)


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
