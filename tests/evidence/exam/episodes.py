"""What gymnasium's environments give to a policy: batches of steps, collected while training goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

Choose = Callable[[Tensor], Tensor]


class Steps(IterableDataset[dict[str, Tensor]]):
    """Batches of steps in a row of several copies of an environment, each of the shape ``(steps, copies, ...)``.

    Args:
        name: Of the environment.
        choose: From observations to actions, with the policy as it is then.
        steps: Of a batch.
        copies: Of the environment.
        batches: Of an epoch.
    """

    def __init__(self, name: str, choose: Choose, steps: int = 16, copies: int = 8, batches: int = 30) -> None:
        self.name, self.choose, self.steps, self.copies, self.batches = name, choose, steps, copies, batches

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        import gymnasium

        worlds = gymnasium.make_vec(self.name, self.copies, vectorization_mode="sync")
        seen = torch.as_tensor(worlds.reset(seed=0)[0], dtype=torch.float32)
        for _ in range(self.batches):
            rows: list[tuple[Tensor, ...]] = []
            for _ in range(self.steps):
                with torch.no_grad():
                    actions = self.choose(seen)
                after, rewards, ended, cut, _ = worlds.step(actions.numpy())
                after = torch.as_tensor(after, dtype=torch.float32)
                rows.append((seen, actions, torch.as_tensor(rewards).float(), torch.as_tensor(ended | cut).float(), after))
                seen = after
            names = ("observations", "actions", "rewards", "ended", "after")
            yield dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))
        worlds.close()


class Replay(Steps):
    """Random samples of the last steps, of the shape ``(batch, ...)``."""

    batch_size, kept = 64, 4000

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        memory: deque[dict[str, Tensor]] = deque(maxlen=self.kept)
        for batch in super().__iter__():
            flat = {name: rows.flatten(0, 1) for name, rows in batch.items()}
            memory.extend({name: rows[i] for name, rows in flat.items()} for i in range(len(flat["rewards"])))
            chosen = [memory[i] for i in torch.randint(len(memory), (self.batch_size,)).tolist()]
            yield {name: torch.stack([row[name] for row in chosen]) for name in chosen[0]}


def loader(steps: Steps) -> dict[str, Any]:
    return {"train_dataloaders": DataLoader(steps, batch_size=None)}


def returns(rewards: Tensor, ended: Tensor, discount: float = 0.99) -> Tensor:
    """The discounted sum of the rewards that follow within the batch, per step."""
    found, after = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        after = rewards[step] + discount * after * (1 - ended[step])
        found[step] = after
    return found
