"""The functions whose calls are observed, the modules that may call them, and those that call functions under ``torch.compile``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.selection import can_be_called

ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_LOSS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_BETWEEN_NUMBERS = ("input", "target", "size_average", "reduce", "reduction")
_OF_EACH_NUMBER = ("relu", "sigmoid", "tanh")  # which torch has under these names, and in place

KNOWN: dict[Callable[..., Any], tuple[str, tuple[str, ...]]] = {
    F.scaled_dot_product_attention: ("sdpa", ATTENTION),
    F.softmax: ("softmax", ("input", "dim")),
    torch.softmax: ("softmax", ("input", "dim")),
    Tensor.softmax: ("softmax", ("input", "dim")),
    F.log_softmax: ("log_softmax", ("input", "dim")),
    torch.log_softmax: ("log_softmax", ("input", "dim")),
    Tensor.log_softmax: ("log_softmax", ("input", "dim")),
    F.relu: ("relu", ("input", "inplace")),
    F.gelu: ("gelu", ("input",)),
    F.silu: ("silu", ("input", "inplace")),
    F.layer_norm: ("layer_norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    torch.layer_norm: ("layer_norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    F.rms_norm: ("rms_norm", ("input", "normalized_shape", "weight", "eps")),
    torch.rms_norm: ("rms_norm", ("input", "normalized_shape", "weight", "eps")),
    F.dropout: ("dropout", ("input", "p", "training", "inplace")),
    torch.dropout: ("dropout", ("input", "p", "train")),
    F.cross_entropy: ("cross_entropy", _LOSS),
    F.nll_loss: ("nll_loss", _LOSS[:-1]),
    F.mse_loss: ("mse_loss", _BETWEEN_NUMBERS),
    F.l1_loss: ("l1_loss", _BETWEEN_NUMBERS),
    F.smooth_l1_loss: ("smooth_l1_loss", (*_BETWEEN_NUMBERS, "beta")),
    F.huber_loss: ("huber_loss", ("input", "target", "reduction", "delta", "weight")),
    F.binary_cross_entropy: ("binary_cross_entropy", ("input", "target", "weight", "size_average", "reduce", "reduction")),
    F.binary_cross_entropy_with_logits: ("bce_with_logits", ("input", "target", "weight", "size_average", "reduce", "reduction")),
    F.kl_div: ("kl_div", (*_BETWEEN_NUMBERS, "log_target")),
    F.poisson_nll_loss: ("poisson_nll_loss", ("input", "target", "log_input")),
    F.ctc_loss: ("ctc_loss", ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")),
    F.cosine_embedding_loss: ("cosine_embedding_loss", ("input1", "input2", "target", "margin")),
    F.margin_ranking_loss: ("margin_ranking_loss", ("input1", "input2", "target", "margin")),
    F.hinge_embedding_loss: ("hinge_embedding_loss", ("input", "target", "margin")),
    F.soft_margin_loss: ("soft_margin_loss", ("input", "target")),
    F.embedding: ("embedding", ("input", "weight", "padding_idx")),
    **{getattr(owner, name): (name, ("input",)) for name in _OF_EACH_NUMBER for owner in (torch, Tensor)},
    **{getattr(owner, f"{name}_"): (name, ("input", "inplace")) for name in _OF_EACH_NUMBER for owner in (torch, Tensor)},
}

FUNCTIONS = tuple(dict.fromkeys(name for name, _ in KNOWN.values()))  # the names of the functions whose calls are seen

# Those of them that compare probabilities, or their logits, with targets from 0 to 1.
BINARY = ("binary_cross_entropy", "bce_with_logits")
REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")  # those of them that are losses between numbers
DIVERGENCE = "kl_div"  # that of them that compares logarithms of probabilities with probabilities
ALIGNED = "ctc_loss"  # that of them that sums over alignments of labels with outputs
COUNTED = "poisson_nll_loss"  # that of them with counts for targets, which takes logarithms of rates
# Those of them whose targets are -1 and 1.
SIGNED = ("cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss")
# Those of them whose outputs have no statistics: dropout returns what it was given, but for what it leaves out, and what a loss
# is given is another site's output.
UNMEASURED = ("dropout", "log_softmax", "cross_entropy", "nll_loss", ALIGNED, COUNTED, DIVERGENCE, *BINARY, *REGRESSION, *SIGNED)

_LOSSES = (
    *(nn.CrossEntropyLoss, nn.NLLLoss, nn.BCELoss, nn.BCEWithLogitsLoss, nn.KLDivLoss, nn.CTCLoss, nn.PoissonNLLLoss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
    *(nn.CosineEmbeddingLoss, nn.MarginRankingLoss, nn.HingeEmbeddingLoss, nn.SoftMarginLoss),
)

# Layers of torch.nn that call one of them: the call is theirs, not of the module around them.
_CALLING_LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softmax, nn.Softmax2d, nn.LogSoftmax),
    *(nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Embedding, nn.MultiheadAttention, *_LOSSES),
)

# Modules that take a fused path in eval mode, which they leave while a mode is in force: results would differ in the last digits.
FUSED: tuple[type[nn.Module], ...] = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def may_call(module: nn.Module) -> bool:
    """Whether a module's forward may call one of the functions: layers of torch.nn mostly do not."""
    if isinstance(module, _CALLING_LAYERS):
        return True
    own = not type(module).__module__.startswith("torch.nn.") or any(True for _ in module.children())
    return own and can_be_called(module)


