"""Does what a remedy says to a training that has not started yet."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from lightning_hooks.declare.cause import Remedy
from tests.evidence.cure.calls import (
    FINITE_SCORES,
    NO_DETACH,
    ONE_OVER,
    ONE_SHAPE,
    PASSING,
    SAFE,
    SIGNED_LABELS,
    TRANSPOSED,
    Change,
    with_calls,
)
from tests.evidence.cure.configured import (
    TENTH,
    add,
    configure_later,
    remove_scheduler,
    set_optimizer,
    set_rates,
    set_scheduler,
    unfreeze,
    zero_after_steps,
)
from tests.evidence.faults.nets import initialise
from tests.evidence.faults.zoo import Built


def apply(remedy: Remedy, built: Built) -> Built | None:
    """The training with a remedy; None for one that is no operation on what is built, or whose target is not there.

    Args:
        remedy: The remedy.
        built: A training that nothing was changed in.
    """
    for pattern, act in _ACTS.items():
        found = re.fullmatch(pattern, f"{remedy.op} {remedy.target}")
        if found is not None:
            return act(remedy, built, *found.groups())
    return None


# The model.


def _parameter(built: Built, name: str) -> Tensor | None:
    return dict(built.module.named_parameters(remove_duplicate=False)).get(name)


def _on_parameters(remedy: Remedy, built: Built, names: str) -> Built | None:
    """Each of several parameters, or the weights of several modules."""
    known = [name for name, p in built.module.named_parameters() if p.dim() > 1]
    for name in names.split(", "):
        inside = [other for other in known if other.startswith(f"{name}.")] if _parameter(built, name) is None else [name]
        if not inside or any(_on_parameter(remedy, built, one) is None for one in inside):
            return None
    return built


def _on_parameter(remedy: Remedy, built: Built, name: str) -> Built | None:
    parameter = _parameter(built, name)
    if parameter is None:
        return None
    with torch.no_grad():
        if remedy.op == "fill":
            parameter.fill_(float(remedy.to or 0))
        elif remedy.op == "scale":
            parameter.mul_(float(remedy.to or 1))
        elif remedy.to == "orthogonal" and parameter.dim() > 1:
            nn.init.orthogonal_(parameter)
        elif isinstance(remedy.to, float) and parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter).mul_(remedy.to / math.sqrt(2))
        elif parameter.dim() > 1:
            nn.init.kaiming_uniform_(parameter, a=5**0.5)
        else:
            parameter.zero_()
    return built


def _replace_module(module: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, key = name.rpartition(".")
    module.get_submodule(parent)._modules[key] = new


def _remove_module(_: Remedy, built: Built, name: str) -> Built | None:
    if name not in dict(built.module.named_modules()):
        return None
    _replace_module(built.module, name, nn.Identity())
    return built


def _replace_class(remedy: Remedy, built: Built, kind: str) -> Built:
    new, _, with_ = str(remedy.to).removeprefix("nn.").partition(" and ")
    for name in [name for name, module in built.module.named_modules() if type(module).__name__ == kind]:
        old = built.module.get_submodule(name)
        made = nn.GroupNorm(1, int(old.num_features)) if new == "GroupNorm" else getattr(nn, new)()  # type: ignore[arg-type]
        _replace_module(built.module, name, made)
    return Built(initialise(built.module), *built[1:]) if with_ else built  # type: ignore[arg-type]


def _register(remedy: Remedy, built: Built, name: str) -> Built | None:
    """An attribute that the model does not know becomes a list, a dictionary or a parameter that it knows."""
    path, _, attribute = name.rpartition(".")
    if path not in dict(built.module.named_modules()):
        return None
    owner: Any = built.module.get_submodule(path)
    value = owner.__dict__.get(attribute)
    kinds: dict[type, Any] = {list: nn.ModuleList, tuple: nn.ModuleList, dict: nn.ModuleDict}
    if "Parameter" in str(remedy.to):
        kinds = {list: nn.ParameterList, tuple: nn.ParameterList, dict: nn.ParameterDict, Tensor: nn.Parameter}
    kind = next((new for old, new in kinds.items() if isinstance(value, old)), None)
    if kind is None:
        return None
    del owner.__dict__[attribute]
    setattr(owner, attribute, kind(value.detach() if isinstance(value, Tensor) else value))
    return built


def _scale_inputs(remedy: Remedy, built: Built, name: str) -> Built | None:
    if name not in dict(built.module.named_modules()):
        return None
    factor = float(remedy.to or 1)
    built.module.get_submodule(name).register_forward_pre_hook(lambda _, args: (args[0] * factor, *args[1:]))
    return built


def _insert(_: Remedy, built: Built, names: str) -> Built | None:
    for name in names.split(", "):
        if name not in dict(built.module.named_modules()):
            return None
        _replace_module(built.module, name, nn.Sequential(nn.ReLU(), built.module.get_submodule(name)))
    return built


def _contiguous(_: Remedy, built: Built, name: str) -> Built | None:
    parameter = _parameter(built, name)
    if parameter is None:
        return None
    parameter.data = parameter.data.contiguous()
    return built


def _without_hooks(_: Remedy, built: Built) -> Built:
    for parameter in built.module.parameters():
        parameter._backward_hooks = None
    return built


def _on_calls(changes: dict[str, Change]) -> Callable[..., Built]:
    return lambda _, built: with_calls(built, changes)


def _safe(_: Remedy, built: Built, name: str) -> Built:
    return with_calls(built, SAFE[name])


def _set_modules(remedy: Remedy, built: Built, targets: str) -> Built | None:
    modules = dict(built.module.named_modules())
    for name, _, setting in (target.rpartition(".") for target in targets.split(", ")):
        if name not in modules or not hasattr(modules[name], setting):
            return None
        setattr(modules[name], setting, remedy.to)
    return built


def _set_mode(_: Remedy, built: Built, mode: str, name: str) -> Built | None:
    """Before each training step: afterwards validation would have changed it again."""
    known, step = dict(built.module.named_modules()), built.module.training_step
    if name not in known and name != "the model":
        return None

    def training_step(*args: Any, **kwargs: Any) -> Any:
        known.get(name, built.module).train(mode == "train")
        return step(*args, **kwargs)

    built.module.training_step = functools.wraps(step)(training_step)  # type: ignore[method-assign]
    return built


def _drop_in_training(_: Remedy, built: Built) -> Built:
    """Functions that drop do so in training only."""

    def dropout(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | kwargs
        return func(**given | {"training": built.module.training})

    def attention(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs) if built.module.training else func(*args[:4], **kwargs | {"dropout_p": 0.0})

    return with_calls(built, {"dropout": dropout, "scaled_dot_product_attention": attention})


# The batch, the loss, the trainer.


def _on_batch(remedy: Remedy, built: Built, place: str) -> Built:
    transfer = built.module.on_after_batch_transfer
    at = 1 if place == "targets" else int(re.sub(r"\D", "", place) or 0)
    to = str(remedy.to)
    normalised = "standardised" in to or "from -1" in to
    mean, deviation = _moments(built, at, to) if normalised else (0.0, 1.0)

    def changed(batch: Any, dataloader_idx: int) -> Any:
        batch = list(transfer(batch, dataloader_idx))
        value = batch[at]
        if normalised:
            batch[at] = (value - mean) / deviation
        elif to.startswith("0 where"):
            batch[at] = value.masked_fill(value == remedy.from_, 0.0)
        else:
            batch[at] = torch.nan_to_num(value, 0.0, 0.0, 0.0) if remedy.op == "replace" else value * remedy.to
        return batch

    built.module.on_after_batch_transfer = changed  # type: ignore[method-assign]
    return built


def _without_column(_: Remedy, built: Built, column: str, name: str) -> Built:
    def changed(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        value = args[0].clone()
        value.view(len(value), -1)[:, int(column)] = 0
        return (value, *args[1:])

    built.module.get_submodule(name).register_forward_pre_hook(changed)
    return built


def _moments(built: Built, at: int, to: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a tensor of the batch over the training data; or its middle and half of its range."""
    loader = built.data["train_dataloaders"]
    generators = [one for one in (torch.default_generator, loader.generator, loader.sampler.generator) if one is not None]
    states = [one.get_state() for one in generators]
    values = torch.cat([batch[at] for batch in loader])
    for one, state in zip(generators, states, strict=True):
        one.set_state(state)
    if "from -1" in to:
        return (values.max() + values.min()) / 2, (values.max() - values.min()) / 2
    over = (0,) if "columns" in to else tuple(range(values.dim()))
    return values.mean(over), values.std(over).clamp_min(1e-8)


