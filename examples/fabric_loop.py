"""Train on digits with Lightning Fabric: the monitors are one callback, and no other line changes.

python examples/fabric_loop.py             # some seconds on a CPU
python examples/fabric_loop.py --dead      # biases so negative that a layer's units never fire: an alert names it
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import TrainingMonitor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dead", action="store_true", help="plant a dead layer")
    parser.add_argument("--log-dir", default="logs", type=Path)
    parser.add_argument("--fast", action="store_true", help="one epoch, for tests")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    monitor = TrainingMonitor()
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[monitor], loggers=CSVLogger(arguments.log_dir, "fabric_loop"))
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if arguments.dead:
        nn.init.constant_(net.get_parameter("2.bias"), -20.0)
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=3e-3))
    images, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(images.float() / 16, digits), 32, shuffle=True))
    for _ in range(1 if arguments.fast else 5):
        for pictures, labels in loader:
            loss = cross_entropy(model(pictures), labels)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
        fabric.call("on_train_epoch_end")  # a window ends with each epoch; without this line after 500 steps
    fabric.call("on_train_end")  # the report now; without this line when the script ends
    print("Alerts:", ", ".join(alert.name for alert in monitor.alerts) or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
