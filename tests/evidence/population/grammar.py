"""Draws a recipe from a seed, as often as people choose so.

Sources of the distributions: the defaults of ``torch.optim`` (Adam 1e-3, betas 0.9 and 0.999, AdamW's decay of 0.01;
RMSprop and Adagrad 1e-2), of Lightning (no clipping, 32-true, logging every steps), of timm and torchvision's references
(SGD 0.1 with momentum 0.9 and decay 1e-4, cosine or steps of a tenth, 5 % warm-up, smoothing 0.1), of nanoGPT and Hugging
Face's examples (AdamW, betas 0.9 and 0.95, decay 0.1 or 0.01 but not of norms and biases, clip 1, warm-up 3 to 10 %, cosine
or linear), of Stable-Baselines3 (clip 0.5, orthogonal weights, 3e-4 to 7e-4 and eps 1e-5 in A2C), of DCGAN (Adam 2e-4,
beta1 0.5), of Lion (a third to a tenth of Adam's rate, three to ten times its decay), of Karpathy's "A Recipe for Training
Neural Networks" (3e-4, start at the mean of the targets), and the counts of optimizers in Schmidt et al. 2021 ("Descending
through a Crowded Valley": Adam by far, SGD, RMSprop, Adagrad, …) with AdamW since. Nets here are 20 to 100 times narrower
and trainings 100 times shorter than there, so that usual rates are about three times higher.
"""

from __future__ import annotations

import math
import random
from typing import Any

from tests.evidence.population.recipe import Recipe
from tests.evidence.population.tasks import TASKS, Task, Weights

TRANSFORMERS = ("vit", "transformer", "moe_transformer", "translator")
RECURRENT = ("rnn", "gru", "lstm")
PLAIN = ("q", "actor_critic", "gan", "vae", "vq", "autoencoder", "unet")
"""Where people use no dropout."""
BODIED = ("mlp", "residual_mlp", "cnn", "resnet", "vit", "gru", "lstm", "transformer")
TABLES = ("cancer", "wine", "houses", "arms", "moons")
SLOW = ("vq", "policy", "denoising", "views")
GENERATIVE = ("masked", "language", "denoising", "vae", "vq", "reversed", "autoencoder", "views")
ADAMS = ("adam", "adamw", "amsgrad", "nadam", "radam", "adamax")
OPTIMIZERS: Weights = {
    "adam": 34, "adamw": 28, "sgd": 26, "rmsprop": 3, "nadam": 1.5, "radam": 1.5, "amsgrad": 1, "adagrad": 1.5, "adamax": 1,
    "adadelta": 0.7, "lion": 2.5, "adafactor": 1,
}  # fmt: skip
RATES: Weights = {
    "sgd": 0.08, "rmsprop": 1.5e-3, "adagrad": 2e-2, "adadelta": 1.0, "lion": 5e-4, "adafactor": 1e-2,
    "adamax": 4e-3,
}  # fmt: skip
"""Medians; of the other Adams 2.5e-3."""


class Dice(random.Random):
    """Draws of a recipe."""

    def of(self, weights: Weights) -> str:
        """A key, as often as its weight says."""
        return self.choices(list(weights), list(weights.values()))[0]

    def chance(self, share: float) -> bool:
        return self.random() < share

    def log_normal(self, median: float, spread: float) -> float:
        """A number with two digits; two thirds within a factor of ``spread``."""
        return float(f"{median * spread ** self.gauss(0, 1):.1e}")


def draw(seed: int, task: str = "") -> Recipe:
    """Draw a recipe from the seed alone, or one of a task."""
    dice = Dice(seed)
    drawn = dice.of({name: task.weight for name, task in TASKS.items()})
    name = task or drawn
    of = TASKS[name]
    model = dice.of(of.models)
    fields: dict[str, Any] = {"seed": seed, "task": name, "model": model, "source": dice.choice(of.sources)}
    fields |= data(dice, of, name)
    fields |= architecture(dice, model)
    fields |= objective(dice, of, fields)
    fields |= length(dice, of, fields)
    fields |= optimizer(dice, fields)
    fields |= schedule(dice, fields)
    fields |= loop(dice, fields)
    fields |= adaptation(dice, fields)
    fields |= observation(dice)
    if fields["optimizer"] == "lbfgs":
        fields |= second_order(dice, fields)
    return Recipe(**fields)


