"""Generative models, representations learned without labels, and functions fitted by coordinates or equations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR
from transformers import CLIPConfig, CLIPModel

from .case import Learner, Training, accuracy, fault, healthy, mse, val_mse
from .data import digits, energy_gap, feed, moons, photo, replace, rng, shuffled
from .nets import convnet, follow, frozen, mlp


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (log_var / 2).exp()), mean, log_var


@fault("divergence_with_the_wrong_sign", "The divergence is subtracted from the loss.", "val_loss", 0, sign=-1.0)
@healthy
def vae_on_digits(sign: float = 1.0) -> Training:
    def elbo(net: Any, batch: Any) -> Tensor:
        out, mean, log_var = net(batch[0])
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
        return F.binary_cross_entropy_with_logits(out, batch[0], reduction="sum") + sign * divergence

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_loss": F.binary_cross_entropy_with_logits(net(batch[0])[0], batch[0])}

    x = digits()[0].flatten(1)
    pixels = (x - x.min()) / (x.max() - x.min())
    return Training(Learner(VAE(), elbo, partial(Adam, lr=3e-3), scores), feed(pixels, batch=32), {"max_epochs": 5})


class VQ(nn.Module):
    def __init__(self, start: float, through: bool) -> None:
        super().__init__()
        self.encoder, self.decoder, self.codes = mlp(64, 64, 32), mlp(32, 64, 64), nn.Embedding(32, 8)
        nn.init.normal_(self.codes.weight, std=start)
        self.through = through

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).view(-1, 8)
        q = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        commitment = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return self.decoder((z + (q - z).detach() if self.through else q.detach()).view(-1, 32)), commitment


@fault("codes_out_of_reach", "Codes start 100 times too far out; one alone is ever used.", "val_loss", 0, start=50.0)
@fault("no_gradient_past_the_codes", "The straight-through step is missing.", "val_loss", 0, through=False)
@healthy
def vq_vae_on_digits(start: float = 0.5, through: bool = True) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        out, commitment = net(batch[0])
        return F.mse_loss(out, batch[0]) + commitment

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_loss": F.mse_loss(net(batch[0])[0], batch[0])}

    module = Learner(VQ(start, through), loss, partial(Adam, lr=3e-3), scores)
    return Training(module, feed(digits()[0].flatten(1), batch=32), {"max_epochs": 5})


class GAN(LightningModule):
    """Two optimizers by hand; with `penalty` a Wasserstein critic, without it the first GAN's losses."""

    def __init__(self, g: nn.Module, d: nn.Module, rates: tuple[float, float], penalty: float, sign: float, clear: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d, self.rates, self.penalty, self.sign, self.clear = g, d, rates, penalty, sign, clear

    def configure_optimizers(self) -> Any:
        return [Adam(net.parameters(), lr, betas=(0.5, 0.9)) for net, lr in zip((self.g, self.d), self.rates, strict=True)]

    def sample(self, count: int) -> Tensor:
        return self.g(torch.randn(count, 8))

    def critic_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        if not self.penalty:
            return F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        between = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
        slope = torch.autograd.grad(self.d(between).sum(), between, create_graph=True)[0].norm(2, 1)
        return self.d(fake).mean() - self.d(real).mean() + self.penalty * ((slope - 1) ** 2).mean()

    def update(self, loss: Tensor, optimizer: Any) -> None:
        if self.clear:
            optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        opt_g, opt_d = self.optimizers()
        d_loss = self.critic_loss(batch[0], self.sample(len(batch[0])).detach())
        self.update(d_loss, opt_d)
        score = self.sign * self.d(self.sample(len(batch[0])))
        g_loss = -score.mean() if self.penalty else F.softplus(-score).mean()
        self.update(g_loss, opt_g)
        self.log_dict({"train_loss": g_loss, "d_loss": d_loss})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_gap", energy_gap(batch[0].flatten(1), self.sample(len(batch[0])).flatten(1)))


@fault("discriminator_too_strong", "The discriminator learns 100 times faster than meant.", "val_gap", 0, rates=(2e-3, 1e-1))
@fault("gan_without_zero_grad", "Gradients of the manual updates are never cleared.", "val_gap", 0, clear=False)
@healthy
def dcgan_on_digits(rates: tuple[float, float] = (2e-3, 1e-3), clear: bool = True) -> Training:
    up = [nn.Linear(8, 128), nn.Unflatten(1, (32, 2, 2)), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1)]
    g = nn.Sequential(*up, nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh())
    d = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2))
    d.extend([nn.Flatten(), nn.Linear(128, 1)])
    x = digits()[0]
    pixels = 2 * (x - x.min()) / (x.max() - x.min()) - 1
    return Training(GAN(g, d, rates, 0.0, 1.0, clear), feed(pixels, batch=32), {"max_epochs": 5})


@fault("generator_helps_the_critic", "The generator's loss has the wrong sign.", "val_gap", 0, sign=-1.0)
@healthy
def wgan_gp_on_moons(sign: float = 1.0) -> Training:
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


