"""Pictures: classification, segmentation, detection, super-resolution, distillation, quantisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_accuracy, hf_loss, mse
from .data import digits, feed, photo, replace, rng, shuffled
from .nets import convnet, frozen, mlp, pretrain


@fault("nll_of_plain_outputs", "nll_loss is given outputs without a log-softmax.", "val_acc", 0.97, last=nn.Identity())
@fault("scheduler_per_batch", "StepLR is stepped after each batch, not each epoch.", "val_loss", 0.98, interval="step")
@healthy
def mnist_example_on_digits(last: nn.Module | None = None, interval: str = "epoch") -> Training:
    net = nn.Sequential(*convnet(64, norm=nn.Identity), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10), last or nn.LogSoftmax(1))

    def nll(net: Any, batch: Any) -> Tensor:
        return F.nll_loss(net(batch[0]), batch[1])

    step = partial(StepLR, step_size=1, gamma=0.7)
    return fit(net, nll, partial(Adadelta, lr=1.0), feed(*digits(), batch=32), 4, accuracy, step, interval)


@fault("decay_of_one", "Weight decay is 1.0 in place of 0.0005.", "val_acc", 1.01, decay=1.0)
@fault("other_preprocessing", "Validation pictures are divided by 255 once more.", "val_acc", 1.01, scale=1 / 255)
@healthy
def resnet_with_one_cycle(decay: float = 5e-4, scale: float = 1.0) -> Training:
    shape: dict[str, Any] = {"num_channels": 1, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 10}
    net = transformers.ResNetForImageClassification(transformers.ResNetConfig(**shape, layer_type="basic"))
    x, y = digits(32)
    fed = feed(pixel_values=x, labels=y)
    fed["val_dataloaders"].dataset.columns["pixel_values"] *= scale
    sgd = partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=decay)
    return fit(net, hf_loss, sgd, fed, 5, hf_accuracy, partial(OneCycleLR, max_lr=0.1, total_steps=110))


@fault("vit_dropout_of_95_percent", "Dropout is 0.95.", "val_acc", 1.01, dropout=0.95)
@fault("labels_shuffled", "Training labels were shuffled against their pictures.", "val_acc", 1.05, labels=shuffled)
@healthy
def vit_with_warmup(dropout: float = 0.0, labels: Any = torch.clone) -> Training:
    shape: dict[str, Any] = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10, "hidden_dropout_prob": dropout}
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    net = transformers.ViTForImageClassification(transformers.ViTConfig(**shape, **size, initializer_range=0.1))
    schedule = partial(transformers.get_cosine_schedule_with_warmup, num_warmup_steps=10, num_training_steps=110)
    fed = replace(feed(pixel_values=digits()[0], labels=digits()[1]), "labels", labels)
    return fit(net, hf_loss, partial(AdamW, lr=3e-3), fed, 5, hf_accuracy, schedule, gradient_clip_val=1.0)


class UNet(nn.Module):
    def __init__(self, last: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.down2 = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.up = nn.Sequential(nn.Conv2d(3 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1), last)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down1(x)
        return self.up(torch.cat([x, self.down2(x)], 1))


@fault("sigmoid_before_bce_with_logits", "The net ends in a sigmoid and so does its loss.", "val_loss", 0.81, last=nn.Sigmoid())
@healthy
def unet_segmentation(last: nn.Module | None = None) -> Training:
    def dice_and_bce(net: Any, batch: Any) -> Tensor:
        out, y = net(batch[0]), batch[1]
        p = out.sigmoid()
        return F.binary_cross_entropy_with_logits(out, y) + 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)

    x = digits(16)[0]
    noisy = x + 0.7 * torch.randn(x.shape, generator=rng())
    return fit(UNet(last or nn.Identity()), dice_and_bce, partial(Adam, lr=2e-3), feed(noisy, (x > 0.5).float(), batch=32), 2)


@fault("boxes_in_pixels", "Boxes are in pixels, not from 0 to 1, and drown the other loss.", "val_acc", 0.94, pixels=1600.0)
@healthy
def digit_detector_with_two_heads(pixels: float = 1.0) -> Training:
    def both(net: Any, batch: Any) -> Tensor:
        h = net["trunk"](batch["picture"])
        return F.cross_entropy(net["digit"](h), batch["digit"]) + 2 * F.mse_loss(net["box"](h), batch["box"])

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_acc": (net["digit"](net["trunk"](batch["picture"])).argmax(1) == batch["digit"]).float().mean()}

    x, y = digits()
    place = torch.randint(0, 9, (len(x), 2), generator=rng())
    canvas = torch.stack([F.pad(p, (c, 8 - c, r, 8 - r), value=-0.8) for p, (r, c) in zip(x, place.tolist(), strict=True)])
    fed = feed(picture=canvas, digit=y, box=place / 8 * pixels)
    conv = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    trunk = nn.Sequential(*conv, nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    net = nn.ModuleDict({"trunk": trunk, "digit": nn.Linear(512, 10), "box": nn.Linear(512, 2)})
    return fit(net, both, partial(Adam, lr=4e-3), fed, 6, scores)


@fault("rate_300_times_too_low", "The learning rate is 300 times too low.", "val_psnr", 0.97, lr=7e-6)
@healthy
def espcn_super_resolution(lr: float = 2e-3) -> Training:
    picture = torch.cat([photo(size=192), photo("flower.jpg", 192)], 2)
    high = picture.mean(0, keepdim=True).unfold(1, 16, 12).unfold(2, 16, 12).reshape(-1, 1, 16, 16)
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2))
    fed = feed(F.avg_pool2d(high, 2), high, batch=16)
    return fit(net, mse, partial(Adam, lr=lr), fed, 4, lambda net, b: {"val_psnr": -10 * mse(net, b).log10()})


@fault("teacher_not_loaded", "The teacher's checkpoint matched no key, so it is random.", "val_loss", 0.28, loaded=False)
@healthy
def distillation_of_a_convnet(loaded: bool = True) -> Training:
    fed = feed(*digits())
    trained = pretrain(convnet(), cross_entropy, fed["train_dataloaders"])
    teacher = frozen(trained if loaded else convnet()).eval()

    def distil(net: Any, batch: Any) -> Tensor:
        out, soft = net(batch[0]), F.softmax(teacher(batch[0]) / 3, 1)
        return 0.3 * F.cross_entropy(out, batch[1]) + 6.3 * F.kl_div(F.log_softmax(out / 3, 1), soft, reduction="batchmean")

    return fit(nn.Sequential(nn.Flatten(), mlp(64, 32, 10)), distil, partial(Adam, lr=3e-3), fed, 6, accuracy)


class QuantLinear(nn.Linear):
    through = True

    def forward(self, x: Tensor) -> Tensor:
        step = self.weight.detach().abs().max() / 7
        rounded = (self.weight / step).round() * step
        return F.linear(x, self.weight + (rounded - self.weight).detach() if self.through else rounded, self.bias)


@fault("no_straight_through", "Weights are rounded and get no gradient; only biases learn.", "val_acc", 0.99, through=False)
@healthy
def quantisation_aware_mlp(through: bool = True) -> Training:
    net = nn.Sequential(nn.Flatten(), QuantLinear(64, 64), nn.ReLU(), QuantLinear(64, 10))
    net[1].through = net[3].through = through
    return fit(net, cross_entropy, partial(RMSprop, lr=1e-3), feed(*digits()), 6, accuracy)


@fault("optimizer_of_an_old_head", "The optimizer was built before the head was replaced.", "val_acc", 1.04, early=True)
@healthy
def transfer_with_a_frozen_backbone(early: bool = False) -> Training:
    x, y = digits()
    backbone = pretrain(convnet(), cross_entropy, feed(x[y < 5], y[y < 5])["train_dataloaders"]).requires_grad_(False)
    old = list(backbone[-1].parameters())
    backbone[-1] = nn.Linear(128, 5)

    def optimizer(parameters: Any) -> Adam:
        return Adam(old if early else [p for p in parameters if p.requires_grad], lr=1e-2)

    return fit(backbone, cross_entropy, optimizer, feed(x[y > 4], y[y > 4] - 5, batch=32), 4, accuracy)


@fault("sorted_by_class", "The samples come sorted by class and are not shuffled.", "val_acc", 1.01, sort=True)
@fault("same_two_batches", "A limit of two batches an epoch is left from debugging.", "val_acc", 0.41, first=2)
@healthy
def convnet_with_swa(sort: bool = False, first: int | None = None) -> Training:
    x, y = digits()
    fed = feed(*((x[y.argsort()], y.sort().values) if sort else (x, y)), batch=32, shuffle=not sort)
    callbacks = [StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=3, annealing_epochs=1)]
    sgd = partial(SGD, lr=0.05, momentum=0.9)
    return fit(convnet(), cross_entropy, sgd, fed, 5, accuracy, callbacks=callbacks, limit_train_batches=first)
