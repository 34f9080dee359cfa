"""Agents that learn to catch a falling ball, and learning to learn."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Adam
from torch.utils.data import DataLoader

from .case import Learner, Training, fault, healthy
from .data import feed, replace, rng, shuffled
from .nets import follow, frozen, mlp


class Catch:
    """A batch of games on a board of 5 x 5: move left, stay or move right until the ball has come down."""

    def __init__(self, games: int) -> None:
        self.row, self.ball, self.paddle = torch.zeros(3, games, dtype=torch.long)
        self.start(self.row == 0)

    def start(self, which: Tensor) -> None:
        fresh = torch.randint(0, 5, (2, len(which)))
        self.row[which], self.ball[which], self.paddle[which] = 0, fresh[0][which], fresh[1][which]

    def see(self) -> Tensor:
        return F.one_hot(torch.stack([self.row, self.ball, self.paddle], 1), 5).flatten(1).float()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.paddle, self.row = (self.paddle + action - 1).clamp(0, 4), self.row + 1
        done = self.row == 4
        reward = done * (2.0 * (self.paddle == self.ball) - 1)
        self.start(done)
        return reward, done


class Agent(Learner):
    """What the agents share: a step of training per round of games, and a score of 200 games."""

    def __init__(self, net: nn.Module, lr: float) -> None:
        super().__init__(net, self.objective, partial(Adam, lr=lr))
        self.games = Catch(32)

    def objective(self, net: Any, batch: Any) -> Tensor:
        raise NotImplementedError

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        games, total = Catch(200), torch.zeros(())
        for _ in range(4):
            total += games.step(self.net(games.see())[:, :3].argmax(1))[0].mean()
        self.log("val_return", total)


class DQN(Agent):
    def __init__(self, scale: float, every: int) -> None:
        super().__init__(mlp(15, 64, 3), 5e-3)
        self.target, self.scale, self.every = frozen(self.net), scale, every
        self.memory: list[tuple[Tensor, ...]] = []

    def objective(self, net: Any, batch: Any) -> Tensor:
        state = self.games.see()
        action = torch.where(torch.rand(32) < 0.3, torch.randint(0, 3, (32,)), net(state).argmax(1))
        reward, done = self.games.step(action)
        self.memory.append((state, action, self.scale * reward, done, self.games.see()))
        states, actions, rewards, dones, after = (torch.cat(part) for part in zip(*self.memory[-60:], strict=True))
        rows = torch.randint(0, len(states), (64,))
        best = self.target(after[rows]).max(1).values
        value = net(states[rows]).gather(1, actions[rows, None])[:, 0]
        return F.smooth_l1_loss(value, rewards[rows] + 0.9 * best * ~dones[rows])

    def on_train_batch_end(self, *args: Any) -> None:
        if self.global_step % self.every == 0:
            follow(self.target, self.net, 0.0)


def rounds(count: int) -> dict[str, Any]:
    """Loaders of nothing but the number of the round."""
    return {"train_dataloaders": DataLoader(range(count)), "val_dataloaders": DataLoader(range(1))}  # type: ignore[arg-type]


@fault("reward_times_1000", "Rewards are scaled by 1000.", "val_return", 0, scale=1000.0)
@fault("target_never_copied", "The target network keeps its first weights.", "val_return", 0, every=10_000)
@healthy
def dqn_catches_a_ball(scale: float = 1.0, every: int = 10) -> Training:
    return Training(DQN(scale, every), rounds(80), {"max_epochs": 4, "gradient_clip_val": 10.0})


class PPO(Agent):
    """The clipped objective over four passes of each round, with a value head beside the policy."""

    def __init__(self, entropy: float, sign: float) -> None:
        super().__init__(mlp(15, 64, 4, act=nn.Tanh), 5e-3)
        self.automatic_optimization, self.entropy, self.sign = False, entropy, sign

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        states, actions, rewards = [], [], []
        self.games.start(self.games.row >= 0)
        with torch.no_grad():
            for _ in range(4):
                states.append(self.games.see())
                actions.append(torch.distributions.Categorical(logits=self.net(states[-1])[:, :3]).sample())
                rewards.append(self.games.step(actions[-1])[0])
            state, action, gain = torch.cat(states), torch.cat(actions), torch.stack(rewards).sum(0).repeat(4)
            old = F.log_softmax(self.net(state)[:, :3], 1).gather(1, action[:, None])[:, 0]
        for _ in range(4):
            out = self.net(state)
            log_p = F.log_softmax(out[:, :3], 1)
            ratio, advantage = (log_p.gather(1, action[:, None])[:, 0] - old).exp(), self.sign * (gain - out[:, 3]).detach()
            policy = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            spread = -(log_p.exp() * log_p).sum(1).mean()
            loss = F.mse_loss(out[:, 3], gain) - policy - self.entropy * spread
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        self.log_dict({"train_loss": loss, "return": gain.mean()}, batch_size=1)


@fault("entropy_bonus_too_large", "The bonus for entropy is 3 and not 0.01.", "val_return", 0, entropy=3.0)
@fault("advantage_turned_round", "The advantage is value minus return.", "val_return", 0, sign=-1.0)
@healthy
def ppo_catches_a_ball(entropy: float = 0.01, sign: float = 1.0) -> Training:
    return Training(PPO(entropy, sign), rounds(20), {"max_epochs": 4})


@fault("query_of_another_task", "Support and query points come from different tasks.", "val_loss", 0, support=shuffled)
@healthy
def maml_on_sines(support: Any = torch.clone) -> Training:
    def adapted_loss(net: Any, batch: Any) -> Tensor:
        losses = []
        for x, y in zip(batch["x"], batch["y"], strict=True):
            weights = dict(net.named_parameters())
            with torch.enable_grad():
                for _ in range(2):
                    loss = F.mse_loss(functional_call(net, weights, x[:10]), y[:10])
                    slopes = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
                    weights = {name: w - 0.05 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
            losses.append(F.mse_loss(functional_call(net, weights, x[10:]), y[10:]))
        return torch.stack(losses).mean()

    x = 6 * torch.rand(500, 20, 1, generator=rng()) - 3
    height, phase = torch.rand(2, 500, 1, 1, generator=rng(1))
    fed = feed(batch=4, x=x, y=(1 + 2 * height) * torch.sin(x + 3 * phase))
    for name in "xy":
        replace(fed, name, lambda column: torch.cat([support(column[:, :10]), column[:, 10:]], 1))
    return Training(
        Learner(mlp(1, 32, 32, 1), adapted_loss, partial(Adam, lr=5e-3)), fed, {"max_epochs": 3, "inference_mode": False}
    )
