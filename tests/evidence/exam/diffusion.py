"""Models of diffusers at tiny sizes, their noise and their losses; for healthy families and for planted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe
from tests.evidence.exam.pictures import pictures
from tests.evidence.exam.schedules import TWICE_25


def diffusion_adamw(lr: float = 1e-3, weight_decay: float = 1e-2) -> Callable[[Any], Any]:
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


def denoising(module: Recipe, size: int = 8, batch_size: int = 16, **kwargs: Any) -> Built:
    """On digits of 8 x 8 pixels, or of another size, for two epochs of 25 batches."""
    return Built(module, pictures(batch_size, size), {**TWICE_25, **kwargs}, Expected())


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


def small_vq(**options: Any) -> nn.Module:
    from diffusers import VQModel

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"block_out_channels": (16, 32), "latent_channels": 4, "num_vq_embeddings": 32, "norm_num_groups": 8}
    return VQModel(1, 1, **{**blocks, **sizes, **options})


def quantised(net: Any, batch: Any) -> Any:
    output = net(batch[0])
    return F.mse_loss(output.sample, batch[0]) + output.commit_loss.mean()


def small_tiny_autoencoder() -> Any:
    from diffusers import AutoencoderTiny

    sizes = {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16), "latent_channels": 2}
    return AutoencoderTiny(1, 1, **sizes, num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1))


def gives_back(net: Any, batch: Any) -> Any:
    return F.mse_loss(net.decode(net.encode(batch[0]).latents).sample, batch[0])


def joint_transformer() -> nn.Module:
    """The transformer of Stable Diffusion 3: pictures and words in one attention."""
    from diffusers import SD3Transformer2DModel

    sizes = {"sample_size": 8, "patch_size": 2, "in_channels": 1, "out_channels": 1, "num_layers": 2, "num_attention_heads": 2}
    widths = {"attention_head_dim": 16, "joint_attention_dim": 24, "caption_projection_dim": 32, "pooled_projection_dim": 24}
    net = nn.ModuleDict({"body": SD3Transformer2DModel(**sizes, **widths, pos_embed_max_size=8)})
    net["words"] = nn.Embedding(10, 24)
    return net


def straightened(net: Any, batch: Any) -> Any:
    """Rectified flow."""
    noise, share = torch.randn_like(batch[0]), torch.sigmoid(torch.randn(len(batch[0])))
    images = torch.lerp(batch[0], noise, share.view(-1, 1, 1, 1))
    words = net["words"](batch[1])
    said = net["body"](images, words[:, None], words, share * 1000).sample
    return F.mse_loss(said, noise - batch[0])
