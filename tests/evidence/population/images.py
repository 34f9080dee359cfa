"""Tasks of images: scikit-learn's digits, and drawn shapes."""

from __future__ import annotations

import functools

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from tests.evidence.population import scores
from tests.evidence.population.forms import Form
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.tables import most_frequent
from tests.evidence.population.training import Batch, Data, Training


@functools.cache
def all_digits() -> tuple[Tensor, Tensor]:
    """1 797 images of 8 x 8 pixels, 0 to 16, in a fixed order."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8)[order], torch.tensor(y)[order]


def images(recipe: Recipe) -> tuple[Batch, Batch]:
    """Training and validation images with their classes, scaled."""
    (x, y), held = all_digits(), 360
    if recipe.inputs != "raw":
        x = x / x.max()
    if recipe.inputs == "standard":
        x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    return Batch((x[held : held + recipe.samples],), y[held : held + recipe.samples]), Batch((x[:held],), y[:held])


def digits(recipe: Recipe) -> Data:
    train, validation = images(recipe)
    return Data(train, validation, "classes", Form("image", (1, 8, 8), 10), scores.accuracy, most_frequent(validation))


def latents(recipe: Recipe) -> Data:
    """The input is its own target."""
    (train,), (validation,) = (part.inputs for part in images(recipe))
    return Data(Batch((train,), train), Batch((validation,), validation), "inputs", Form("image", (1, 8, 8), 64), scores.r2, 0.0)


def noised(x: Tensor) -> Batch:
    """At a random time between data and noise, after a cosine (Nichol & Dhariwal 2021): the noise is asked for."""
    time, noise = torch.rand(len(x)), torch.randn_like(x)
    angle = (0.5 * torch.pi * time).reshape(-1, *[1] * (x.ndim - 1))
    return Batch((angle.cos() * x + angle.sin() * noise, time), noise)


def add_noise(training: Training, batch: Batch) -> Batch:
    return noised(batch.inputs[0])


def denoising(recipe: Recipe) -> Data:
    """Diffusion: predict the noise."""
    train, validation = (part.inputs[0] for part in images(recipe))
    form = Form("image", (1, 8, 8), 64)
    return Data(Batch((train,), None), noised(validation), "sampled", form, scores.r2, 0.0, [add_noise])


def generation(recipe: Recipe) -> Data:
    """A GAN's data."""
    train, validation = (part.inputs[0].flatten(1) for part in images(recipe))
    form = Form("vector", (train.shape[1],), train.shape[1])
    return Data(Batch((train,), None), Batch((validation,), None), "sampled", form, scores.sliced, 0.0, [add_latent])


def add_latent(training: Training, batch: Batch) -> Batch:
    return Batch((*batch.inputs, torch.randn(len(batch.inputs[0]), training.model.latent)), None)


def shapes(recipe: Recipe) -> Data:
    """Find discs and squares in noise: three classes of pixels."""
    n = recipe.samples + 100
    at = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")).float()
    masks = torch.zeros(n, 16, 16, dtype=torch.long)
    for kind in (1, 2):
        centre, size = 3 + 10 * torch.rand(n, 2, 1, 1), 2 + 2 * torch.rand(n, 1, 1)
        away = at - centre
        inside = away.norm(dim=1) < size if kind == 1 else away.abs().amax(1) < 0.85 * size
        masks[inside] = kind
    x = (masks > 0).float() * (0.5 + torch.rand(n, 1, 1)) + 0.3 * torch.randn(n, 16, 16)
    train, validation = (Batch((x[s, None],), masks[s]) for s in (slice(100, None), slice(100)))
    constant = scores.overlap(torch.zeros_like(validation.targets), validation.targets)
    return Data(train, validation, "masks", Form("image", (1, 16, 16), 3), scores.masks, constant)


def view(x: Tensor) -> Tensor:
    """Another view of digits: moved by a pixel, some pixels gone, noise."""
    x = torch.roll(x, (int(torch.randint(-1, 2, ())), int(torch.randint(-1, 2, ()))), (-2, -1))
    return x * (torch.rand_like(x) > 0.2) + 0.1 * x.std() * torch.randn_like(x)


def two_views(training: Training, batch: Batch) -> Batch:
    return Batch((view(batch.inputs[0]), view(batch.inputs[0])), None)


def views(recipe: Recipe) -> Data:
    """Two views of an image belong together; judged by neighbours' classes."""
    train, validation = images(recipe)
    score = scores.neighbours(train, train.targets)
    held = Batch((validation.inputs[0], view(validation.inputs[0])), validation.targets)
    return Data(Batch(train.inputs, None), held, "pairs", Form("image", (1, 8, 8), 32), score, 0.1, [two_views])
