"""What FeatureExtractor, FeatureMapVisualizer and GradCAM do in two DDP processes."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureExtractor, FeatureMapVisualizer, GradCAM, HookDebugger
from tests.support.models import trainer
from tests.support.rank_cases import Shards, SumLoss


class Model(SumLoss):
    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch[0])


def fit(callbacks: list[Any], world: int, rank: int, case: str) -> Model:
    """Two ranks, or one process on the joined batches."""
    kwargs: dict[str, Any] = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False} if world == 2 else {}
    model = Model(divisor=4.0 if world == 2 else 8.0)
    trainer(callbacks, **kwargs).fit(model, DataLoader(Shards(case, rank, world), batch_size=None))
    return model


def extracted(world: int, rank: int, folder: Path) -> dict[str, Any]:
    found = {}
    for name, case, options in (
        ("all", "uneven", {}),
        ("first", "uneven", {"max_samples": 9}),
        ("one_rank_only", "one_rank_only", {}),
    ):
        keep = FeatureExtractor(modules=["net.first", "net.act", "net.sometimes"], fields={"input": 0, "label": 1}, **options)
        fit([keep], world, rank, case)
        found[name] = keep.report
    return found


def predicted(world: int, rank: int, folder: Path) -> Any:
    """Lightning deals an odd number of samples to the ranks in turn."""
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn((11, 8), generator=generator), torch.arange(11))
    keep = FeatureExtractor(modules="net.first", stage="predict", max_samples=9, fields={"index": 1}, folder=folder / "predicted")
    kwargs: dict[str, Any] = {"strategy": "ddp", "devices": 2} if world == 2 else {}
    trainer([keep], **kwargs).predict(Model(8.0), DataLoader(data, batch_size=2))
    return keep.report


def looked(world: int, rank: int, folder: Path) -> dict[str, Any]:
    def model_of(callbacks: list[Any]) -> Model:
        return fit(callbacks, world, rank, "even")

    options: dict[str, Any] = {"forward": "net", "n_samples": 2, "folder": folder / "looked"}
    maps = FeatureMapVisualizer(modules="net.first", **options)
    cam = GradCAM(module="net.first", reshape=lambda values: values[:, :, None, None], **options)
    watched, without = model_of([maps, cam]), model_of([])
    same = all(torch.equal(one, other) for one, other in zip(watched.parameters(), without.parameters(), strict=True))
    return {"maps": maps.report, "cam": cam.report, "same": same}


def debugged(world: int, rank: int, folder: Path) -> dict[str, Any]:
    debugger = HookDebugger(modules="net.*", steps=[0, 2])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        watched = fit([debugger], world, rank, "one_rank_only")
    without = fit([], world, rank, "one_rank_only")
    same = all(torch.equal(one, other) for one, other in zip(watched.parameters(), without.parameters(), strict=True))
    return {"trace": debugger.trace, "printed": "Step 2 (epoch" in printed.getvalue(), "same": same}


CASES = {"extracted": extracted, "predicted": predicted, "looked": looked, "debugged": debugged}


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {name: case(2, rank, folder / f"rank{rank}") for name, case in CASES.items()}
