"""Diffusion models and autoencoders of diffusers."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.diffusion import (
    denoises,
    denoising,
    diffusion_adamw,
    evidence,
    gives_back,
    joint_transformer,
    noisy,
    quantised,
    small_tiny_autoencoder,
    small_unet,
    small_vae,
    small_vq,
    straightened,
)
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import CLIPPED, adamw, warm_cosine, warm_linear


@healthy("diffusers", "U-Net that predicts noise, AdamW with warm-up, clipped at 1")
def diffusers_unet() -> Built:
    def optimizers(module: Any) -> Any:
        from diffusers.optimization import get_cosine_schedule_with_warmup

        chosen = diffusion_adamw(1e-3)(module)
        schedule = get_cosine_schedule_with_warmup(chosen, 10, 50)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return denoising(Recipe(small_unet(), denoises, optimizers), gradient_clip_val=1.0)


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

    return denoising(Averaged(small_unet(num_class_embeds=10), loss, diffusion_adamw(5e-4)))


@healthy("diffusers", "DiT: blocks whose gates start at zero, classes that are dropped at times")
def diffusers_dit() -> Built:
    from diffusers import DDPMScheduler, DiTTransformer2DModel

    sizes = {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 3, "sample_size": 16, "patch_size": 4}
    net = DiTTransformer2DModel(**sizes, in_channels=1, num_embeds_ada_norm=1000)
    schedule = DDPMScheduler()

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        return F.mse_loss(net(images, steps, class_labels=batch[1]).sample, noise)

    return denoising(Recipe(net, loss, diffusion_adamw(5e-4, 0.0)), 16)


@healthy("diffusers", "AutoencoderKL with a small weight on the divergence")
def diffusers_vae() -> Built:
    return denoising(Recipe(small_vae(), evidence(1e-6), diffusion_adamw(1e-3)))


@healthy("diffusers", "VQModel with a codebook of 32")
def diffusers_vq() -> Built:
    return denoising(Recipe(small_vq(), quantised, diffusion_adamw(1e-3)))


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

    return denoising(Recipe(net, loss, diffusion_adamw(1e-3)))


@healthy("diffusers", "AutoencoderTiny, trained to give back its input")
def diffusers_tiny_autoencoder() -> Built:
    return denoising(Recipe(small_tiny_autoencoder(), gives_back, diffusion_adamw(1e-3)), 16)


@healthy("diffusers", "PixArt-like transformer with flow matching, Adam clipped at 0.5")
def diffusers_flow() -> Built:
    from diffusers import DiTTransformer2DModel

    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 3, "sample_size": 16, "patch_size": 4}
    net = DiTTransformer2DModel(**sizes, in_channels=1, num_embeds_ada_norm=1000)

    def loss(net: Any, batch: Any) -> Any:
        noise, share = torch.randn_like(batch[0]), torch.sigmoid(torch.randn(len(batch[0])))
        images = torch.lerp(batch[0], noise, share.view(-1, 1, 1, 1))
        return F.mse_loss(net(images, share * 1000, class_labels=batch[1]).sample, noise - batch[0])

    return denoising(Recipe(net, loss, lambda m: torch.optim.Adam(m.parameters(), 1e-3)), 16, gradient_clip_val=0.5)


@healthy("diffusers", "a one-dimensional U-Net that takes noise from waves, AdamW with warm-up and cosine, clipped at 1")
def diffusers_waves() -> Built:
    from diffusers import DDPMScheduler, UNet1DModel

    blocks = {"block_out_channels": (16, 32), "down_block_types": ("DownBlock1DNoSkip", "DownBlock1D")}
    blocks |= {"up_block_types": ("UpBlock1D", "UpBlock1DNoSkip"), "mid_block_type": "UNetMidBlock1D", "extra_in_channels": 32}
    net = UNet1DModel(sample_size=64, in_channels=1, out_channels=1, **blocks)
    schedule = DDPMScheduler()

    def loss(net: Any, batch: Any) -> Tensor:
        noise, steps = torch.randn_like(batch[0]), torch.randint(0, 1000, (len(batch[0]),))
        return F.mse_loss(net(schedule.add_noise(batch[0], noise, steps), steps).sample, noise)

    generator = torch.Generator().manual_seed(0)
    phases, rates = 2 * math.pi * torch.rand(1000, 1, 1, generator=generator), 1 + 3 * torch.rand(1000, 1, 1, generator=generator)
    waves = torch.sin(phases + rates * torch.linspace(0, 2 * math.pi, 64))
    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3))), in_batches(16, waves), CLIPPED, Expected())


@healthy("diffusers", "Flux at a tiny size: two streams, then one, rectified flow at times of a logistic normal, clipped at 1")
def diffusers_flux() -> Built:
    from diffusers import FluxTransformer2DModel
    from diffusers.training_utils import compute_density_for_timestep_sampling as times

    heads = {"attention_head_dim": 16, "num_attention_heads": 3, "axes_dims_rope": (4, 6, 6)}
    net: Any = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=2, joint_attention_dim=16, pooled_projection_dim=16, **heads
    )
    words = torch.randn(10, 2, 16, generator=torch.Generator().manual_seed(0))
    place = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).view(16, 3)

    def loss(net: Any, batch: Any) -> Tensor:
        tokens = F.pixel_unshuffle(batch[0], 2).flatten(2).transpose(1, 2)
        noise, time = torch.randn_like(tokens), times("logit_normal", len(tokens), 0.0, 1.0)
        mixed = time[:, None, None] * noise + (1 - time[:, None, None]) * tokens
        said = words[batch[1]]
        places: dict[str, Any] = {"img_ids": place, "txt_ids": torch.zeros(2, 3)}
        found = net(mixed, said, said.mean(1), time, **places, return_dict=False)[0]
        return F.mse_loss(found, noise - tokens)

    module = Recipe(net, loss, warm_cosine(adamw(2e-3, 1e-4), 70, 7))
    return denoising(module, limit_train_batches=35, gradient_clip_val=1.0)


@healthy("diffusers", "aMUSEd's U-ViT finds pixels in four shades that are hidden, the share by a cosine, smoothed labels, AdamW")
def diffusers_masked() -> Built:
    from diffusers import UVit2DModel

    sizes = {"hidden_size": 48, "cond_embed_dim": 16, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 40, "in_channels": 32}
    sizes |= {"encoder_hidden_size": 16, "block_out_channels": 32, "num_res_blocks": 1, "intermediate_size": 96, "sample_size": 8}
    heads = {"block_num_heads": 4, "num_attention_heads": 4, "num_hidden_layers": 2}
    net: Any = UVit2DModel(vocab_size=6, codebook_size=4, **sizes, **heads)
    words = torch.randn(10, 2, 16, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        codes = ((batch[0][:, 0] + 0.82) / 0.67).long().clamp(0, 3)
        share = torch.cos(torch.rand(len(codes), 1, 1) * torch.pi / 2)
        hidden = torch.rand(codes.shape) < share.clamp_min(0.05)
        said = words[batch[1]]
        logits = net(codes.masked_fill(hidden, 5), said, said.mean(1), torch.ones(len(codes), 5))
        return F.cross_entropy(logits, codes.masked_fill(~hidden, -100), ignore_index=-100, label_smoothing=0.1)

    return denoising(Recipe(net, loss, warm_linear(adamw(1e-3), 50, 5)), gradient_clip_val=1.0)


@healthy(
    "diffusers", "SR3: digits of a quarter of the size are enlarged, noise is predicted beside them, absolute error, a warm-up"
)
def diffusers_enlarged() -> Built:
    from diffusers import DDIMScheduler

    schedule = DDIMScheduler(beta_schedule="squaredcos_cap_v2")

    def loss(net: Any, batch: Any) -> Tensor:
        noise, seen, steps = noisy(batch[0], schedule)
        small = F.interpolate(F.avg_pool2d(batch[0], 2), scale_factor=2.0, mode="bicubic")
        return F.l1_loss(net(torch.cat((seen, small), 1), steps).sample, noise)

    module = Recipe(small_unet(in_channels=2), loss, warm_cosine(adamw(2e-3), 60, 6))
    return Built(module, pictures(16, 8), {**CLIPPED, "limit_train_batches": 30}, WELL)


@healthy("diffusers", "EDM: scaled inputs and outputs, noise of a log-normal width, Adam")
def diffusers_edm() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        width = (torch.randn(len(batch[0]), 1, 1, 1) * 1.2 - 1.2).exp()
        total = (width**2 + 1).sqrt()
        noise = torch.randn_like(batch[0]) * width
        said = net((batch[0] + noise) / total, width.flatten()).sample
        found = (batch[0] + noise) / total**2 + said * width / total
        return ((found - batch[0]) ** 2 * total**2 / width**2).mean()

    net = small_unet(time_embedding_type="fourier")
    return denoising(Recipe(net, loss, lambda m: torch.optim.Adam(m.parameters(), 2e-3)))


@healthy("diffusers", "U-Net with weights by signal-to-noise ratio, bf16-mixed, clipped at 1")
def diffusers_min_snr() -> Built:
    from diffusers import DDPMScheduler
    from diffusers.training_utils import compute_snr

    schedule = DDPMScheduler(beta_schedule="scaled_linear")

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        ratio = compute_snr(schedule, steps)
        each = ((net(images, steps).sample - noise) ** 2).mean((1, 2, 3))
        return (each * ratio.clamp(max=5.0) / ratio).mean()

    return denoising(Recipe(small_unet(), loss, diffusion_adamw(1e-3)), precision="bf16-mixed", gradient_clip_val=1.0)


@healthy("diffusers", "rectified flow with the transformer of Stable Diffusion 3")
def diffusers_joint() -> Built:
    return denoising(Recipe(joint_transformer(), straightened, diffusion_adamw(1e-3)))


@healthy(
    "diffusers",
    "the prior of unCLIP: a transformer finds the embedding of a picture behind noise, from that of a text",
    learned_from=False,
)
def diffusers_prior() -> Built:
    from diffusers import DDPMScheduler, PriorTransformer

    images, shown = digits(8)
    parts = torch.tensor(PCA(16, whiten=True, random_state=0).fit_transform(images.flatten(1).numpy())).float()
    words = torch.randn(10, 4, 16, generator=torch.Generator().manual_seed(0))
    net: Any = PriorTransformer(num_attention_heads=4, attention_head_dim=12, num_layers=2, embedding_dim=16, num_embeddings=4)
    schedule = DDPMScheduler(beta_schedule="squaredcos_cap_v2", prediction_type="sample")

    def loss(net: Any, batch: Any) -> Tensor:
        times = torch.randint(0, 1000, (len(batch[0]),))
        noisy = schedule.add_noise(batch[0], torch.randn_like(batch[0]), times)
        said = words[batch[1]]
        found = net(noisy, times, said.mean(1), said).predicted_image_embedding
        return F.mse_loss(found, batch[0])

    module = Recipe(net, loss, warm_cosine(adamw(2e-3), 80, 8))
    return Built(module, in_batches(32, parts, shown), {**CLIPPED, "limit_train_batches": 40}, WELL)
