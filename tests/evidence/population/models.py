"""Architectures by name, how their weights start, and how a trained one is adapted."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tests.evidence.population import special
from tests.evidence.population.bodies import BODIES, Net
from tests.evidence.population.forms import Form
from tests.evidence.population.layers import Attention, Positions, Residual
from tests.evidence.population.losses import build_loss
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.training import Training


def unet(recipe: Recipe, form: Form) -> nn.Module:
    timed = recipe.task == "denoising"
    return special.Unet(recipe, form, form.answers if recipe.task == "shapes" else form.shape[0], timed)


TOWERS = [f"{two}-{body}" for two in ("simclr", "simsiam") for body in ("mlp", "cnn", "resnet")]
MODELS: dict[str, Callable[[Recipe, Form], nn.Module]] = {
    **dict.fromkeys(BODIES, Net), **dict.fromkeys(TOWERS, special.Towers), "unet": unet, "gan": special.Gan,
    "autoencoder": special.Autoencoder, "vae": special.Vae, "vq": special.Vq, "actor_critic": special.ActorCritic, "q": special.Q,
    "pairwise-mlp": lambda recipe, form: special.Pairwise(replace(recipe, model="mlp"), form),
    "distilled": special.Distilled, "translator": special.Translator,
}  # fmt: skip


def initialise(recipe: Recipe, model: nn.Module) -> None:
    """Weights as the recipe starts them; "default" leaves PyTorch's."""
    linear = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.Conv1d)) and m.weight.requires_grad]
    start: dict[str, Callable[[Tensor], Tensor]] = {
        "kaiming": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
        "xavier": nn.init.xavier_uniform_,
        "orthogonal": nn.init.orthogonal_,
        "normal_002": partial(nn.init.normal_, std=0.02),
    }
    if recipe.init in start:
        for module in linear:
            if recipe.init == "orthogonal" and module is getattr(model, "actor", None):
                continue  # it starts at a hundredth
            start[recipe.init](module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    elif recipe.init == "sinks":
        rest_on_the_first(model)
    elif recipe.init in ("zero_last", "small_last") and isinstance(getattr(model, "head", None), nn.Linear):
        with torch.no_grad():
            model.head.weight.mul_(0 if recipe.init == "zero_last" else 0.01)
            model.head.bias.zero_()
    if recipe.offset and recipe.init == "small_last" and isinstance(getattr(model, "head", None), nn.Linear):
        nn.init.constant_(model.head.bias, recipe.offset)  # as Karpathy's recipe: start at the mean of the targets


@torch.no_grad()
def rest_on_the_first(model: nn.Module) -> None:
    """Half of the heads rest on the first place, with a score of 5, as in trained ones (Xiao et al. 2023)."""
    first = next(m for m in model.modules() if isinstance(m, Positions)).table[0].normal_(std=3.0)
    for block in (m for m in model.modules() if isinstance(m, Residual) and isinstance(m.body, Attention)):
        own = getattr(block.body, "attention", block.body)
        weight, bias = (own.qkv.weight, own.qkv.bias) if hasattr(own, "qkv") else (own.in_proj_weight, own.in_proj_bias)
        keys = (weight.chunk(3)[1] @ block.norm(first)).unflatten(0, (block.body.heads, -1))
        bias[: len(first)].unflatten(0, keys.shape)[::2] = (5 / block.body.scale * keys / (keys**2).sum(1, keepdim=True))[::2]


class Lora(nn.Module):
    """A frozen layer with a correction of rank 4 that starts at 0 (Hu et al. 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features**-0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * x @ self.a.T @ self.b.T


def adapt(recipe: Recipe, model: nn.Module) -> None:
    """What is done with a trained body: low ranks in its linear layers, or a new head."""
    if recipe.adapt == "lora":
        model.body.requires_grad_(False)
        for module in list(model.body.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear) and not isinstance(module, Lora | nn.MultiheadAttention):
                    setattr(module, name, Lora(child))
    if recipe.adapt in ("new_head", "lora"):
        model.head.reset_parameters()


def pretrain(training: Training) -> None:
    """Train with Adam: the teacher alone, or the whole on half of the samples; other heads are for coarser classes."""
    recipe, model = training.recipe, training.model
    part = model.teacher if isinstance(model, special.Distilled) else model
    build_loss(training)
    optimizer = torch.optim.Adam(part.parameters(), 2e-3)
    data = training.healthy.train
    if training.data.kind == "classes" and recipe.adapt in ("new_head", "lora"):
        data = data._replace(targets=data.targets // 2)
    for _ in range(recipe.pretrained):
        rows = torch.randint(len(data.inputs[0]) // (2 if recipe.adapt else 1), (64,))
        batch = type(data)(tuple(x[rows] for x in data.inputs), None if data.targets is None else data.targets[rows])
        for prepare in training.data.prepare:
            batch = prepare(training, batch)
        inputs = (batch.inputs[0].flatten(1),) if part is not model else batch.inputs
        optimizer.zero_grad()
        training.loss(part(*inputs), batch).backward()
        optimizer.step()
    optimizer.zero_grad()


FROZEN = {"body": "body.*", "first": "body.0.*"}


def build_model(training: Training) -> None:
    """The architecture with its first weights, adapted and frozen as drawn."""
    recipe = training.recipe
    training.model = MODELS[recipe.model](recipe, training.data.form)
    initialise(recipe, training.model)
    if recipe.pretrained:
        pretrain(training)
    if isinstance(training.model, special.Distilled):
        training.model.teacher.requires_grad_(False)
    if recipe.adapt:
        adapt(recipe, training.model)
    for name, parameter in training.model.named_parameters():
        if recipe.frozen and fnmatch.fnmatch(name, FROZEN[recipe.frozen]):
            parameter.requires_grad_(False)
