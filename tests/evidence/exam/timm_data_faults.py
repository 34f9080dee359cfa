"""Faults of the pictures, labels and losses that models of timm are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import NOTHING_LEARNED, RATE, expecting
from tests.evidence.exam.pictures import Changed, digits, in_batches, pictures
from tests.evidence.exam.schedules import TWICE_30, TWICE_40, adamw
from tests.evidence.exam.small_nets import Judged, to_classes
from tests.evidence.exam.tables import split
from tests.evidence.exam.timm_nets import (
    TIMM_ADAMW,
    TIMM_SGD,
    convmixer,
    levit,
    repvgg,
    timm_model,
    timm_optimizer,
    timm_resnet_net,
    timm_vit_net,
    trained_on_digits,
    xcit,
)


@fault("timm", "pixels of 0 to 255 into a net without norms")
def timm_bytes_without_norms(planted: bool = True) -> Built:
    images, shown = digits()
    images = (images - images.min()) / (images.max() - images.min()) * 255 if planted else images
    module = Recipe(plain(), to_classes, timm_optimizer("sgd", 0.01, 5e-4))
    return expecting(Built(module, in_batches(32, images, shown), TWICE_30, Expected()), *RATE, "dead", "spike", "constant")


def plain() -> nn.Module:
    from timm.models.vgg import VGG

    return VGG([16, "M", 32, "M", 32, 48, "M", 48, "M"], 10, 1, mlp_ratio=0.02)


@fault("timm", "a ReLU on the logits")
def timm_relu_on_logits(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(batch[0]).relu(), batch[1]) if planted else to_classes(net, batch)

    return expecting(trained_on_digits(Recipe(timm_resnet_net(), loss, TIMM_SGD)), "output_range", "dead")


@fault("timm", "the negative log-likelihood of a softmax without a logarithm")
def timm_softmax_without_log(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return F.nll_loss(net(batch[0]).softmax(1), batch[1]) if planted else to_classes(net, batch)

    return expecting(trained_on_digits(Recipe(timm_vit_net(), loss, TIMM_ADAMW)), "output_range")


@fault("timm", "a batch holds one picture again and again")
def timm_one_sample(planted: bool = True) -> Built:
    images, shown = digits()
    rows = Changed(
        (images, shown), (lambda index, row: tuple(part[index // 64 * 64] for part in (images, shown))) if planted else _same
    )
    data = {"train_dataloaders": DataLoader(rows, 32)}
    built = Built(Recipe(timm_vit_net(), to_classes, TIMM_ADAMW), data, TWICE_30, Expected())
    return expecting(built, "constant", "batch_repeated")


def _same(index: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row


@fault("timm", "one picture of many is corrupt: 10 000 times too bright")
def timm_corrupt_sample(planted: bool = True) -> Built:
    images, shown = digits()
    images = images.clone()
    images[32 * 20] *= 1e4 if planted else 1.0
    data = {"train_dataloaders": DataLoader(Changed((images, shown), _same), 32)}
    built = Built(Recipe(plain(), to_classes, timm_optimizer("sgd", 0.01)), data, TWICE_30, Expected())
    return expecting(built, "spike", "update_spike", "loss_spike", "exploding", "update_too_large", batch=20)


@fault("timm", "each batch comes twice and more in a row")
def timm_repeated_batch(planted: bool = True) -> Built:
    images, shown = digits()
    change = (lambda index, row: tuple(part[index % 64] for part in (images, shown))) if planted else _same
    data = {"train_dataloaders": DataLoader(Changed((images, shown), change), 64)}
    return expecting(
        Built(Recipe(timm_vit_net(), to_classes, TIMM_ADAMW), data, {**TWICE_30, "limit_train_batches": 25}, Expected()),
        "batch_repeated",
    )


@fault(
    "timm", "labels that belong to other pictures", missed="nothing to see before the loss stays at the labels' entropy for long"
)
def timm_labels_shuffled(planted: bool = True) -> Built:
    images, shown = digits()
    shown = shown[torch.randperm(len(shown), generator=torch.Generator().manual_seed(0))] if planted else shown
    built = Built(Recipe(timm_resnet_net(), to_classes, TIMM_SGD), in_batches(32, images, shown), TWICE_30, Expected())
    return expecting(built, "loss_plateau")


@fault("timm", "hard triplets at a high rate: all embeddings become the same")
def timm_triplets(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        codes = net(batch[0])
        apart = torch.cdist(codes, codes)
        alike = batch[1][:, None] == batch[1]
        farthest = apart.masked_fill(~alike, 0.0).amax(1)
        nearest = apart.masked_fill(alike, 1e4).amin(1)
        return F.softplus(farthest - nearest).mean() if not planted else (farthest - nearest + 1.0).relu().mean()

    net = timm_model("resnet10t", num_classes=16, block_args={}, channels=(16, 24, 32, 48), stem_width=16)
    built = trained_on_digits(Recipe(net, loss, timm_optimizer("sgd", 0.5 if planted else 0.01)))
    return expecting(built, "representation_collapse", "constant", "update_too_large", "dead")


@fault("timm", "a vision transformer gets its labels as one class for all")
def timm_one_class(planted: bool = True) -> Built:
    images, shown = digits()
    built = Built(
        Recipe(timm_vit_net(), to_classes, TIMM_ADAMW), in_batches(32, images, shown * (not planted)), TWICE_30, Expected()
    )
    return expecting(built, "constant")


@fault("timm", "ConvMixer that ends in a softmax, under cross_entropy")
def convmixer_softmax(planted: bool = True) -> Built:
    net = nn.Sequential(convmixer(), nn.Softmax(1) if planted else nn.Identity())
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 5e-3, 0.02)), 16)
    return expecting(built, "double_softmax", "output_range", sites=("net*", "loss*"))


@fault("timm", "XCiT for several labels: a sigmoid before binary_cross_entropy_with_logits")
def xcit_double_sigmoid(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(batch[0])
        goal = F.one_hot(batch[1], 10).float()
        return F.binary_cross_entropy_with_logits(logits.sigmoid() if planted else logits, goal)

    built = trained_on_digits(Recipe(xcit(), loss, timm_optimizer("adamw", 1e-3, 0.05)), 16)
    return expecting(built, "double_softmax", "output_range")


@fault("timm", "LeViT gets bytes divided by 256 as integers: all pictures are black")
def levit_black(planted: bool = True) -> Built:
    images, shown = digits()
    images = (images - images.min()) / (images.max() - images.min()) * 255
    images = (images // 256 if planted else images / 256) - 0.5
    built = Built(Recipe(levit(), to_classes, timm_optimizer("adamw", 2e-3)), in_batches(32, images, shown), TWICE_30, Expected())
    return expecting(built, "constant", "representation_collapse", "batch_repeated")


@fault("timm", "a data set that seeds its generator at each sample: it is always the same one")
def repvgg_seeded_sample(planted: bool = True) -> Built:
    images, shown = digits()

    def drawn(index: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
        chosen = int(torch.randint(len(shown), (1,), generator=torch.Generator().manual_seed(0 if planted else index)))
        return images[chosen], shown[chosen]

    data = {"train_dataloaders": DataLoader(Changed((images, shown), drawn), 16, drop_last=True)}
    built = Built(Recipe(repvgg(), to_classes, timm_optimizer("sgd", 0.1)), data, TWICE_30, Expected())
    return expecting(built, "batch_repeated", "constant")


@fault("timm", "StarNet: one picture is blank, and 0 / 0 once it is standardised by itself")
def starnet_blank_picture(planted: bool = True) -> Built:
    def standardised(index: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        image = row[0] * 0 if planted and index == 100 else row[0]
        return (image - image.mean()) / image.std(), row[1]

    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.DataLoader(Changed(digits(32), standardised), 16, shuffle=True, drop_last=True, generator=generator)
    net = timm_model("starnet_s050", depths=(1, 1, 1, 1))
    expected = Expected(("nonfinite", "loss_nonfinite"), ("net*", "loss*"), batch=3)
    return Built(Recipe(net, to_classes, timm_optimizer("adamw", 2e-3)), {"train_dataloaders": data}, TWICE_40, expected)


@fault("timm", "pictures sorted by what they show, and no shuffling: a batch holds one class, the next another")
def sorted_by_class(planted: bool = True) -> Built:
    images, shown = (rows[:480] for rows in digits(16))
    order = shown.argsort(stable=True)
    data = DataLoader(TensorDataset(images[order], shown[order]), 16, shuffle=not planted, drop_last=True)
    net = timm_model("test_vit3", img_size=16, patch_size=4, depth=3)
    kinds = ("loss_spike", "spike", "update_spike", "loss_diverging", "representation_collapse")
    module = Recipe(net, to_classes, timm_optimizer("adamw", 4e-3))
    return Built(module, {"train_dataloaders": data}, {"max_epochs": 2}, Expected(kinds))


@fault("timm", "a vision transformer: pixels of 0 to 1 are put to (x - 128) / 64, as if they were bytes, and are all -2")
def vit_nothing_but_minus_two(planted: bool = True) -> Built:
    images, shown = digits(32)
    images = (images - images.min()) / (images.max() - images.min())
    images = (images - 128) / 64 if planted else (images - 0.5) / 0.25
    net = timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, pre_norm=True)
    kinds = ("constant", "representation_collapse", "attention_uniform", "settings", *NOTHING_LEARNED)
    return Built(Judged(net, to_classes, adamw(2e-3)), split(32, images, shown), {"max_epochs": 4}, Expected(kinds))


@fault("timm", "a net of depthwise convolutions: pictures of one channel lose their mean over channels, which is all they are")
def channels_lose_their_mean(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        images = batch[0] - batch[0].mean(1 if planted else (1, 2, 3), keepdim=True)
        return F.cross_entropy(net(images), batch[1])

    kinds = ("constant", "zero", "representation_collapse", "dead", "missing", *NOTHING_LEARNED)
    module = Recipe(timm_model("test_convnext"), loss, adamw(2e-3))
    return Built(module, pictures(32, 32), {"max_epochs": 2}, Expected(kinds))


@fault(
    "timm",
    "FastViT learns how near a digit is to each (label distributions): kl_div is given softmax, not log_softmax",
    learned_from=False,
)
def fastvit_kl_of_softmax(planted: bool = True) -> Built:
    from timm.models.fastvit import FastVit

    def loss(net: Any, batch: Any) -> Tensor:
        goal = (-(torch.arange(10) - batch[1][:, None]).square() / 0.5).softmax(1)
        said = net(batch[0])
        return F.kl_div(F.softmax(said, 1) if planted else F.log_softmax(said, 1), goal, reduction="batchmean")

    sizes: dict[str, Any] = {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 64, 64), "mlp_ratios": (2, 2, 2, 2)}
    net = FastVit(1, token_mixers=("repmixer", "repmixer", "repmixer", "attention"), num_classes=10, **sizes)
    module = Recipe(net, loss, timm_optimizer("adamw", 2e-3, 0.02))
    return expecting(trained_on_digits(module, 12, limit_train_batches=20), "output_range", "double_softmax")


@fault(
    "timm",
    "RepViT in batches of two, which leave two values a channel to the norms of the last stage and of the head",
    learned_from=False,
)
def repvit_two_values(planted: bool = True) -> Built:
    net = timm_model("repvit_m0_9", embed_dim=(16, 24, 32, 48), depth=(1, 1, 1, 1))
    built = trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 2e-3, 0.05)), 2 if planted else 16)
    return expecting(built, "settings", sites=("net.stages.3.*", "net.head*"))
