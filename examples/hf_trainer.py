"""Train a GPT-2 with random weights by Hugging Face's Trainer: the monitors are one callback.

    python examples/hf_trainer.py                    # half a minute on a CPU
    python examples/hf_trainer.py --max-norm 0.01    # a clip so hard that every step is clipped: an alert says so

The Trainer clips to a norm of 1.0 by default, and logs the norm it found. What the clip takes from each step is in the report.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from lightning_hooks.hosts.transformers import MonitorCallback

with contextlib.redirect_stdout(None):
    import this  # which prints itself

TEXT = "".join(this.d.get(letter, letter) for letter in this.s)
VOCABULARY = sorted(set(TEXT))
BLOCK = 32


def pieces() -> list[dict[str, torch.Tensor]]:
    """Pieces of the text: a causal model's labels are its inputs."""
    tokens = torch.tensor([VOCABULARY.index(letter) for letter in TEXT])
    found = [tokens[start : start + BLOCK] for start in range(0, len(tokens) - BLOCK, 2)]
    return [{"input_ids": piece, "labels": piece} for piece in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--log-dir", default="logs/hf_trainer", type=Path)
    parser.add_argument("--fast", action="store_true", help="one epoch, for tests")
    arguments = parser.parse_args()
    config = GPT2Config(
        vocab_size=len(VOCABULARY), n_positions=BLOCK, n_embd=64, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None
    )
    torch.manual_seed(0)
    monitor = MonitorCallback()
    settings = TrainingArguments(
        str(arguments.log_dir),
        num_train_epochs=1 if arguments.fast else 8,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        max_grad_norm=arguments.max_norm,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(GPT2LMHeadModel(config), settings, train_dataset=pieces(), callbacks=[monitor]).train()
    clips = monitor.clipping.optimizers["0-AdamW"]
    print(f"{clips.clipped_steps} of {clips.steps} steps of the last epoch were clipped to {clips.limit:g}.")
    print(f"Attention is seen at {len(monitor.attention.sites)} sites.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
