"""Faults of the model: activations, dimensions, first weights, norms, shortcuts, attention, cut paths, registration."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.evidence.population.layers import ACTIVATIONS, Attention, Positions, Residual
from tests.evidence.population.operators.fault import (
    Around,
    Group,
    Sites,
    between,
    both,
    head,
    layers,
    of,
    swap,
    validating,
    when,
    whole,
)
from tests.evidence.population.training import Training

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NO_WAY_AROUND = ("mlp", "cnn", "rnn", "gru", "lstm", "gan", "autoencoder", "pairwise-mlp", "q")
fault = Group("model")
activations = layers(*ACTIVATIONS.values())
linear = layers(*LINEAR)
recurrent = layers(nn.RNN, nn.GRU, nn.LSTM)
residual = whole(layers(Residual), 2)


def inner(t: Training) -> list[str]:
    """Linear layers and convolutions that others with weights come after; those of an attention are its own."""
    own = {
        f"{name}.{child}" for name in layers(nn.MultiheadAttention)(t) for child, _ in t.model.get_submodule(name).named_modules()
    }
    return [name for name in linear(t) if name not in own and "target" not in name][:-1]


def before_more(t: Training) -> list[str]:
    """Those of :func:`inner` that do not end a branch or a policy, where zeros are a good start."""
    modules = dict(t.model.named_modules())
    ends = {
        id([m for m in module.body.modules() if isinstance(m, LINEAR)][-1])
        for module in modules.values()
        if isinstance(module, Residual)
    }
    return [name for name in inner(t) if id(modules[name]) not in ends and name not in ("actor", "critic")]


def biased(t: Training) -> list[str]:
    """Linear layers with a bias, next before a rectifier."""
    pairs = pairwise(t.model.named_modules())
    rectified = [
        (name, module) for (name, module), (_, after) in pairs if isinstance(after, nn.ReLU) and isinstance(module, LINEAR)
    ]
    return [name for name, module in rectified if module.bias is not None and module.bias.requires_grad]


chained = when(lambda t: t.recipe.activation != "sigmoid" and t.recipe.model not in ("moe_transformer", "gan"))


def attention(check: Callable[[Attention], bool]) -> Callable[[Training], list[str]]:
    """Attention of our own making, of this kind."""
    return lambda t: [name for name in layers(Attention)(t) if check(t.model.get_submodule(name))]


explicit = attention(lambda own: own.how == "explicit")
scored = attention(lambda own: own.how != "torch")
causal = whole(attention(lambda own: own.causal))


def wrap(t: Training, name: str, function: Callable[[Any], Any]) -> Sites:
    """A function of what a module puts out."""
    swap(t.model, name, Around(t.model.get_submodule(name), function))
    return of([name])


def replaced(t: Training, names: list[str], new: type[nn.Module]) -> Sites:
    """Other modules in the place of these."""
    for name in names:
        swap(t.model, name, new())
    return of(names)


def put(t: Training, names: list[str], **settings: Any) -> Sites:
    """Set these attributes of modules."""
    for name in names:
        vars(t.model.get_submodule(name)).update(settings)
    return of(names)


@torch.no_grad()
def start(t: Training, names: list[str], factor: float, plus: float = 0.0, of_what: str = "weight") -> Sites:
    """Other first weights, or biases."""
    for name in names:
        getattr(t.model.get_submodule(name), of_what).mul_(factor).add_(plus)
    return of(names)


@fault("not_registered in_no_optimizer", "hold the layers in nn.ModuleList", inner)
def layer_in_a_plain_list(t: Training, name: str) -> Sites:
    hidden = [t.model.get_submodule(name)]
    swap(t.model, name, Around(nn.Identity(), lambda x: hidden[0](x)))
    return of([name])


def alike(t: Training) -> list[tuple[str, str]]:
    """Pairs of layers of the same shape."""
    shapes: dict[object, list[str]] = {}
    for name in inner(t):
        module = t.model.get_submodule(name)
        shapes.setdefault((name.partition(".")[0], type(module), module.weight.shape, module.bias is None), []).append(name)
    return [(names[0], names[1]) for names in shapes.values() if len(names) > 1]


@fault("one_layer_shared", "make a layer for each place", alike)
def one_layer_in_two_places(t: Training, pair: tuple[str, str]) -> Sites:
    swap(t.model, pair[1], t.model.get_submodule(pair[0]))
    return of(pair)


def castable(t: Training) -> list[None]:
    """Where all that meets the weights is data."""
    plain = t.data.kind in ("classes", "binary", "numbers", "tokens") and not t.data.prepare
    return [None] if plain and t.recipe.loss != "weighted" and t.recipe.precision == "32-true" and not t.recipe.augment else []


@fault("half_weights rate_too_low", "keep the weights in float32", castable)
def weights_in_half_precision(t: Training, _: None) -> Sites:
    t.model.bfloat16()
    for name in ("train", "validation"):
        batch = getattr(t.data, name)
        inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in batch.inputs)
        setattr(t.data, name, batch._replace(inputs=inputs))


def around(t: Training, names: list[str], turn: Callable[[Any], Any], **settings: Any) -> Sites:
    """A function of what modules take, and again of what they put out."""
    put(t, names, **settings)
    for name in names:
        swap(t.model, name, Around(t.model.get_submodule(name), turn, turn))
    return of(names)


def dropped(t: Training, name: str, module: nn.Module) -> Sites:
    """A dropout before a module."""
    swap(t.model, name, nn.Sequential(module, t.model.get_submodule(name)))
    return of([name])


def dropping(p: float) -> nn.Module:
    """A dropout that does not know of modes."""
    return Around(nn.Identity(), lambda x: F.dropout(x, p))


def squashing(t: Training) -> Callable[[Any], Any]:
    """What people put behind a head."""
    softmax = t.data.kind in ("classes", "tokens")
    return t.pick((F.relu, torch.sigmoid, (lambda x: x.softmax(-1)) if softmax else torch.tanh))


def detached(t: Training, name: str) -> Sites:
    names = inner(t)
    wrap(t, name, torch.Tensor.detach)
    return of(names[: names.index(name) + 1] if t.recipe.model in NO_WAY_AROUND else [name])


def frozen(t: Training, name: str) -> Sites:
    t.model.get_submodule(name).requires_grad_(False)
    return of([name])


def by_sample(t: Training, names: list[str]) -> Sites:
    wide = t.recipe.width
    swap(t.model, names[0], Around(nn.Identity(), lambda x: x + Positions("sinusoidal", len(x), wide).table[:, None].to(x)))
    return of(names)


def reset(t: Training, part: str) -> Sites:
    for module in t.model.get_submodule(part).modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


# fmt: off
fault.by("wrong_dimension", "take the softmax over the keys", explicit,
         softmax_over_queries=lambda t, name: put(t, [name], softmax_dim=t.pick((-2, 1, 0))))
fault.by("viewed_outputs destroyed_inputs viewed_classes", "permute, do not view", layers(nn.Conv2d),
         view_for_permute=lambda t, name: wrap(t, name, lambda x: x.permute(0, 2, 3, 1).reshape(x.shape)))
fault.by("stretching_start initial_scale large_start", "initialise with a gain near 1", whole(inner, 3),
         all_layers_start_large=lambda t, names: start(t, names, between(t, 8, 50)))
fault.by("constant_weights", "initialise with random numbers", before_more,
         weights_of_one_number=lambda t, name: start(t, [name], 0.0, t.pick((0.0, 0.01, 1.0))))
fault.by("offset_bias", "start biases at 0", biased,
         bias_far_below_zero=lambda t, name: start(t, [name], 0.0, -between(t, 3, 30), "bias"))
fault.by("module_setting", "set momentum to 0.1", whole(layers(*BATCH_NORMS)),
         statistics_that_stay=lambda t, names: put(t, names, momentum=t.pick((0.0, 1e-3))))
fault.by("scaled_shortcut", "add the input as it is", residual,
         shortcuts_scaled=lambda t, names: put(t, names, shortcut=t.pick((2.0, 3.0, 0.1))))
fault.by("nonfinite_operation", "add a small number under the root", activations,
         root_of_zero=lambda t, name: wrap(t, name, lambda x: x.relu().sqrt()))
fault.by("squashing_chain", "use ReLU or GELU, or a norm", both(chained, whole(activations, 3)),
         sigmoids_in_a_deep_net=lambda t, names: replaced(t, names, nn.Sigmoid))
fault.by("wrong_axis", "set batch_first=True", whole(recurrent),
         recurrence_over_the_batch=lambda t, names: put(t, names, batch_first=False))
fault.by("stretching_recurrence initial_scale", "initialise orthogonally", whole(recurrent),
         recurrence_that_stretches=lambda t, names: start(t, names, between(t, 4, 30), of_what="weight_hh_l0"))
fault.by("nonfinite_weights", "initialise what torch.empty made", inner,
         weights_never_initialised=lambda t, name: start(t, [name], t.pick((float("nan"), float("inf")))))
fault.by("positions_by_sample", "add positions along the second dimension", whole(layers(Positions)),
         positions_along_the_batch=by_sample)
fault.by("flat_between", "let the gradient pass, straight-through", when(lambda t: hasattr(t.model, "straight_through")),
         no_gradient_through_codes=lambda t, _: setattr(t.model, "straight_through", False))
fault.by("initial_scale large_start stretching_start", "initialise the layer as the others", inner,
         one_layer_starts_large=lambda t, name: start(t, [name], between(t, 20, 200)))
fault.by("small_start initial_scale", "initialise with a gain near 1", whole(inner, 3),
         all_layers_start_small=lambda t, names: start(t, names, 1 / between(t, 30, 1000)))
fault.by("constant_weights", "initialise with random numbers", whole(inner, 2),
         all_weights_zero=lambda t, names: start(t, names, 0.0))
fault.by("module_setting", "set eps to 1e-5", whole(layers(*NORMS)),
         eps_of_a_norm=lambda t, names: put(t, names, eps=t.pick((1.0, 10.0, 1e5))))
fault.by("shortcut_missing", "add the input of the block", residual,
         shortcuts_forgotten=lambda t, names: put(t, names, shortcut=0.0))
fault.by("wrong_mask target_in_input", "pass the causal mask", causal,
         causal_mask_forgotten=lambda t, names: put(t, names, causal=False))
fault.by("cut_path", "do not detach", inner, detached_in_the_middle=detached)
fault.by("no_activation", "put an activation between the layers", whole(activations),
         activations_forgotten=lambda t, names: replaced(t, names, nn.Identity))
fault.by("norm_missing", "put the norms back", whole(layers(*NORMS), 3),
         norms_forgotten=lambda t, names: replaced(t, names, nn.Identity))
fault.by("activation_before_loss no_logits", "let the last layer put out any number", head,
         activation_behind_the_head=lambda t, name: wrap(t, name, squashing(t)))
fault.by("wrong_axis unrelated_targets", "set batch_first=True", whole(layers(Attention)),
         attention_over_the_batch=lambda t, names: around(t, names, lambda x: x.transpose(0, 1), causal=False))
fault.by("inverted_mask wrong_mask target_in_input", "invert the mask", causal,
         causal_mask_inverted=lambda t, names: around(t, names, lambda x: x.flip(1)))
fault.by("module_setting", "drop at most half", head,
         dropout_of_nearly_all=lambda t, name: dropped(t, name, nn.Dropout(t.pick((0.9, 0.95, 0.98)))))
fault.by("drops_in_eval", "pass self.training", both(validating, when(lambda t: not t.recipe.tied), head),
         dropout_in_evaluation=lambda t, name: dropped(t, name, dropping(t.pick((0.3, 0.5, 0.8)))))
fault.by("frozen_by_mistake", "train the layer", both(when(lambda t: t.recipe.frozen != "body"), head), head_frozen=frozen)
fault.by("unscaled_scores", "divide the scores by the root of the head's width", whole(scored),
         scores_not_scaled=lambda t, names: put(t, names, scale=(t.recipe.width / t.recipe.heads) ** t.pick((0.0, 0.5, 1.0))))
fault.by("weights_not_loaded", "load the trained weights", when(lambda t: t.recipe.pretrained > 0),
         trained_weights_not_loaded=lambda t, _: reset(t, "teacher" if hasattr(t.model, "teacher") else "body"))
