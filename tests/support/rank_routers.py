"""What RouterMonitor finds in two DDP processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from lightning_hooks import RouterMonitor
from tests.support.mixtures import routed
from tests.support.models import trainer
from tests.support.rank_cases import Shards


def run_case(world: int, rank: int, case: str) -> dict[str, Any]:
    """Two ranks, or one process on the batches of both, one after the other; nothing trains, so that both see the same model."""
    kwargs: dict[str, Any] = (
        {"strategy": "ddp_find_unused_parameters_true", "devices": 2, "use_distributed_sampler": False} if world == 2 else {}
    )
    monitor = RouterMonitor(codebooks="net.quantise", every_n_steps=1, summary=False, report_dir=None)
    model = routed()
    model.lr = 0.0
    trainer([monitor], **kwargs).fit(model, DataLoader(Shards(case, rank, world), batch_size=None))
    return {"report": monitor.report}


CASES = ("even", "uneven")


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {case: run_case(2, rank, case) for case in CASES}
