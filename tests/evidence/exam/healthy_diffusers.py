"""Healthy trainings of diffusers' models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import pictures

BATCHES = {"max_epochs": 2, "limit_train_batches": 25}


def adamw(lr: float = 1e-3, weight_decay: float = 1e-2) -> Callable[[Any], Any]:
    return lambda module: torch.optim.AdamW(module.parameters(), lr, weight_decay=weight_decay)


def small_unet(**options: Any) -> nn.Module:
    from diffusers import UNet2DModel

    sizes = {"sample_size": 8, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "norm_num_groups": 8}
    sizes |= {"block_out_channels": (16, 32), "down_block_types": ("DownBlock2D", "AttnDownBlock2D")}
    sizes |= {"up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8}
    return UNet2DModel(**{**sizes, **options})


def noisy(images: Any, schedule: Any) -> tuple[Any, Any, Any]:
    """Noise, the images with it, and the timesteps."""
    noise = torch.randn_like(images)
    steps = torch.randint(0, schedule.config.num_train_timesteps, (len(images),))
    return noise, schedule.add_noise(images, noise, steps), steps


def denoises(net: Any, batch: Any) -> Any:
    """The loss of DDPM: predict the noise."""
    from diffusers import DDPMScheduler

    noise, images, steps = noisy(batch[0], DDPMScheduler())
    return F.mse_loss(net(images, steps).sample, noise)


def trained(module: Recipe, size: int = 8, batch_size: int = 16, **kwargs: Any) -> Built:
    """On digits of 8 x 8 pixels, or of another size, for two epochs of 25 batches."""
    return Built(module, pictures(batch_size, size), {**BATCHES, **kwargs}, Expected())


@healthy("diffusers", "U-Net that predicts noise, AdamW with warm-up, clipped at 1")
def diffusers_unet() -> Built:
    def optimizers(module: Any) -> Any:
        from diffusers.optimization import get_cosine_schedule_with_warmup

        chosen = adamw(1e-3)(module)
        schedule = get_cosine_schedule_with_warmup(chosen, 10, 50)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return trained(Recipe(small_unet(), denoises, optimizers), gradient_clip_val=1.0)


class Averaged(Recipe):
    """Keeps diffusers' moving average."""

    def __init__(self, *parts: Any) -> None:
        from diffusers.training_utils import EMAModel

        super().__init__(*parts)
        self.average = EMAModel(self.net.parameters(), decay=0.999, use_ema_warmup=True)

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.step(self.net.parameters())


@healthy("diffusers", "U-Net with a moving average, v-prediction and classes")
def diffusers_unet_ema() -> Built:
    from diffusers import DDPMScheduler

    schedule = DDPMScheduler(prediction_type="v_prediction", beta_schedule="squaredcos_cap_v2")

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        goal = schedule.get_velocity(batch[0], noise, steps)
        return F.mse_loss(net(images, steps, class_labels=batch[1]).sample, goal)

    return trained(Averaged(small_unet(num_class_embeds=10), loss, adamw(5e-4)))


@healthy("diffusers", "DiT: blocks whose gates start at zero, classes that are dropped at times")
def diffusers_dit() -> Built:
    from diffusers import DDPMScheduler, DiTTransformer2DModel

    sizes = {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 3, "sample_size": 16, "patch_size": 4}
    net = DiTTransformer2DModel(**sizes, in_channels=1, num_embeds_ada_norm=1000)
    schedule = DDPMScheduler()

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        return F.mse_loss(net(images, steps, class_labels=batch[1]).sample, noise)

    return trained(Recipe(net, loss, adamw(5e-4, 0.0)), 16)


def small_vae() -> nn.Module:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return AutoencoderKL(1, 1, **blocks, block_out_channels=(16, 32), latent_channels=2, norm_num_groups=8, sample_size=16)


def evidence(weight: float) -> Callable[[Any, Any], Any]:
    """The negative evidence bound, with this weight on the divergence."""

    def loss(net: Any, batch: Any) -> Any:
        posterior = net.encode(batch[0]).latent_dist
        mean = net.decode(posterior.sample()).sample
        return F.mse_loss(mean, batch[0]) + weight * posterior.kl().mean()

    return loss


@healthy("diffusers", "AutoencoderKL with a small weight on the divergence")
def diffusers_vae() -> Built:
    return trained(Recipe(small_vae(), evidence(1e-6), adamw(1e-3)))


def small_vq(**options: Any) -> nn.Module:
    from diffusers import VQModel

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"block_out_channels": (16, 32), "latent_channels": 4, "num_vq_embeddings": 32, "norm_num_groups": 8}
    return VQModel(1, 1, **{**blocks, **sizes, **options})


def quantised(net: Any, batch: Any) -> Any:
    output = net(batch[0])
    return F.mse_loss(output.sample, batch[0]) + output.commit_loss.mean()


@healthy("diffusers", "VQModel with a codebook of 32")
def diffusers_vq() -> Built:
    return trained(Recipe(small_vq(), quantised, adamw(1e-3)))


@healthy("diffusers", "conditional U-Net with cross-attention to the embedding of a class, dropped at times")
def diffusers_unet_conditional() -> Built:
    from diffusers import DDPMScheduler, UNet2DConditionModel

    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
    sizes = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 8}
    net = nn.ModuleDict({"unet": UNet2DConditionModel(8, 1, 1, **blocks, **sizes, cross_attention_dim=24)})
    net["words"] = nn.Embedding(11, 24)
    schedule = DDPMScheduler()

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        words = batch[1].masked_fill(torch.rand(len(batch[1])) < 0.1, 10)
        return F.mse_loss(net["unet"](images, steps, net["words"](words)[:, None]).sample, noise)

    return trained(Recipe(net, loss, adamw(1e-3)))


def small_tiny_autoencoder() -> Any:
    from diffusers import AutoencoderTiny

    sizes = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16), "latent_channels": 2}
    return AutoencoderTiny(1, 1, **sizes, num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1))


def gives_back(net: Any, batch: Any) -> Any:
    return F.mse_loss(net.decode(net.encode(batch[0]).latents).sample, batch[0])


@healthy("diffusers", "AutoencoderTiny, trained to give back its input")
def diffusers_tiny_autoencoder() -> Built:
    return trained(Recipe(small_tiny_autoencoder(), gives_back, adamw(1e-3)), 16)


@healthy("diffusers", "PixArt-like transformer with flow matching, Adam clipped at 0.5")
def diffusers_flow() -> Built:
    from diffusers import DiTTransformer2DModel

    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 3, "sample_size": 16, "patch_size": 4}
    net = DiTTransformer2DModel(**sizes, in_channels=1, num_embeds_ada_norm=1000)

    def loss(net: Any, batch: Any) -> Any:
        noise, share = torch.randn_like(batch[0]), torch.sigmoid(torch.randn(len(batch[0])))
        images = torch.lerp(batch[0], noise, share.view(-1, 1, 1, 1))
        return F.mse_loss(net(images, share * 1000, class_labels=batch[1]).sample, noise - batch[0])

    return trained(Recipe(net, loss, lambda m: torch.optim.Adam(m.parameters(), 1e-3)), 16, gradient_clip_val=0.5)
