"""Tasks of tables: real ones of scikit-learn, and generated ones."""

from __future__ import annotations

import functools
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from torch import Tensor

from tests.evidence.population import scores
from tests.evidence.population.forms import Form
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.training import Batch, Data

LOADERS: dict[str, Any] = {"cancer": load_breast_cancer, "diabetes": load_diabetes, "wine": load_wine}


@functools.cache
def loaded(name: str) -> tuple[Tensor, Tensor]:
    """A table of scikit-learn in a fixed order."""
    x, y = LOADERS[name](return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]


def scaled(recipe: Recipe, x: Tensor, of: Tensor) -> Tensor:
    """As the recipe scales inputs, by training samples."""
    if recipe.inputs == "unit":
        return (x - of.amin(0)) / (of.amax(0) - of.amin(0))
    return (x - of.mean(0)) / of.std(0) if recipe.inputs == "standard" else x


def split(recipe: Recipe, x: Tensor, y: Tensor, validation: int) -> tuple[Batch, Batch]:
    """Training samples and validation samples, scaled."""
    of = x[validation : validation + recipe.samples]
    train = Batch((scaled(recipe, of, of),), y[validation : validation + recipe.samples])
    return train, Batch((scaled(recipe, x[:validation], of),), y[:validation])


def cancer(recipe: Recipe) -> Data:
    x, y = loaded("cancer")
    if recipe.loss == "bce":
        train, validation = split(recipe, x, y[:, None].float(), 143)
        return Data(train, validation, "binary", Form("vector", (30,), 1), scores.binary_accuracy, most_frequent(validation))
    train, validation = split(recipe, x, y, 143)
    return Data(train, validation, "classes", Form("vector", (30,), 2), scores.accuracy, most_frequent(validation))


def most_frequent(validation: Batch) -> float:
    return scores.most_frequent(validation.targets.long())


def wine(recipe: Recipe) -> Data:
    train, validation = split(recipe, *loaded("wine"), 48)
    return Data(train, validation, "classes", Form("vector", (13,), 3), scores.accuracy, most_frequent(validation))


def diabetes(recipe: Recipe) -> Data:
    x, y = loaded("diabetes")
    return numbers(recipe, x, y.float()[:, None], 111)


def numbers(recipe: Recipe, x: Tensor, y: Tensor, validation: int) -> Data:
    """A regression; its targets standardised, then moved by the recipe's offset."""
    y = (y - y.mean(0)) / y.std(0) + recipe.offset
    train, valid = split(recipe, x, y, validation)
    answers, score = (2, scores.mean_r2) if recipe.loss == "gaussian" else (y.shape[1], scores.r2)
    return Data(train, valid, "numbers", Form("vector", (x.shape[1],), answers), score, 0.0)


def houses(recipe: Recipe) -> Data:
    """Prices like California's: skewed columns, two coordinates with a few centres, a ceiling."""
    n = recipe.samples + 400
    income, age = torch.randn(n).mul(0.5).add(1.2).exp(), 52 * torch.rand(n)
    rooms, people = 5 + torch.randn(n).exp(), torch.randn(n).mul(0.7).add(7).exp()
    place = torch.rand(n, 2) * 10
    near = torch.cdist(place, torch.tensor([[2.0, 7.0], [6.0, 3.0]])).amin(1)
    price = (0.4 * income * (1.5 - 0.1 * near) + 0.01 * age + 0.1 * rooms.log() + 0.3 * torch.randn(n)).clamp(0, 5)
    x = torch.stack([income, age, rooms, people.log() if recipe.inputs == "standard" else people, *place.T], 1)
    return numbers(recipe, x, price[:, None], 400)


def arms(recipe: Recipe) -> Data:
    """Two joints of a robot's arm (kin8nm-like): a smooth function of angles."""
    x = torch.rand(recipe.samples + 400, 6) * 2 - 1
    angles = (1.5 * x[:, :3]).cumsum(1)
    y = torch.stack([(angles.cos() * (1 + 0.3 * x[:, 3:])).sum(1), (angles.sin() * (1 + 0.3 * x[:, 3:])).sum(1)], 1)
    return numbers(recipe, x, y + 0.05 * torch.randn_like(y), 400)


def moons(recipe: Recipe) -> Data:
    """Three spirals in eight columns, turned."""
    n = recipe.samples + 400
    y, r = torch.randint(3, (n,)), torch.rand(n).sqrt()
    angle = 4 * r + 2 * torch.pi * y / 3
    plane = torch.stack([r * angle.cos(), r * angle.sin()], 1) * 2 + 0.08 * torch.randn(n, 2)
    x = torch.cat([plane, 0.3 * torch.randn(n, 6)], 1) @ torch.linalg.qr(torch.randn(8, 8))[0]
    train, validation = split(recipe, x, y, 400)
    return Data(train, validation, "classes", Form("vector", (8,), 3), scores.accuracy, most_frequent(validation))
