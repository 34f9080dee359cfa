"""Faults of the model: activations, dimensions, first weights, norms, shortcuts, attention, cut paths, registration."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from tests.evidence.population.layers import ACTIVATIONS, Attention, Positions, Residual
from tests.evidence.population.operators.fault import (
    After,
    Around,
    Sites,
    between,
    both,
    fault,
    head,
    layers,
    of,
    swap,
    when,
    whole,
)  # fmt: skip
from tests.evidence.population.training import Training

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
activations = layers(*ACTIVATIONS.values())
linear = layers(*LINEAR)


def inner(t: Training) -> list[str]:
    """Linear layers and convolutions that others with weights come after; those of an attention are its own."""
    names = [name for name in linear(t) if not isinstance(_parent(t, name), nn.MultiheadAttention) and "target" not in name]
    return names[:-1]


def biased(t: Training) -> list[str]:
    """Of these, those with a bias, next before a rectifier."""
    modules = dict(t.model.named_modules())
    names = list(modules)
    pairs = pairwise(names)
    rectified = (name for name, after in pairs if isinstance(modules[after], nn.ReLU) and isinstance(modules[name], LINEAR))
    return [name for name in rectified if modules[name].bias is not None and modules[name].bias.requires_grad]


def _parent(t: Training, name: str) -> nn.Module:
    return t.model.get_submodule(name.rpartition(".")[0])


def attention(t: Training) -> list[str]:
    """Attention of our own making, with the scores in the open."""
    return [name for name in layers(Attention)(t) if t.model.get_submodule(name).how != "torch"]


def explicit(t: Training) -> list[str]:
    return [name for name in attention(t) if t.model.get_submodule(name).how == "explicit"]


def causal(t: Training) -> list[str]:
    return [name for name in layers(Attention)(t) if t.model.get_submodule(name).causal]


def wrap(t: Training, name: str, function: object) -> Sites:
    """A function of what a module puts out."""
    swap(t.model, name, After(t.model.get_submodule(name), function))
    return of([name])


@torch.no_grad()
def scale(t: Training, names: list[str], factor: float) -> Sites:
    """Other first weights."""
    for name in names:
        t.model.get_submodule(name).weight.mul_(factor)
    return of(names)


# Activations.


@fault("model", "no_activation", "put an activation between the layers", where=whole(activations),
       harmless="some tasks are nearly linear", code="nn.Sequential(linear, nn.ReLU(), …)")  # fmt: skip
def activations_forgotten(t: Training, names: list[str]) -> Sites:
    for name in names:
        swap(t.model, name, nn.Identity())


@fault("model", "squashing_chain", "use ReLU or GELU, or a norm", where=whole(activations, 3))
def sigmoids_in_a_deep_net(t: Training, names: list[str]) -> Sites:
    for name in names:
        swap(t.model, name, nn.Sigmoid())
    return of(names)


@fault("model", "activation_before_loss", "let the last layer put out any number", also=("no_logits",), where=head, code="return x")
def activation_behind_the_head(t: Training, name: str) -> Sites:
    of_classes = t.data.kind in ("classes", "tokens")
    return wrap(t, name, t.pick((F.relu, torch.sigmoid, (lambda x: x.softmax(-1)) if of_classes else torch.tanh)))


# Dimensions.


@fault("model", "wrong_dimension", "take the softmax over the keys", where=explicit, code="scores.softmax(-1)")
def softmax_over_queries(t: Training, name: str) -> Sites:
    t.model.get_submodule(name).softmax_dim = t.pick((-2, 1, 0))
    return of([name])


@fault("model", "wrong_axis", "set batch_first=True", where=whole(layers(Attention)), code="batch_first=True",
       also=("unrelated_targets",))  # fmt: skip
def attention_over_the_batch(t: Training, names: list[str]) -> Sites:
    for name in names:
        own = t.model.get_submodule(name)
        own.causal = False
        swap(t.model, name, Around(own, lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 1)))
    return of(names)


@fault("model", "wrong_axis", "set batch_first=True", where=whole(layers(nn.RNN, nn.GRU, nn.LSTM)),
       code="nn.LSTM(…, batch_first=True)")  # fmt: skip
def recurrence_over_the_batch(t: Training, names: list[str]) -> Sites:
    for name in names:
        t.model.get_submodule(name).batch_first = False
    return of(names)


@fault("model", "positions_by_sample", "add positions along the sequence", where=layers(Positions), also=("wrong_axis",))
def positions_along_the_batch(t: Training, name: str) -> Sites:
    angle = torch.arange(1024)[:, None] * 10_000 ** (-torch.arange(t.recipe.width) / t.recipe.width)
    swap(t.model, name, After(nn.Identity(), lambda x: x + angle.sin()[: len(x), None, :].to(x.dtype)))
    return of([name])


@fault("model", "viewed_outputs", "permute, do not view", also=("destroyed_inputs", "viewed_classes"), where=layers(nn.Conv2d),
       code="x = x.permute(0, 2, 3, 1)")  # fmt: skip
def view_for_permute(t: Training, name: str) -> Sites:
    return wrap(t, name, lambda x: x.permute(0, 2, 3, 1).reshape(x.shape))


@fault("model", "bottleneck", "keep the width", where=both(head, inner), also=("representation_collapse",))
def layer_of_one_unit(t: Training, _: str) -> Sites:
    name = head(t)[0]
    last, few = t.model.get_submodule(name), t.pick((1, 1, 2))
    swap(t.model, name, nn.Sequential(nn.Linear(last.in_features, few), nn.ReLU(), nn.Linear(few, last.out_features)))
    return of([name])


# First weights.


@fault("model", "initial_scale", "initialise the layer as the others", where=inner, also=("large_start", "stretching_start"),
       harmless="a norm behind it undoes it", code="nn.init.kaiming_normal_(layer.weight)")  # fmt: skip
def one_layer_starts_large(t: Training, name: str) -> Sites:
    return scale(t, [name], between(t, 20, 2000))


@fault("model", "stretching_start", "initialise with a gain near 1", where=whole(inner, 3), also=("initial_scale", "large_start"))
def all_layers_start_large(t: Training, names: list[str]) -> Sites:
    return scale(t, names, between(t, 8, 50))


@fault("model", "small_start", "initialise with a gain near 1", where=whole(inner, 3), also=("initial_scale",))
def all_layers_start_small(t: Training, names: list[str]) -> Sites:
    return scale(t, names, 1 / between(t, 30, 1000))


@fault("model", "constant_weights", "initialise with random numbers", where=inner, code="nn.init.xavier_uniform_(layer.weight)")
def weights_of_one_number(t: Training, name: str) -> Sites:
    nn.init.constant_(t.model.get_submodule(name).weight, t.pick((0.0, 0.01, 1.0)))
    return of([name])


@fault("model", "constant_weights", "initialise with random numbers", where=whole(inner, 2))
def all_weights_zero(t: Training, names: list[str]) -> Sites:
    for name in names:
        nn.init.zeros_(t.model.get_submodule(name).weight)
    return of(names)


@fault("model", "offset_bias", "start biases at 0", where=biased, code="nn.init.zeros_(layer.bias)")
def bias_far_below_zero(t: Training, name: str) -> Sites:
    nn.init.constant_(t.model.get_submodule(name).bias, -between(t, 5, 300))
    return of([name])


# Norms, dropout, shortcuts.


@fault("model", "module_setting", "set eps to 1e-5", where=whole(layers(*NORMS)), code="nn.LayerNorm(width, eps=1e-5)",
       harmless="the weights behind it grow instead")  # fmt: skip
def eps_of_a_norm(t: Training, names: list[str]) -> Sites:
    eps = t.pick((1.0, 100.0, 1e5))  # 1e5 for 1e-5
    for name in names:
        t.model.get_submodule(name).eps = eps
    return of(names)


@fault(
    "model", "module_setting", "set momentum to 0.1", where=whole(layers(*BATCH_NORMS)), code="nn.BatchNorm2d(width, momentum=0.1)"
)
def statistics_that_stay(t: Training, names: list[str]) -> Sites:
    momentum = t.pick((0.0, 1e-4, 1e-3))
    for name in names:
        t.model.get_submodule(name).momentum = momentum
    return of(names)


@fault("model", "norm_missing", "put the norms back", where=whole(layers(*NORMS), 3), harmless="short trainings do without")
def norms_forgotten(t: Training, names: list[str]) -> Sites:
    for name in names:
        swap(t.model, name, nn.Identity())


@fault("model", "module_setting", "drop at most half", where=head, code="nn.Dropout(0.1)")
def dropout_of_nearly_all(t: Training, name: str) -> Sites:
    p = t.pick((0.9, 0.95, 0.98, 0.995))
    swap(t.model, name, nn.Sequential(nn.Dropout(p), t.model.get_submodule(name)))
    return of([name])


@fault("model", "drops_in_eval", "pass self.training", where=both(head, when(lambda t: not t.recipe.tied)),
       code="F.dropout(x, p, training=self.training)", harmless="a little noise is borne")  # fmt: skip
def dropout_in_evaluation(t: Training, _: None) -> Sites:
    name, p = head(t)[0], t.pick((0.3, 0.5, 0.8))
    swap(t.model, name, nn.Sequential(After(nn.Identity(), lambda x: F.dropout(x, p)), t.model.get_submodule(name)))
    return of([name])


@fault("model", "shortcut_missing", "add the input of the block", where=whole(layers(Residual), 2), code="return x + self.body(x)",
       harmless="a shallow net does without")  # fmt: skip
def shortcuts_forgotten(t: Training, names: list[str]) -> Sites:
    for name in names:
        t.model.get_submodule(name).shortcut = 0.0
    return of(names)


@fault("model", "scaled_shortcut", "add the input as it is", where=whole(layers(Residual), 2), code="return x + self.body(x)",
       harmless="norms undo it")  # fmt: skip
def shortcuts_scaled(t: Training, names: list[str]) -> Sites:
    factor = t.pick((2.0, 3.0, 8.0, 0.1))
    for name in names:
        t.model.get_submodule(name).shortcut = factor
    return of(names)


# Attention.


@fault("model", "unscaled_scores", "divide the scores by the root of the head's width", where=whole(attention),
       code="scores / math.sqrt(q.shape[-1])", harmless="narrow heads bear it")  # fmt: skip
def scores_not_scaled(t: Training, names: list[str]) -> Sites:
    factor = t.pick((1.0, (t.recipe.width / t.recipe.heads) ** 0.5, t.recipe.width / t.recipe.heads))
    for name in names:
        t.model.get_submodule(name).scale = factor
    return of(names)


@fault("model", "wrong_mask", "pass the causal mask", where=whole(causal), also=("target_in_input",), code="is_causal=True")
def causal_mask_forgotten(t: Training, names: list[str]) -> Sites:
    for name in names:
        t.model.get_submodule(name).causal = False
    return of(names)


@fault("model", "inverted_mask", "invert the mask", where=whole(causal), also=("wrong_mask", "target_in_input"),
       code="mask = torch.ones(n, n).triu(1).bool()")  # fmt: skip
def causal_mask_inverted(t: Training, names: list[str]) -> Sites:
    for name in names:
        swap(t.model, name, Around(t.model.get_submodule(name), lambda x: x.flip(1), lambda x: x.flip(1)))
    return of(names)


@fault("model", "initial_scale", "initialise queries and keys as other layers", where=attention, also=("unscaled_scores",))
def queries_and_keys_start_large(t: Training, name: str) -> Sites:
    own = t.model.get_submodule(name)
    width, factor = own.qkv.in_features, between(t, 5, 60)
    with torch.no_grad():
        own.qkv.weight[: 2 * width].mul_(factor)
    return of([name])


# Paths and registration.


@fault("model", "cut_path", "do not detach", where=inner, code="h = layer(x)  # not layer(x).detach()")
def detached_in_the_middle(t: Training, name: str) -> Sites:
    names = inner(t)
    wrap(t, name, torch.Tensor.detach)
    return of(names[: names.index(name) + 1])


@fault("model", "not_registered", "hold the layers in nn.ModuleList", where=inner, also=("in_no_optimizer",),
       code="self.layers = nn.ModuleList(layers)")  # fmt: skip
def layer_in_a_plain_list(t: Training, name: str) -> Sites:
    hidden = [t.model.get_submodule(name)]
    swap(t.model, name, After(nn.Identity(), lambda x: hidden[0](x)))
    return of([name])


@fault("model", "frozen_by_mistake", "train the layer", where=head, code="head.requires_grad_(True)")
def head_frozen(t: Training, name: str) -> Sites:
    t.model.get_submodule(name).requires_grad_(False)
    return of([name])


def alike(t: Training) -> list[tuple[str, str]]:
    """Pairs of layers of the same shape."""
    shapes: dict[object, list[str]] = {}
    for name in inner(t):
        module = t.model.get_submodule(name)
        shapes.setdefault((type(module), module.weight.shape, module.bias is None), []).append(name)
    return [(names[0], names[1]) for names in shapes.values() if len(names) > 1]


@fault("model", "one_layer_shared", "make a layer for each place", where=alike, code="[copy.deepcopy(layer) for _ in range(n)]",
       harmless="a shared layer often does")  # fmt: skip
def one_layer_in_two_places(t: Training, pair: tuple[str, str]) -> Sites:
    swap(t.model, pair[1], t.model.get_submodule(pair[0]))
    return of(pair)


# Operations.


@fault("model", "flat_between", "let gradients pass", where=inner, also=("flat_outputs", "cut_path", "no_slope"),
       code="x + (x.round() - x).detach()")  # fmt: skip
def rounded_in_the_middle(t: Training, name: str) -> Sites:
    names = inner(t)
    wrap(t, name, torch.round)
    return of(names[: names.index(name) + 1])


@fault("model", "nonfinite_operation", "add a small number under the root", where=activations, code="(x.relu() + 1e-8).sqrt()")
def root_of_zero(t: Training, name: str) -> Sites:
    return wrap(t, name, lambda x: x.relu().sqrt())


@fault("model", "nonfinite_operation", "bound the exponent", where=inner, also=("large_inputs", "stretching_start"),
       code="x.clamp(max=10).exp()", harmless="small exponents are fine")  # fmt: skip
def exponential_without_bound(t: Training, name: str) -> Sites:
    factor = t.pick((1.0, 3.0, 10.0))
    return wrap(t, name, lambda x: (factor * x).exp())


@fault("model", "weights_not_loaded", "load the trained weights", where=when(lambda t: t.recipe.pretrained > 0),
       code="model.load_state_dict(state)  # strict=True")  # fmt: skip
def trained_weights_not_loaded(t: Training, _: None) -> Sites:
    part = t.model.get_submodule("teacher" if hasattr(t.model, "teacher") else "body")
    for module in part.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


def castable(t: Training) -> list[None]:
    """Where all that meets the weights is data."""
    plain = t.data.kind in ("classes", "binary", "multilabel", "numbers", "tokens") and not t.data.prepare
    return [None] if plain and t.recipe.precision == "32-true" and not t.recipe.augment else []


@fault("model", "half_weights", "keep the weights in float32", where=castable, also=("rate_too_low",),
       harmless="large steps survive")  # fmt: skip
def weights_in_half_precision(t: Training, _: None) -> Sites:
    t.model.bfloat16()
    for name in ("train", "validation"):
        batch = getattr(t.data, name)
        inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in batch.inputs)
        setattr(t.data, name, batch._replace(inputs=inputs))
