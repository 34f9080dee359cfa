"""What the transforms and observers of the toolbox do in two DDP processes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from lightning_hooks import ActivationRangeObserver, GradientTransform, InputNormalizer
from tests.support.models import trainer
from tests.support.rank_cases import Shards, SumLoss


def fit(callbacks: list[Any], world: int, rank: int = 0, case: str = "even", **kwargs: Any) -> SumLoss:
    """Two ranks, or one process on the joined batches."""
    if world == 2:
        kwargs.update(strategy="ddp", devices=2, use_distributed_sampler=False)
    model = SumLoss(divisor=4.0 if world == 2 else 8.0)
    trainer(callbacks, **kwargs).fit(model, DataLoader(Shards(case, rank, world), batch_size=None))
    return model


def ranges(world: int, rank: int = 0) -> dict[str, Any]:
    found = {}
    for method in ("minmax", "moving_average", "percentile"):
        observer = ActivationRangeObserver(method=method, summary=False)
        fit([observer], world, rank, case="one_rank_only" if method == "minmax" and world == 2 else "even")
        found[method] = observer.report
    return found


def normalizer(world: int, rank: int = 0) -> dict[str, Any]:
    """Learned on the first epoch, on its first two batches, and where one module runs on one rank only; and resumed."""
    found = {}
    for case, learn in (("uneven", None), ("even", 2), ("one_rank_only", None)):
        ours = InputNormalizer(modules=["net.first", "net.sometimes"], learn_batches=learn)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on some ranks and in some cases net.sometimes is never called
            fit([ours], world, rank, case=case)
        found[case] = ours.statistics
    ours, middle = InputNormalizer(modules="net.first", learn_batches=3), Middle()
    fit([ours, middle], world, rank)
    found["state"] = middle.state
    again = InputNormalizer(modules="net.first", learn_batches=5)
    again.load_state_dict(middle.state)
    fit([again], world, rank)
    found["resumed"] = again.statistics
    return found


class Middle(Callback):
    """Keeps the state after the second batch."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.state = next(c for c in trainer.callbacks if isinstance(c, InputNormalizer)).state_dict()


def gradients(world: int, rank: int = 0) -> dict[str, Any]:
    """Weights after each kind of transform, on this rank."""
    found = {}
    for name, arguments in {
        "scale": {"transform": "scale", "factor": 0.3, "parameters": "net.first.*", "modules": "net.act"},
        "zero": {"transform": "zero", "parameters": "net.first.*"},
        "clamp": {"transform": "clamp", "factor": 0.01, "parameters": "*"},
        "noise": {"transform": "noise", "factor": 0.1, "parameters": "*"},
        "noise at modules": {"transform": "noise", "factor": 0.1, "modules": "net.first"},
        "none": {"transform": "scale", "factor": 1.0, "parameters": "*"},
    }.items():
        model = fit([GradientTransform(**arguments)], world, rank)
        found[name] = {key: value.numpy() for key, value in model.state_dict().items()}
    return found


CASES = {"ranges": ranges, "normalizer": normalizer, "gradients": gradients}


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {name: case(world=2, rank=rank) for name, case in CASES.items()}
