"""What RouterMonitor finds in two DDP processes; pickled for the test to compare."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from lightning_hooks import RouterMonitor
from tests.support.mixtures import routed
from tests.support.models import trainer
from tests.support.rank_cases import Shards


def found(world: int, rank: int, case: str) -> dict[str, Any]:
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

if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    by_case = {case: found(2, rank, case) for case in CASES}
    Path(sys.argv[1], f"{rank}.pickle").write_bytes(pickle.dumps(by_case))
