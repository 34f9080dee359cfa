"""Faults in what is given to optimizers and when: rates, decays, betas, clipping, and parameters that they do not hold."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import lr_scheduler

from tests.evidence.exam import healthy_lightly as lightly_recipes
from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_graphs import adam
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import ENCODER, PICTURES, TOKENS, image_classifier, language_model
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.planted_timm import RATE, expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.seen_faults_recipes import TOO_LOW
from tests.evidence.exam.seen_healthy_models import tagged
from tests.evidence.exam.seen_steps import MonitorScope
from tests.evidence.exam.signals import digits as colours
from tests.evidence.exam.texts import VOCABULARY, characters, lines

BATCHES = {"max_epochs": 2, "limit_train_batches": 40}
UNMOVED = ("missing", "zero", "not_updated", "update_too_small", "vanishing")


@fault("timm", "DaViT: attention to places and to channels in turn, NAdam at 0.2 instead of 2e-3")
def davit_rate(planted: bool = True) -> Built:
    net = create("davit_tiny", embed_dims=(16, 32), num_heads=(2, 2), depths=(1, 1), window_size=4)
    return expecting(trained(Recipe(net, cross_entropy, optimizer("nadam", 0.2 if planted else 2e-3))), *RATE)


@fault("timm", "TinyViT under SGD with Nesterov momentum: the norm of its gradients is cut at 2e-6")
def tinyvit_clipped_at_nothing(planted: bool = True) -> Built:
    sizes: dict[str, Any] = {
        "embed_dims": (16, 24, 32, 48),
        "num_heads": (1, 2, 2, 4),
        "depths": (1, 1, 1, 1),
        "window_sizes": (4, 4, 2, 1),
    }
    module = Recipe(create("tiny_vit_5m_224", **sizes), cross_entropy, optimizer("nesterov", 0.05, 1e-4))
    built = trained(module, gradient_clip_val=2e-6 if planted else 5.0)
    return expecting(built, "always_clipped", "update_too_small")


@fault("transformers", "data2vec for pictures: AMSGrad with a decay of 1 as L2, which drowns the gradient of the loss")
def data2vec_decay_as_gradient(planted: bool = True) -> Built:
    from transformers import Data2VecVisionConfig, Data2VecVisionForImageClassification

    net = Data2VecVisionForImageClassification(Data2VecVisionConfig(**{**PICTURES, "num_labels": 10}))

    def amsgrad(module: Any) -> Any:
        return torch.optim.Adam(module.parameters(), lr=2e-3, weight_decay=1.0 if planted else 0.0, amsgrad=True)

    expected = Expected(("optimizer_settings", "settings", "constant", "representation_collapse"))
    return Built(Recipe(net, image_classifier, amsgrad), colours(16, 16), SHORT, expected)


@fault("transformers", "CodeGen: beta2 comes before beta1 in NAdam, which is to be the other way round")
def codegen_betas(planted: bool = True) -> Built:
    from transformers import CodeGenConfig, CodeGenForCausalLM

    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, **TOKENS}
    net = CodeGenForCausalLM(CodeGenConfig(**sizes))
    betas = (0.999, 0.9) if planted else (0.9, 0.999)
    rates = warm_linear(lambda module: torch.optim.NAdam(module.parameters(), 1e-3, betas=betas))
    return Built(Recipe(net, language_model, rates), characters(48, 8), SHORT, Expected(("optimizer_settings",)))


@fault("transformers", "MPT with ALiBi: ReduceLROnPlateau looks at the loss of each batch and has a patience of 0")
def mpt_no_patience(planted: bool = True) -> Built:
    from transformers import MptConfig, MptForCausalLM

    net = MptForCausalLM(MptConfig(d_model=48, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=64, vocab_size=VOCABULARY))

    def rates(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 2e-3, betas=(0.9, 0.95))
        schedule = lr_scheduler.ReduceLROnPlateau(chosen, factor=0.1, patience=0 if planted else 100)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "monitor": "loss", "interval": "step"}}

    return Built(MonitorScope(net, language_model, rates), characters(48, 8), SHORT, Expected(TOO_LOW))


@fault("transformers", "BigBird finds words: the optimizer is made of net.bert, and its new classifier is not in there")
def bigbird_body_alone(planted: bool = True) -> Built:
    from transformers import BigBirdConfig, BigBirdForTokenClassification

    net: Any = BigBirdForTokenClassification(BigBirdConfig(**{**ENCODER, "attention_type": "original_full", "num_labels": 3}))

    def rates(module: Any) -> Any:
        return torch.optim.AdamW((module.net.bert if planted else module.net).parameters(), lr=1e-3)

    expected = Expected(("not_optimized",), ("net.classifier*",))
    return Built(Recipe(net, tagged, rates), lines(48, 8), CLIPPED, expected)


@fault("diffusers", "Flux: rectified flow beside an embedding of what is to be drawn, which the optimizer was not given")
def flux_words_forgotten(planted: bool = True) -> Built:
    from diffusers import FluxTransformer2DModel

    heads: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": (4, 6, 6)}
    widths: dict[str, Any] = {"joint_attention_dim": 24, "pooled_projection_dim": 24, "in_channels": 4}
    flux: Any = FluxTransformer2DModel(**heads, **widths, num_layers=1, num_single_layers=1)
    places = F.pad(torch.cartesian_prod(torch.arange(4), torch.arange(4)), (1, 0))

    def loss(net: Any, batch: Any) -> Tensor:
        pieces = F.pixel_unshuffle(batch[0], 2).flatten(2).mT
        noise, share = torch.randn_like(pieces), torch.sigmoid(torch.randn(len(pieces)))
        words = net["words"](batch[1])
        mixed = torch.lerp(pieces, noise, share.view(-1, 1, 1))
        said = net["flux"](mixed, words[:, None], words, share, places, torch.zeros(1, 3), return_dict=False)[0]
        return F.mse_loss(said, noise - pieces)

    def rates(module: Any) -> Any:
        return torch.optim.AdamW((module.net["flux"] if planted else module.net).parameters(), lr=2e-3)

    module = Recipe(nn.ModuleDict({"flux": flux, "words": nn.Embedding(10, 24)}), loss, rates)
    return Built(module, pictures(32, 8), BATCHES, Expected(("not_optimized",), ("net.words*",)))


class ClippedInStep(Recipe):
    """Clips its gradients in ``training_step``, where those of this batch are not there yet, or when they are."""

    planted = True

    def _clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.planted:
            self._clip()
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        if not self.planted:
            self._clip()


@fault("transformers", "GLPN tells how far each place is: its gradients are clipped at the end of training_step")
def glpn_clipped_in_step(planted: bool = True) -> Built:
    from transformers import GLPNConfig, GLPNForDepthEstimation

    stages: dict[str, Any] = {
        "num_encoder_blocks": 4,
        "depths": [1] * 4,
        "sr_ratios": [2, 1, 1, 1],
        "hidden_sizes": [16, 16, 32, 32],
    }
    convolutions: dict[str, Any] = {"strides": [4, 2, 2, 2], "num_attention_heads": [1, 1, 2, 2], "mlp_ratios": [2] * 4}
    net = GLPNForDepthEstimation(GLPNConfig(**stages, **convolutions, decoder_hidden_size=16))

    def loss(net: Any, batch: Any) -> Tensor:
        depth = 3 + F.avg_pool2d(batch[0][:, 0], 5, 1, 2)
        return F.l1_loss(net(pixel_values=batch[0]).predicted_depth, depth)

    module = ClippedInStep(net, loss, adamw(2e-3))
    module.planted = planted
    return Built(module, colours(32, 8), SHORT, Expected(("clip_ineffective",)))


@fault("torch", "first weights are learned, from which a net draws any digit in three steps: these begin from a deep copy")
def drawn_from_copies(planted: bool = True) -> Built:
    places = torch.cartesian_prod(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8))
    waves = 2 * torch.randn(2, 24, generator=torch.Generator().manual_seed(0))
    seen = torch.cat(((places @ waves).sin(), (places @ waves).cos()), 1)

    def loss(net: Any, batch: Any) -> Tensor:
        errors = []
        for picture in batch[0].flatten(1):
            inner = copy.deepcopy(net) if planted else net
            weights = dict(inner.named_parameters())
            for _ in range(3):
                error = F.mse_loss(functional_call(inner, weights, (seen,)).squeeze(-1), picture)
                slopes = torch.autograd.grad(error, list(weights.values()), create_graph=True)
                weights = {name: weight - 0.05 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
            errors.append(F.mse_loss(functional_call(inner, weights, (seen,)).squeeze(-1), picture))
        return torch.stack(errors).mean()

    net = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    expected = Expected((*UNMOVED, "loss_plateau"), ("net", "net.*"))
    return Built(Recipe(net, loss, adam(2e-3, 0.0)), in_batches(5, *digits(8)), BATCHES, expected)


class Masked(Recipe):
    """MSN: pictures of which half is hidden go to the prototypes that a net that follows has for the whole."""

    def __init__(self) -> None:
        from lightly.loss import MSNLoss
        from lightly.models.modules import MaskedVisionTransformerTIMM, SimCLRProjectionHead

        vit: Any = create("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=48, depth=2, num_heads=3, num_classes=0)
        super().__init__(MaskedVisionTransformerTIMM(vit), lambda *_: torch.zeros(()), lightly_recipes.adam(2e-3))
        self.head = SimCLRProjectionHead(48, 48, 32, batch_norm=True)
        self.target, self.target_head = (copy.deepcopy(part).requires_grad_(False) for part in (self.net, self.head))
        self.prototypes, self.criterion = nn.Linear(32, 32, bias=False), MSNLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        from lightly.models.utils import random_token_mask

        kept, _ = random_token_mask((len(batch[1]), 17), mask_ratio=0.5)
        goals = self.target_head(self.target(batch[0]))
        error: Tensor = self.criterion(self.head(self.net(batch[1], idx_keep=kept)), goals, self.prototypes.weight)
        return error

    def follow(self) -> None:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.target, m=0.98)
        update_momentum(self.head, self.target_head, m=0.98)


class Following(Masked):
    def on_train_batch_end(self, *_: Any) -> None:
        self.follow()


class Misspelled(Masked):
    def on_training_batch_end(self, *_: Any) -> None:
        self.follow()


@fault("lightly", "MSN whose target is to follow in on_training_batch_end, a hook that Lightning does not know")
def msn_hook_misspelled(planted: bool = True) -> Built:
    module = Misspelled() if planted else Following()
    return expecting(lightly_recipes.trained(module), "not_updated", sites=("target*",))


@fault("peft", "I-JEPA with SHiRA and a new head: reentrant checkpoints of blocks whose input needs no gradient give none")
def ijepa_checkpointed(planted: bool = True) -> Built:
    from peft import ShiraConfig, get_peft_model
    from transformers import IJepaConfig, IJepaForImageClassification

    net: Any = IJepaForImageClassification(IJepaConfig(**{**PICTURES, "num_labels": 10, "initializer_range": 0.1}))
    config = ShiraConfig(r=8, target_modules=["q_proj", "v_proj", "fc1", "fc2"], modules_to_save=["classifier"])
    net = get_peft_model(net, config)
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": planted})
    expected = Expected(UNMOVED, ("net*shira*", "net*_proj*", "net*.fc*", "net*.layers.*"))
    return Built(Recipe(net, image_classifier, adamw(1e-2)), colours(16, 16), SHORT, expected)
