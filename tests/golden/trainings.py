"""Eight trainings whose complete outcome is stored: what is logged, alerted, reported, written and printed."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.plugins import MixedPrecision
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import monitors
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, Collecting, loader, mlp, trainer
from tests.support.trainings import Gan
from tests.support.two_processes import hand_over, run_twice

Outcome = dict[str, Any]
_TIMED = re.compile(r"\d+(\.\d+)? ?(ms|s|seconds|%) (per|of the|a) (step|epoch|training)\b.*")
_MASKED = {
    "time",
    "seconds",
    "overhead",
    "epoch_end_seconds",
    "cost",
    "started",
    "ended",
    "version",
    "package",
    "torch",
    "lightning",
}


@contextmanager
def seeded() -> Iterator[None]:
    """Weights are drawn from seed 0, with the same bits on every processor: rounded once, where some round twice."""

    def uniform_(tensor: Tensor, low: float = 0.0, high: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
        first, last = torch.tensor([low, high]).double()
        return tensor.copy_(first + (last - first) * torch.rand(tensor.shape, generator=generator).double())

    torch.manual_seed(0)
    with patch.object(Tensor, "uniform_", uniform_):
        yield


class Digits(Classifier):
    """A small CNN on the first digits of scikit-learn's data set."""

    def __init__(self, **kwargs: Any) -> None:
        with seeded():
            net = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1, bias=False),  # a bias before a norm has a gradient of rounding only
                nn.BatchNorm2d(8),
                nn.ReLU(inplace=True),
                nn.Conv2d(8, 8, 3, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(8 * 64, 16),
                nn.Sigmoid(),
                nn.Linear(16, 10),
            )
        super().__init__(net, **kwargs)


def digits(dtype: torch.dtype = torch.float64) -> DataLoader[Any]:
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:200] / 16.0, dtype=dtype).view(-1, 1, 8, 8)
    return DataLoader(TensorDataset(x, torch.tensor(labels[:200])), batch_size=32)


def train(model: Any, data: Any, folder: Path, ckpt_path: Path | None = None, callbacks: Any = (), **kwargs: Any) -> Outcome:
    """Fit with the trio, and return everything it said."""
    seen: list[dict[str, Any]] = []
    ours = monitors(every_n_steps=2, report_dir=folder, check_every_n_steps=2, on_alert=lambda alert: seen.append(alert.record()))
    logger, printed, messages = Collecting(), StringIO(), _Messages()
    logging.getLogger("lightning_hooks").addHandler(messages)
    run = trainer([*ours, *callbacks], logger=logger, log_every_n_steps=1, **{"max_epochs": 3, **kwargs})
    try:
        with redirect_stdout(printed), warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            run.fit(model, data, ckpt_path=ckpt_path, **({"weights_only": True} if ckpt_path else {}))
    finally:
        logging.getLogger("lightning_hooks").removeHandler(messages)
    return {
        "logged": [[step, tag, value] for step, row in logger.rows for tag, value in row.items()],
        "alerts": seen,
        "reports": {monitor.collector.prefix: [report.to_dict() for report in monitor.history] for monitor in ours},
        "files": {path.name: _lines(path) for path in sorted(folder.rglob("*.jsonl"))},
        "warned": sorted({str(warning.message) for warning in reported if "Monitor" in str(warning.message)}),
        "printed": [line.replace(str(folder), "<folder>") for line in [*messages.texts, *printed.getvalue().splitlines()]],
    }


def _lines(file: Path) -> list[Any]:
    """The lines of a file, but for where modules come from and which kinds are watched, which tests/session and callbacks check."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: line[key] for key in line if key != "watched"} for line in lines if line.get("event") != "source"]


class _Messages(logging.Handler):
    """What this package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts += record.getMessage().splitlines()


def healthy(folder: Path) -> Outcome:
    return train(Digits(lr=0.05), digits(), folder, precision="64-true", gradient_clip_val=1.0)


