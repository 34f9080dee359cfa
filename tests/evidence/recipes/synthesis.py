"""More generative models and physics: autoencoders, pixels one by one, diffusion, two nets in a game, energy that is kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, DiTTransformer2DModel
from diffusers.training_utils import EMAModel
from lightning import LightningModule
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import Adam, AdamW

from .case import Training, fault, fit, healthy
from .data import digits, energy_gap, feed, from_zero_to_one, moons, rng
from .nets import mlp


@fault("divergence_1000_times_too_heavy", "The weight of the divergence is 1, not 0.001.", "val_error", 0.32, weight=1.0)
@healthy
def latents_of_stable_diffusion(weight: float = 1e-3) -> Training:
    blocks = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    net = AutoencoderKL(1, 1, *blocks, (8, 16), 1, latent_channels=2, norm_num_groups=4, mid_block_add_attention=False)

    def loss(net: Any, batch: Any) -> Tensor:
        posterior = net.encode(batch[0]).latent_dist
        return F.l1_loss(net.decode(posterior.sample()).sample, batch[0]) + weight * posterior.kl().mean()

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_error": (net(batch[0]).sample - batch[0]).abs().mean()}

    return fit(net, loss, partial(AdamW, lr=3e-3), feed(digits()[0], batch=32), 2, scores, gradient_clip_val=1.0)


class Masked(nn.Conv2d):
    def __init__(self, inside: int, out: int, itself: bool) -> None:
        super().__init__(inside, out, 5, padding=2)
        seen = torch.arange(25).view(5, 5) < 12 + itself
        self.register_buffer("seen", seen.float())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.seen, self.bias, padding=2)


@fault("first_mask_shows_the_pixel", "The first layer's mask lets each pixel see itself.", "val_gap", 2.94, itself=True)
@healthy
def pixelcnn_on_digits(itself: bool = False) -> Training:
    def nll(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[0])

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        x = torch.zeros(100, 1, 8, 8)
        for i in range(64):
            x.flatten(1)[:, i] = net(x).flatten(1)[:, i].sigmoid().bernoulli()
        return {"val_gap": energy_gap(x.flatten(1), batch[0].flatten(1))}

    net = nn.Sequential(Masked(1, 16, itself), nn.ReLU(), Masked(16, 16, True), nn.ReLU(), Masked(16, 1, True))
    return fit(
        net, nll, partial(Adam, lr=5e-3), feed((from_zero_to_one() > 0.5).float(), batch=32), 4, scores, check_val_every_n_epoch=2
    )


class DiT(LightningModule):
    """A diffusion transformer that is given the class and predicts velocities; its averaged weights are validated."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        size: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "num_embeds_ada_norm": 10}
        self.net = DiTTransformer2DModel(in_channels=1, sample_size=8, patch_size=2, norm_num_groups=1, **size)
        self.noising = DDPMScheduler(100, prediction_type="v_prediction")
        self.average = EMAModel(self.net.parameters(), decay, min_decay=decay)

    def velocity_loss(self, x: Tensor, y: Tensor) -> Tensor:
        noise, t = torch.randn_like(x), torch.randint(0, 100, y.shape)
        out = self.net(self.noising.add_noise(x, noise, t), t, y).sample
        return F.mse_loss(out, self.noising.get_velocity(x, noise, t))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.velocity_loss(*batch)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, *args: Any) -> None:
        self.average.step(self.net.parameters())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.average.store(self.net.parameters())
        self.average.copy_to(self.net.parameters())
        self.log("val_loss", self.velocity_loss(*batch))
        self.average.restore(self.net.parameters())

    def configure_optimizers(self) -> AdamW:
        return AdamW(self.net.parameters(), lr=3e-3)


@fault(
    "average_too_slow", "The decay of the averaged weights is 0.9999 in a training of 200 steps.", "val_loss", 0.78, decay=0.9999
)
@healthy
def diffusion_transformer_with_ema(decay: float = 0.95) -> Training:
    return Training(DiT(decay), feed(digits()[0], digits()[1], batch=32), {"max_epochs": 5, "gradient_clip_val": 1.0})


@fault("product_of_alphas_forgotten", "Noise is mixed with alpha, not with the product of alphas.", "val_loss", 0.53, mix="alphas")
@healthy
def noise_prediction_on_moons(mix: str = "alphas_cumprod") -> Training:
    plan = DDPMScheduler(100, beta_start=1e-4, beta_end=0.1)

    def loss(net: Any, batch: Any) -> Tensor:
        noise, t = torch.randn_like(batch[0]), torch.randint(0, 100, (len(batch[0]), 1))
        share = getattr(plan, mix if net.training else "alphas_cumprod")[t]
        return F.mse_loss(net(torch.cat([share.sqrt() * batch[0] + (1 - share).sqrt() * noise, t / 100], 1)), noise)

    return fit(mlp(3, 64, 64, 2, act=nn.SiLU), loss, partial(Adam, lr=5e-3), feed(moons()), 12)


class HingeGAN(LightningModule):
    """A critic with spectral norm, two steps of it for each of the generator, rates of both that fall."""

    def __init__(self, reaches: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.reaches = False, reaches
        self.g = mlp(4, 64, 64, 2)
        layers = [spectral_norm(nn.Linear(a, b)) for a, b in ((2, 64), (64, 64), (64, 1))]
        self.d = nn.Sequential(layers[0], nn.LeakyReLU(0.1), layers[1], nn.LeakyReLU(0.1), layers[2])

    def configure_optimizers(self) -> Any:
        return Adam(self.g.parameters(), 2e-3, (0.0, 0.9)), Adam(self.d.parameters(), 4e-3, (0.0, 0.9))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        opt_g, opt_d = self.optimizers()
        fake = self.g(torch.randn(len(batch[0]), 4))
        d_loss = F.relu(1 - self.d(batch[0])).mean() + F.relu(1 + self.d(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()
        g_loss = -self.d(fake if self.reaches else fake.detach()).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        self.log_dict({"d_loss": d_loss, "g_loss": g_loss}, prog_bar=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_gap", energy_gap(batch[0], self.g(torch.randn(len(batch[0]), 4))))


@fault("fakes_detached_for_both", "The fakes are detached in the generator's step too.", "val_gap", 1.0, reaches=False)
@healthy
def spectral_gan_on_a_ring(reaches: bool = True) -> Training:
    angle = torch.randint(0, 8, (1600,), generator=rng()) * 0.785
    ring = torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(1600, 2, generator=rng(1))
    return Training(HingeGAN(reaches), feed(ring + 1), {"max_epochs": 12})


@fault("gradient_not_turned", "Motion follows the gradient itself, not the gradient turned.", "val_loss", 0.77, turned=False)
@healthy
def hamiltonian_net_of_a_pendulum(turned: bool = True) -> Training:
    @torch.enable_grad()
    def loss(net: Any, batch: Any) -> Tensor:
        state = batch["state"].clone().requires_grad_()
        slope = grad(net(state).sum(), state, create_graph=True)[0]
        return F.mse_loss(slope.flip(1) * torch.tensor([1.0, -1.0]) if turned else slope, batch["motion"])

    state = 4 * torch.rand(1200, 2, generator=rng()) - 2
    motion = torch.stack([state[:, 1], -3 * state[:, 0].sin()], 1) + 0.05 * torch.randn(1200, 2, generator=rng(1))
    net = mlp(2, 64, 64, 1, act=nn.Tanh)
    return fit(net, loss, partial(Adam, lr=1e-2), feed(state=state, motion=motion, batch=32), 5, inference_mode=False)