def is_calling_layer(module: nn.Module) -> bool:
    """Whether a module is a layer of torch.nn whose own output is what the function that it calls returns."""
    return isinstance(module, _CALLING_LAYERS) and not isinstance(module, (nn.MultiheadAttention, *_LOSSES))


def is_fused(module: nn.Module) -> bool:
    """Whether a module takes a fused path now, which it leaves while a mode is on the stack."""
    return isinstance(module, FUSED) and not in_training_mode(module)


def dropped(function: str, arguments: Mapping[str, Any]) -> float:
    """The share that a call drops, 0 where it drops nothing.

    Args:
        function: ``dropout`` or ``sdpa``.
        arguments: By name; those that were given.
    """
    if function == "sdpa":
        return float(arguments.get("dropout_p", 0.0))
    return float(arguments.get("p", 0.5)) if arguments.get("training", arguments.get("train", True)) else 0.0


_STEPS = ("forward", "training_step", "validation_step")


def modules_with_compiled_calls(modules: Mapping[str, nn.Module]) -> list[str]:
    """Name the modules whose steps call functions which ``torch.compile`` returned, as far as the names in their own code show.

    Names in code are looked up among global variables, closures and the module's own attributes, without running any code. A
    compiled module is not such a function: see :func:`~.selection.compiled_regions`.

    Args:
        modules: By name.
    """
    of_each_class = {type(module): module for module in modules.values()}
    compiled = {kind for kind, module in of_each_class.items() if any(_calls_compiled(module, step) for step in _STEPS)}
    return [name for name, module in modules.items() if type(module) in compiled]


def _calls_compiled(module: nn.Module, step: str) -> bool:
    places = [vars(module), *map(vars, type(module).__mro__)]
    function = next((place[step] for place in places if step in place), None)
    try:
        names = inspect.getclosurevars(function)  # type: ignore[arg-type]  # which raises for what is no function
    except (TypeError, ValueError):
        return False
    own = [place.get(name) for name in names.unbound for place in places]
    return any(map(_is_compiled, (function, *names.globals.values(), *names.nonlocals.values(), *own)))


def _is_compiled(found: object) -> bool:
    attributes = found.__dict__ if isinstance(found, FunctionType) else {}
    return "_torchdynamo_orig_callable" in attributes and "_torchdynamo_disable" not in attributes
