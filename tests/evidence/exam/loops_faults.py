"""Faults of training loops that users write by hand."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import ALIKE, BROKEN, NOTHING_LEARNED, STILL, TOO_LITTLE, TOO_MUCH, UNHELD
from tests.evidence.exam.loops import ByHand, Private
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import SHORT, adam, adamw, sgd
from tests.evidence.exam.small_nets import Judged, convolutions, mlp, next_character, right, small_cnn, taught, to_classes
from tests.evidence.exam.tables import split, table
from tests.evidence.exam.texts import VOCABULARY, characters


class Copies(nn.Module):
    """A GRU reads a text, another writes it again."""

    def __init__(self, watched: Any) -> None:
        super().__init__()
        self.watched, self.embed = watched, nn.Embedding(VOCABULARY, 32)
        self.reads, self.writes = nn.GRU(32, 96, batch_first=True), nn.GRU(32, 96, batch_first=True)
        self.head = nn.Linear(96, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embed(ids)
        with self.watched():
            state = self.reads(embedded)[1]
        return self.head(self.writes(F.pad(embedded[:, :-1], (0, 0, 1, 0)), state)[0])


@fault("torch", "a GRU that writes: the one that reads runs under no_grad, as in the script for inference")
def writer_reads_without_gradient(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[0].flatten())

    net = Copies(torch.no_grad if planted else nullcontext)
    return Built(Recipe(net, loss, adamw(5e-3)), characters(8, 32), SHORT, Expected(("missing",), ("net.reads*",)))


class MadeAnew(ByHand):
    """A loop by hand; the optimizer is made in it, again and again, or once."""

    planted = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.configure_optimizers() if self.planted else self.optimizers()
        chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        chosen.step()
        return {"loss": loss.detach()}


@fault("torch", "a loop by hand that makes SGD anew at each batch: its momentum of 0.98 always begins at 0")
def digits_optimizer_made_anew(planted: bool = True) -> Built:
    module = MadeAnew(mlp(64, 64, 64, 10), to_classes, lambda module: torch.optim.SGD(module.parameters(), 0.002, 0.98))
    module.planted = planted
    images, shown = digits(8)
    expected = Expected(("optimizer_settings", "settings", "not_optimized", *STILL))
    return Built(module, in_batches(32, images.flatten(1), shown), {"max_epochs": 5}, expected)


class Clamped(Recipe):
    """The first Wasserstein GAN: four steps of the critic, whose weights are cut, to one of the painter."""

    def __init__(self, planted: bool) -> None:
        nets = nn.ModuleDict({"painter": mlp(4, 48, 48, 2), "critic": mlp(2, 48, 48, 1)})
        super().__init__(nets, None, None)
        self.planted, self.automatic_optimization = planted, False

    def configure_optimizers(self) -> Any:
        return [torch.optim.RMSprop(self.net[name].parameters(), 1e-3) for name in ("painter", "critic")]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_critic = self.optimizers()
        real = batch[0]
        for turn in range(5):
            chosen = of_critic if turn < 4 else of_painter
            painted = self.net["painter"](torch.randn(len(real), 4))
            chosen.zero_grad()
            liked = self.net["critic"](painted).mean()
            loss = liked - self.net["critic"](real).mean() if turn < 4 else -liked
            self.manual_backward(loss)
            chosen.step()
            for weight in (self if self.planted else self.net["critic"]).parameters():
                weight.data.clamp_(-0.1, 0.1)
        self.log("far", ((painted.mean(0) - real.mean(0)).square().sum() + (painted.std(0) - real.std(0)).square().sum()).sqrt())
        return {"loss": loss.detach()}


@fault(
    "torch", "a Wasserstein GAN for a ring: the loop that cuts the critic's weights runs over self.parameters(), the painter's too"
)
def ring_all_weights_clamped(planted: bool = True) -> Built:
    angles = 6.2832 * torch.rand(6400, generator=torch.Generator().manual_seed(0))
    ring = 3 * torch.stack([angles.cos(), angles.sin()], 1) + torch.tensor([4.0, -4.0])
    kinds = (*ALIKE, "updates_lost", "not_updated", "weights_growing", "no_progress", "part_not_learning", "update_too_large")
    return Built(Clamped(planted), in_batches(32, ring), {"max_epochs": 1}, Expected(kinds, ("net.painter*",)))


class Bodied(nn.Module):
    """A body under no_grad(), as it was used for features, or not; and a head."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.body, self.head, self.planted = convolutions(), nn.Linear(64, 10), planted

    def forward(self, images: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.planted):
            found = self.body(images)
        return self.head(found)


@fault(
    "torch",
    "Stack Overflow, 'fine-tuning gives the same score as a linear probe': encode() still has its @torch.no_grad()",
    learned_from=False,
)
def digits_body_under_no_grad(planted: bool = True) -> Built:
    images, shown = digits(16)
    turned = images.rot90(1, (2, 3))
    net: Any = Bodied(planted)
    net.body.load_state_dict(taught(nn.Sequential(convolutions(), nn.Linear(64, 2)), images, shown % 2)[0].state_dict())  # type: ignore[index]
    expected = Expected((*UNHELD, "zero", "frozen_statistics", "no_progress", "loss_plateau"), ("net.body*",))
    return Built(Judged(net, to_classes, adam(1e-3), right), split(32, turned, shown), {"max_epochs": 5}, expected)


class Writer(nn.Module):
    """A transformer of PyTorch's layers that writes the next character."""

    def __init__(self, tokens: int, width: int = 48, depth: int = 2, longest: int = 64, **options: Any) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Parameter(0.02 * torch.randn(longest, width))
        settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True, **options}
        layers = [nn.TransformerEncoderLayer(width, 4, 2 * width, **settings) for _ in range(depth)]
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        hidden = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=hidden, is_causal=True)
        return self.head(self.norm(x))


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
    module = Noisy(mlp(13, 24, 3, activation=nn.Tanh), to_classes, sgd(0.3, 0.5))
    module.planted = planted
    return Built(module, in_batches(64, *table("wine")), {"max_epochs": 80}, Expected((*TOO_MUCH, *NOTHING_LEARNED, "saturated")))


@fault("torch", "hooks on all weights cut their gradients at 1e-6, under SGD")
def code_hooks_that_cut(planted: bool = True) -> Built:
    net = Writer(VOCABULARY)
    for weight in net.parameters():
        weight.register_hook(lambda slope: slope.clamp(-1e-6, 1e-6) if planted else slope)
    expected = Expected((*TOO_LITTLE, *NOTHING_LEARNED, "always_clipped", "clip_ineffective", "vanishing"))
    return Built(Recipe(net, next_character, sgd(0.1)), characters(40, 8), {"max_epochs": 2, "limit_train_batches": 100}, expected)
