"""Trainings with sharded parameters in two processes, and the same in one; what a rank finds is pickled for the test to compare."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import FeatureStatsMonitor, GradientClipMonitor, GradientClipper, GradientFlowMonitor
from lightning_hooks.clipping.policies import AGC, AutoClip, GlobalNorm, PerTensor, Value, ZClip
from tests.support.models import Classifier, trainer
from tests.support.rank_cases import Shards
from tests.support.two_processes import hand_over

# case -> how the model is spread, how gradients are clipped, and by whom
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "observed": ("fsdp", {}, None),
    "uneven": ("fsdp", {}, None),
    "clipped by lightning": ("fsdp", {"gradient_clip_val": 0.05}, None),
    **{policy: ("fsdp", {}, policy) for policy in ("norm", "value", "agc", "zclip", "autoclip")},
    "tensor": ("fsdp", {}, "tensor"),
    "accumulated": ("fsdp", {"accumulate_grad_batches": 3}, None),
    "tensor parallel": ("tp", {}, None),
    "tensor parallel, clipped": ("tp", {}, "norm"),
    "sequence parallel": ("sp", {}, "norm"),
    "budget": ("fsdp", {}, None),
}
POLICIES = {
    "norm": GlobalNorm(0.05),
    "value": Value(0.005),
    "agc": AGC(0.01),
    "zclip": ZClip(z=0.05, warmup=2),
    "autoclip": AutoClip(30.0),
    "tensor": PerTensor(0.1),
}


class Net(nn.Module):
    """Odd widths, so that shards differ; a layer that is frozen, one that is never used, and a weight of 25 000 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.norm = nn.Linear(8, 5), nn.ReLU(), nn.LayerNorm(5)
        self.wide, self.back = nn.Linear(5, 5000), nn.Linear(5000, 5)
        self.frozen, self.unused = nn.Linear(5, 5), nn.Linear(5, 5)
        self.head, self.gain = nn.Linear(5, 3), nn.Parameter(torch.ones(1))  # of one element: the second rank has none of it
        self.frozen.requires_grad_(False)
        self.mesh: Any = None

    def normalised(self, x: Tensor) -> Tensor:
        if self.mesh is None:
            return self.norm(x)
        from torch.distributed.tensor import DTensor, Replicate, Shard

        halves = DTensor.from_local(x, self.mesh, [Replicate()]).redistribute(placements=[Shard(0)])
        return self.norm(halves).full_tensor()

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalised(self.act(self.first(x)))
        x = x + self.back(self.wide(x).tanh()) + self.frozen(x)
        return self.head(x) * self.gain


class Model(Classifier):
    """Averages the loss over a fixed number, so that uneven shards weigh like one batch."""

    def __init__(self, spread: str, divisor: float) -> None:
        torch.manual_seed(0)
        super().__init__(Net(), lr=0.01)
        self.spread, self.divisor = spread, divisor

    def configure_model(self) -> None:
        if self.spread == "fsdp":
            from torch.distributed.fsdp import fully_shard

            mesh = self.device_mesh["data_parallel"]
            for layer in (self.net.first, self.net.wide, self.net.back):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)
        elif self.spread:
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

            mesh = self.device_mesh["tensor_parallel"]
            parallelize_module(self.net, mesh, {"wide": ColwiseParallel(), "back": RowwiseParallel()})
            if self.spread == "sp":  # each rank normalises half of the rows, and has its part of the gradient's sum
                parallelize_module(self.net, mesh, {"norm": SequenceParallel(sequence_dim=0)})
                self.net.mesh = mesh

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, reduction="sum") / self.divisor


def run_case(case: str, world: int, rank: int = 0) -> dict[str, Any]:
    spread, settings, policy = CASES[case]
    clip = GradientClipMonitor(summary=False)
    if policy is not None:
        clip = GradientClipper(policy=POLICIES[policy], summary=False)
    budget = 0.02 if case == "budget" else None
    ours = [
        FeatureStatsMonitor(every_n_steps=1, summary=False, max_overhead=budget),
        GradientFlowMonitor(every_n_steps=1, summary=False, max_overhead=budget),
        clip,
    ]
    shared = spread in ("tp", "sp")  # both ranks see the same batches
    kwargs: dict[str, Any] = {"max_epochs": 2 if case != "budget" else 6, **settings}
    if world == 2:
        sizes = (1, 2) if shared else (2, 1)
        strategy = ModelParallelStrategy(data_parallel_size=sizes[0], tensor_parallel_size=sizes[1])
        kwargs.update(strategy=strategy, devices=2, use_distributed_sampler=False)
    run = trainer(ours, **kwargs)
    model = Model(spread if world == 2 else "", divisor=8.0 if shared or world == 1 else 4.0)
    data = Shards("uneven" if case == "uneven" else "even", rank, 1 if shared else world)
    error = None
    try:
        run.fit(model, DataLoader(data, batch_size=None))
    except RuntimeError as raised:
        if policy != "tensor":
            raise
        error = str(raised)
    weights = {}
    for name, parameter in model.state_dict().items():
        weights[name] = (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).double()
    return {
        "reports": [monitor.report for monitor in ours],
        "weights": weights,
        "error": error,
        "stride": ours[1].member.sampling.stride,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = int(os.environ["LOCAL_RANK"])
    found = {case: run_case(case, world=2, rank=rank) for case in (sys.argv[2:] or CASES)}
    hand_over(Path(sys.argv[1]), found)
