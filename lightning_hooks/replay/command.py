"""``lightning-hooks replay``: the bad step of a capsule, run again in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from lightning_hooks.replay.blame import Blame, blame
from lightning_hooks.replay.capsule import Capsule, check
from lightning_hooks.replay.rerun import StepRerun, without_logging
from lightning_hooks.replay.rows import BatchRows

_AUTOCAST = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}
_WHOLE = {"16-true": torch.float16, "bf16-true": torch.bfloat16, "64-true": torch.float64}


def replay(capsule: Capsule, model: Any, data: Any = None) -> tuple[list[str], int]:
    """Run the step of a capsule again.

    Args:
        capsule: The capsule.
        model: The model, or the model and the function that gives a batch's loss.
        data: The data set, or a loader of it; for a capsule without its batch.

    Returns:
        The lines to print, and the exit code: 0, or 1 if the step does not reproduce.

    Raises:
        ValueError: If the capsule does not fit the model or the data.
    """
    network, function = _network(capsule, model)
    batch, rows = _batch(capsule, data)
    precision = str(capsule.record.get("loop", {}).get("precision", ""))
    if precision in _WHOLE:
        network = network.to(_WHOLE[precision])

    def step(part: Any) -> Any:
        with torch.autocast("cpu", _AUTOCAST[precision]) if precision in _AUTOCAST else nullcontext():
            return function(part, *capsule.args, **capsule.kwargs)

    named = dict(network.named_buffers())
    buffers = [(named[name], value) for name, value in capsule.before.items() if name in named and named[name].shape == value.shape]
    try:
        found = blame(
            network,
            lambda: StepRerun(network, step, torch.device("cpu"), lambda: _muted(network, capsule.record)),
            batch,
            rows,
            generators=capsule.generators,
            buffers=buffers,
            scale=float(capsule.record.get("loss_scale") or 1.0) / int(capsule.record.get("accumulation") or 1),
            crashed=capsule.record.get("kind") == "error",
        )
    except RuntimeError as error:  # a model that cannot be put back, a state of a generator that is none
        raise ValueError(f"the step of the capsule cannot be run: {error}.") from None
    check(not found.why_not, f"the step of the capsule cannot be run: {found.why_not}.")
    return _lines(capsule, found), 0 if found.reproduced else 1


def _lines(capsule: Capsule, found: Blame) -> list[str]:
    record = capsule.record
    where = f"epoch {record.get('epoch')}, batch {record.get('batch')}, step {record.get('step')}"
    inputs = "" if found.failure is None else found.failure.place.inputs
    return [
        *(f"{record.get('kind')} at {where} of {record.get('model')}", "", found.text),
        *[f"Samples: {', '.join(map(str, found.samples))}."] * bool(found.samples),
        *[f"Inputs: {inputs}."] * bool(inputs),
        *(f"Not in the capsule: {part}." for part in record.get("left_out", [])),
        *(() if found.trace is None else ("", *str(found.trace).splitlines())),
    ]


def _network(capsule: Capsule, found: Any) -> tuple[Any, Callable[..., Any]]:
    pair: Any = found if isinstance(found, tuple) and len(found) == 2 else (found, getattr(found, "training_step", None))
    made, function = pair
    wanted = "a LightningModule, or a model and the function that gives a batch's loss"
    check(isinstance(made, nn.Module), f"--model gave a {type(made).__name__}; expected {wanted}.")
    check(callable(function), f"--model gave a {type(made).__name__}, which has no training_step; expected {wanted}.")
    own = {**dict(made.named_parameters(remove_duplicate=False)), **dict(made.named_buffers(remove_duplicate=False))}
    state = capsule.state
    if state:
        known = {own[name].data_ptr() for name in own.keys() & state.keys()}
        missing = [name for name in sorted(own.keys() - state.keys()) if own[name].data_ptr() not in known]  # and not tied
        odd = [*missing, *(name for name in sorted(state) if name not in own or own[name].shape != state[name].shape)]
        was = capsule.record.get("model")
        check(not odd, f"the capsule is of another model ({was}): {', '.join(odd[:5])} do not fit {type(made).__name__}.")
        with torch.no_grad():
            for name, value in state.items():
                own[name].data = value.clone() if own[name].dtype != value.dtype else own[name].data.copy_(value)
    return made.train(), function


def _batch(capsule: Capsule, data: Any) -> tuple[Any, BatchRows | None]:
    samples = capsule.record.get("samples", [])
    plain = isinstance(samples, list) and all(type(sample) is int for sample in samples)
    rows = BatchRows({"": samples}) if plain and samples else None
    if capsule.batch is not None:
        return capsule.batch, rows
    check(data is not None, f"the capsule has no batch ({capsule.record.get('left_out')}); --data package.module:dataset makes it.")
    check(rows is not None, f"the samples of the capsule are not indices of one data set: {str(samples)[:200]}.")
    collate: Callable[[list[Any]], Any] = default_collate
    if isinstance(data, DataLoader):
        collate, data = data.collate_fn, data.dataset
    check(hasattr(data, "__getitem__") and not isinstance(data, IterableDataset), "--data is no map-style data set.")
    try:
        return collate([data[sample] for sample in samples]), rows
    except (IndexError, KeyError) as error:
        raise ValueError(f"--data has no sample {error}: the capsule is of other data.") from None


def _muted(model: nn.Module, record: Mapping[str, Any]) -> AbstractContextManager[None]:
    return without_logging(
        model,
        _trainer=SimpleNamespace(
            current_epoch=record.get("epoch"),
            global_step=record.get("step"),
            accumulate_grad_batches=record.get("accumulation"),
            loggers=[],
            logger=None,
            training=True,
            validating=False,
            sanity_checking=False,
            is_global_zero=True,
            world_size=1,
            global_rank=0,
            max_epochs=record.get("loop", {}).get("max_epochs"),
        ),
    )
