"""Representations and metrics, learning from few labels, learning to learn, and an agent that catches a ball."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader
from transformers import CLIPConfig, CLIPModel

from .case import Learner, Training, accuracy, fault, fit, healthy
from .data import digits, feed, replace, rng, shuffled
from .nets import convnet, follow, frozen, mlp


@fault("picture_tower_left_frozen", "requires_grad is off in the tower for pictures.", "val_match", 0.68, learns=False)
@healthy
def clip_on_digits(learns: bool = True) -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": 28, "max_position_embeddings": 6, "eos_token_id": 27, "bos_token_id": 0, "pad_token_id": 0}
    vision = {**size, "image_size": 8, "patch_size": 2, "num_channels": 1}
    net = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16, initializer_factor=3.0))
    net.vision_model.requires_grad_(learns)
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    captions = torch.tensor([[*(ord(c) - 96 for c in name), 27, 0, 0][:6] for name in names])

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        best = net(**batch).logits_per_image.argmax(1)
        return {"val_match": (batch["input_ids"][best] == batch["input_ids"]).all(1).float().mean()}

    fed = feed(batch=32, pixel_values=digits()[0], input_ids=captions[digits()[1]])
    return fit(net, lambda net, b: net(**b, return_loss=True).loss, partial(AdamW, lr=2e-3), fed, 3, scores)


@fault("no_temperature", "Cosines are divided by 20, not by 0.2, and hardly differ.", "val_match", 0.7, temperature=20.0)
@healthy
def simclr_on_digits(temperature: float = 0.2) -> Training:
    def likeness(net: Any, batch: Any) -> tuple[Tensor, Tensor]:
        x = batch[0].repeat(2, 1, 1, 1)
        z = F.normalize(net(x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.4 * torch.randn_like(x)))
        return z @ z.T - 1e9 * torch.eye(len(z)), torch.arange(len(z)).roll(len(z) // 2)

    def nt_xent(net: Any, batch: Any) -> Tensor:
        cosines, other = likeness(net, batch)
        return F.cross_entropy(cosines / temperature, other)

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        cosines, other = likeness(net, batch)
        return {"val_match": (cosines.argmax(1) == other).float().mean()}

    net = nn.Sequential(convnet(32), nn.ReLU(), nn.Linear(32, 16))
    return fit(net, nt_xent, partial(Adam, lr=2e-3), feed(digits()[0]), 4, scores)


class Cosine(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x), F.normalize(self.weight))


@healthy
def arcface_on_digits() -> Training:
    def arcface(net: Any, batch: Any) -> Tensor:
        angles = net(batch[0]).clamp(-0.999, 0.999).acos() + 0.3 * F.one_hot(batch[1], 10)
        return F.cross_entropy(16 * angles.cos(), batch[1])

    net = nn.Sequential(convnet(16), Cosine(16, 10))
    return fit(net, arcface, partial(Adam, lr=5e-3), feed(*digits(), batch=32), 4, accuracy)


class MeanTeacher(Learner):
    """A student that is held close to the average of its own past, which is what one validates."""

    def __init__(self, decay: float) -> None:
        super().__init__(convnet(), self.consistent, partial(SGD, lr=0.05, momentum=0.9), None, None, "step")
        self.teacher, self.decay = frozen(self.net), decay

    def consistent(self, net: Any, batch: Any) -> Tensor:
        x, y = batch
        out, known = net(x + 0.2 * torch.randn_like(x)), torch.arange(len(x)) < len(x) // 4
        return F.cross_entropy(out[known], y[known]) + F.mse_loss(out.softmax(1), self.teacher(x).softmax(1))

    def on_train_batch_end(self, *args: Any) -> None:
        follow(self.teacher, self.net, self.decay)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict(accuracy(self.teacher, batch))


@fault("teacher_never_updated", "The decay of the averaged weights is 1, so they keep their start.", "val_acc", 1.1, decay=1.0)
@healthy
def mean_teacher_on_digits(decay: float = 0.95) -> Training:
    return Training(MeanTeacher(decay), feed(*digits(), batch=32), {"max_epochs": 4})


@fault("query_of_another_task", "Support and query points come from different tasks.", "val_loss", 0.51, support=shuffled)
@healthy
def maml_on_sines(support: Any = torch.clone) -> Training:
    @torch.enable_grad()
    def adapted(net: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        weights = dict(net.named_parameters())
        loss = F.mse_loss(functional_call(net, weights, x), y)
        slopes = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
        return {name: w - 0.1 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}

    def query_loss(net: Any, batch: Any) -> Tensor:
        tasks = zip(batch["x"], batch["y"], strict=True)
        return torch.stack(
            [F.mse_loss(functional_call(net, adapted(net, x[:10], y[:10]), x[10:]), y[10:]) for x, y in tasks]
        ).mean()

    x = 6 * torch.rand(400, 20, 1, generator=rng()) - 3
    height, phase = torch.rand(2, 400, 1, 1, generator=rng(1))
    fed = feed(batch=4, x=x, y=(1 + 2 * height) * torch.sin(x + 3 * phase))
    for name in "xy":
        replace(fed, name, lambda column: torch.cat([support(column[:, :10]), column[:, 10:]], 1))
    return fit(mlp(1, 32, 32, 1), query_loss, partial(Adam, lr=5e-3), fed, 3, inference_mode=False)


class Catch:
    """A batch of games on a board of 5 x 5: move left, stay or move right until the ball has come down."""

    def __init__(self, games: int) -> None:
        self.row, self.ball, self.paddle = torch.zeros(games, dtype=torch.long), *torch.randint(0, 5, (2, games))

    def see(self) -> Tensor:
        return F.one_hot(torch.stack([self.row, self.ball, self.paddle], 1), 5).flatten(1).float()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.paddle, self.row = (self.paddle + action - 1).clamp(0, 4), self.row + 1
        done = self.row == 4
        reward = done * (2.0 * (self.paddle == self.ball) - 1)
        self.row, self.ball = self.row % 4, torch.where(done, torch.randint(0, 5, done.shape), self.ball)
        return reward, done


class DQN(Learner):
    def __init__(self, scale: float, every: int) -> None:
        super().__init__(mlp(15, 64, 3), self.td_error, partial(Adam, lr=5e-3), None, None, "step")
        self.target, self.scale, self.every, self.games = frozen(self.net), scale, every, Catch(32)
        self.memory: list[tuple[Tensor, ...]] = []

    def td_error(self, net: Any, batch: Any) -> Tensor:
        state = self.games.see()
        action = torch.where(torch.rand(32) < 0.3, torch.randint(0, 3, (32,)), net(state).argmax(1))
        reward, done = self.games.step(action)
        self.memory.append((state, action, self.scale * reward, done, self.games.see()))
        rows = torch.randint(0, 32 * len(self.memory[-60:]), (64,))
        states, actions, rewards, dones, after = (torch.cat(part)[rows] for part in zip(*self.memory[-60:], strict=True))
        goal = rewards + 0.9 * self.target(after).max(1).values * ~dones
        return F.smooth_l1_loss(net(states).gather(1, actions[:, None])[:, 0], goal)

    def on_train_batch_end(self, *args: Any) -> None:
        if self.global_step % self.every == 0:
            follow(self.target, self.net, 0.0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        games = Catch(200)
        self.log("val_return", sum(games.step(self.net(games.see()).argmax(1))[0].mean() for _ in range(4)), batch_size=1)


@fault("reward_times_1000", "Rewards are scaled by 1000.", "val_return", 0.87, scale=1000.0)
@fault("target_never_copied", "The target network keeps its first weights.", "val_return", 0.54, every=10_000)
@healthy
def dqn_catches_a_ball(scale: float = 1.0, every: int = 10) -> Training:
    rounds: Any = {"train_dataloaders": DataLoader(range(80)), "val_dataloaders": DataLoader(range(1))}  # type: ignore[arg-type]
    return Training(DQN(scale, every), rounds, {"max_epochs": 4, "gradient_clip_val": 10.0})
