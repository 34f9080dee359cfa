"""Tasks of ranking and of control."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.evidence.population import scores
from tests.evidence.population.forms import Form
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.training import Batch, Data, Training


def ranking(recipe: Recipe) -> Data:
    """Of two documents the more relevant one."""
    n = recipe.samples + 400
    a, b = torch.randn(2, n, 10)
    weights = torch.randn(10)

    def relevance(x: Tensor) -> Tensor:
        return x @ weights + 2 * (x[:, 0] * x[:, 1]) + x[:, 2].abs()

    y = (relevance(a) + torch.randn(n) > relevance(b) + torch.randn(n)).float()[:, None]
    train, validation = (Batch((a[s], b[s]), y[s]) for s in (slice(400, None), slice(400)))
    return Data(train, validation, "ranking", Form("vector", (10,), 1), scores.binary_accuracy, 0.5)


SIDE = 5
CATCH = Form("vector", (SIDE * SIDE + SIDE,), 3)


def seen(ball: Tensor, row: int, paddle: Tensor) -> Tensor:
    """What a player of Catch sees: the board and the paddle."""
    board = F.one_hot(ball + SIDE * row, SIDE * SIDE)
    return torch.cat([board, F.one_hot(paddle, SIDE)], 1).float()


def play(starts: Tensor, act: object) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Play Catch (Mnih et al. 2014): states, actions, and 1 or -1 at the end."""
    ball, paddle = starts.T
    states, actions = [], []
    for row in range(SIDE - 1):
        states.append(seen(ball, row, paddle))
        actions.append(act(states[-1]))
        paddle = (paddle + actions[-1] - 1).clamp(0, SIDE - 1)
    return states, actions, torch.where(paddle == ball, 1.0, -1.0)


def begun(n: int) -> Tensor:
    return torch.randint(SIDE, (n, 2))


def greedy(model: nn.Module, data: Batch) -> float:
    """The mean return of the best action by the model."""
    return play(data.inputs[0], lambda s: scores.first(model(s)).argmax(-1))[2].mean().item()


def episodes(training: Training, batch: Batch) -> Batch:
    """Episodes of the policy as it is: each step's state, action and return."""
    with torch.no_grad():
        states, actions, reward = play(
            batch.inputs[0], lambda s: torch.distributions.Categorical(logits=training.model(s)[0].float()).sample()
        )
    returns = torch.stack([reward * 0.99 ** (len(states) - 1 - i) for i in range(len(states))]).flatten()
    return Batch((torch.cat(states),), torch.stack([torch.cat(actions).float(), returns], 1))


def policy(recipe: Recipe) -> Data:
    """Catch by actor and critic; the loader gives first states."""
    train, validation = begun(recipe.samples), begun(200)
    constant = play(validation, lambda s: torch.ones(len(s), dtype=torch.long))[2].mean().item()
    return Data(Batch((train,), None), Batch((validation,), None), "actions", CATCH, greedy, constant, [episodes])


def replay(recipe: Recipe) -> Data:
    """Catch by Q-learning from a store of random moves: state, next state; action, reward, whether it goes on."""
    states, actions, reward = play(begun(recipe.samples), lambda s: torch.randint(3, (len(s),)))
    follows = [*states[1:], states[-1]]
    rows = []
    for i, action in enumerate(actions):
        goes_on = float(i + 1 < len(actions))
        rows.append(torch.stack([action.float(), reward * (1 - goes_on), torch.full_like(reward, goes_on)], 1))
    validation = begun(200)
    constant = play(validation, lambda s: torch.ones(len(s), dtype=torch.long))[2].mean().item()
    train = Batch((torch.cat(states), torch.cat(follows)), torch.cat(rows))
    return Data(train, Batch((validation,), None), "actions", CATCH, greedy, constant)
