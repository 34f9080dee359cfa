"""Healthy trainings of transformers' models."""

from __future__ import annotations

from typing import Any

import torch

from tests.exam.cases import Built, Expected, Recipe, healthy
from tests.exam.texts import characters


@healthy("transformers", "GPT-2, AdamW")
def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=4, n_head=4))

    def loss(net: Any, batch: Any) -> Any:
        return net(input_ids=batch[0], labels=batch[0]).loss

    module = Recipe(net, loss, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1))
    return Built(module, characters(64, 16), {"max_epochs": 2, "limit_train_batches": 60}, Expected())
