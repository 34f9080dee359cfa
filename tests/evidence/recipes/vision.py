"""Pictures: classification, segmentation, detection, super-resolution, distillation, quantisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification
from transformers import get_cosine_schedule_with_warmup as cosine

from .case import Learner, Training, accuracy, cross_entropy, fault, healthy, hf_accuracy, hf_loss, mse
from .data import digits, feed, photo, replace, rng, shuffled
from .nets import Call, UNet, convnet, frozen, mlp, pretrain


@fault("nll_of_plain_outputs", "nll_loss is given plain outputs, without a log-softmax before it.", "val_acc", 0, last=nn.Identity)
@fault(
    "scheduler_per_batch",
    "StepLR with a factor of 0.7 is stepped after each batch, not each epoch.",
    "val_loss",
    0,
    interval="step",
)
@healthy
def mnist_example_on_digits(last: Any = partial(nn.LogSoftmax, 1), interval: str = "epoch") -> Training:
    net = nn.Sequential(*convnet(64, norm=False), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10), last())

    def nll(net: Any, batch: Any) -> Tensor:
        return F.nll_loss(net(batch[0]), batch[1])

    schedule = partial(StepLR, step_size=1, gamma=0.7)
    module = Learner(net, nll, partial(Adadelta, lr=1.0), accuracy, schedule, interval)
    return Training(module, feed(*digits(), batch=32), {"max_epochs": 4})


@fault("decay_of_one", "Weight decay is 1.0 in place of 0.0005.", "val_acc", 0, decay=1.0)
@fault(
    "other_preprocessing_in_validation",
    "Validation pictures are divided by 255 although they are scaled already.",
    "val_acc",
    0,
    scale=1 / 255,
)
@healthy
def resnet_with_one_cycle(interval: str = "step", decay: float = 5e-4, scale: float = 1.0) -> Training:
    shape: dict[str, Any] = {"num_channels": 1, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    net = ResNetForImageClassification(ResNetConfig(**shape, layer_type="basic", num_labels=10))
    x, y = digits(32)
    fed = feed(pixel_values=x, labels=y)
    fed["val_dataloaders"].dataset.columns["pixel_values"] *= scale
    module = Learner(
        net,
        hf_loss,
        partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=decay),
        hf_accuracy,
        partial(OneCycleLR, max_lr=0.1, total_steps=5 * 22),
        interval,
    )
    return Training(module, fed, {"max_epochs": 5})


@fault("vit_at_a_rate_for_sgd", "The learning rate of AdamW is 0.3 in place of 0.003.", "val_acc", 0, lr=0.3)
@fault("labels_shuffled", "The labels of the training part were shuffled against their pictures.", "val_acc", 0, labels=shuffled)
@healthy
def vit_with_warmup(lr: float = 3e-3, labels: Any = None) -> Training:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "initializer_range": 0.1}
    net = ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes))
    x, y = digits()
    schedule = partial(cosine, num_warmup_steps=10, num_training_steps=110)
    fed = feed(pixel_values=x, labels=y)
    module = Learner(net, hf_loss, partial(AdamW, lr=lr), hf_accuracy, schedule)
    return Training(module, replace(fed, "labels", labels) if labels else fed, {"max_epochs": 5, "gradient_clip_val": 1.0})


@fault("init_far_too_large", "The weights start with a deviation of 5.", "val_acc", 0, std=1.0)
@healthy
def mlp_mixer_in_bfloat16(std: float = 0.02) -> Training:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.channels = mlp(16, 32, 16, act=nn.GELU), mlp(32, 64, 32, act=nn.GELU)
            self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    net = nn.Sequential(nn.Conv2d(1, 32, 2, 2), nn.Flatten(2), Call(lambda x: x.transpose(1, 2)), Mixer(), Mixer())
    net.extend([nn.LayerNorm(32), Call(lambda x: x.mean(1)), nn.Linear(32, 10)])
    for p in net.parameters():
        if p.ndim > 1:
            nn.init.normal_(p, std=std * 5)
    module = Learner(net, cross_entropy, partial(Adam, lr=5e-3), accuracy)
    return Training(module, feed(*digits()), {"max_epochs": 5, "precision": "bf16-mixed"})


@fault("sigmoid_before_bce_with_logits", "A sigmoid comes before the loss.", "val_loss", 0, squash=torch.sigmoid)
@healthy
def unet_segmentation(squash: Any = None) -> Training:
    x, _ = digits(16)
    mask = (x > 0.5).float()

    def logits(net: Any, x: Tensor) -> Tensor:
        return squash(net(x)) if squash else net(x)

    def dice_and_bce(net: Any, batch: Any) -> Tensor:
        out, y = logits(net, batch[0]), batch[1]
        p = out.sigmoid()
        return F.binary_cross_entropy_with_logits(out, y) + 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        out, y = logits(net, batch[0]) > 0, batch[1] > 0
        return {"val_loss": dice_and_bce(net, batch), "val_iou": (out & y).sum() / (out | y).sum()}

    noisy = x + 0.7 * torch.randn(x.shape, generator=rng())
    module = Learner(UNet(), dice_and_bce, partial(Adam, lr=1e-3), scores)
    return Training(module, feed(noisy, mask, batch=32), {"max_epochs": 2})


@fault(
    "boxes_in_pixels",
    "The targets of the box are in pixels of a 1600-pixel picture, not from 0 to 1, and drown the other loss.",
    "val_acc",
    0,
    pixels=1600.0,
)
@healthy
def digit_detector_with_two_heads(pixels: float = 1.0) -> Training:
    x, y = digits()
    place = torch.randint(0, 9, (len(x), 2), generator=rng())
    canvas = torch.full((len(x), 1, 16, 16), float(x.min()))
    for i, (r, c) in enumerate(place.tolist()):
        canvas[i, :, r : r + 8, c : c + 8] = x[i]

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            conv = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
            self.trunk = nn.Sequential(*conv, nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
            self.digit, self.box = nn.Linear(512, 10), nn.Linear(512, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            return self.digit(h), self.box(h)

    def both(net: Any, batch: Any) -> Tensor:
        digit, box = net(batch["picture"])
        return F.cross_entropy(digit, batch["digit"]) + 2 * F.mse_loss(box, batch["box"])

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        digit, box = net(batch["picture"])
        hits = (digit.argmax(1) == batch["digit"]).float().mean()
        return {"val_acc": hits, "val_box_error": (box - batch["box"]).abs().mean() / pixels}

    fed = feed(picture=canvas, digit=y, box=place / 8 * pixels)
    return Training(Learner(Detector(), both, partial(Adam, lr=4e-3), scores), fed, {"max_epochs": 6})


@fault("rate_300_times_too_low", "The learning rate has two zeros too many.", "val_psnr", 0, lr=7e-6)
@fault(
    "pairs_do_not_match",
    "Low and high resolution were listed in different orders, so the pairs do not match.",
    "val_psnr",
    0,
    low=shuffled,
)
@healthy
def espcn_super_resolution(lr: float = 2e-3, low: Any = None, limit: float | None = None) -> Training:
    picture = torch.cat([photo(size=192), photo("flower.jpg", 192)], 2)
    high = picture.mean(0, keepdim=True).unfold(1, 16, 12).unfold(2, 16, 12).reshape(-1, 1, 16, 16)
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2))

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_psnr": -10 * mse(net, batch).log10(), "val_loss": mse(net, batch)}

    fed = feed(F.avg_pool2d(high, 2), high, batch=16)
    module = Learner(net, mse, partial(Adam, lr=lr), scores)
    return Training(module, replace(fed, 0, low) if low else fed, {"max_epochs": 4, "gradient_clip_val": limit})


@fault(
    "teacher_not_loaded",
    "The teacher's checkpoint was loaded with strict=False and matched no key, so the teacher is random.",
    "val_loss",
    0,
    loaded=False,
)
@healthy
def distillation_of_a_convnet(loaded: bool = True) -> Training:
    x, y = digits()
    fed = feed(x, y)
    trained = pretrain(convnet(), cross_entropy, fed["train_dataloaders"])
    teacher = frozen(trained if loaded else convnet()).eval()

    def distil(net: Any, batch: Any) -> Tensor:
        out, temperature = net(batch[0]), 3.0
        soft = F.softmax(teacher(batch[0]) / temperature, 1)
        kl = F.kl_div(F.log_softmax(out / temperature, 1), soft, reduction="batchmean")
        return 0.3 * F.cross_entropy(out, batch[1]) + 0.7 * temperature**2 * kl

    net = nn.Sequential(nn.Flatten(), mlp(64, 32, 10))
    return Training(Learner(net, distil, partial(Adam, lr=3e-3), accuracy), fed, {"max_epochs": 6})


@fault(
    "no_straight_through",
    "Weights are rounded without a straight-through gradient, so only biases learn.",
    "val_acc",
    0,
    straight_through=False,
)
@healthy
def quantisation_aware_mlp(straight_through: bool = True) -> Training:
    def quantised(w: Tensor) -> Tensor:
        step = w.detach().abs().max() / 7
        q = (w / step).round() * step
        return w + (q - w).detach() if straight_through else q

    class QuantLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, quantised(self.weight), self.bias)

    net = nn.Sequential(nn.Flatten(), QuantLinear(64, 64), nn.ReLU(), QuantLinear(64, 10))
    module = Learner(net, cross_entropy, partial(RMSprop, lr=1e-3), accuracy)
    return Training(module, feed(*digits()), {"max_epochs": 6})


@fault(
    "optimizer_of_an_old_head",
    "The optimizer was built before the head was replaced and holds parameters that are out of use.",
    "val_acc",
    0,
    optimizer_first=True,
)
@healthy
def transfer_with_a_frozen_backbone(optimizer_first: bool = False) -> Training:
    x, y = digits()
    old = y < 5
    backbone = pretrain(convnet(), cross_entropy, feed(x[old], y[old])["train_dataloaders"])
    backbone.requires_grad_(False)
    backbone[-1] = nn.Linear(128, 5)
    early = list(frozen(backbone).parameters()) if optimizer_first else None

    def optimizer(parameters: Any) -> Adam:
        return Adam(early or [p for p in parameters if p.requires_grad], lr=1e-2)

    module = Learner(backbone, cross_entropy, optimizer, accuracy)
    return Training(module, feed(x[~old], y[~old] - 5, batch=32), {"max_epochs": 4})


@fault("sorted_by_class", "The samples come sorted by class and are not shuffled.", "val_acc", 0, sort=True)
@fault("same_two_batches", "A limit of two batches an epoch, for debugging, is left on.", "val_acc", 0, first=2)
@healthy
def convnet_with_swa(sort: bool = False, first: int | None = None) -> Training:
    x, y = digits()
    order = y.argsort() if sort else torch.arange(len(y))
    fed = feed(x[order], y[order], batch=32, shuffle=not sort)
    module = Learner(convnet(), cross_entropy, partial(SGD, lr=0.05, momentum=0.9), accuracy)
    callbacks = [StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=3, annealing_epochs=1)]
    return Training(module, fed, {"max_epochs": 5, "callbacks": callbacks, "limit_train_batches": first})


@fault("dead_relus", "All biases of a net of ReLUs start at -3, so that most units never fire.", "val_acc", 0, bias=-3.0)
@healthy
def deep_mlp_with_he_start(start: Any = nn.init.kaiming_normal_, bias: float = 0.0) -> Training:
    net = nn.Sequential(nn.Flatten(), mlp(64, 64, 64, 64, 64, 64, 10))
    for layer in net[1]:
        if isinstance(layer, nn.Linear):
            start(layer.weight, nonlinearity="relu")
            nn.init.constant_(layer.bias, bias)
    module = Learner(net, cross_entropy, partial(SGD, lr=0.05, momentum=0.9), accuracy)
    return Training(module, feed(*digits()), {"max_epochs": 5})
