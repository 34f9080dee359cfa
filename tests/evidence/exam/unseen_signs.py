"""Faults in losses and in what follows from them: signs, scales, logarithms, detached chances, hooks, rates and eps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Replay, Steps, loader
from tests.evidence.exam.healthy_graphs import adam
from tests.evidence.exam.healthy_rl import EPOCHS, advantages, mlp, standardised
from tests.evidence.exam.healthy_timm import optimizer, trained
from tests.evidence.exam.language_models import BART, image_classifier, translation
from tests.evidence.exam.planted_timm import RATE, expecting
from tests.evidence.exam.schedules import SHORT, adamw
from tests.evidence.exam.seen_faults_models import sgd
from tests.evidence.exam.signals import digits as colours
from tests.evidence.exam.signals import spectrograms
from tests.evidence.exam.texts import VOCABULARY, lines, pairs

BATCHES = {"max_epochs": 2, "limit_train_batches": 40}
UNMOVED = ("missing", "zero", "not_updated", "update_too_small", "vanishing")
TOO_LOW = ("update_too_small", "not_updated", "lr_zero", "loss_plateau")


class Filters(nn.Module):
    """Filters of three widths over a line's characters, and the largest answer of each (Kim's TextCNN)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.filters = nn.ModuleList(nn.Conv1d(width, 32, size) for size in (3, 4, 5))
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(96, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        found = [kernel(x).relu().amax(2) for kernel in self.filters]
        return self.head(self.dropout(torch.cat(found, 1)))


@fault("torch", "TextCNN under SGD: the loss, a mean, is divided by len(loader.dataset) once more")
def textcnn_divided_twice(planted: bool = True) -> Built:
    data = lines(32, 32)
    size = len(data["train_dataloaders"].dataset)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[2]) / (size if planted else 1)

    module = Recipe(Filters(), loss, sgd(0.05, momentum=0.9))
    return Built(module, data, BATCHES, Expected((*TOO_LOW, "vanishing")))