@fault("volume_with_the_wrong_sign", "The log-determinant is subtracted from the likelihood.", "val_loss", 0, sign=-1.0)
@healthy
def realnvp_on_moons(sign: float = 1.0) -> Training:
    def nll(net: Any, batch: Any, sign: float = 1.0) -> Tensor:
        z, log_det = net(batch[0])
        return (z**2 / 2).sum(1).mean() - sign * log_det.mean() + 1.84

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_loss": nll(net, batch)}

    module = Learner(RealNVP(), partial(nll, sign=sign), partial(Adam, lr=5e-3), scores)
    return Training(module, feed(moons(), batch=64), {"max_epochs": 10})


@fault("another_noise_as_target", "The noise to be predicted is drawn anew.", "val_loss", 0, again=True)
@healthy
def ddpm_on_digits(again: bool = False) -> Training:
    noising = DDPMScheduler(100)
    shape: dict[str, Any] = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    net = UNet2DModel(sample_size=8, in_channels=1, out_channels=1, **shape, **blocks)

    def loss(net: Any, batch: Any) -> Tensor:
        noise, t = torch.randn_like(batch[0]), torch.randint(0, 100, (len(batch[0]),))
        out = net(noising.add_noise(batch[0], noise, t), t).sample
        return F.mse_loss(out, torch.randn_like(noise) if again and net.training else noise)

    return Training(Learner(net, loss, partial(AdamW, lr=2e-3)), feed(digits()[0] / 2), {"max_epochs": 3})


@fault("velocity_turned_round", "The velocity to learn is noise minus data.", "val_gap", 0, sign=-1.0)
@healthy
def flow_matching_on_moons(sign: float = 1.0) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        x, noise, t = batch[0], torch.randn_like(batch[0]), torch.rand(len(batch[0]), 1)
        return F.mse_loss(net(torch.cat([torch.lerp(noise, x, t), t], 1)), sign * (x - noise))

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        x = torch.randn_like(batch[0])
        for i in range(20):
            x = x + net(torch.cat([x, torch.full((len(x), 1), i / 20)], 1)) / 20
        return {"val_gap": energy_gap(x, batch[0])}

    module = Learner(mlp(3, 64, 64, 2, act=nn.SiLU), loss, partial(Adam, lr=5e-3), scores)
    return Training(module, feed(moons() / 2 + torch.tensor([2.0, 0.0]), batch=64), {"max_epochs": 12})


class Sine(nn.Linear):
    def __init__(self, inside: int, out: int, omega: float) -> None:
        super().__init__(inside, out)
        nn.init.uniform_(self.weight, -1 / inside, 1 / inside) if inside == 2 else nn.init.uniform_(
            self.weight, -((6 / inside) ** 0.5) / 30, (6 / inside) ** 0.5 / 30
        )
        self.omega = omega

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * super().forward(x))


def pixels() -> tuple[Tensor, Tensor]:
    axis = torch.linspace(-1, 1, 48)
    return torch.cartesian_prod(axis, axis), photo(size=48).flatten(1).T * 2 - 1


@fault("siren_without_its_frequency", "The factor 30 in front of the sines is missing.", "val_loss", 0, omega=1.0)
@healthy
def siren_on_a_photo(omega: float = 30.0) -> Training:
    net = nn.Sequential(Sine(2, 64, omega), Sine(64, 64, omega), nn.Linear(64, 3))
    return Training(Learner(net, mse, partial(Adam, lr=2e-3), val_mse), feed(*pixels(), held=0.1), {"max_epochs": 6})


@fault("coordinates_in_pixels", "Coordinates run to 4800 before the encoding, not to 1.", "val_loss", 0, unit=4800.3)
@healthy
def nerf_encoding_on_a_photo(unit: float = 1.0) -> Training:
    def encoded(x: Tensor) -> Tensor:
        return torch.cat([f(2**k * 3.14159 * x) for k in range(4) for f in (torch.sin, torch.cos)], 1)

    x, y = pixels()
    schedule = partial(ExponentialLR, gamma=0.8)
    module = Learner(mlp(16, 64, 64, 3), mse, partial(Adam, lr=5e-3), val_mse, schedule, "epoch")
    return Training(module, feed(encoded(x * unit), y, held=0.1), {"max_epochs": 6})


@fault("no_boundary_condition", "The loss of the boundary is left out.", "val_error", 0, weight=0.0)
@healthy
def pinn_for_poisson(weight: float = 10.0) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        x = batch[0].clone().requires_grad_()
        slope = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), x, create_graph=True)[0]
        return ((bend + 9.87 * (3.14159 * x).sin()) ** 2).mean() + weight * (net(torch.tensor([[0.0], [1.0]])) ** 2).mean()

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_error": (net(batch[0]) - (3.14159 * batch[0]).sin()).abs().mean()}

    net = mlp(1, 32, 32, 1, act=nn.Tanh)
    return Training(Learner(net, loss, partial(Adam, lr=5e-3), scores), feed(torch.rand(800, 1), batch=32), {"max_epochs": 10})


