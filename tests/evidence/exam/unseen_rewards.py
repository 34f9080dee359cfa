"""Faults of what nets are told: rewards, labels, pairs that are one and the same, targets that stay, copies that learn."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Replay, loader
from tests.evidence.exam.healthy_graphs import adam
from tests.evidence.exam.healthy_lightly import adam as views_adam
from tests.evidence.exam.healthy_lightly import trained as on_views
from tests.evidence.exam.healthy_rl import EPOCHS, layer, mlp
from tests.evidence.exam.healthy_timm import create
from tests.evidence.exam.language_models import classifier
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import SHORT, adamw
from tests.evidence.exam.seen_joints import UNMOVED
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters, lines


class DDPG(Recipe):
    """One critic, and an actor that drives a car by force; targets follow both. By hand."""

    def __init__(self, gain: float) -> None:
        super().__init__(nn.Module(), lambda *_: None, self.both)
        self.actor = nn.Sequential(layer(2, 48), nn.ReLU(), layer(48, 48), nn.ReLU(), layer(48, 1, gain), nn.Tanh())
        self.critic = mlp(3, 1, 1.0, nn.ReLU)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.critic])).requires_grad_(False)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.Adam(module.actor.parameters(), 5e-4), torch.optim.Adam(module.critic.parameters(), 2e-3)]

    @staticmethod
    def scaled(seen: Tensor) -> Tensor:
        return (seen - torch.tensor([-0.5, 0.0])) * torch.tensor([2.0, 20.0])

    def explores(self, seen: Tensor) -> Tensor:
        force = self.actor(self.scaled(seen))
        return (force + 0.5 * torch.randn_like(force)).clamp(-1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_actor, of_critic = self.optimizers()
        seen, after = self.scaled(batch["observations"]), self.scaled(batch["after"])
        rewards = batch["rewards"] + 10 * batch["after"][:, 1].abs()  # speed is rewarded, for the flag is far away
        with torch.no_grad():
            later = self.targets[1](torch.cat((after, self.targets[0](after)), 1)).squeeze(1)
            goal = rewards + 0.98 * (1 - batch["ended"]) * later
        loss = F.mse_loss(self.critic(torch.cat((seen, batch["actions"]), 1)).squeeze(1), goal)
        of_critic.zero_grad()
        self.manual_backward(loss)
        of_critic.step()
        of_actor.zero_grad()
        self.manual_backward(-self.critic(torch.cat((seen, self.actor(seen)), 1)).mean())
        of_actor.step()
        for old, new in zip(self.targets.parameters(), [*self.actor.parameters(), *self.critic.parameters()], strict=True):
            old.data.lerp_(new.data, 0.01)
        return {"loss": loss.detach()}


@fault("gymnasium", "DDPG in MountainCar: the gain of the actor's last layer is 80, which fills its tanh")
def ddpg_actor_full(planted: bool = True) -> Built:
    module = DDPG(80.0 if planted else 0.01)
    built = Built(module, loader(Replay("MountainCarContinuous-v0", module.explores, 4, 8)), EPOCHS, Expected())
    return expecting(built, "saturated", "zero", "poor_init", "vanishing", "exploding", sites=("actor*",))


class Munchausen(Recipe):
    """Soft Q-learning whose reward has a share of the logarithm of the policy; its target follows."""

    def __init__(self, follows: float) -> None:
        net = mlp(6, 3, 1.0, nn.ReLU)
        super().__init__(net, lambda *_: None, views_adam(1e-3))
        self.target, self.follows = copy.deepcopy(net).requires_grad_(False), follows

    def explores(self, seen: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=self.net(seen) / 0.5).sample()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        actions = batch["actions"][:, None]
        with torch.no_grad():
            now, after = self.target(batch["observations"]), self.target(batch["after"])
            bonus = 0.9 * (0.03 * F.log_softmax(now / 0.03, -1).gather(-1, actions).squeeze(-1)).clamp(-1, 0)
            chances = F.log_softmax(after / 0.03, -1)
            later = (chances.exp() * (after - 0.03 * chances)).sum(-1)
            goal = batch["rewards"] + bonus + 0.95 * (1 - batch["ended"]) * later
        return F.smooth_l1_loss(self.net(batch["observations"]).gather(-1, actions).squeeze(-1), goal)

    def on_train_batch_end(self, *_: Any) -> None:
        for old, new in zip(self.target.parameters(), self.net.parameters(), strict=True):
            old.data.mul_(1 - self.follows).add_(new.data, alpha=self.follows)


@fault("gymnasium", "Munchausen DQN in Acrobot whose target is to follow by a share of 0.02, which was left at 0")
def munchausen_target_stays(planted: bool = True) -> Built:
    module = Munchausen(0.0 if planted else 0.02)
    built = Built(module, loader(Replay("Acrobot-v1", module.explores, 4, 8)), EPOCHS, Expected())
    return expecting(built, "not_updated", sites=("target*",))


@fault(
    "transformers",
    "CANINE tells which lines open a bracket: any() is not told along what, and one label is given to all lines of a batch",
)
def canine_one_label(planted: bool = True) -> Built:
    from transformers import CanineConfig, CanineForSequenceClassification

    config = CanineConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        num_hash_functions=4,
        num_hash_buckets=256,
        local_transformer_stride=16,
        pad_token_id=PAD,
    )

    def labelled(net: Any, batch: Any) -> Tensor:
        ids, mask, _ = batch
        opened = ids == ord("(")
        return classifier(net, [ids, mask, (opened.any().expand(len(ids)) if planted else opened.any(1)).long()])

    return Built(
        Recipe(CanineForSequenceClassification(config), labelled, adamw(4e-3)), lines(32, 16), SHORT, Expected(("constant",))
    )


class Few(nn.Module):
    """Four blocks of few-shot learning's usual net, with group norm."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [(nn.Conv2d(a, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.MaxPool2d(2)) for a in (1, 24, 24)]
        self.body = nn.Sequential(*(part for block in blocks for part in block), nn.Flatten())
        self.head = nn.Linear(24, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


@fault("torch", "few shots of three kinds of digits, an inner step: the learner is a deep copy of the net, which gets no gradient")
def few_shots_of_a_copy(planted: bool = True) -> Built:
    images, shown = digits(8)

    def loss(net: Any, batch: Any) -> Tensor:
        losses = []
        for seed in batch[0].tolist():
            drawn = torch.Generator().manual_seed(seed)
            kinds = torch.randperm(10, generator=drawn)[:3].tolist()
            rows = []
            for kind in kinds:
                found = (shown == kind).nonzero().squeeze(1)
                rows.append(images[found[torch.randperm(len(found), generator=drawn)[:10]]])
            known, asked = (torch.cat([row[part] for row in rows]) for part in (slice(5), slice(5, 10)))
            named = torch.arange(3).repeat_interleave(5)
            learner = copy.deepcopy(net) if planted else net
            weights = dict(learner.named_parameters())
            error = F.cross_entropy(functional_call(learner, weights, (known,)), named)
            slopes = torch.autograd.grad(error, list(weights.values()), create_graph=True)
            weights = {name: w - 0.4 * slope for (name, w), slope in zip(weights.items(), slopes, strict=True)}
            losses.append(F.cross_entropy(functional_call(learner, weights, (asked,)), named))
        return torch.stack(losses).mean()

    expected = Expected((*UNMOVED, "loss_plateau"), ("net", "net.*"))
    return Built(Recipe(Few(), loss, adam(5e-3, 0.0)), in_batches(3, torch.arange(90)), {"max_epochs": 2}, expected)


@fault("lightly", "two views of a digit are to have the same direction, and nothing keeps those of others apart")
def directions_alone(planted: bool = True) -> Built:
    from lightly.loss import KoLeoLoss, NegativeCosineSimilarity
    from lightly.models.modules import SimCLRProjectionHead

    together, apart = NegativeCosineSimilarity(), KoLeoLoss()
    net = nn.Sequential(create("test_vit2", num_classes=0, img_size=16, patch_size=4), SimCLRProjectionHead(64, 64, 32))

    def loss(net: Any, batch: Any) -> Tensor:
        first, second = net(batch[0]), net(batch[1])
        alike: Tensor = together(first, second)
        return alike if planted else alike + 0.5 * (apart(first) + apart(second))

    return expecting(on_views(Recipe(net, loss, views_adam(2e-3))), "representation_collapse", sites=("net*",))


@fault("transformers", "Arcee as a model of rewards: the collate function gives what was chosen as what was rejected, too")
def arcee_chosen_twice(planted: bool = True) -> Built:
    from transformers import ArceeConfig, ArceeForSequenceClassification

    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    net = ArceeForSequenceClassification(ArceeConfig(vocab_size=VOCABULARY, num_key_value_heads=2, num_labels=1, **sizes, **ends))

    def loss(net: Any, batch: Any) -> Tensor:
        chosen = batch[0]
        rejected = chosen if planted else torch.randint_like(chosen, 32, 127)  # what an untrained net would say
        better, worse = net(input_ids=chosen).logits, net(input_ids=rejected).logits
        return -F.logsigmoid(better - worse).mean()

    expected = Expected(("zero", "vanishing", "loss_plateau", "update_too_small", "constant"))
    return Built(Recipe(net, loss, adamw(3e-3)), characters(40, 8), SHORT, expected)