class Latent(Recipe):
    """Hidden frames of a spectrogram are to be what an encoder that follows makes of the whole (data2vec)."""

    def __init__(self, width: int = 48) -> None:
        layer = nn.TransformerEncoderLayer(width, 4, 96, 0.0, batch_first=True, norm_first=True)
        net = nn.Sequential(nn.Linear(40, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
        super().__init__(net, lambda *_: torch.zeros(()), adamw(2e-3))
        self.hidden, self.places = nn.Parameter(0.02 * torch.randn(width)), nn.Parameter(0.02 * torch.randn(64, width))
        self.guess = nn.Linear(width, width)
        self.target = copy.deepcopy(net).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        frames = batch[0].transpose(1, 2)
        places, hides = self.places[: frames.shape[1]], torch.rand(frames.shape[:2]) < 0.5
        with torch.no_grad():
            goals = F.layer_norm(self.target[1](self.target[0](frames) + places), (places.shape[1],))
        read = torch.where(hides[..., None], self.hidden, self.net[0](frames)) + places
        return F.smooth_l1_loss(self.guess(self.net[1](read))[hides], goals[hides])

    def follow(self) -> None:
        with torch.no_grad():
            for kept, learnt in zip(self.target.parameters(), self.net.parameters(), strict=True):
                kept.lerp_(learnt, 0.02)


class Follows(Latent):
    def on_train_batch_end(self, *_: Any) -> None:
        self.follow()


class Stays(Latent):
    def on_training_step_end(self, *_: Any) -> None:
        self.follow()


@fault("torch", "data2vec on sounds: the encoder to be followed is written in on_training_step_end, which nobody calls")
def latent_hook_misspelled(planted: bool = True) -> Built:
    return Built(Stays() if planted else Follows(), spectrograms(16), SHORT, Expected(("not_updated",), ("target*",)))


@fault("transformers", "PVT of two stages, NAdam whose weight_decay of 0.8 is L2: it is far above the gradient of the loss")
def pvt_decay_as_gradient(planted: bool = True) -> Built:
    from transformers import PvtConfig, PvtForImageClassification

    sizes: dict[str, Any] = {"depths": [1, 1], "sequence_reduction_ratios": [2, 1], "hidden_sizes": [24, 48], "strides": [4, 2]}
    sizes |= {"num_encoder_blocks": 2, "patch_sizes": [4, 2], "num_attention_heads": [1, 3], "mlp_ratios": [2, 2]}
    net = PvtForImageClassification(PvtConfig(image_size=32, num_labels=10, initializer_range=0.1, **sizes))

    def nadam(module: Any) -> Any:
        return torch.optim.NAdam(module.parameters(), 2e-3, weight_decay=0.8 if planted else 0.0)

    expected = Expected(("optimizer_settings", "settings", "constant", "representation_collapse"))
    return Built(Recipe(net, image_classifier, nadam), colours(32, 16), SHORT, expected)


class Pushes(nn.Module):
    """How hard a pendulum is pushed: a mean, and a width that does not depend on what is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.width = mlp(3, 1, 0.01), nn.Parameter(torch.zeros(1))

    def forward(self, seen: Tensor) -> Any:
        return torch.distributions.Normal(self.mean(seen), self.width.exp())


@fault("gymnasium", "PPO in Pendulum: the old chances are computed with a gradient, which takes that of the ratio away")
def pushes_old_chances(planted: bool = True) -> Built:
    net = nn.ModuleDict({"actor": Pushes(), "critic": mlp(3, 1, 1.0)})

    def loss(net: Any, batch: Any) -> Tensor:
        advantage, goal = advantages(net, {**batch, "rewards": (batch["rewards"] + 8) / 16})
        with torch.set_grad_enabled(planted):
            before = net["actor"](batch["observations"]).log_prob(batch["actions"]).sum(-1)
        ratio = (net["actor"](batch["observations"]).log_prob(batch["actions"]).sum(-1) - before).exp()
        advantage = standardised(advantage)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return 0.5 * F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal) - gain

    acts = lambda seen: net["actor"](seen).sample()  # noqa: E731
    data = loader(Steps("Pendulum-v1", acts))
    return Built(Recipe(net, loss, adam(1e-3, 0.0)), data, EPOCHS, Expected(UNMOVED, ("net.actor*",)))


class Dueling(Recipe):
    """A value and what each action adds to it, over shared layers; a target that follows slowly."""

    def __init__(self, rate: float) -> None:
        net = nn.ModuleDict({"body": mlp(6, 64, 1.4, nn.ReLU), "value": nn.Linear(64, 1), "adds": nn.Linear(64, 3)})
        super().__init__(net, lambda *_: torch.zeros(()), adam(rate, 0.0))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def worth(self, net: Any, seen: Tensor) -> Tensor:
        codes = net["body"](seen).relu()
        adds = net["adds"](codes)
        return net["value"](codes) + adds - adds.mean(-1, keepdim=True)

    def chooses(self, seen: Tensor) -> Tensor:
        best = self.worth(self.net, seen).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.3, torch.randint_like(best, 3), best)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for kept, learnt in zip(self.target.parameters(), self.net.parameters(), strict=True):
                kept.lerp_(learnt, 0.05)
            after = self.worth(self.target, batch["after"]).amax(-1)
        value = self.worth(self.net, batch["observations"]).gather(-1, batch["actions"][:, None]).squeeze(-1)
        return F.mse_loss(value, batch["rewards"] + 0.97 * after * (1 - batch["ended"]))


@fault("gymnasium", "dueling Q-learning in Acrobot, Adam at a rate of 0.7")
def dueling_rate_too_high(planted: bool = True) -> Built:
    module = Dueling(0.7 if planted else 7e-4)
    built = Built(module, loader(Replay("Acrobot-v1", module.chooses, 4, 8)), EPOCHS, Expected())
    return expecting(built, *RATE, "saturated", "zero")


@fault("timm", "FastViT learns how near a digit is to each (label distributions): kl_div is given softmax, not log_softmax")
def fastvit_kl_of_softmax(planted: bool = True) -> Built:
    from timm.models.fastvit import FastVit

    def loss(net: Any, batch: Any) -> Tensor:
        goal = (-(torch.arange(10) - batch[1][:, None]).square() / 0.5).softmax(1)
        said = net(batch[0])
        return F.kl_div(F.softmax(said, 1) if planted else F.log_softmax(said, 1), goal, reduction="batchmean")

    sizes: dict[str, Any] = {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 64, 64), "mlp_ratios": (2, 2, 2, 2)}
    net = FastVit(1, token_mixers=("repmixer", "repmixer", "repmixer", "attention"), num_classes=10, **sizes)
    module = Recipe(net, loss, optimizer("adamw", 2e-3, 0.02))
    return expecting(trained(module, 12, limit_train_batches=20), "output_range", "double_softmax")


@fault("transformers", "Blenderbot writes in reverse: Adam with maximize=True, copied from one that trained on rewards")
def blenderbot_maximized(planted: bool = True) -> Built:
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration

    net = BlenderbotSmallForConditionalGeneration(BlenderbotSmallConfig(**BART))
    module = Recipe(net, translation, lambda module: torch.optim.Adam(module.parameters(), 1e-3, maximize=planted))
    expected = Expected(("loss_diverging", "optimizer_settings", "weights_growing", "exploding"))
    return Built(module, pairs(24, 8, reverse=True), SHORT, expected)


@fault("transformers", "PLBART copies code: AdamW with an eps of 0.5")
def plbart_adam_eps(planted: bool = True) -> Built:
    from transformers import PLBartConfig, PLBartForConditionalGeneration

    net = PLBartForConditionalGeneration(PLBartConfig(**BART))
    module = Recipe(net, translation, adamw(1e-3, eps=0.5 if planted else 1e-8))
    return Built(module, pairs(32, 8), SHORT, Expected(("optimizer_settings", "second_moment_stale", "update_too_small")))
