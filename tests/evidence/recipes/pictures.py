"""More pictures: classification, hidden patches, masks, colours, marks, rare classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from diffusers.models.embeddings import get_2d_sincos_pos_embed
from torch import Tensor, nn
from torch.distributions import Beta
from torch.optim import SGD, Adam, AdamW, RAdam
from torch.utils.data import DataLoader, WeightedRandomSampler

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_accuracy, hf_loss
from .data import digits, feed, from_zero_to_one, photo, replace, rng
from .nets import convnet, mlp


@fault(
    "smoothing_is_the_confidence",
    "Label smoothing is 0.9, not 0.1.",
    "val_loss",
    0.74,
    smoothing=0.9,
)
@healthy
def convnext_with_label_smoothing(smoothing: float = 0.1) -> Training:
    shape: dict[str, Any] = {"num_channels": 1, "patch_size": 2, "num_stages": 2, "num_labels": 10}
    size = {"hidden_sizes": [16, 32], "depths": [1, 1], "layer_scale_init_value": 1.0, "initializer_range": 0.1}
    net = transformers.ConvNextForImageClassification(transformers.ConvNextConfig(**shape, **size))

    def smooth(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch["pixel_values"]).logits, batch["labels"], label_smoothing=smoothing)

    adamw = partial(AdamW, lr=4e-3, weight_decay=0.05)
    return fit(net, smooth, adamw, feed(pixel_values=digits(16)[0], labels=digits()[1]), 4, hf_accuracy, precision="bf16-mixed")


@fault(
    "positions_left_at_zero",
    "The fixed positions of a net built from its configuration are zeros.",
    "val_loss",
    0.56,
    unit=0.0,
)
@healthy
def mae_on_digits(unit: float = 1.0) -> Training:
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    shape: dict[str, Any] = {"image_size": 8, "patch_size": 2, "num_channels": 1, "mask_ratio": 0.3, "initializer_range": 0.1}
    net = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**shape, **size, **decoder, decoder_intermediate_size=64))
    for part in (net.vit.embeddings.position_embeddings, net.decoder.decoder_pos_embed):
        part.data[0] = unit * get_2d_sincos_pos_embed(32, 4, True, 1, output_type="pt")
    schedule = partial(transformers.get_constant_schedule_with_warmup, num_warmup_steps=10)
    return fit(
        net, hf_loss, partial(AdamW, lr=1e-2, betas=(0.9, 0.95)), feed(pixel_values=digits()[0], batch=32), 6, None, schedule
    )


def shifted(x: Tensor) -> Tensor:
    steps = torch.randint(-6, 7, (len(x), 2), generator=rng()).tolist()
    return torch.stack([picture.roll(step, (1, 2)) for picture, step in zip(x, steps, strict=True)])


@fault(
    "shifted_without_their_masks",
    "Pictures are shifted at random, their masks are not.",
    "val_iou",
    0.6,
    shift=shifted,
)
@healthy
def segformer_on_noisy_digits(shift: Any = torch.clone) -> Training:
    shape: dict[str, Any] = {"num_channels": 1, "num_encoder_blocks": 2, "num_labels": 2, "depths": [1, 1], "sr_ratios": [2, 1]}
    size = {"hidden_sizes": [16, 32], "patch_sizes": [3, 3], "strides": [2, 2], "num_attention_heads": [1, 2]}
    config = transformers.SegformerConfig(**shape, **size, mlp_ratios=[2, 2], decoder_hidden_size=32, initializer_range=0.1)

    def iou(net: Any, batch: Any) -> dict[str, Tensor]:
        out = net(**batch)
        found, mask = F.interpolate(out.logits, 16, mode="bilinear").argmax(1) > 0, batch["labels"] > 0
        return {"val_loss": out.loss, "val_iou": (found & mask).sum() / (found | mask).sum()}

    x = digits(16)[0]
    fed = feed(pixel_values=x + 0.5 * torch.randn(x.shape, generator=rng(1)), labels=(x[:, 0] > 0.5).long(), batch=32)
    net = transformers.SegformerForSemanticSegmentation(config)
    return fit(net, hf_loss, partial(AdamW, lr=3e-3), replace(fed, "pixel_values", shift), 3, iou)


class Mixer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches, self.norms = nn.Conv2d(1, width, 2, 2), nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.tokens = nn.ModuleList(mlp(16, 32, 16, act=nn.GELU) for _ in range(2))
        self.channels, self.head = nn.ModuleList(mlp(width, 64, width, act=nn.GELU) for _ in range(2)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for i in range(2):
            x = x + self.tokens[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return self.head(x.mean(1))


@fault("bytes_before_scaling", "Pictures from 0 to 1 are turned into bytes, which are all 0.", "val_acc", 0.99, kind=torch.uint8)
@healthy
def mlp_mixer_with_mixup(kind: torch.dtype = torch.float32) -> Training:
    def mixup(net: Any, batch: Any) -> Tensor:
        (x, y), order, share = batch, torch.randperm(len(batch[0])), Beta(0.4, 0.4).sample()
        out = net(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])

    fed = replace(feed(from_zero_to_one(), digits()[1], batch=32), 0, lambda x: (x * 0.999).to(kind).float())
    return fit(Mixer(), mixup, partial(AdamW, lr=4e-3), fed, 5, accuracy, gradient_clip_val=1.0)


class Deep(nn.Module):
    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        self.first, self.last, self.shortcut = nn.Linear(64, 32), nn.Linear(32, 10), shortcut
        self.blocks = nn.ModuleList(mlp(32, 32, 32) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        for part in self.blocks:
            x = F.relu(x + part(x) if self.shortcut else part(x))
        return self.last(x)


@fault("no_shortcuts", "The blocks of a deep net lack their shortcuts.", "val_acc", 1.0, shortcut=False)
@healthy
def deep_residual_net(shortcut: bool = True) -> Training:
    return fit(Deep(shortcut), cross_entropy, partial(SGD, lr=0.02, momentum=0.9), feed(*digits()), 5, accuracy)


@fault("blue_for_red", "Target pictures come as blue-green-red in training.", "val_loss", 1.66, order=(2, 1, 0))
@healthy
def colourisation_of_photos(order: tuple[int, ...] = (0, 1, 2)) -> Training:
    picture = torch.cat([photo(size=160), photo("flower.jpg", 160)], 2)
    patches = picture.unfold(1, 16, 8).unfold(2, 16, 8).permute(1, 2, 0, 3, 4).reshape(-1, 3, 16, 16)
    grey = patches.mean(1, keepdim=True)
    fed = replace(feed(grey, 4 * (patches - grey), batch=8), 1, lambda y: y[:, list(order)])
    layers = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=2, dilation=2), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(32, 3, 3, padding=1))
    return fit(net, lambda net, b: F.l1_loss(net(b[0]), b[1]), partial(Adam, lr=3e-3), fed, 4)


@healthy
def keypoints_with_soft_argmax() -> Training:
    axis = torch.linspace(-1, 1, 16)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2)

    def distance(net: Any, batch: Any) -> Tensor:
        return (net(batch["picture"]).flatten(1).softmax(1) @ grid - batch["mark"]).norm(dim=1).mean()

    place = torch.randint(2, 14, (1200, 2), generator=rng())
    drawn = sum(
        F.one_hot(place[:, :1] + a, 16).float().mT @ F.one_hot(place[:, 1:] + b, 16).float() for a, b in ((0, 0), (1, 0), (0, 2))
    )
    picture = drawn[:, None] + 0.3 * torch.randn(1200, 1, 16, 16, generator=rng(1))
    fed = feed(picture=picture, mark=axis[place], batch=32)
    net = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
    return fit(net, distance, partial(RAdam, lr=1e-2), fed, 4, lambda net, b: {"val_error": distance(net, b)})


@fault("sampler_prefers_the_frequent", "The sampler's weights are the counts, not their inverse.", "val_acc", 0.37, power=1.0)
@healthy
def rare_digits_with_a_sampler(power: float = -1.0) -> Training:
    x, y = digits()
    fed = feed(x, y)
    rows = fed["train_dataloaders"].dataset
    kept = torch.rand(len(rows), generator=rng()) < 0.7 ** rows.columns[1]
    rows.columns = {k: v[kept] for k, v in rows.columns.items()}
    weights = rows.columns[1].bincount().double()[rows.columns[1]] ** power
    fed["train_dataloaders"] = DataLoader(rows, 32, sampler=WeightedRandomSampler(weights, 960))
    return fit(convnet(), cross_entropy, partial(Adam, lr=2e-3), fed, 3, accuracy)