def second_order(dice: Dice, so_far: dict[str, Any]) -> dict[str, Any]:
    """L-BFGS: a few steps of all samples or half of them, nothing that draws numbers or comes between gradients and step."""
    return {
        "rate": dice.choice((1.0, 1.0, 0.5)), "batch_size": so_far["samples"] // dice.choice((1, 1, 2)),
        "steps": dice.randint(30, 40), "width": min(so_far["width"], 64), "drop_last": False,
        "decay": 0.0, "groups": "one", "schedule": "none", "warmup": 0.0, "interval": "step", "accumulation": 1, "clip": 0.0,
        "clip_by": "", "precision": "32-true", "manual": False, "optimizers": 1, "dropout": 0.0, "norm": "none", "augment": "",
    }  # fmt: skip


def data(dice: Dice, task: Task, name: str) -> dict[str, Any]:
    """Few samples now and then; one in ten sets of labels is noisy or imbalanced."""
    few = dice.chance(0.25)
    samples = round(task.samples * (dice.uniform(0.3, 1) if few else 1))
    inputs = dice.choice(("standard", *task.scaled)) if dice.chance(0.6) else "standard"
    if inputs == "raw" and dice.chance(0.5):
        inputs = "unit"
    noisy = {"digits": 0.2, "distilled": 0.3, "houses": 0.06, "moons": 0.06, "waves": 0.06}.get(name, 0.0)
    numbers = name in ("diabetes", "houses", "arms", "forecast")
    return {
        "samples": samples, "inputs": inputs,
        "label_noise": dice.choice((0.05, 0.1, 0.2)) if task.labels and dice.chance(0.18) else 0.0,
        "imbalance": dice.choice((0.1, 0.3)) if name in ("digits", "moons", "waves") and dice.chance(0.2) else 1.0,
        "offset": dice.choice((1.0, 3.0, 10.0, -2.0)) if numbers and dice.chance(0.25) else 0.0,
        "augment": "noise" if dice.chance(noisy) else "",
    }  # fmt: skip


def architecture(dice: Dice, model: str) -> dict[str, Any]:
    """Sizes, activations, norms as they go with an architecture."""
    transformer, recurrent = model in TRANSFORMERS, model in RECURRENT
    image = any(part in model for part in ("cnn", "resnet", "unet"))
    if transformer:
        norm = dice.of({"layer": 8, "rms": 2})
        activation = dice.of({"gelu": 6, "relu": 2.5, "silu": 1.5})
    elif image:
        norm = dice.of({"batch": 6, "none": 2 if "resnet" not in model else 0.3, "group": 1.5})
        activation = dice.of({"relu": 7, "gelu": 1, "silu": 1.5, "leaky_relu": 1, "elu": 0.3})
    else:
        norm = dice.of({"none": 7, "batch": 2, "layer": 1.5})
        rare = {"leaky_relu": 0.8, "elu": 0.5, "selu": 0.3, "sigmoid": 0.2}
        activation = dice.of({"relu": 8, "gelu": 1.2, "silu": 1, "tanh": 1.2, **rare})
    if model in ("actor_critic", "q"):
        norm, activation = dice.of({"none": 9, "layer": 1}), dice.of({"tanh": 4, "relu": 5})
    if model in RECURRENT or model == "gnn" or (model == "gan" and norm == "batch"):
        norm = "none"
    init = dice.of({"default": 7, "kaiming": 1, "xavier": 1, "orthogonal": 0.4, "zero_last": 0.3, "small_last": 0.3})
    if transformer:
        init = dice.of(
            {"default": 4, "normal_002": 3, "xavier": 2, "zero_last": 0.4, "sinks": 0.0 if model == "translator" else 0.5}
        )
    if model == "actor_critic":
        init = dice.of({"orthogonal": 6, "default": 4})
    depth = dice.choice((1, 2, 2, 3) if image else (1, 2, 2, 3, 3, 4))
    width = dice.choice((16, 32, 32) if image else (32, 64, 64, 64, 128, 128, 256, 512))
    if model == "gnn":
        width = min(width, 64)
    if recurrent:
        width, depth = dice.choice((32, 48, 64)), dice.choice((1, 1, 2))
    if transformer:
        width, depth = 16 if dice.chance(0.1) else 32, dice.choice((1, 1, 2))
    dropout = dice.of({"0": 6, "0.1": 3, "0.2": 1.5, "0.3": 0.7, "0.5": 0.0 if transformer or recurrent else 1.0})
    if model in PLAIN or "-" in model:
        dropout = "0"
    attention = dice.of({"sdpa": 4, "explicit": 3, "torch": 3}) if transformer else ""
    position = dice.of({"learned": 5, "sinusoidal": 3, "none": 0.3})
    wide, sinks = width >= 256, init == "sinks"
    return {
        "width": width, "depth": min(depth, 2) if wide else depth + (2 if model == "cnn" else 0),
        "heads": (2 if width == 16 else dice.choice((2, 4))) if transformer else 0,
        "kernel": dice.choice((3, 3, 3, 5)) if image else 0,
        "attention": "torch" if model == "translator" else attention, "activation": activation if model not in RECURRENT else "",
        "norm": norm, "pre_norm": dice.chance(0.75) or sinks, "dropout": dropout, "init": init, "bias": dice.chance(0.7) or sinks,
        "tied": "transformer" in model and dice.chance(0.4),
        "position": "learned" if sinks else position if "transformer" in model or "vit" in model else "",
    }  # fmt: skip


