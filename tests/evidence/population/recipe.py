"""The plain values that a training is drawn as. :func:`draw` is in :mod:`tests.evidence.population.grammar`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training. Every choice is a field; "" or 0 where a choice has no meaning for the task or the architecture.

    Attributes:
        seed: From which everything was drawn, also the weights and the order of the data.
        task: Name of the data and what is asked of them: a key of ``tasks.TASKS``.
        source: Which data, where a task has several.
        samples: Of training.
        inputs: ``"standard"`` (mean 0, deviation 1), ``"unit"`` (0 to 1) or ``"raw"``.
        label_noise: Share of wrong training labels.
        imbalance: The rarest class has this share of its samples (1: all).
        offset: Added to the targets of a regression, in deviations.
        augment: ``""``, ``"noise"``, ``"shift"``, ``"flip"`` or ``"mixup"``.
        model: Architecture: a key of ``models.MODELS``.
        width, depth, heads, kernel: Sizes.
        attention: ``"sdpa"``, ``"explicit"`` (a softmax written out) or ``"torch"`` (``nn.MultiheadAttention``).
        activation: ``"relu"``, ``"gelu"``, ``"silu"``, ``"tanh"``, ``"leaky_relu"``, ``"elu"``, ``"sigmoid"``, ``"selu"``.
        norm: ``"none"``, ``"batch"``, ``"layer"``, ``"group"`` or ``"rms"``.
        pre_norm: Of residual blocks.
        dropout: Share.
        init: ``"default"``, ``"kaiming"``, ``"xavier"``, ``"orthogonal"``, ``"normal_002"``
            (GPT-2), ``"zero_last"``, ``"small_last"``.
        bias: Whether layers before a norm have a bias.
        tied: Whether a language model's head is its embedding.
        position: ``"learned"``, ``"sinusoidal"``, ``"rotary"`` or ``"none"``.
        loss: ``"cross_entropy"``, ``"mse"``, ``"l1"``, ``"huber"``, ``"bce"``, ``"focal"``, ``"info_nce"``, ….
        smoothing: Label smoothing.
        beta: Weight of a second term (KL, commitment, balance, entropy, distillation).
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, ``"rmsprop"``, …, ``"lion"``.
        rate, momentum, betas, eps, decay: Of the optimizer. ``nesterov`` of SGD.
        groups: ``"one"``, ``"no_decay"`` (norms and biases without decay), ``"head"`` (ten times the rate for the last layer).
        optimizers: How many.
        schedule: ``"none"``, ``"cosine"``, ``"linear"``, ``"step"``, ``"multistep"``, ``"exponential"``, ``"onecycle"``,
            ``"plateau"``, ``"restarts"``.
        warmup: Share of the steps.
        interval: ``"step"`` or ``"epoch"``.
        steps, batch_size, accumulation, precision, clip, clip_by, ema: Of the loop.
        manual: Manual optimization.
        frozen: ``""``, ``"body"``, ``"first"``, ``"norms"`` or ``"bias"``.
        adapt: What is done with a trained model: ``""``, ``"new_head"``, ``"continue"`` or ``"lora"``.
        pretrained: Steps of the training before, also of a teacher.
        shuffle, drop_last: Of the loader.
        logged: What ``training_step`` logs.
        validate: Whether there is a validation loop.
        watched: Arguments of ``TrainingMonitor``, as pairs.
    """

    seed: int
    task: str
    source: str
    samples: int
    inputs: str
    label_noise: float
    imbalance: float
    offset: float
    augment: str
    model: str
    width: int
    depth: int
    heads: int
    kernel: int
    attention: str
    activation: str
    norm: str
    pre_norm: bool
    dropout: float
    init: str
    bias: bool
    tied: bool
    position: str
    loss: str
    smoothing: float
    beta: float
    optimizer: str
    rate: float
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    eps: float
    decay: float
    groups: str
    optimizers: int
    schedule: str
    warmup: float
    interval: str
    steps: int
    batch_size: int
    accumulation: int
    precision: str
    clip: float
    clip_by: str
    ema: float
    manual: bool
    frozen: str
    adapt: str
    pretrained: int
    shuffle: bool
    drop_last: bool
    logged: tuple[str, ...]
    validate: bool
    watched: tuple[tuple[str, Any], ...]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def draw(seed: int, task: str = "") -> Recipe:
    """Draw one, from the seed alone, or one of a task."""
    from tests.evidence.population.grammar import draw

    return draw(seed, task)
