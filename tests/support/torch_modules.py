"""One small instance of every module class of ``torch.nn``, with what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    """How a class is built, and the arguments of its call; None where it has no forward, or none in the process of a test."""

    build: Callable[[], nn.Module]
    arguments: tuple[Any, ...] | None


def module_classes() -> dict[str, type[nn.Module]]:
    """Every module class of ``torch.nn``, by name."""
    return {name: kind for name, kind in vars(nn).items() if isinstance(kind, type) and issubclass(kind, nn.Module)}


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


_FLAT, _SEQUENCE = _x(4, 8), _x(2, 5, 8)
_SPATIAL = {1: _x(2, 4, 6), 2: _x(2, 4, 6, 6), 3: _x(2, 4, 4, 4, 4)}
_PROBABILITIES, _CLASSES = torch.full((4, 8), 0.3), torch.tensor([0, 3, 7, 1])
_SIGNS, _SIGN_OF_ROWS = _FLAT.sign(), torch.tensor([1.0, -1.0, 1.0, -1.0])
_WITHOUT_ARGUMENTS = """ReLU ReLU6 RReLU ELU CELU SELU GELU SiLU Mish Sigmoid Tanh Hardtanh
    Hardsigmoid Hardswish Hardshrink Softshrink Softplus Softsign Tanhshrink LogSigmoid LeakyReLU PReLU GLU
    Identity Flatten Dropout AlphaDropout FeatureAlphaDropout"""


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}

    def add(name: str, given: tuple[Any, ...] | None, *arguments: Any, **options: Any) -> None:
        if name in module_classes():
            found[name] = Case(lambda: module_classes()[name](*arguments, **options), given)

    for name in _WITHOUT_ARGUMENTS.split():
        add(name, (_FLAT,))
    for name in ("Softmax", "LogSoftmax", "Softmin"):
        add(name, (_FLAT,), -1)
    for name in ("Module", "Container", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"):
        add(name, None)
    found["ModuleList"] = Case(lambda: nn.ModuleList([nn.Linear(8, 8)]), None)
    found["ModuleDict"] = Case(lambda: nn.ModuleDict({"a": nn.Linear(8, 8)}), None)
    found["ParameterList"] = Case(lambda: nn.ParameterList([torch.ones(2, 2)]), None)
    found["ParameterDict"] = Case(lambda: nn.ParameterDict({"a": torch.ones(2, 2)}), None)
    found["Sequential"] = Case(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (_FLAT,))
    found["DataParallel"] = Case(lambda: nn.DataParallel(nn.Linear(8, 8)), (_FLAT,))
    add("Threshold", (_FLAT,), 0.1, 0.0)
    add("Unflatten", (_FLAT,), 1, (2, 4))
    add("Linear", (_FLAT,), 8, 8)
    add("LazyLinear", (_FLAT,), 8)
    add("Bilinear", (_FLAT, _FLAT), 8, 8, 3)
    add("Embedding", (_CLASSES,), 8, 4)
    add("EmbeddingBag", (_CLASSES.view(2, 2),), 8, 4)
    add("AdaptiveLogSoftmaxWithLoss", (_FLAT, _CLASSES), 8, 8, [4])
    add("LinearCrossEntropyLoss", (_FLAT, _CLASSES), 8, 8)
    for dims, x in _SPATIAL.items():
        size = x.shape[-1]
        for name in (f"Conv{dims}d", f"ConvTranspose{dims}d"):
            add(name, (x,), 4, 4, 3)
            add(f"Lazy{name}", (x,), 4, 3)
        for name in (f"BatchNorm{dims}d", f"InstanceNorm{dims}d"):
            options = {"affine": True, "track_running_stats": True}
            add(name, (x,), 4, **options)
            add(f"Lazy{name}", (x,), **options)
        for name in (f"{kind}Pad{dims}d" for kind in ("Circular", "Reflection", "Replication", "Zero")):
            add(name, (x,), 1)
        add(f"ConstantPad{dims}d", (x,), 1, 0.5)
        add(f"Dropout{dims}d", (x,))
        for name in (f"AdaptiveAvgPool{dims}d", f"AdaptiveMaxPool{dims}d", f"AvgPool{dims}d", f"MaxPool{dims}d"):
            add(name, (x,), 2)
        add(f"LPPool{dims}d", (x.abs(),), 2, 2)
        add(f"FractionalMaxPool{dims}d", (x,), 2, output_size=size // 2)
        places = torch.arange(2**dims).expand(2, 4, -1).reshape(2, 4, *[2] * dims)
        add(f"MaxUnpool{dims}d", (_x(2, 4, *[2] * dims), places), 2)
    image = _SPATIAL[2]
    add("SyncBatchNorm", None, 4)  # it runs on a GPU
    for name in ("LocalResponseNorm", "CrossMapLRN2d"):
        add(name, (image,), 2)
    add("GroupNorm", (image,), 2, 4)
    add("Softmax2d", (image,))
    add("ChannelShuffle", (image,), 2)
    add("PixelShuffle", (image,), 2)
    add("PixelUnshuffle", (image,), 2)
    add("Fold", (_x(2, 8, 9),), 4, 2)
    add("Unfold", (image,), 2)
    for name in ("Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"):
        add(name, (image,), scale_factor=2)
    for name in ("LayerNorm", "RMSNorm"):
        add(name, (_FLAT,), 8)
    for name in ("RNN", "LSTM", "GRU"):
        add(name, (_SEQUENCE,), 8, 4)
        add(f"{name}Cell", (_FLAT,), 8, 4)
    add("RNNBase", None, "LSTM", 8, 4)
    add("RNNCellBase", None, 8, 4, True, 1)
    add("MultiheadAttention", (_SEQUENCE,) * 3, 8, 2)
    layers = {"d_model": 8, "nhead": 2, "dim_feedforward": 8, "batch_first": True}
    add("Transformer", (_SEQUENCE,) * 2, **layers, num_encoder_layers=1, num_decoder_layers=1)
    add("TransformerEncoderLayer", (_SEQUENCE,), **layers)
    add("TransformerDecoderLayer", (_SEQUENCE,) * 2, **layers)
    found["TransformerEncoder"] = Case(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**layers), 1), (_SEQUENCE,))
    found["TransformerDecoder"] = Case(lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**layers), 1), (_SEQUENCE,) * 2)
    for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss", "BCEWithLogitsLoss", "KLDivLoss"):
        add(name, (_FLAT, _PROBABILITIES))
    found["KLDivLoss"] = Case(lambda: nn.KLDivLoss(reduction="batchmean"), (_FLAT, _PROBABILITIES))
    add("BCELoss", (_PROBABILITIES, _PROBABILITIES))
    for name in ("SoftMarginLoss", "HingeEmbeddingLoss"):
        add(name, (_FLAT, _SIGNS))
    add("MultiLabelSoftMarginLoss", (_FLAT, (_SIGNS + 1) / 2))
    add("MultiLabelMarginLoss", (_FLAT, torch.tensor([[0, 3, -1, 0, 0, 0, 0, 0]] * 4)))
    for name in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"):
        add(name, (_FLAT, _CLASSES))
    add("NLLLoss2d", (image, torch.zeros(2, 6, 6, dtype=torch.long)))
    add("GaussianNLLLoss", (_FLAT, _PROBABILITIES, _PROBABILITIES))
    add("CTCLoss", (_x(6, 2, 4).log_softmax(-1), torch.ones(2, 2, dtype=torch.long), torch.tensor([6, 6]), torch.tensor([2, 2])))
    add("CosineEmbeddingLoss", (_FLAT, _PROBABILITIES, _SIGN_OF_ROWS))
    add("MarginRankingLoss", (_FLAT[:, 0], _FLAT[:, 1], _SIGN_OF_ROWS))
    for name in ("TripletMarginLoss", "TripletMarginWithDistanceLoss"):
        add(name, (_FLAT, _PROBABILITIES, _SIGNS))
    for name in ("CosineSimilarity", "PairwiseDistance"):
        add(name, (_FLAT, _PROBABILITIES))
    return found


CASES = _cases()


def reads_draw(module: nn.Module, besides: frozenset[str] = frozenset()) -> nn.Module:
    """Make every read of an attribute of a module, and of those in it, draw a random number, as a property may.

    Args:
        module: The module, whose class becomes a subclass of its own.
        besides: Names that are left as they are.
    """
    for one in module.modules():
        names = {*vars(one), *one._parameters, *one._buffers} - besides
        drawn = {name: _drawing(name) for name in names if not name.startswith("_")}
        one.__class__ = type(type(one).__name__, (type(one),), {**drawn, "__module__": type(one).__module__})
    return module


def _drawing(name: str) -> Any:
    def place(module: nn.Module) -> dict[str, Any]:
        return next((held for held in (module._parameters, module._buffers) if name in held), vars(module))

    def read(module: nn.Module) -> Any:
        torch.rand(1)
        if name not in place(module):
            raise AttributeError(name)
        return place(module)[name]

    return property(read, lambda module, value: place(module).__setitem__(name, value))
