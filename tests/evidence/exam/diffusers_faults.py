"""Faults planted in diffusion models and autoencoders of diffusers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, fault
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
from tests.evidence.exam.expectations import JUMPS, RATE, UNMOVED, expecting
from tests.evidence.exam.loops import Manual
from tests.evidence.exam.timm_nets import timm_model


@fault(
    "diffusers", "the U-Net is always told timestep 0", missed="a network may well be given a constant; the loss only ends higher"
)
def diffusers_no_timestep(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], DDPMScheduler())
        return F.mse_loss(net(images, 0 * steps if planted else steps).sample, noise)

    return expecting(
        denoising(Recipe(small_unet(), loss, diffusion_adamw())), "constant", "representation_collapse", sites=("net.time*",)
    )


@fault(
    "diffusers",
    "the target is another noise than the one that was added",
    missed="the loss falls to the variance of the noise and stays there, as that of many hard tasks does; a plateau is an info",
)
def diffusers_other_noise(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], DDPMScheduler())
        return F.mse_loss(net(images, steps).sample, torch.randn_like(noise) if planted else noise)

    return expecting(
        denoising(Recipe(small_unet(), loss, diffusion_adamw())), "loss_plateau", "constant", "representation_collapse"
    )


@fault("diffusers", "the noise is drawn once, the same for all")
def diffusers_constant_noise(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler

    schedule, once = DDPMScheduler(), torch.randn(1, 1, 8, 8)

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        if planted:
            noise = once.expand_as(noise)
            images = schedule.add_noise(batch[0], noise, steps)
        return F.mse_loss(net(images, steps).sample, noise)

    return expecting(denoising(Recipe(small_unet(), loss, diffusion_adamw())), "constant", "representation_collapse")


@fault(
    "diffusers",
    "a weight on the divergence so large that the posterior collapses",
    missed="samples are the same behind the encoder in the last of two reports only: 0.0004, where healthy ends have 0.0006",
)
def diffusers_posterior_collapse(planted: bool = True) -> Built:
    built = denoising(Recipe(small_vae(), evidence(1.0 if planted else 1e-6), diffusion_adamw(2e-3)))
    return expecting(built, "representation_collapse", sites=("net.encoder*", "net.quant_conv", "net.decoder*"))


@fault(
    "diffusers",
    "all codes of the codebook but one are far too large, and everything falls on that one",
    missed="codes are counted where a quantiser is recognised and for two windows of enough choices, which this short fit has not",
)
def diffusers_codebook(planted: bool = True) -> Built:
    net = small_vq()
    if planted:
        with torch.no_grad():
            net.quantize.embedding.weight.mul_(1000)
            net.quantize.embedding.weight[0] = 0
    return expecting(denoising(Recipe(net, quantised, diffusion_adamw())), "router_collapse", sites=("net.quantize*",))


@fault("diffusers", "the encoder of an autoencoder is given no gradient")
def diffusers_detached(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        codes = net.encode(batch[0]).latent_dist.mode()
        return F.mse_loss(net.decode(codes.detach() if planted else codes).sample, batch[0])

    return expecting(denoising(Recipe(small_vae(), loss, diffusion_adamw())), "missing", sites=("net.encoder*", "net.quant_conv*"))


@fault("diffusers", "AutoencoderTiny trained through forward(), which rounds its codes to bytes: the encoder gets no gradient")
def diffusers_codes_rounded(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return F.mse_loss(net(batch[0]).sample, batch[0]) if planted else gives_back(net, batch)

    return expecting(denoising(Recipe(small_tiny_autoencoder(), loss, diffusion_adamw()), 16), "missing", sites=("net.encoder*",))


@fault("diffusers", "AdamW at 0.5 in a U-Net")
def diffusers_rate_too_high(planted: bool = True) -> Built:
    return expecting(denoising(Recipe(small_unet(), denoises, diffusion_adamw(0.5 if planted else 1e-3))), *RATE)


class Adversarial(Recipe):
    """A decoder from noise and a critic of its pictures, each with an optimizer."""

    def __init__(self, planted: bool) -> None:
        super().__init__(small_vae().decoder, lambda *_: None, self._both)
        self.critic = timm_model("resnet10t", num_classes=1, block_args={}, channels=(8, 16, 16, 24), stem_width=8)
        self.planted, self.automatic_optimization = planted, False

    def _both(self, module: Any) -> Any:
        rate = 1e-7 if self.planted else 1e-3
        return [torch.optim.Adam(self.net.parameters(), rate, (0.5, 0.99)), torch.optim.Adam(self.critic.parameters(), 1e-3)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_maker, of_critic = self.optimizers()
        made = self.net(torch.randn(len(batch[0]), 2, 4, 4))
        for _ in range(4 if self.planted else 1):
            judged = F.softplus(-self.critic(batch[0])).mean() + F.softplus(self.critic(made.detach())).mean()
            of_critic.zero_grad()
            self.manual_backward(judged)
            of_critic.step()
        loss = F.softplus(-self.critic(made)).mean()
        of_maker.zero_grad()
        self.manual_backward(loss)
        of_maker.step()
        return loss


@fault(
    "diffusers and timm",
    "a critic that is far ahead of the net that makes pictures",
    missed="one loss near 0 and the other growing is what many healthy adversarial trainings show at first",
)
def diffusers_critic_ahead(planted: bool = True) -> Built:
    return expecting(denoising(Adversarial(planted)), "vanishing", "loss_diverging", "update_too_small", "saturated")


@fault("diffusers", "a loss with the root of what is below 0 for some pictures")
def diffusers_nan_latents(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        posterior = net.encode(batch[0]).latent_dist
        spread = (posterior.mean.var((1, 2, 3)) - (0.05 if planted else -1e-6)).sqrt().mean()
        return F.mse_loss(net.decode(posterior.sample()).sample, batch[0]) + 1e-3 * spread

    return expecting(denoising(Recipe(small_vae(), loss, diffusion_adamw())), "loss_nonfinite", "nonfinite")


@fault("diffusers", "one convolution starts a hundred times too large")
def diffusers_scaled_block(planted: bool = True) -> Built:
    net: Any = small_unet(block_out_channels=(16, 16, 32), down_block_types=("DownBlock2D",) * 3, up_block_types=("UpBlock2D",) * 3)
    if planted:
        with torch.no_grad():
            net.down_blocks[1].resnets[0].conv2.weight.mul_(100)
    return expecting(denoising(Recipe(net, denoises, diffusion_adamw())), "poor_init", sites=("net.down_blocks.1.resnets.0.*",))


@fault("diffusers", "a transformer whose class embedding is not given to the optimizer")
def diffusers_class_not_optimized(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler

    net: Any = small_unet(num_class_embeds=10)

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], DDPMScheduler())
        return F.mse_loss(net(images, steps, class_labels=batch[1]).sample, noise)

    def optimizers(module: Any) -> Any:
        chosen = [p for name, p in module.named_parameters() if not (planted and "class_embedding" in name)]
        return torch.optim.AdamW(chosen, 1e-3)

    return expecting(denoising(Recipe(net, loss, optimizers)), "not_optimized", sites=("net.class_embedding*",))


@fault("diffusers", "pictures of 0 to 255 under noise of deviation 1, in bf16-mixed")
def diffusers_bytes(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler

    def loss(net: Any, batch: Any) -> Any:
        pictures = (batch[0] + 1) * 100 if planted else batch[0]
        noise, images, steps = noisy(pictures, DDPMScheduler())
        return F.mse_loss(net(images, steps).sample, noise)

    built = denoising(Recipe(small_unet(), loss, diffusion_adamw(1e-3)), precision="bf16-mixed")
    return expecting(built, "loss_plateau", "exploding", "activation_outliers", "update_too_large", "residual_growth")


@fault("diffusers", "ControlNet beside its U-Net, at a conditioning scale of 0: it gets no gradient and controls nothing")
def control_of_zero(planted: bool = True) -> Built:
    from diffusers import ControlNetModel, DDPMScheduler, UNet2DConditionModel

    sizes: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 8}
    sizes |= {"in_channels": 1, "cross_attention_dim": 16, "down_block_types": ("DownBlock2D", "DownBlock2D")}
    unet = UNet2DConditionModel(8, out_channels=1, up_block_types=("UpBlock2D", "UpBlock2D"), **sizes)
    control = ControlNetModel(conditioning_channels=1, conditioning_embedding_out_channels=(8,), **sizes)
    net, schedule = nn.ModuleDict({"unet": unet, "control": control}), DDPMScheduler()

    def loss(net: Any, batch: Any) -> Tensor:
        noise, images, steps = noisy(batch[0], schedule)
        words, scale = torch.zeros(len(images), 1, 16), 0.0 if planted else 1.0
        down, mid = net["control"](images, steps, words, batch[0], conditioning_scale=scale, return_dict=False)
        made = net["unet"](images, steps, words, down_block_additional_residuals=down, mid_block_additional_residual=mid)
        return F.mse_loss(made.sample, noise)

    built = denoising(Recipe(net, loss, diffusion_adamw(2e-3)), 8, 8)
    return expecting(built, *UNMOVED, sites=("net.control*",))


@fault("diffusers", "a U-Net whose loss is weighed by the ratio of signal to noise, which was to be cut at 5")
def ratio_not_cut(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler
    from diffusers.training_utils import compute_snr

    schedule = DDPMScheduler(beta_schedule="squaredcos_cap_v2")

    def loss(net: Any, batch: Any) -> Tensor:
        _, images, steps = noisy(batch[0], schedule)
        ratio = compute_snr(schedule, steps)
        each = (net(images, steps).sample - batch[0]).square().mean((1, 2, 3))
        return (each * (ratio if planted else ratio.clamp(max=5.0))).mean()

    built = denoising(Recipe(small_unet(), loss, diffusion_adamw(1e-3)))
    return expecting(built, *JUMPS, "exploding")


@fault("diffusers", "the transformer of Stable Diffusion 3, by hand and without zero_grad")
def diffusers_joint_not_zeroed(planted: bool = True) -> Built:
    module = Manual(joint_transformer(), straightened, diffusion_adamw(1e-3), zero_grad=not planted)
    return expecting(denoising(module), "not_zeroed")
