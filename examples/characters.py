"""Train a small transformer on Python's own manual, character by character, with the monitors on.

    python examples/characters.py                       # about a minute; prints a generated text at the end
    python examples/characters.py --learning-rate 0.3   # a hundred times too high: which alerts come?
    python examples/characters.py --large-queries 12    # queries and keys of block 1 start 12 times too large

The text is that of ``help("if")`` and other topics: ``pydoc_data.topics``, which ships with Python. Gradients are clipped by ZClip,
which finds outliers among the norms so far. Attention is a call of ``scaled_dot_product_attention``, which AttentionMonitor sees.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import textwrap
import time
import warnings
from pathlib import Path
from pydoc_data.topics import topics

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import AttentionMonitor, FeatureStatsMonitor, GradientClipper, GradientFlowMonitor

CONTEXT, WIDTH, HEADS, BLOCKS, BATCH = 64, 64, 4, 3, 32


class Attention(nn.Module):
    """Causal self-attention: a character sees itself and those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.queries_keys_values(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """Attention and a net of two layers, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = (
            nn.LayerNorm(WIDTH),
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharacterModel(LightningModule):
    """Predicts the next character."""

    def __init__(self, alphabet: str, learning_rate: float) -> None:
        super().__init__()
        self.alphabet, self.learning_rate = alphabet, learning_rate
        self.characters, self.positions = nn.Embedding(len(alphabet), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(alphabet))

    def forward(self, codes: Tensor) -> Tensor:
        x = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def bits(self, windows: Tensor) -> Tensor:
        """Mean bits per character: the cross entropy in base 2."""
        predicted = self(windows[:, :-1])
        return cross_entropy(predicted.flatten(0, 1), windows[:, 1:].flatten()) / math.log(2)

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> Tensor:
        bits = self.bits(*batch)
        self.log("train_bits", bits, on_step=False, on_epoch=True)
        return bits

    def validation_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        self.log("val_bits", self.bits(*batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)

    @torch.no_grad()
    def enlarge_queries(self, factor: float) -> None:
        """Make queries and keys of block 1 too large: logits grow by the square of ``factor``."""
        for name in ("weight", "bias"):
            self.get_parameter(f"blocks.1.attention.queries_keys_values.{name}")[: 2 * WIDTH] *= factor

    @torch.no_grad()
    def write(self, start: str, length: int) -> str:
        """Continue ``start`` by characters that are sampled from the model's probabilities."""
        codes = [self.alphabet.index(character) for character in start]
        for _ in range(length):
            predicted = self(torch.tensor([codes[-CONTEXT:]]))[0, -1]
            codes.append(int(torch.multinomial(predicted.softmax(0), 1)))
        return "".join(self.alphabet[code] for code in codes)


def load_data() -> tuple[str, TensorDataset, TensorDataset]:
    """The alphabet, and the manual cut into windows: nine tenths to train on, the rest for validation."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    codes = torch.tensor([alphabet.index(character) for character in text])
    windows = codes.unfold(0, CONTEXT + 1, CONTEXT)  # each starts with the character that the one before ended with
    split = len(windows) * 9 // 10
    return alphabet, TensorDataset(windows[:split]), TensorDataset(windows[split:])


def main() -> int:
    parser = argparse.ArgumentParser(description="A character transformer on Python's manual with lightning_hooks on.")
    parser.add_argument("--epochs", type=int, default=10, help="training epochs of 200 steps (default 10)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="of AdamW (default 0.003)")
    parser.add_argument("--large-queries", type=float, default=1.0, metavar="FACTOR", help="of block 1's queries and keys")
    parser.add_argument("--fast", action="store_true", help="two epochs of 30 steps, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/characters"), help="where the logs go (default runs/characters)")
    options = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)  # a second thread does not help with so small a net
    seed_everything(0, verbose=False)
    alphabet, train_set, val_set = load_data()
    model = CharacterModel(alphabet, options.learning_rate)
    model.enlarge_queries(options.large_queries)

    features = FeatureStatsMonitor(modules=["blocks.*.attention", "blocks.*.mlp", "norm", "head"])
    attention = AttentionMonitor()
    flow = GradientFlowMonitor(modules=["blocks.?", "head"])
    tensorboard = TensorBoardLogger(options.log_dir, name="")
    trainer = Trainer(
        max_epochs=2 if options.fast else options.epochs,
        limit_train_batches=30 if options.fast else 200,
        limit_val_batches=3 if options.fast else 20,
        accelerator="cpu",
        callbacks=[features, attention, flow, GradientClipper(policy="zclip")],
        logger=[CSVLogger(options.log_dir, name="", version=tensorboard.version), tensorboard],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        log_every_n_steps=10,
    )
    start = time.perf_counter()
    trainer.fit(model, DataLoader(train_set, BATCH, shuffle=True, drop_last=True), DataLoader(val_set, BATCH))

    bits, chance = trainer.callback_metrics["val_bits"].item(), math.log2(len(alphabet))
    print(f"\nValidation: {bits:.2f} bits per character (chance: {chance:.2f}), {time.perf_counter() - start:.1f} s.")
    print(f"Steps that ZClip brought down in the last epoch: {trainer.callback_metrics['gradient_clip/rate'].item():.0%}.")
    print("Attention, in the last epoch:")
    for site, stats in attention.report.sites.items():
        print(f"    {site}: largest logit {stats.max_logit:.1f}, entropy {stats.entropy:.0%} of its maximum")
    print(f"It writes:\n{textwrap.indent(model.eval().write('The ', 40 if options.fast else 400), '    ')}")
    print(f"Logs: {tensorboard.log_dir}. To look:\n    tensorboard --logdir {options.log_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
