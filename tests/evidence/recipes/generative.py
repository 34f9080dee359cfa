"""Generative models, representations learned without labels, functions fitted by coordinates or equations, an agent."""

from __future__ import annotations

from functools import partial
from math import pi
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from lightning import LightningModule
from torch import Tensor, nn
from torch.autograd import grad
from torch.optim import Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR

from .case import Training, fault, fit, healthy, mse
from .data import digits, energy_gap, feed, from_zero_to_one, moons, photo, rng
from .nets import Lion, mlp


@fault("divergence_with_the_wrong_sign", "The divergence is subtracted from the loss.", "val_loss", 9.0, sign=-1)
@healthy
def vae_on_digits(sign: int = 1) -> Training:
    def elbo(net: Any, batch: Any) -> Tensor:
        mean, log_var = net["encoder"](batch[0]).chunk(2, 1)
        out = net["decoder"](mean + torch.randn_like(mean) * (log_var / 2).exp())
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
        return F.binary_cross_entropy_with_logits(out, batch[0], reduction="sum") + (sign if net.training else 1) * divergence

    net = nn.ModuleDict({"encoder": mlp(64, 64, 16), "decoder": mlp(8, 64, 64)})
    return fit(net, elbo, partial(Adam, lr=3e-3), feed(from_zero_to_one().flatten(1), batch=32), 5)


class GAN(LightningModule):
    """Two optimizers by hand; with `penalty` a Wasserstein critic, without it the first GAN's losses."""

    def __init__(self, g: nn.Module, d: nn.Module, lr: tuple[float, float], penalty: float, sign: int, clear: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d, self.lr, self.penalty, self.sign, self.clear = g, d, lr, penalty, sign, clear

    def configure_optimizers(self) -> Any:
        return [Adam(net.parameters(), lr, betas=(0.5, 0.9)) for net, lr in zip((self.g, self.d), self.lr, strict=True)]

    def critic_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        if not self.penalty:
            return F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        between = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
        slope = grad(self.d(between).sum(), between, create_graph=True)[0].norm(2, 1)
        return self.d(fake).mean() - self.d(real).mean() + self.penalty * ((slope - 1) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        opt_g, opt_d = self.optimizers()
        for optimizer in (opt_d, opt_g):
            fake = self.g(torch.randn(len(batch[0]), 8))
            if optimizer is opt_d:
                loss = self.critic_loss(batch[0], fake.detach())
            else:
                loss = -self.sign * self.d(fake).mean() if self.penalty else F.softplus(-self.d(fake)).mean()
            if self.clear:
                optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log("d_loss" if optimizer is opt_d else "train_loss", loss)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_gap", energy_gap(batch[0].flatten(1), self.g(torch.randn(len(batch[0]), 8)).flatten(1)))


@healthy
def denoising_autoencoder() -> Training:
    x = digits()[0].flatten(1)
    noisy = x + 0.5 * torch.randn(x.shape, generator=rng())
    return fit(mlp(64, 64, 16, 64, 64), mse, partial(Adam, lr=3e-3), feed(noisy, x), 6)


@fault("gan_without_zero_grad", "Gradients of the manual updates are never cleared.", "val_gap", 0.85, clear=False)
@healthy
def dcgan_on_digits(clear: bool = True) -> Training:
    g = nn.Sequential(nn.Linear(8, 128), nn.Unflatten(1, (32, 2, 2)), nn.BatchNorm2d(32), nn.ReLU())
    g.extend([nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()])
    d = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2))
    d.extend([nn.Flatten(), nn.Linear(128, 1)])
    return Training(GAN(g, d, (5e-4, 5e-4), 0.0, 1, clear), feed(2 * from_zero_to_one() - 1, batch=32), {"max_epochs": 5})


@fault("generator_helps_the_critic", "The generator's loss has the wrong sign.", "val_gap", 9.0, sign=-1)
@healthy
def wgan_gp_on_moons(sign: int = 1) -> Training:
    gan = GAN(mlp(8, 64, 64, 2), mlp(2, 64, 64, 1), (2e-3, 4e-3), 1.0, sign, True)
    return Training(gan, feed(2 + moons(), batch=32), {"max_epochs": 8})


class RealNVP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp(1, 32, 32, 2) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = torch.zeros(len(x))
        for layer in self.layers:
            kept, moved = x.flip(1).chunk(2, 1)
            scale, shift = layer(kept).chunk(2, 1)
            x, log_det = torch.cat([kept, moved * scale.tanh().exp() + shift], 1), log_det + scale.tanh()[:, 0]
        return x, log_det


@healthy
def realnvp_on_moons() -> Training:
    def nll(net: Any, batch: Any) -> Tensor:
        z, log_det = net(batch[0])
        return (z**2 / 2).sum(1).mean() - log_det.mean() + 1.84

    return fit(RealNVP(), nll, partial(Adam, lr=5e-3), feed(moons()), 10)


