"""Healthy trainings in gymnasium's environments and of scvi-tools' models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.counts import cells
from tests.evidence.exam.episodes import Replay, Steps, loader, returns
from tests.evidence.exam.healthy_rl import EPOCHS, adam, layer, mlp, standardised
from tests.evidence.exam.healthy_scvi import planned


class TD3(Recipe):
    """Two critics, an actor that learns at every second step, smoothed targets; by hand."""

    every = 2

    def __init__(self) -> None:
        super().__init__(nn.Module(), lambda *_: None, self.both)
        self.actor = nn.Sequential(layer(3, 64), nn.ReLU(), layer(64, 64), nn.ReLU(), layer(64, 1, 0.01), nn.Tanh())
        self.critics = nn.ModuleList(mlp(4, 1, 1.0, nn.ReLU) for _ in range(2))
        self.later = copy.deepcopy(nn.ModuleList([self.actor, *self.critics])).requires_grad_(False)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.Adam(part.parameters(), 1e-3) for part in (module.actor, module.critics)]

    def explores(self, seen: Tensor) -> Tensor:
        action = self.actor(seen)
        return 2 * (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_actor, of_critics = self.optimizers()
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(batch["actions"])).clamp(-0.5, 0.5)
            action = 2 * (self.later[0](batch["after"]) + noise).clamp(-1, 1)
            after = torch.cat((batch["after"], action), 1)
            least = torch.minimum(self.later[1](after), self.later[2](after)).squeeze(1)
            goal = batch["rewards"] / 8 + 0.99 * (1 - batch["ended"]) * least
        known = torch.cat((batch["observations"], batch["actions"]), 1)
        loss = torch.stack([F.mse_loss(critic(known).squeeze(1), goal) for critic in self.critics]).sum()
        of_critics.zero_grad()
        self.manual_backward(loss)
        of_critics.step()
        if batch_idx % self.every == 0:
            action = 2 * self.actor(batch["observations"])
            of_actor.zero_grad()
            self.manual_backward(-self.critics[0](torch.cat((batch["observations"], action), 1)).mean())
            of_actor.step()
            for old, new in zip(self.later.parameters(), [*self.actor.parameters(), *self.critics.parameters()], strict=True):
                old.data.lerp_(new.data, 0.01)
        return {"loss": loss.detach()}


@healthy("gymnasium", "TD3 with an actor that learns at every second step")
def rl_td3() -> Built:
    module = TD3()
    return Built(module, loader(Replay("Pendulum-v1", module.explores, 4, 8)), EPOCHS, Expected())


class Duelling(nn.Module):
    """The value of a state, and what each action adds."""

    def __init__(self, seen: int, actions: int, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.adds = nn.Linear(width, 1), nn.Linear(width, actions)

    def forward(self, seen: Any) -> Any:
        hidden = self.body(seen)
        adds = self.adds(hidden)
        return self.value(hidden) + adds - adds.mean(-1, keepdim=True)


class DoubleDQN(Recipe):
    """The trained net chooses the next action, one that follows it says what it is worth."""

    follows = 0.02

    def __init__(self) -> None:
        net = Duelling(6, 3)
        super().__init__(net, lambda *_: None, adam(1e-3))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def explores(self, seen: Tensor) -> Tensor:
        best = self.net(seen).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.3, torch.randint_like(best, 3), best)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        value = self.net(batch["observations"]).gather(1, batch["actions"][:, None]).squeeze(1)
        with torch.no_grad():
            chosen = self.net(batch["after"]).argmax(1, keepdim=True)
            after = self.target(batch["after"]).gather(1, chosen).squeeze(1)
        return F.smooth_l1_loss(value, batch["rewards"] + 0.99 * after * (1 - batch["ended"]))

    def on_train_batch_end(self, *_: Any) -> None:
        for old, new in zip(self.target.parameters(), self.net.parameters(), strict=True):
            old.data.lerp_(new.data, self.follows)


@healthy("gymnasium", "duelling double DQN in Acrobot, a target that follows, clipped at 10")
def rl_double_dqn() -> Built:
    module = DoubleDQN()
    data = loader(Replay("Acrobot-v1", module.explores, 4, 8))
    return Built(module, data, {**EPOCHS, "gradient_clip_val": 10.0}, Expected())


@healthy("gymnasium", "an expert in CartPole is copied (behaviour cloning)")
def rl_cloning() -> Built:
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 2] + 0.5 * seen[:, 3] + 0.05 * seen[:, 1] > 0).long()

    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(batch["observations"]).flatten(0, 1), batch["actions"].flatten())

    return Built(Recipe(net, loss, adam(1e-3)), loader(Steps("CartPole-v1", expert)), EPOCHS, Expected())


@healthy("gymnasium", "a Gaussian policy in Pendulum with a critic (A2C), two optimizers' rates, clipped at 0.5")
def rl_gaussian() -> Built:
    net = nn.ModuleDict({"mean": mlp(3, 1, 0.01), "critic": mlp(3, 1, 1.0)})
    net["width"] = nn.Embedding(1, 1)
    nn.init.zeros_(net["width"].weight)

    def policy(seen: Tensor) -> Any:
        return torch.distributions.Normal(net["mean"](seen), net["width"].weight.exp())

    def loss(net: Any, batch: Any) -> Any:
        goal = returns(batch["rewards"] / 8, batch["ended"], 0.9)
        expected = net["critic"](batch["observations"]).squeeze(-1)
        chance = policy(batch["observations"]).log_prob(batch["actions"]).squeeze(-1)
        return F.mse_loss(expected, goal) - (chance * standardised(goal - expected.detach())).mean()

    def rates(module: Any) -> Any:
        others = [*net["mean"].parameters(), *net["width"].parameters()]
        return torch.optim.Adam([{"params": others, "lr": 3e-4}, {"params": net["critic"].parameters(), "lr": 2e-3}])

    data = loader(Steps("Pendulum-v1", lambda seen: policy(seen).sample().clamp(-2, 2)))
    return Built(Recipe(net, loss, rates), data, {**EPOCHS, "gradient_clip_val": 0.5}, Expected())


@healthy("scvi", "AUTOZI: which genes have too many zeros")
def scvi_autozi() -> Built:
    from scvi.model import AUTOZI
    from scvi.train import TrainingPlan

    data = cells()
    AUTOZI.setup_anndata(data, batch_key="batch")
    return planned(AUTOZI(data, n_hidden=48, n_latent=6), TrainingPlan, n_epochs_kl_warmup=2, lr=2e-3)


@healthy("scvi", "PoissonVI")
def scvi_poisson() -> Built:
    from scvi.external import POISSONVI
    from scvi.train import TrainingPlan

    data = cells()
    POISSONVI.setup_anndata(data, batch_key="batch")
    return planned(POISSONVI(data, n_hidden=32, n_latent=6), TrainingPlan, n_epochs_kl_warmup=2, lr=2e-3)


@healthy("scvi", "conditional scVI: a code for each type of cell")
def scvi_conditional() -> Built:
    from scvi.model import CondSCVI
    from scvi.train import TrainingPlan

    data = cells()
    CondSCVI.setup_anndata(data, labels_key="type")
    return planned(CondSCVI(data, n_hidden=48, n_latent=4), TrainingPlan, n_epochs_kl_warmup=2)
