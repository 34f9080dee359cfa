"""Architectures with a forward pass of their own: what they return is what their loss takes."""

from __future__ import annotations

import itertools
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.evidence.population.bodies import BODIES, Net, convolution
from tests.evidence.population.forms import Form
from tests.evidence.population.layers import activation, dense
from tests.evidence.population.recipe import Recipe


def stack(recipe: Recipe, sizes: list[int]) -> nn.Sequential:
    """Dense layers and a linear one at the end."""
    layers = [layer for a, b in itertools.pairwise(sizes[:-1]) for layer in dense(recipe, a, b)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def numel(form: Form) -> int:
    return torch.Size(form.shape).numel()


class Autoencoder(nn.Module):
    """Dense encoder and decoder around a few numbers."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        w, n, z = recipe.width, numel(form), max(8, recipe.width // 8)
        self.encoder, self.decoder = stack(recipe, [n, *[w] * recipe.depth, z]), stack(recipe, [z, *[w] * recipe.depth, n])

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x.flatten(1))).reshape(x.shape)


class Vae(Autoencoder):
    """With a normal latent (Kingma & Welling 2013)."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__(recipe, form)
        last, self.encoder = self.encoder[-1], self.encoder[:-1]
        self.mean, self.log_variance = (nn.Linear(last.in_features, last.out_features) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x.flatten(1))
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(z).reshape(x.shape), mean, log_variance


class Vq(Autoencoder):
    """With four code words from a book of 32 (van den Oord et al. 2017); gradients pass straight through."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__(recipe, form)
        self.book = nn.Embedding(32, self.encoder[-1].out_features // 4)
        nn.init.normal_(self.book.weight, std=0.3)
        self.straight_through = True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x.flatten(1)).unflatten(1, (4, -1))
        words = self.book(torch.cdist(z, self.book.weight.expand(len(z), -1, -1)).argmin(-1))
        commitment = F.mse_loss(words, z.detach()) + 0.25 * F.mse_loss(z, words.detach())
        given = z + (words - z).detach() if self.straight_through else words
        return self.decoder(given.flatten(1)).reshape(x.shape), commitment


class Unet(nn.Module):
    """One level down and up with a skip; with a time if it is asked to remove noise."""

    def __init__(self, recipe: Recipe, form: Form, outputs: int, timed: bool = False) -> None:
        super().__init__()
        w = recipe.width // 2
        self.first = nn.Sequential(*convolution(recipe, form.shape[0], w), *convolution(recipe, w, w))
        self.down = nn.Sequential(nn.MaxPool2d(2), *convolution(recipe, w, 2 * w))
        self.middle = nn.Sequential(*(layer for _ in range(recipe.depth) for layer in convolution(recipe, 2 * w, 2 * w)))
        self.time = nn.Sequential(nn.Linear(16, 2 * w), activation(recipe), nn.Linear(2 * w, 2 * w)) if timed else None
        self.up = nn.ConvTranspose2d(2 * w, w, 2, 2)
        self.last = nn.Sequential(*convolution(recipe, 2 * w, w), nn.Conv2d(w, outputs, 1))

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        skip = self.first(x)
        h = self.down(skip)
        if self.time is not None:
            h = h + self.time(waves_of(time))[:, :, None, None]
        return self.last(torch.cat([skip, self.up(self.middle(h))], 1))


def waves_of(time: Tensor) -> Tensor:
    """Sines and cosines of a time."""
    angle = time[:, None] * torch.pi * 2.0 ** torch.arange(8)
    return torch.cat([angle.sin(), angle.cos()], 1)


class Gan(nn.Module):
    """Turn 0 is the discriminator's, turn 1 the generator's."""

    latent = 16

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        w, n = recipe.width, numel(form)
        self.generator = stack(recipe, [self.latent, *[w] * recipe.depth, n])
        sizes = zip([n, *[w] * (recipe.depth - 1)], [w] * recipe.depth, strict=True)
        layers = [layer for a, b in sizes for layer in (nn.Linear(a, b), nn.LeakyReLU(0.2))]  # as Radford et al. 2015 advise
        self.discriminator = nn.Sequential(*layers, nn.Linear(w, 1))

    def generate(self, z: Tensor) -> Tensor:
        return self.generator(z)

    def forward(self, real: Tensor, z: Tensor, turn: int = 1) -> tuple[Tensor, Tensor | None]:
        fake = self.generate(z)
        if turn:
            return self.discriminator(fake), None
        return self.discriminator(fake.detach()), self.discriminator(real.flatten(1))


class Towers(nn.Module):
    """A body and a projector for both views (SimCLR); with a predictor, SimSiam."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        w, (name, body) = recipe.width, recipe.model.split("-")
        self.body = BODIES[body](recipe, form)
        self.projector = nn.Sequential(nn.Linear(w, w), nn.BatchNorm1d(w), nn.ReLU(), nn.Linear(w, 32))
        predictor = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))
        self.predictor = predictor if name == "simsiam" else None

    def embed(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, a: Tensor, b: Tensor) -> Any:
        za, zb = self.projector(self.body(a)), self.projector(self.body(b))
        return (za, zb) if self.predictor is None else (self.predictor(za), self.predictor(zb), za.detach(), zb.detach())


