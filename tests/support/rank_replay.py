"""A sample that is not finite on one of two ranks; pickled for the test to compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import seed_everything
from torch.utils.data import DataLoader

from lightning_hooks import TrainingMonitor
from tests.replay.planted import Net, data
from tests.support.models import trainer
from tests.support.two_processes import hand_over


def planted(monitors: list[Any], **options: Any) -> dict[str, Any]:
    """Train; return what training leaves behind on this rank."""
    seed_everything(5, verbose=False)
    model = Net()
    running = trainer(monitors, strategy="ddp", devices=2, max_epochs=1, **options)
    running.fit(model, DataLoader(data(), batch_size=8, shuffle=True))
    weights = repr([value.tolist() for value in model.state_dict().values()])
    return {"weights": weights, "losses": repr(model.losses), "generator": torch.get_rng_state().tolist(), "calls": model.calls}


def main(folder: Path) -> None:
    without = planted([])
    monitor = TrainingMonitor(summary=False, capsule=folder / "capsules", check_every_n_steps=None)
    found = {"with": planted([monitor]), "without": without}
    alert = next(alert for alert in monitor.alerts if "nonfinite" in alert.kind)
    found |= {"samples": alert.samples, "text": alert.diagnosis, "batch": alert.batch}
    hand_over(folder, found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