def objective(dice: Dice, task: Task, so_far: dict[str, Any]) -> dict[str, Any]:
    loss = dice.of(task.losses)
    if so_far["model"].split("-")[0] in ("simsiam",):
        loss = "negative_cosine"
    smoothing = 0.1 if loss == "cross_entropy" and dice.chance(0.15) else 0.0
    beta = dice.choice(task.betas) if len(task.betas) > 1 or so_far["model"].startswith("moe") else 0.0
    tied = so_far["tied"] and so_far["task"] in ("language", "masked")
    return {"tied": tied, "loss": loss, "smoothing": smoothing, "beta": float(beta), "dropout": float(so_far["dropout"])}


def length(dice: Dice, task: Task, so_far: dict[str, Any]) -> dict[str, Any]:
    """Batch size and steps; a run in twelve is one epoch, and one in twelve is long."""
    batch = dice.choice((16, 32, 32, 64, 64, 64, 128, 256))
    if so_far["task"] in ("views", "policy", "replay", "generation"):
        batch = dice.choice((64, 128, 128))
    if so_far["model"] in TRANSFORMERS + RECURRENT or so_far["task"] == "shapes":
        batch = min(batch, 32)
    batch = min(batch, 2 ** int(math.log2(so_far["samples"] / 4)))
    steps = task.steps * math.exp(dice.uniform(math.log(70), math.log(240)))
    if dice.chance(0.08) and so_far["samples"] // 16 >= 45 * task.steps:
        batch = 16 if so_far["samples"] // batch < 45 * task.steps else batch
        steps = so_far["samples"] // batch
    elif dice.chance(0.1) and so_far["width"] <= 64 and so_far["model"] in ("mlp", "residual_mlp", "pairwise-mlp", "q"):
        steps = dice.uniform(800, 2000)
    accumulation = (
        dice.choice((2, 4)) if dice.chance(0.13) and batch <= 64 and so_far["task"] not in ("generation", "policy") else 1
    )
    if so_far["loss"] == "gaussian":
        steps *= 1.5
    if so_far["kernel"] and accumulation == 1:
        steps *= 2 if so_far["norm"] == "none" else 1.3
    slow = so_far["model"] in (*RECURRENT, "gnn") or so_far["task"] in SLOW
    limit = (
        (400 if so_far["task"] in ("language", "masked", "reversed") else 170)
        if so_far["model"] in TRANSFORMERS
        else 250
        if slow
        else 500
    )
    steps = min(steps / accumulation**0.25, limit if steps < 800 else 2000)
    return {"batch_size": batch, "steps": max(30, round(steps)), "accumulation": accumulation}