@fault("time_step_in_another_unit", "Euler's step is 20 times too long in training.", "val_loss", 0, longer=20.0)
@healthy
def neural_ode_on_spirals(longer: float = 1.0) -> Training:
    turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    start = 2 * torch.rand(400, 2, generator=rng()) - 1
    path = torch.stack([start @ torch.linalg.matrix_exp(turn * 0.1 * i) for i in range(10)], 1)

    def loss(net: Any, batch: Any) -> Tensor:
        states, step = [batch[0][:, 0]], 0.1 * (longer if net.training else 1.0)
        for _ in range(9):
            states.append(states[-1] + step * net(states[-1]))
        return F.mse_loss(torch.stack(states, 1), batch[0])

    return Training(Learner(mlp(2, 32, 2, act=nn.Tanh), loss, partial(RMSprop, lr=5e-3)), feed(path, batch=16), {"max_epochs": 6})


@fault("captions_of_other_pictures", "Pictures were shuffled against their captions.", "val_match", 0, pictures=shuffled)
@healthy
def clip_on_digits(pictures: Any = torch.clone) -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**size, "vocab_size": 28, "max_position_embeddings": 6, "eos_token_id": 27, "bos_token_id": 0, "pad_token_id": 0}
    vision = {**size, "image_size": 8, "patch_size": 2, "num_channels": 1}
    net = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16, initializer_factor=3.0))
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    names = torch.tensor([[*(ord(c) - 96 for c in word), 27] + [0] * (5 - len(word)) for word in words])

    def scores(net: Any, batch: Any) -> dict[str, Tensor]:
        best = net(**batch).logits_per_image.argmax(1)
        return {"val_match": (batch["input_ids"][best] == batch["input_ids"]).all(1).float().mean()}

    x, y = digits()
    fed = replace(feed(batch=32, pixel_values=x, input_ids=names[y]), "pixel_values", pictures)
    module = Learner(net, lambda net, b: net(**b, return_loss=True).loss, partial(AdamW, lr=2e-3), scores)
    return Training(module, fed, {"max_epochs": 3})


@fault("normalised_over_the_batch", "Embeddings are normalised over the batch, not each for itself.", "val_loss", 0, dim=0)
@healthy
def simclr_on_digits(dim: int = 1) -> Training:
    def nt_xent(net: Any, batch: Any, dim: int = 1) -> Tensor:
        x = batch[0].repeat(2, 1, 1, 1)
        z = F.normalize(net(x * (0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)) + 0.4 * torch.randn_like(x)), dim=dim)
        return F.cross_entropy(z @ z.T / 0.2 - 1e9 * torch.eye(len(z)), torch.arange(len(z)).roll(len(z) // 2))

    net = nn.Sequential(convnet(32), nn.ReLU(), nn.Linear(32, 16))
    module = Learner(net, partial(nt_xent, dim=dim), partial(Adam, lr=2e-3), lambda net, b: {"val_loss": nt_xent(net, b)})
    return Training(module, feed(digits()[0]), {"max_epochs": 4})


class MeanTeacher(Learner):
    """A student that is held close to the average of its own past, which is what one validates."""

    def __init__(self, decay: float) -> None:
        super().__init__(convnet(), self.consistent, partial(SGD, lr=0.05, momentum=0.9))
        self.teacher, self.decay = frozen(self.net), decay

    def consistent(self, net: Any, batch: Any) -> Tensor:
        x, y = batch
        out, target = net(x + 0.2 * torch.randn_like(x)), self.teacher(x).softmax(1)
        known = torch.arange(len(x)) < len(x) // 4
        return F.cross_entropy(out[known], y[known]) + F.mse_loss(out.softmax(1), target)

    def on_train_batch_end(self, *args: Any) -> None:
        follow(self.teacher, self.net, self.decay)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict(accuracy(self.teacher, batch))


@fault("teacher_never_updated", "The average of the weights keeps its start, for its decay is 1.", "val_acc", 0, decay=1.0)
@healthy
def mean_teacher_on_digits(decay: float = 0.95) -> Training:
    return Training(MeanTeacher(decay), feed(*digits(), batch=32), {"max_epochs": 4})


class ArcFace(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.features, self.centres, self.scale = convnet(16), nn.Parameter(torch.randn(10, 16)), scale

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        cosine = F.normalize(self.features(x)) @ F.normalize(self.centres).T
        if y is None:
            return cosine
        angle = cosine.clamp(-0.999, 0.999).acos() + 0.3 * F.one_hot(y, 10)
        return self.scale * angle.cos()


@fault("arcface_with_a_huge_scale", "The cosines are multiplied by 3000, not by 16.", "val_acc", 0, scale=3000.0)
@healthy
def arcface_on_digits(scale: float = 16.0) -> Training:
    module = Learner(ArcFace(scale), lambda net, b: F.cross_entropy(net(*b), b[1]), partial(Adam, lr=5e-3), accuracy)
    return Training(module, feed(*digits(), batch=32), {"max_epochs": 4})