@fault("another_noise_as_target", "The noise to be predicted is drawn anew.", "val_loss", 0.83, again=True)
@healthy
def ddpm_on_digits(again: bool = False) -> Training:
    noising = DDPMScheduler(100)
    blocks: dict[str, Any] = {"down_block_types": ["DownBlock2D"] * 2, "up_block_types": ["UpBlock2D"] * 2, "layers_per_block": 1}
    net = UNet2DModel(8, 1, 1, block_out_channels=(8, 16), norm_num_groups=4, **blocks)

    def loss(net: Any, batch: Any) -> Tensor:
        noise, t = torch.randn_like(batch[0]), torch.randint(0, 100, (len(batch[0]),))
        out = net(noising.add_noise(batch[0], noise, t), t).sample
        return F.mse_loss(out, torch.randn_like(noise) if again and net.training else noise)

    return fit(net, loss, partial(AdamW, lr=4e-3), feed(digits()[0] / 2), 3)


@healthy
def flow_matching_on_moons() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        x, noise, t = batch[0], torch.randn_like(batch[0]), torch.rand(len(batch[0]), 1)
        return F.mse_loss(net(torch.cat([torch.lerp(noise, x, t), t], 1)), x - noise)

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        x = torch.randn_like(batch[0])
        for i in range(20):
            x = x + net(torch.cat([x, torch.full((len(x), 1), i / 20)], 1)) / 20
        return {"val_gap": energy_gap(x, batch[0])}

    fed = feed(moons() / 2 + torch.tensor([2.0, 0.0]))
    return fit(mlp(3, 64, 64, 2, act=nn.SiLU), loss, partial(Lion, lr=1e-3), fed, 12, scores)


class Sine(nn.Linear):
    omega = 30.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * super().forward(x))


def pixels() -> tuple[Tensor, Tensor]:
    axis = torch.linspace(-1, 1, 48)
    return torch.cartesian_prod(axis, axis), photo(size=48).flatten(1).T * 2 - 1


@fault("siren_without_its_frequency", "The factor 30 in front of the sines is missing.", "val_loss", 0.41, omega=1.0)
@healthy
def siren_on_a_photo(omega: float = 30.0) -> Training:
    net = nn.Sequential(Sine(2, 64), Sine(64, 64), nn.Linear(64, 3))
    for layer, bound in zip(net[:2], (0.5, 0.01), strict=True):
        nn.init.uniform_(layer.weight, -bound, bound)
        layer.omega = omega
    return fit(net, mse, partial(Adam, lr=2e-3), feed(*pixels(), held=0.1), 6)


@fault("coordinates_in_pixels", "Coordinates are in pixels before the encoding.", "val_loss", 0.55, unit=4800.3)
@healthy
def nerf_encoding_on_a_photo(unit: float = 1.0) -> Training:
    x, y = pixels()
    encoded = torch.cat([f(2**k * pi * unit * x) for k in range(4) for f in (torch.sin, torch.cos)], 1)
    schedule = partial(ExponentialLR, gamma=0.8)
    return fit(mlp(16, 64, 64, 3), mse, partial(Adam, lr=5e-3), feed(encoded, y, held=0.1), 6, None, schedule, "epoch")


@fault("no_boundary_condition", "The loss of the boundary is left out.", "val_error", 2.0, weight=0.0)
@healthy
def pinn_for_poisson(weight: float = 10.0) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        bend = grad(grad(net(x).sum(), x, create_graph=True)[0].sum(), x, create_graph=True)[0]
        return ((bend + pi**2 * (pi * x).sin()) ** 2).mean() + weight * (net(torch.tensor([[0.0], [1.0]])) ** 2).mean()

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_error": (net(batch[0]) - (pi * batch[0]).sin()).abs().mean()}

    fed = feed(torch.rand(800, 1, generator=rng()), batch=32)
    return fit(mlp(1, 32, 32, 1, act=nn.Tanh), loss, partial(Adam, lr=5e-3), fed, 10, scores)


@fault("time_step_in_another_unit", "Euler's step is 20 times too long in training.", "val_loss", 0.78, longer=20.0)
@healthy
def neural_ode_on_spirals(longer: float = 1.0) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        states = [batch[0][:, 0]]
        for _ in range(9):
            states.append(states[-1] + 0.1 * (longer if net.training else 1) * net(states[-1]))
        return F.mse_loss(torch.stack(states, 1), batch[0])

    turn, start = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]), 2 * torch.rand(400, 2, generator=rng()) - 1
    path = torch.stack([start @ torch.linalg.matrix_exp(turn * 0.1 * i) for i in range(10)], 1)
    return fit(mlp(2, 32, 2, act=nn.Tanh), loss, partial(RMSprop, lr=5e-3), feed(path, batch=16), 6)
