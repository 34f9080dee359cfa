"""A program that repairs a training with the help of health.json.

It trains a small net with a learning rate that is far too high, reads health.json, prints the root cause with its evidence, applies
the remedies one at a time, each to the original training, and checks with ``lightning-hooks verify`` whether that is a cure:

    python examples/agent.py
    python examples/agent.py --learning-rate 0.003 --bias -20   # units that never fire
    python examples/agent.py --learning-rate 0.003              # nothing to repair
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor


@dataclass(frozen=True)
class Setup:
    """The settings of a training that remedies may change.

    Attributes:
        learning_rate: Of AdamW.
        bias: What the first layer's bias starts with; None for PyTorch's default.
        filled: Parameters that start with another number, by name.
        trainer: Arguments of the Trainer.
    """

    learning_rate: float
    bias: float | None = None
    filled: Mapping[str, float] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def repaired(self, remedy: Mapping[str, Any]) -> Setup | None:
        """The set-up with a remedy of health.json applied; None for a remedy that this program cannot apply."""
        op, target, to = (remedy.get(key) for key in ("op", "target", "to"))
        if (op, target) == ("set", "optimizer.lr") and isinstance(to, float):
            return replace(self, learning_rate=to)
        if op == "set" and str(target).startswith("trainer."):
            return replace(self, trainer={**self.trainer, str(target).removeprefix("trainer."): to})
        if op == "fill" and isinstance(to, float):
            return replace(self, filled={**self.filled, str(target): to})
        return None


class DigitsNet(LightningModule):
    """Three linear layers."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.learning_rate = setup.learning_rate
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        if setup.bias is not None:
            nn.init.constant_(self.get_parameter("net.0.bias"), setup.bias)
        for name, number in setup.filled.items():
            nn.init.constant_(self.get_parameter(name), number)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)


def train(setup: Setup, epochs: int, log_dir: Path, name: str) -> Path:
    """Train, and return the log directory."""
    seed_everything(0, verbose=False)
    images, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(digits))
    logger = CSVLogger(log_dir, name=name)
    seen: list[Alert] = []  # nothing is printed: health.json has them all
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[TrainingMonitor(every_n_steps=5, summary=False, on_alert=seen.append)],
        logger=logger,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=10,
        **setup.trainer,
    )
    trainer.fit(DigitsNet(setup), DataLoader(data, 64, shuffle=True))
    return Path(logger.log_dir)


def read_health(run: Path) -> dict[str, Any]:
    """The content of health.json, if its version is known."""
    health = json.loads((run / "lightning_hooks" / "health.json").read_text(encoding="utf-8"))
    if health["schema_version"] != 2:
        raise SystemExit(f"health.json has schema_version {health['schema_version']}; this program reads version 2.")
    return health


def root_cause(health: dict[str, Any]) -> dict[str, Any] | None:
    """The first open alert above info that is not a consequence."""
    serious = (alert for alert in health["alerts"] if alert["open"] and alert["severity"] != "info")
    return next((alert for alert in serious if not any(cause["fingerprint"] for cause in alert["causes"])), None)


def describe(alert: dict[str, Any]) -> list[str]:
    """An alert as text for people."""
    lines = [f"[{alert['severity']}] {alert['kind']} at {alert['site']}, from step {alert['first']['step']} on"]
    lines += [f"seen: {alert['message']}"] if alert["message"] else []
    for cause in alert["causes"]:
        lines += [f"cause: {cause['text']}"] if cause["text"] else []
        lines += [f"  for it: {text}" for text in cause.get("for", ())]
        lines += [f"  against it: {text}" for text in cause.get("against", ())]
    lines += [f"try: {remedy['text']}" for remedy in alert["remedies"]]
    lines += [f"code: {line}" for line in (alert["created_at"], alert["defined_at"]) if line][:1]
    return lines


def verify(before: Path, after: Path) -> dict[str, Any]:
    """The result of ``lightning-hooks verify``; its exit code is 0 for a cure, 1 for none, and 2 if a run cannot be read."""
    command = [sys.executable, "-m", "lightning_hooks", "verify", str(before), str(after), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="A program that repairs a training by what health.json says of it.")
    parser.add_argument("--learning-rate", type=float, default=3.0, help="that of the first training (default 3.0, far too high)")
    parser.add_argument("--bias", type=float, help="what the first layer's bias starts with (default PyTorch's own)")
    parser.add_argument("--epochs", type=int, help="training epochs (default 8)")
    parser.add_argument("--fast", action="store_true", help="four epochs, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/agent"), help="where the logs go (default runs/agent)")
    options = parser.parse_args()

    for logger in ("lightning.pytorch", "lightning_hooks"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)  # a second thread does not help with so small a net
    epochs, setup = options.epochs or (4 if options.fast else 8), Setup(options.learning_rate, options.bias)

    first = train(setup, epochs, options.log_dir, "before")
    health = read_health(first)
    print(f"As it is: {health['status']}. {health['verdict']}")
    problem = root_cause(health)
    if problem is None:
        print("There is nothing to repair.")
        return 0
    for line in describe(problem):
        print(textwrap.fill(line, 100, initial_indent="    ", subsequent_indent="        "))

    for remedy in problem["remedies"]:
        repaired = setup.repaired(remedy)
        if repaired is None:
            continue
        found = verify(first, train(repaired, epochs, options.log_dir, "after"))
        loss = found["loss"]
        print(remedy["text"])
        print(f"    {found['outcome']}; loss {loss['a']['last']} before, {loss['b']['last']} now.")
        for reason in found["reasons"]:
            print(f"    {reason}")
        if found["outcome"] == "cured":
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
