"""What one training of the population is made of, stage by stage, and what an operator is that changes it.

A :class:`Training` is built in the order of :data:`STAGES`; an operator changes it right after its stage, so that what is built
later is built of what it changed: an optimizer is made for the changed model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tests.evidence.population.forms import Form
from tests.evidence.population.recipe import Recipe

if TYPE_CHECKING:
    from tests.evidence.population.operators.fault import Fault

AGAIN = 500_000_000
"""Added to a recipe's seed for other weights and another order of the data: an operator's choices stay."""
STAGES = ("data", "model", "loss", "optimizer", "schedule", "training")


class Batch(NamedTuple):
    """The inputs of a call of the model, and the targets, if there are any."""

    inputs: tuple[Tensor, ...]
    targets: Tensor | None


Score = Callable[[nn.Module, Batch], float]


@dataclass
class Data:
    """Samples in memory: first dimension the sample; what is prepared batch by batch (noise, masks, views) is in the loop.

    Attributes:
        train, validation: All samples.
        kind: What an answer is: ``"classes"``, ``"binary"``, ``"numbers"``, ``"tokens"`` (one class a
            position), ``"masks"`` (one class a pixel), ``"inputs"`` (the input again), ``"sampled"`` (new samples), ``"pairs"``
            (two towers), ``"ranking"``, ``"actions"``.
        form: What a model takes and gives.
        score: ``score(model, validation)``, larger is better, of a model in evaluation mode, without gradients.
        constant: The score of the best answer that does not look at the input.
        prepare: What a task itself does to each training batch; it is in ``Loop.prepare``, before augmentation.
    """

    train: Batch
    validation: Batch
    kind: str
    form: Form
    score: Score
    constant: float
    prepare: list[Callable[[Training, Batch], Batch]] = field(default_factory=list)


@dataclass
class Loop:
    """How it is trained. All are plain switches that an operator may turn, or lists of calls that it may extend.

    Attributes:
        prepare: Called in turn on each training batch, ``(training, batch) -> batch``. They draw from torch's global generator, as
            users' code does. Validation samples are prepared once.
        clip_at: ``"before_step"`` as Lightning does it, ``"after_step"`` (too late) or ``"before_backward"``.
        divide: Whether the loss is divided by ``accumulation`` where optimization is manual.
        turns: Losses in a step, each for one optimizer (a GAN: 2; ``model(*inputs, turn=i)``), only with ``manual``.
        train_mode, eval_mode: Whether the model is in training mode while it trains, in evaluation mode for the score.
        ema: Decay of the average of weights that the score uses, or None.
        frozen: Patterns (``fnmatch``) of parameters without gradients.
        before_step, after_step: Called as ``(training, batch_idx)``, after backward, and after the step and ``zero_grad``.
        watched: Arguments of ``TrainingMonitor``.
    """

    steps: int
    batch_size: int
    shuffle: bool = True
    drop_last: bool = False
    prepare: list[Callable[[Training, Batch], Batch]] = field(default_factory=list)
    clip: float | None = None
    clip_by: str = "norm"
    clip_at: str = "before_step"
    accumulation: int = 1
    divide: bool = True
    precision: str = "32-true"
    zero_grad: bool = True
    manual: bool = False
    turns: int = 1
    interval: str = "step"
    train_mode: bool = True
    eval_mode: bool = True
    ema: float | None = None
    frozen: tuple[str, ...] = ()
    before_step: list[Callable[[Training, int], None]] = field(default_factory=list)
    after_step: list[Callable[[Training, int], None]] = field(default_factory=list)
    logged: tuple[str, ...] = ("loss",)
    validate: bool = True
    watched: dict[str, Any] = field(default_factory=dict)


@dataclass
class Training:
    """Everything one training is made of. An attribute is there from its stage on.

    An operator's own choices (which layer, which column) are drawn from ``generator``, and nothing else is.
    ``healthy`` are the data before operators.
    ``loss(outputs, batch)`` returns a scalar; ``schedulers`` has one entry for each optimizer, or none.
    """

    recipe: Recipe
    generator: torch.Generator
    data: Data = field(init=False)
    healthy: Data = field(init=False)
    model: nn.Module = field(init=False)
    loss: Callable[[Any, Batch], Tensor] = field(init=False)
    optimizers: list[Optimizer] = field(init=False)
    schedulers: list[LRScheduler] = field(init=False)
    loop: Loop = field(init=False)

    def pick(self, choices: Any) -> Any:
        """One of these, from the operator's own generator."""
        some = list(choices)
        return some[int(torch.randint(len(some), (1,), generator=self.generator))]


def build(recipe: Recipe, operators: tuple[Fault, ...] = ()) -> tuple[Training, dict[str, tuple[str, ...] | None]]:
    """Build a training from its recipe alone, changed by these operators; and the sites at fault, by operator."""
    from tests.evidence.population.stages import BUILDERS

    torch.manual_seed(recipe.seed)
    own = torch.Generator().manual_seed(recipe.seed % AGAIN)
    training, sites = Training(recipe, own), dict[str, tuple[str, ...] | None]()
    for stage in STAGES:
        BUILDERS[stage](training)
        torch.manual_seed(recipe.seed + 1 + STAGES.index(stage))
        for operator in operators:
            if operator.stage == stage:
                sites[operator.name] = operator.change(training)
        torch.manual_seed(recipe.seed + 101 + STAGES.index(stage))
    return training, sites