def wide_relu(so_far: dict[str, Any]) -> bool:
    """Whether it has far more rectified units than it needs."""
    return so_far["model"] == "mlp" and so_far["width"] >= 128 and (so_far["activation"], so_far["norm"]) == ("relu", "none")


def optimizer(dice: Dice, so_far: dict[str, Any]) -> dict[str, Any]:
    """The optimizer, its rate by architecture and length, and the rest mostly as it is by default."""
    model, task = so_far["model"], so_far["task"]
    weights = dict(OPTIMIZERS)
    if model in TRANSFORMERS or task in GENERATIVE:
        weights |= {"sgd": 1.5, "adamw": 50, "adadelta": 0, "adagrad": 0.5}
    if model in RECURRENT or task in ("policy", "replay"):
        weights |= {"sgd": 3, "adadelta": 0}
    if any(part in model for part in ("cnn", "resnet", "unet")):
        weights |= {"sgd": 36}
    if model in ("mlp", "residual_mlp") and task in TABLES:
        weights |= {"lbfgs": 4}
    if model == "gan":
        weights = {"adam": 8, "adamw": 1, "rmsprop": 1}
    name = dice.of({key: weight for key, weight in weights.items() if weight})
    median = RATES.get(name, 2.5e-3)
    if model in TRANSFORMERS:
        median *= 1.2
    if model == "gan":
        median = 5e-4
    if task in ("policy",):
        median *= 2  # returns are noisy
    if model == "mlp" and so_far["norm"] == "none" and name == "sgd":
        median *= 0.7
    if so_far["width"] >= 256:
        median *= 0.5
    if dice.chance(0.03):
        median *= 4
    elif wide_relu(so_far) and name in ADAMS and dice.chance(0.4):
        median *= dice.choice((10, 30))  # most units die early, and the others are enough
    median *= (250 / so_far["steps"]) ** 0.4
    plain = name == "sgd" and dice.chance(0.25)
    momentum = 0.9 if name == "sgd" and not plain else 0.0
    if name == "sgd" and not plain:
        median *= 0.5
    betas = (0.9, 0.99) if name == "lion" else (0.5, 0.999) if model == "gan" and dice.chance(0.7) else (0.9, 0.999)
    if name in ADAMS and model in TRANSFORMERS and dice.chance(0.35):
        betas = dice.choice(((0.9, 0.95), (0.9, 0.98)))
    decay = dice.choice((0.01, 0.01, 0.01, 0.01, 0.01, 0.1, 0.1, 0.05, 0.05, 0.0)) if name in ("adamw", "lion") else 0.0
    if name in ("sgd", "adam") and dice.chance(0.3):
        decay = dice.choice((1e-4, 1e-4, 5e-4, 1e-5))
    eps = dice.choice((1e-6, 1e-5)) if name in ADAMS and dice.chance(0.1) else 1e-8
    return {
        "optimizer": name, "rate": dice.log_normal(median, 1.6), "momentum": momentum,
        "nesterov": bool(momentum) and name == "sgd" and dice.chance(0.25), "betas": betas, "eps": eps, "decay": decay,
        "groups": dice.of({"one": 8, "no_decay": 4 if decay and name == "adamw" else 0, "head": 2}),
    }  # fmt: skip


def schedule(dice: Dice, so_far: dict[str, Any]) -> dict[str, Any]:
    """None in half of all; transformers warm up."""
    modern = so_far["model"] in TRANSFORMERS
    name = dice.of(
        {"none": 3 if modern else 8, "cosine": 4, "linear": 2 if modern else 0.7, "step": 1.2, "multistep": 0.7, "exponential": 0.7}
        | {"onecycle": 1.2, "plateau": 0.8}
    )
    manual = so_far["model"] == "gan"
    epochs = so_far["steps"] * so_far["accumulation"] * so_far["batch_size"] / so_far["samples"]
    if name == "plateau" and (manual or epochs < 12):
        name = "cosine"
    if name == "onecycle" and so_far["optimizer"] not in ("sgd", "adam", "adamw", "amsgrad", "nadam", "radam"):
        name = "none"
    if so_far["model"] == "gan" and dice.chance(0.7):
        name = "none"
    slow = name in ("step", "multistep", "exponential", "cosine", "none") and dice.chance(0.5)
    interval = "epoch" if slow and epochs >= 6 else "step"
    interval = "epoch" if name == "plateau" else interval
    warm = name not in ("plateau", "onecycle") and dice.chance(0.7 if modern else 0.1) and interval == "step"
    return {"schedule": name, "warmup": dice.choice((0.03, 0.05, 0.1)) if warm else 0.0, "interval": interval}


