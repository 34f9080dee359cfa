"""All tasks: their samples, and what people train on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.evidence.population import images, relations, sequences, tables
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.training import Data

Weights = dict[str, float]
VECTOR = {"mlp": 6, "residual_mlp": 2}
IMAGE = {"mlp": 3, "cnn": 4, "resnet": 3, "vit": 2}
SEQUENCE = {"rnn": 1, "gru": 2, "lstm": 3, "transformer": 4, "moe_transformer": 1}
ANSWERS: Weights = {"cross_entropy": 8, "nll": 1, "weighted": 0.5}
NUMBERS: Weights = {"mse": 7, "l1": 1, "huber": 1.5, "gaussian": 1}


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        make: Its data.
        samples: The most that there are for training.
        models, losses: With how often they are drawn.
        scaled: Whether inputs may be drawn other than standardised: ``"unit"``, ``"raw"``.
        steps: How many steps it needs, in those of an easy task.
        labels: Whether labels may be wrong or rare.
        betas: Usual weights of the second term.
        weight: How often the task is drawn.
        sources: Kinds of data.
    """

    make: Callable[[Recipe], Data]
    samples: int
    models: Weights
    losses: Weights
    scaled: tuple[str, ...] = ()
    steps: float = 1.0
    labels: bool = False
    betas: tuple[float, ...] = (0.01,)
    weight: float = 1.0
    sources: tuple[str, ...] = ("",)


def towers(name: str) -> Weights:
    return {f"{name}-{body}": weight for body, weight in (("mlp", 1), ("cnn", 2), ("resnet", 1))}


PIXELS = ("unit", "unit", "raw")
TASKS: dict[str, Task] = {
    "digits": Task(images.digits, 1437, IMAGE, ANSWERS, PIXELS, labels=True, weight=2),
    "cancer": Task(tables.cancer, 426, VECTOR, {"bce": 5, "cross_entropy": 3}, ("unit",), 0.5, labels=True),
    "wine": Task(tables.wine, 130, VECTOR, ANSWERS, ("unit",), 0.5, labels=True, weight=0.7),
    "diabetes": Task(tables.diabetes, 331, VECTOR, NUMBERS, ("unit",), 0.7, weight=0.7),
    "houses": Task(tables.houses, 1600, VECTOR, NUMBERS, weight=1.2),
    "arms": Task(tables.arms, 1600, VECTOR, NUMBERS),
    "moons": Task(tables.moons, 1200, VECTOR, ANSWERS, steps=1.5, labels=True),
    "waves": Task(sequences.waves, 1200, SEQUENCE, ANSWERS, steps=1.5, labels=True),
    "forecast": Task(sequences.forecast, 1200, SEQUENCE, {"mse": 3, "l1": 1, "huber": 1}, steps=1.5),
    "language": Task(sequences.language, 1600, SEQUENCE, {"cross_entropy": 1}, steps=2, weight=2, sources=("topics", "code")),
    "masked": Task(sequences.masked, 1600, {"transformer": 3, "moe_transformer": 1}, {"cross_entropy": 1}, steps=2.5, weight=0.8),
    "reversed": Task(sequences.reversed_digits, 2000, {"translator": 1}, {"cross_entropy": 3, "nll": 1}, steps=2.5),
    "communities": Task(sequences.communities, 500, {"gnn": 1}, {"cross_entropy": 4, "nll": 1}, weight=0.7),
    "autoencoder": Task(images.latents, 1437, {"autoencoder": 1}, {"mse": 4, "l1": 1}, PIXELS[:1], 1.5),
    "vae": Task(images.latents, 1437, {"vae": 1}, {"elbo": 1}, ("unit",), 2.5, betas=(1, 0.5, 0.1, 1)),
    "vq": Task(images.latents, 1437, {"vq": 1}, {"committed": 1}, steps=3, betas=(1, 0.5), weight=0.7),
    "denoising": Task(images.denoising, 1437, {"unet": 1}, {"mse": 4, "huber": 1, "l1": 0.5}, steps=2),
    "generation": Task(images.generation, 1437, {"gan": 1}, {"adversarial": 1}, ("unit",), 3),
    "shapes": Task(images.shapes, 400, {"unet": 1}, {"cross_entropy": 4, "weighted": 1}, weight=1.2),
    "views": Task(images.views, 1437, towers("simclr") | towers("simsiam"), {"info_nce": 1}, ("unit",), 2),
    "ranking": Task(relations.ranking, 1600, {"pairwise-mlp": 1}, {"bce": 1}, weight=0.7),
    "policy": Task(relations.policy, 2000, {"actor_critic": 1}, {"actor_critic": 1}, steps=2, betas=(0.01, 0.0, 0.02)),
    "replay": Task(relations.replay, 1600, {"q": 1}, {"temporal_difference": 1}, steps=3, weight=0.8),
    "distilled": Task(images.digits, 1437, {"distilled": 1}, {"distillation": 1}, ("unit",), betas=(0.5, 0.9), weight=0.7),
}
