"""Train on digits with Hugging Face's Accelerate, gradients accumulated over two batches, with the monitors in three lines.

    python examples/accelerate_loop.py    # some seconds on a CPU

The monitors are the lines marked with ``# +``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks.hosts.accelerate import watch  # +


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log-dir", default="logs/accelerate_loop", type=Path)
    parser.add_argument("--fast", action="store_true", help="one epoch, for tests")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    images, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
    loader = DataLoader(TensorDataset(images.float() / 16, digits), 32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=3e-3), loader)
    with watch(accelerator, model, optimizer, log_dir=arguments.log_dir) as monitor:  # +
        for _ in range(1 if arguments.fast else 5):
            for pictures, labels in loader:
                with accelerator.accumulate(model):
                    loss = cross_entropy(model(pictures), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                monitor.step(loss)  # +
    clips = monitor.clipping.optimizers["0-Adam"]
    print(f"{clips.steps} steps of {len(loader)} batches in an epoch; {clips.clipped_steps} of the steps were clipped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