class Pairwise(nn.Module):
    """The difference of the scores of two."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        self.scorer = Net(recipe, form)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.scorer(a) - self.scorer(b)


class ActorCritic(nn.Module):
    """Logits of the policy, whose last layer starts at a hundredth (Andrychowicz et al. 2020), and the value."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        self.body = stack(recipe, [numel(form), *[recipe.width] * recipe.depth, recipe.width])
        self.actor, self.critic = nn.Linear(recipe.width, form.answers), nn.Linear(recipe.width, 1)
        if recipe.init == "orthogonal":
            nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(state))
        return self.actor(h), self.critic(h)[:, 0]


class Q(nn.Module):
    """Values of actions, and those of the next state by a copy that is renewed every 20 steps."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        self.online = stack(recipe, [numel(form), *[recipe.width] * recipe.depth, form.answers])
        self.target = deepcopy(self.online).requires_grad_(False)
        self.calls = 0

    def forward(self, state: Tensor, follows: Tensor | None = None) -> Any:
        return self.online(state) if follows is None else (self.online(state), self.target(follows))

    @torch.no_grad()
    def follow(self) -> None:
        """The copy is renewed."""
        self.calls += 1
        if self.calls % 20 == 0:
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=False):
                slow.copy_(fast)


class Distilled(nn.Module):
    """A student beside a teacher that is trained before and frozen."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        self.student = stack(recipe, [numel(form), recipe.width // 2, form.answers])
        self.teacher = stack(recipe, [numel(form), 2 * recipe.width, 2 * recipe.width, form.answers])

    def train(self, mode: bool = True) -> Distilled:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x: Tensor) -> Any:
        student = self.student(x.flatten(1))
        if not self.training:
            return student
        with torch.no_grad():
            return student, self.teacher(x.flatten(1))


class Translator(nn.Module):
    """``nn.Transformer`` from tokens to tokens."""

    def __init__(self, recipe: Recipe, form: Form) -> None:
        super().__init__()
        w = recipe.width
        self.words = nn.Embedding(form.vocabulary, w)
        self.position = nn.Parameter(0.02 * torch.randn(form.shape[0], w))
        self.transformer = nn.Transformer(
            w, recipe.heads, 1, recipe.depth, 2 * w, recipe.dropout, "relu", batch_first=True, norm_first=recipe.pre_norm
        )
        self.head = nn.Linear(w, form.answers)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        mask = torch.ones(before.shape[1], before.shape[1], dtype=torch.bool).triu(1)
        return self.head(
            self.transformer(
                self.words(source) + self.position, self.words(before) + self.position[: before.shape[1]], tgt_mask=mask
            )
        )