def faults(folder: Path) -> Outcome:
    """A rectifier that never fires, in front of it a layer that gets no gradient; later a NaN in the data."""
    model = Digits(lr=0.05)
    nn.init.constant_(model.net[3].bias, -50.0)
    data = digits()
    data.dataset.tensors[0][150] = torch.nan
    return train(model, data, folder, precision="64-true", max_epochs=2)


def gan(folder: Path) -> Outcome:
    with seeded():
        model = Gan()
    return train(model, loader(dtype=torch.float64), folder, precision="64-true")


def amp(folder: Path) -> Outcome:
    """Half precision with a loss scale that overflows at first."""
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**20))
    return train(Digits(lr=0.05), digits(torch.float32), folder, plugins=plugin, gradient_clip_val=1.0)


def accumulation(folder: Path) -> Outcome:
    return train(Digits(lr=0.05), digits(), folder, precision="64-true", accumulate_grad_batches=3, gradient_clip_val=0.5)


class ActorCritic(Classifier):
    """Two optimizers, stepped in turn by hand; one of them clips."""

    def __init__(self) -> None:
        with seeded():
            super().__init__(mlp())
            self.critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        actor, critic = self.optimizers()
        for optimizer, loss, limit in (
            (critic, (self.critic(x).squeeze(1) - y).pow(2).mean(), None),
            (actor, nn.functional.cross_entropy(self.net(x), y), 0.5),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss)
            if limit is not None:
                self.clip_gradients(optimizer, limit, "norm")
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net.parameters(), lr=0.1), torch.optim.Adam(self.critic.parameters(), lr=0.01)]


def two_optimizers(folder: Path) -> Outcome:
    return train(ActorCritic(), loader(dtype=torch.float64), folder, precision="64-true")


class DoubleBatches(Batches):
    def __init__(self) -> None:
        super().__init__((8,))
        self.items = list(loader(dtype=torch.float64))


def resumed(folder: Path) -> Outcome:
    """Interrupted in the middle of the second epoch, and resumed there."""

    def model() -> Classifier:
        with seeded():
            return Classifier(mlp())

    kwargs: dict[str, Any] = {"precision": "64-true", "use_distributed_sampler": False}
    checkpoint = folder / "mid.ckpt"
    with suppress(SystemExit):
        train(model(), DoubleBatches(), folder / "first", callbacks=[SaveAt(checkpoint, 1, 3)], **kwargs)
    return train(model(), DoubleBatches(), folder / "second", ckpt_path=checkpoint, **kwargs)


def two_ranks(folder: Path) -> Outcome:
    """Rank 0's outcome, and what rank 1 reported."""
    found = run_twice("tests.golden.trainings", folder)
    rank_0, rank_1 = found["outcome"]
    return {**rank_0, "rank 1": {key: rank_1[key] for key in ("alerts", "reports")}}


def _as_rank(folder: Path) -> Outcome:
    from lightning.pytorch.strategies import DDPStrategy

    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=False)
    return train(Digits(lr=0.05), digits(), folder / "run", precision="64-true", devices=2, strategy=strategy, max_epochs=2)


TRAININGS: dict[str, Callable[[Path], Outcome]] = {
    "healthy": healthy,
    "faults": faults,
    "gan": gan,
    "amp": amp,
    "accumulation": accumulation,
    "two_optimizers": two_optimizers,
    "resumed": resumed,
    "two_ranks": two_ranks,
}


def normalised(value: Any) -> Any:
    """What of an outcome is compared: without times, floats as they are stored."""
    if isinstance(value, dict):
        return {str(key): "masked" if key in _MASKED else normalised(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [normalised(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return _TIMED.sub("<time>", value)
    return value


if __name__ == "__main__":  # as one of two ranks
    target = Path(sys.argv[1])
    os.environ.pop("PL_GLOBAL_SEED", None)  # of another test: Lightning's distributed sampler shuffles by it
    hand_over(target, {"outcome": _as_rank(target)})
