"""Healthy trainings by modern recipes: half precision, streams, adapters, experts, contrast, policies, critics, codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from tests.evidence.faults import data, nets
from tests.evidence.faults.nets_modern import VQVAE, Averaged, Decoder
from tests.evidence.faults.planted_modern import Codes, Sparse, adapted, digits, text
from tests.evidence.faults.tasks import Supervised, Task, adam, adamw
from tests.evidence.faults.zoo import Built, Expected, healthy

WELL = Expected()


@healthy("transformer", "weights, activations and optimizer in bfloat16", reaches=0.22)
def bf16_true(seed: int) -> Built:
    return text(Supervised(Decoder(), adamw(1e-2)), seed, WELL, precision="bf16-true")


@healthy("transformer", "float16 with a loss scaler that starts high and skips its first steps", reaches=0.22)
def fp16_mixed(seed: int) -> Built:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    return text(Supervised(Decoder(layers=1), adamw(1e-2)), seed, WELL, plugins=plugin, gradient_clip_val=1.0, max_epochs=2)


class Stream(IterableDataset[Any]):
    """Samples in a random order, of no known length."""

    def __init__(self, x: Tensor, y: Tensor, count: int, seed: int) -> None:
        self.x, self.y, self.count = x, y, count
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for i in torch.randint(len(self.x), (self.count,), generator=self.generator).tolist():
            yield self.x[i], self.y[i]


@healthy("MLP", "one epoch over a stream of no known length: windows of 500 batches", reaches=0.85)
def one_epoch_of_a_stream(seed: int) -> Built:
    x, y, v, w = data.digits()
    loaders = data.loaders((x, y, v, w), 16, seed)
    loaders["train_dataloaders"] = DataLoader(Stream(x, y, 16 * 1020, seed), 16)
    module = Supervised(nets.mlp((64, 32, 10), nn.GELU), adamw(3e-3))
    return Built(module, loaders, {"max_epochs": 1, "val_check_interval": 1020}, WELL)


@healthy("transformer", "LoRA on a decoder that has learned a little", reaches=0.17)
def lora(seed: int) -> Built:
    return text(Supervised(adapted(zero=False), adamw(1e-2)), seed, WELL)


@healthy("transformer", "a decoder with one of four experts for each token, and a loss for balance", reaches=0.22)
def sparse_decoder(seed: int) -> Built:
    return text(Sparse(Decoder(sparse=True), detached=False, router_lr=1e-2), seed, WELL)


class Embedding(Task):
    """Learns from two noisy views; its score is the accuracy of the nearest class mean of ``features``."""

    def views(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels with noise, a fifth of them black."""
        one, two = ((x + 0.1 * torch.randn_like(x)) * (torch.rand_like(x) > 0.2) for _ in range(2))
        return one, two

    def features(self, x: Tensor) -> Tensor:
        """What is kept after training."""
        return self.net.encoder(x)  # type: ignore[operator,union-attr]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        z = F.normalize(self.features(batch[0]), dim=1)
        means = torch.stack([z[batch[1] == digit].mean(0) for digit in range(10)])
        self.note_score((torch.cdist(z, means).argmin(1) == batch[1]).float().mean())