def loop(dice: Dice, so_far: dict[str, Any]) -> dict[str, Any]:
    model, task = so_far["model"], so_far["task"]
    clipped = dice.chance(0.65 if model in TRANSFORMERS + RECURRENT else 0.5 if task == "policy" else 0.12)
    by = "value" if dice.chance(0.08) else "norm"
    watched = "epoch_loss" if so_far["schedule"] == "plateau" else "-"
    manual = model == "gan" or (so_far["schedule"] != "plateau" and dice.chance(0.05))
    many = manual and model in (*BODIED, "actor_critic") and dice.chance(0.4)
    return {
        "precision": "bf16-mixed" if dice.chance(0.07) and model not in RECURRENT else "32-true",
        "clip": (0.5 if by == "value" else dice.choice((1.0, 1.0, 1.0, 0.5, 5.0))) if clipped else 0.0,
        "clip_by": by if clipped else "",
        "ema": dice.choice((0.95, 0.99)) if dice.chance(0.25 if task in ("denoising", "generation") else 0.04) else 0.0,
        "manual": manual, "optimizers": 2 if model == "gan" or many else 1,
        "shuffle": task not in ("forecast", "language") or dice.chance(0.85),
        "drop_last": dice.chance(0.4) or so_far["norm"] == "batch" or "-" in model,
        "logged": tuple(name for name, share in HABITS.items() if dice.chance(share) or watched in name),
        "validate": dice.chance(0.8),
    }  # fmt: skip


HABITS = {"loss": 0.9, "progress": 0.5, "epoch_loss": 0.25, "accuracy": 0.4}


def adaptation(dice: Dice, so_far: dict[str, Any]) -> dict[str, Any]:
    """One in eight trainings that have a body continues with a trained one."""
    steps = 250 if so_far["model"] in ("distilled", *BODIED) else 0
    result: dict[str, Any] = {"adapt": "", "pretrained": 250 if so_far["model"] == "distilled" else 0, "frozen": ""}
    result["groups"] = "one" if so_far["groups"] == "head" else so_far["groups"]  # a faster head is for trained bodies
    if not (so_far["model"] in BODIED and so_far["optimizer"] not in ("adadelta", "adagrad", "lbfgs")):
        return result
    if dice.chance(0.22) and so_far["optimizers"] == 1 and not so_far["tied"]:
        lowered = {"new_head": 1.0, "lora": 1.0, "continue": dice.choice((0.2, 0.2, 0.02))}
        able = so_far["optimizer"] in ("adam", "adamw") and (so_far["model"] in ("vit", "transformer") or wide_relu(so_far))
        kinds = {"new_head": 3, "continue": 2} | ({"lora": 4 if able else 0})
        adapt = dice.of(kinds)
        first = "first" if adapt == "continue" and dice.chance(0.3) else ""
        frozen = dice.of({"": 1, "body": 1.2}) if adapt == "new_head" else first
        rate = float(f"{so_far['rate'] * lowered[adapt]:.1e}")
        return {"adapt": adapt, "pretrained": steps, "frozen": frozen, "rate": rate}
    return result


def observation(dice: Dice) -> dict[str, Any]:
    """``TrainingMonitor()`` in most; some sample more or less often, or close their own windows."""
    watched: dict[str, Any] = {}
    if dice.chance(0.2):
        watched["every_n_steps"] = dice.choice((1, 5, 20, 50))
    if dice.chance(0.12):
        watched["report_every_n_steps"] = dice.choice((25, 50, 100))
    return {"watched": tuple(watched.items())}
