"""Train a small language model in plain PyTorch, with the monitors in three lines.

    python examples/plain_loop.py                        # half a minute on a CPU
    python examples/plain_loop.py --learning-rate 3.0    # far too high: an alert says what happens

The loop is written as many are: gradient accumulation, a ``GradScaler`` that is off on a CPU, clipping, a learning rate with a
warm-up. The monitors are the lines marked with ``# +``.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightning_hooks import watch  # +

with contextlib.redirect_stdout(None):
    import this  # which prints itself

TEXT = "".join(this.d.get(letter, letter) for letter in this.s)
VOCABULARY = sorted(set(TEXT))
TOKENS = torch.tensor([VOCABULARY.index(letter) for letter in TEXT])
BLOCK, BATCH, ACCUMULATE = 32, 16, 2


class Model(nn.Module):
    """A transformer of two layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(len(VOCABULARY), width), nn.Embedding(BLOCK, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(x, mask=mask, is_causal=True)))


def get_batch() -> tuple[Tensor, Tensor]:
    """Pieces of the text, and the same one letter later."""
    starts = torch.randint(len(TOKENS) - BLOCK - 1, (BATCH,))
    pieces = torch.stack([TOKENS[start : start + BLOCK + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--log-dir", default="logs/plain_loop", type=Path)
    parser.add_argument("--fast", action="store_true", help="a few steps, for tests")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    scaler = torch.amp.GradScaler(enabled=False)
    steps = 40 if arguments.fast else 400
    loss = torch.tensor(0.0)
    with watch(model, optimizer, scaler=scaler, log_dir=arguments.log_dir, report_every_n_steps=40) as monitor:  # +
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = arguments.learning_rate * min(1.0, (step + 1) / 10)
            for part in range(ACCUMULATE):
                x, y = get_batch()
                loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
                scaler.scale(loss / ACCUMULATE).backward()
                if part == ACCUMULATE - 1:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad(set_to_none=True)
                monitor.step(loss)  # +
    clips = monitor.clipping.optimizers["0-AdamW"]
    print(f"Loss {loss.item():.2f}. In the last window {clips.clipped_steps} of {clips.steps} steps were clipped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
