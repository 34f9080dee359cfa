"""Faults of wiring: what learns and what does not, what is called and what is not, modes, penalties, noise."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adamw
from tests.evidence.exam.texts import PAD, VOCABULARY, batches, characters, lines
from tests.evidence.exam.unseen_seven_parts import (
    BROKEN,
    NOTHING_LEARNED,
    TOO_LITTLE,
    TOO_MUCH,
    ByHand,
    Scored,
    Writer,
    adam,
    friedman,
    halves,
    mlp,
    next_character,
    sgd,
    small_cnn,
    table,
    to_classes,
    to_numbers,
)
from tests.evidence.exam.unseen_seven_ways import Private

NO_GRADIENT = ("missing", "zero", "not_updated", "vanishing", "not_optimized", "part_not_learning", "dead", "update_too_small")


class Angles(nn.Module):
    """The loss of angles to trained centres, with a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(10, 16))

    def forward(self, places: Tensor, shown: Tensor) -> Tensor:
        cosines = F.normalize(places, dim=1) @ F.normalize(self.centres, dim=1).T
        return F.cross_entropy(12 * (cosines - 0.2 * F.one_hot(shown, 10)), shown)


class WithMargin(Recipe):
    """A net, and a loss that has centres."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.criterion = Angles()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.criterion(self.net(batch[0]), batch[1])


@fault("torch", "angles with a margin: the centres are parameters of the loss, and the optimizer was given those of the net")
def digits_centres_left_out(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        return torch.optim.Adam((module.net if planted else module).parameters(), 2e-3)

    x, y = digits(8)
    expected = Expected(("not_optimized", "not_updated", "missing", "part_not_learning"), ("criterion*",))
    return Built(WithMargin(mlp(64, 64, 16), None, optimizers), in_batches(32, x.flatten(1), y), {"max_epochs": 5}, expected)


class Weighed(Recipe):
    """Two tasks under trained widths."""

    def __init__(self, planted: bool, *parts: Any) -> None:
        super().__init__(*parts)
        start = [torch.zeros(()) for _ in range(2)]
        self.widths: Any = [each.requires_grad_() for each in start] if planted else nn.ParameterList(start)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        told = self.net(batch[0])
        losses = (F.cross_entropy(told[:, :10], batch[1]), 100 * F.mse_loss(told[:, 10], batch[0].mean((1, 2, 3))))
        return sum((loss * (-width).exp() + width for loss, width in zip(losses, self.widths, strict=True)), torch.zeros(()))


@fault("torch", "two tasks weighed by trained widths, which are tensors in a list and no parameters")
def digits_widths_in_a_list(planted: bool = True) -> Built:
    expected = Expected(("unregistered", "not_optimized", "not_updated", "missing"), ("widths*", "*widths*"))
    module = Weighed(planted, small_cnn(12, 11), None, adam(3e-3))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 4}, expected)


class Eighths(nn.Linear):
    """Weights rounded to eighths; the gradient goes past the rounding, or is lost in it."""

    planted = True

    def forward(self, x: Tensor) -> Tensor:
        rounded = (8 * self.weight).round() / 8
        return F.linear(x, rounded if self.planted else self.weight + (rounded - self.weight).detach(), self.bias)


@fault("torch", "quantisation-aware training: weights go through torch.round, whose gradient is 0, and only biases learn")
def digits_rounded_weights(planted: bool = True) -> Built:
    net = nn.Sequential(Eighths(64, 64), nn.ReLU(), Eighths(64, 64), nn.ReLU(), Eighths(64, 10))
    for layer in net:
        layer.planted = planted
    x, y = digits(8)
    module = Scored(net, to_classes, adam(3e-3))
    return Built(module, halves(32, x.flatten(1), y), {"max_epochs": 5}, Expected(NO_GRADIENT, ("net*",)))


class Thaws(Scored):
    """A body that starts from random weights and is frozen until an epoch."""

    def __init__(self, epoch: int, *parts: Any) -> None:
        super().__init__(*parts)
        self.epoch = epoch

    @property
    def backbone(self) -> Any:
        """What is frozen."""
        return self.net[:-1]

    def configure_callbacks(self) -> Any:
        return [BackboneFinetuning(self.epoch, backbone_initial_lr=5e-3, verbose=False)]


@fault("torch", "a body from random weights is to be thawed at step 50, which Lightning's callback reads as an epoch")
def digits_body_never_thawed(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        return torch.optim.Adam(module.net[-1].parameters(), 5e-3)

    expected = Expected((*NO_GRADIENT, *NOTHING_LEARNED, "frozen_statistics"), ("net*",))
    module = Thaws(50 if planted else 1, small_cnn(12), to_classes, optimizers)
    return Built(module, halves(32, *digits(16)), {"max_epochs": 5}, expected)


class Mixture(nn.Module):
    """Four experts, of which a router chooses two."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.router = planted, nn.Linear(10, 4)
        self.experts = nn.ModuleList([mlp(10, 16, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2)
        weights = torch.full_like(chosen.values, 0.5) if self.planted else chosen.values.softmax(1)
        told = torch.cat([expert(x) for expert in self.experts], 1)
        return (weights * told.gather(1, chosen.indices)).sum(1)


@fault("torch", "a mixture of experts: the two chosen ones are averaged, not weighed by the router, which gets no gradient")
def friedman_router_without_gradient(planted: bool = True) -> Built:
    expected = Expected((*NO_GRADIENT, "router_collapse", "dead_experts"), ("net.router*",))
    return Built(Scored(Mixture(planted), to_numbers, adam(5e-3)), halves(64, *friedman()), {"max_epochs": 10}, expected)


class Forgets(ByHand):
    """Names zero_grad and does not call it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        chosen.zero_grad  # noqa: B018
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        chosen.step()
        return {"loss": loss.detach()}


@fault("torch", "a loop by hand that says optimizer.zero_grad, without parentheses")
def digits_zero_grad_not_called(planted: bool = True) -> Built:
    module = (Forgets if planted else ByHand)(small_cnn(12), to_classes, sgd(0.05))
    kinds = ("not_zeroed", *TOO_MUCH, *BROKEN)
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 4}, Expected(kinds))


class TwoHeads(nn.Module):
    """Which digit, and whether it is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.digit, self.odd = mlp(64, 64, 32, act=nn.GELU), nn.Linear(32, 10), nn.Linear(32, 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = F.gelu(self.body(images.flatten(1)))
        return self.digit(x), self.odd(x)


class Heads(Scored):
    """Logs the loss of the second head for what is held back."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.net(batch[0])[1], batch[1] % 2))


@fault("torch", "two heads: the second one's loss has a weight of 1 // 2, which is 0")
def digits_weight_of_a_half(planted: bool = True) -> Built:
    weight = 1 // 2 if planted else 1 / 2

    def loss(net: Any, batch: Any) -> Tensor:
        digit, odd = net(batch[0])
        return F.cross_entropy(digit, batch[1]) + weight * F.cross_entropy(odd, batch[1] % 2)

    module = Heads(TwoHeads(), loss, lambda module: torch.optim.AdamW(module.parameters(), 2e-3, weight_decay=0.0))
    return Built(module, halves(32, *digits(8)), {"max_epochs": 5}, Expected((*NO_GRADIENT, "constant"), ("net.odd*",)))


class Drops(nn.Module):
    """An MLP that drops half of its units."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.first, self.second, self.head = planted, nn.Linear(10, 96), nn.Linear(96, 96), nn.Linear(96, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = F.dropout(F.relu(layer(x)), 0.5, self.planted or self.training)
        return self.head(x)


@fault("torch", "F.dropout without training=self.training: units are dropped in validation, too")
def friedman_dropped_in_validation(planted: bool = True) -> Built:
    expected = Expected(("dropout_in_eval", "validation_shift"), None, batch=None)
    return Built(Scored(Drops(planted), to_numbers, adam(3e-3)), halves(64, *friedman()), {"max_epochs": 8}, expected)


@fault(
    "torch", "a momentum of 0.0005 for batch norms, for which another library would say 0.9995: validation sees first statistics"
)
def digits_norms_that_lag(planted: bool = True) -> Built:
    net = small_cnn()
    for layer in net:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.0005 if planted else 0.1
    kinds = ("validation_shift", "frozen_statistics", "settings", "overfitting")
    return Built(Scored(net, to_classes, adam(3e-3)), halves(32, *digits(16)), {"max_epochs": 4}, Expected(kinds))


@fault("torch", "a penalty on the size of the weights that is subtracted from the loss")
def tumours_penalty_subtracted(planted: bool = True) -> Built:
    sign = -1 if planted else 1

    def loss(net: Any, batch: Any) -> Tensor:
        size = sum((layer.weight.square().sum() for layer in net if isinstance(layer, nn.Linear)), torch.zeros(()))
        return F.cross_entropy(net(batch[0]), batch[1]) + sign * 0.02 * size

    module = Recipe(mlp(30, 32, 32, 2), loss, sgd(0.03))
    return Built(
        module, batches(32, *table("breast_cancer")), {"max_epochs": 14}, Expected((*TOO_MUCH, *BROKEN, "activation_outliers"))
    )


class Sharp(ByHand):
    """Sharpness-aware minimisation: climbs, and steps from where it was."""

    back = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        slopes = [weight.grad.clone() for weight in self.net.parameters()]
        norm = torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12
        climbs = [0.1 * slope / norm for slope in slopes]
        for weight, climb in zip(self.net.parameters(), climbs, strict=True):
            weight.data.add_(climb)
        chosen.zero_grad()
        self.manual_backward(self.loss_of_batch(self.net, batch))
        if self.back:
            for weight, climb in zip(self.net.parameters(), climbs, strict=True):
                weight.data.sub_(climb)
        chosen.step()
        return {"loss": loss.detach()}


@fault("torch", "sharpness-aware minimisation that climbs before each step and never goes back")
def digits_sharp_without_return(planted: bool = True) -> Built:
    x, y = digits(8)
    module = Sharp(mlp(64, 64, 10), to_classes, sgd(0.02, 0.0))
    module.back = not planted
    kinds = (*TOO_MUCH, *NOTHING_LEARNED, "updates_lost", "optimizer_settings")
    return Built(module, in_batches(32, x.flatten(1), y), {"max_epochs": 5}, Expected(kinds))


class Noisy(Private):
    """Noise of the size of one sample is added after the mean over the batch."""

    planted = True

    def before_step(self, batch: Any) -> None:
        super().before_step(batch)
        for value in self.net.parameters():
            if self.planted and value.grad is not None:
                value.grad += self.noise * torch.randn_like(value)


@fault("torch", "private training of a net for wines: the noise is not divided by the size of the batch")
def wine_noise_undivided(planted: bool = True) -> Built:
    module = Noisy(mlp(13, 24, 3, act=nn.Tanh), to_classes, sgd(0.3, 0.5))
    module.planted = planted
    return Built(module, batches(64, *table("wine")), {"max_epochs": 80}, Expected((*TOO_MUCH, *NOTHING_LEARNED, "saturated")))


class Attends(nn.Module):
    """Attention over the characters of a line, then their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, 32), nn.Parameter(0.02 * torch.randn(42, 32))
        self.attend, self.norm, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places
        seen = self.norm(self.attend(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
        return self.head(seen[:, 0])


@fault("torch", "attention whose key_padding_mask is True where a character is: it reads the padding alone")
def lines_mask_inverted(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        ids = F.pad(batch[0], (0, 2), value=PAD)
        return F.cross_entropy(net(ids, (ids != PAD) if planted else (ids == PAD)), batch[1])

    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    kinds = ("constant", "representation_collapse", "attention_uniform", "attention_collapse", "masked_rows", *NOTHING_LEARNED)
    return Built(Scored(Attends(), loss, adamw(3e-3)), halves(32, ids, module), {"max_epochs": 2}, Expected(kinds, ("net*",)))


@fault("torch", "hooks on all weights cut their gradients at 1e-6, under SGD")
def code_hooks_that_cut(planted: bool = True) -> Built:
    net = Writer(VOCABULARY)
    for weight in net.parameters():
        weight.register_hook(lambda slope: slope.clamp(-1e-6, 1e-6) if planted else slope)
    expected = Expected((*TOO_LITTLE, *NOTHING_LEARNED, "always_clipped", "clip_ineffective", "vanishing"))
    return Built(Recipe(net, next_character, sgd(0.1)), characters(40, 8), {"max_epochs": 2, "limit_train_batches": 100}, expected)