def _set_loader(remedy: Remedy, built: Built, setting: str) -> Built:
    loader = built.data["train_dataloaders"]
    given = {"batch_size": loader.batch_size, "drop_last": loader.drop_last} | {setting: remedy.to}
    shuffle = isinstance(loader.sampler, RandomSampler)
    new = DataLoader(loader.dataset, shuffle=shuffle, generator=loader.generator, collate_fn=loader.collate_fn, **given)
    return built._replace(data={**built.data, "train_dataloaders": new})


def _scale_loss(remedy: Remedy, built: Built) -> Built:
    step, backward, factor = built.module.training_step, built.module.manual_backward, float(remedy.to or 1)

    def training_step(*args: Any, **kwargs: Any) -> Any:
        loss = step(*args, **kwargs)
        return loss * factor if isinstance(loss, Tensor) else loss

    built.module.training_step = training_step  # type: ignore[method-assign]
    built.module.manual_backward = lambda loss, *args, **kwargs: backward(loss * factor, *args, **kwargs)  # type: ignore[method-assign]
    return built


def _set_trainer(remedy: Remedy, built: Built, argument: str) -> Built:
    return built._replace(kwargs={**built.kwargs, argument: remedy.to})


_ACTS: dict[str, Callable[..., Built | None]] = {
    r"set (optimizer.*\.lr, .*\.lr)": set_rates,
    r"set dataloader\.(drop_last|batch_size)": _set_loader,
    r"call requires_grad_\(True\) on (.+)": unfreeze,
    r"call (train|eval)\(\) of (.+)": _set_mode,
    r"set training of .*": _drop_in_training,
    r"call optimizer\.zero_grad\(\) once after each step": zero_after_steps,
    r"call configure_optimizers after .*": configure_later,
    r"replace (log|sqrt|rsqrt|exp|division|std|acos) in .*": _safe,
    r"replace -inf before the softmax in .*": _on_calls(FINITE_SCORES),
    r"replace round, floor or sign of .*": _on_calls(PASSING),
    r"replace the target of .*": _on_calls(ONE_SHAPE),
    r"replace the (?:pos_)?weight of .*": _on_calls(ONE_OVER),
    r"replace the labels of .* that are 0": _on_calls(SIGNED_LABELS),
    r"replace the view .* before .*": _on_calls(TRANSPOSED),
    r"remove the detach of the state between .*": _on_calls(NO_DETACH),
    r"remove the hooks .*": _without_hooks,
    r"replace (\S+)\.data": _contiguous,
    r"insert (.+)": _insert,
    r"scale what (\S+) is given": _scale_inputs,
    r"set optimizers?(?:\[(\d+)\])?(?:\.param_groups\[(\d+)\])?\.(lr|weight_decay|momentum|eps|betas|lr_decay)": set_optimizer,
    r"set scheduler\.(\w+)": set_scheduler,
    r"remove scheduler": remove_scheduler,
    r"set trainer\.(\w+)": _set_trainer,
    r"add (?:.*)": add,
    r"scale loss": _scale_loss,
    r"(?:scale|replace) (batch\S*|targets)": _on_batch,
    r"replace nn\.(\w+)": _replace_class,
    r"replace ([\w.]+)": _register,
    r"remove (\S+)": _remove_module,
    r"fill column (\d+) of what (\S+) is given": _without_column,
    r"(?:fill|scale|initialise) (\S+(?:, \S+)*)": _on_parameters,
    r"set ([\w., ]+)": _set_modules,
}


def any_remedies(built: Built) -> list[Remedy]:
    """Remedies that can be applied to a training, whatever its alerts say: what a random choice is made of."""
    found = [
        Remedy("set", "optimizer.lr", 1.0, 10.0),
        Remedy("set", "optimizer.lr", 1.0, TENTH),
        Remedy("set", "optimizer.weight_decay", None, 0.01),
        Remedy("scale", "batch[0]", None, 0.1),
    ]
    found += [] if "gradient_clip_val" in built.kwargs else [Remedy("set", "trainer.gradient_clip_val", None, 1.0)]
    activations = {type(module).__name__ for module in built.module.modules()} & {"ReLU", "Sigmoid", "Tanh"}
    found += [Remedy("replace", f"nn.{name}", None, "nn.GELU") for name in sorted(activations)]
    for name, parameter in built.module.named_parameters():
        found.append(
            Remedy("fill", name, None, 0.0) if parameter.dim() < 2 and name.endswith("bias") else Remedy("initialise", name)
        )
    return found