class SimCLR(Embedding):
    """The other images of the batch, in both views, are the negatives (Chen et al. 2020)."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        z = F.normalize(self.net.projector(self.features(torch.cat(self.views(batch[0])))), dim=1)  # type: ignore[operator,union-attr]
        n = len(z) // 2
        alike = (z @ z.T / 0.5).masked_fill(torch.eye(2 * n).bool(), -torch.inf)
        return self.note(F.cross_entropy(alike, torch.arange(2 * n).roll(n)))


def encoder() -> nn.Module:
    """Features of an image."""
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 32))


def projector(width: int = 32) -> nn.Module:
    """What the loss of a contrast sees."""
    return nn.Sequential(nn.Linear(width, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 16))


@healthy("MLP", "SimCLR: two views, all others of the batch as negatives", reaches=0.6)
def simclr(seed: int) -> Built:
    net = nn.ModuleDict({"encoder": encoder(), "projector": projector()})
    return digits(SimCLR(net, adamw(3e-3)), seed, WELL, max_epochs=5)


class BYOL(Embedding):
    """A predictor of what the average of the net makes of the other view (Grill et al. 2020)."""

    def features(self, x: Tensor) -> Tensor:
        return self.net.averaged.student[0](x)  # type: ignore[index,operator,union-attr]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        averaged, predictor = self.net.averaged, self.net.predictor  # type: ignore[union-attr]
        loss = torch.zeros(())
        one, two = self.views(batch[0])
        for x, other in ((one, two), (two, one)):
            with torch.no_grad():
                target = averaged.teacher(other)  # type: ignore[operator,union-attr]
            loss = loss + 2 - 2 * F.cosine_similarity(predictor(averaged.student(x)), target).mean()  # type: ignore[operator,union-attr]
        return self.note(loss)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.net.averaged.follow(0.95)  # type: ignore[operator,union-attr]


@healthy("MLP", "BYOL: no negatives, a predictor and a slow average as the target", reaches=0.6)
def byol(seed: int) -> Built:
    averaged = Averaged(nn.Sequential(encoder(), projector()))
    net = nn.ModuleDict({"averaged": averaged, "predictor": projector(16)})
    return digits(
        BYOL(net, lambda m: torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 3e-3)), seed, WELL, max_epochs=5
    )


class PPO(Task):
    """Proximal policy optimisation by hand, of one decision: which digit is it? (Schulman et al. 2017.)

    The reward is 1 for the right one. Four passes over each batch with a clipped ratio, a critic, and a bonus for entropy.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, lambda module: torch.optim.Adam(module.parameters(), lr=5e-3, eps=1e-5))
        self.automatic_optimization = False

    def policy(self, x: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        h = F.tanh(self.net.body(x))  # type: ignore[operator,union-attr]
        return torch.distributions.Categorical(logits=self.net.actor(h)), self.net.critic(h).squeeze(-1)  # type: ignore[operator,union-attr]

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        x, y = batch
        with torch.no_grad():
            old, value = self.policy(x)
            action = old.sample()
            reward, before = (action == y).float(), old.log_prob(action)
            advantage = reward - value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(4):
            now, value = self.policy(x)
            ratio = (now.log_prob(action) - before).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -gain + 0.5 * F.mse_loss(value, reward) - 0.01 * now.entropy().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 0.5, "norm")
            optimizer.step()
        self.note(loss)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note_score((self.policy(batch[0])[0].logits.argmax(-1) == batch[1]).float().mean())


@healthy("MLP", "PPO by manual optimisation, four passes over each batch, clipped", reaches=0.3)
def ppo(seed: int) -> Built:
    net = nn.ModuleDict({"body": nn.Linear(64, 64), "actor": nn.Linear(64, 10), "critic": nn.Linear(64, 1)})
    for name, gain in (("body", 2**0.5), ("actor", 0.01), ("critic", 1.0)):
        nn.init.orthogonal_(net[name].weight, gain)  # type: ignore[arg-type]
        nn.init.zeros_(net[name].bias)  # type: ignore[arg-type]
    return digits(PPO(net), seed, WELL, max_epochs=6)


class WassersteinPenalty(Task):
    """WGAN-GP (Gulrajani et al. 2017): a critic with a gradient penalty, two steps of it for one of the generator."""

    def __init__(self) -> None:
        generator = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.Sigmoid())
        critic = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
        super().__init__(nn.ModuleDict({"generator": generator, "critic": critic}), self.two)
        self.automatic_optimization = False

    @staticmethod
    def two(module: nn.Module) -> list[torch.optim.Optimizer]:
        net: Any = module.net
        return [torch.optim.Adam(net[part].parameters(), lr=2e-3, betas=(0.0, 0.9)) for part in ("generator", "critic")]

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        images, (optimizer_g, optimizer_c) = batch[0], self.optimizers()  # type: ignore[misc]
        generator, critic = self.net["generator"], self.net["critic"]  # type: ignore[index]
        for _ in range(2):
            fake = generator(torch.randn(len(images), 16)).detach()
            between = torch.lerp(images, fake, torch.rand(len(images), 1)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(fake).mean() - critic(images).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            optimizer_c.zero_grad()
            self.manual_backward(self.note(loss))
            optimizer_c.step()
        optimizer_g.zero_grad()
        self.manual_backward(-critic(generator(torch.randn(len(images), 16))).mean())
        optimizer_g.step()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        samples = self.net["generator"](torch.randn(512, 16, generator=torch.Generator().manual_seed(0)))  # type: ignore[index]
        images = batch[0]
        self.note_score(1 - (samples.mean(0) - images.mean(0)).abs().mean() / images.std(0).mean())


@healthy("GAN", "WGAN-GP: a critic with a gradient penalty", reaches=0.3)
def wgan_gp(seed: int) -> Built:
    return digits(WassersteinPenalty(), seed, WELL, max_epochs=6)


@healthy("VAE", "a VQ-VAE: eight codes of 32 for each image", reaches=0.2)
def vq_vae(seed: int) -> Built:
    net = VQVAE()
    nn.init.normal_(net.quantizer.codebook.weight, std=0.2)
    return digits(Codes(net, adam(5e-3)), seed, WELL, max_epochs=6)
