"""The architectures that people train, tiny and with random weights: from the configurations of ``transformers`` and ``diffusers``.

Each is a model, a batch and a loss, as :class:`ArchitectureModule` trains them. Both libraries are imported where a model is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.models import Classifier

Batch = dict[str, Tensor]

VOCABULARY, LENGTH, SAMPLES = 64, 12, 2
NEVER_CALLED = "it was not called in any sampled training batch"

_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TEXT = {**_SIZES, **_MARKS, "max_position_embeddings": 32, "use_cache": False}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 4}
_VISION = {
    **{key: value for key, value in _SIZES.items() if key != "vocab_size"},
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 3,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture.

    Attributes:
        make: Makes the model, with random weights.
        batch: Makes a batch, from the seed.
        loss: The training loss of a model and a batch.
        attention: Attention layers in it: those that a training step runs, each once.
        routers: Routers of experts in it.
        uncalled: Patterns of the names of modules that training does not call, to why: their ``silent`` alerts say so.
        around: Patterns of the names of modules that hold parameters of their own around modules that hold others. They are no
            sites by default; those inside them are, and the gradients of their own parameters are recorded.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
    attention: int
    routers: int = 0
    uncalled: Mapping[str, str] = field(default_factory=dict)
    around: tuple[str, ...] = ()


class ArchitectureModule(Classifier):
    """A training of an architecture."""

    def __init__(self, architecture: Architecture) -> None:
        torch.manual_seed(0)
        super().__init__(architecture.make(), lr=1e-3, optimizer=torch.optim.AdamW)
        self.net.train()
        self.architecture = architecture

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.architecture.loss(self.net, batch)
        self.losses.append(loss.detach().clone())
        return loss


def batches_of(architecture: Architecture, count: int) -> torch.utils.data.DataLoader[Batch]:
    """A loader of batches as the architecture takes them."""
    torch.manual_seed(1)
    return torch.utils.data.DataLoader([architecture.batch() for _ in range(count)], batch_size=None)


# Models.


def _from_transformers(name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Makes a model of ``transformers`` by its class, with a configuration of these settings."""

    def make() -> nn.Module:
        import transformers

        kind: Any = getattr(transformers, name)
        return kind(kind.config_class(**settings))

    return make


def _clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    text = {**_SIZES, **_MARKS, "max_position_embeddings": 32}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=8))


def _unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )


def _dit() -> nn.Module:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=16,
        norm_num_groups=4,
    )


# Batches.


def _tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, VOCABULARY, (SAMPLES, length))


def _text() -> Batch:
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens.clone()}


def _padded_text() -> Batch:
    mask = torch.ones(SAMPLES, LENGTH, dtype=torch.long)
    mask[1, -4:] = 0
    return {"input_ids": _tokens(), "attention_mask": mask, "labels": torch.randint(2, (SAMPLES,))}


def _two_texts() -> Batch:
    return {"input_ids": _tokens(), "labels": _tokens(6)}


def _images() -> Batch:
    return {"pixel_values": torch.randn(SAMPLES, 3, 16, 16), "labels": torch.randint(2, (SAMPLES,))}


def _images_with_text() -> Batch:
    return {"pixel_values": torch.randn(SAMPLES, 3, 16, 16), "input_ids": _tokens()}


def _speech() -> Batch:
    return {"input_features": torch.randn(SAMPLES, 8, 32), "labels": _tokens(6)}


def _noised(conditions: Callable[[], Batch]) -> Callable[[], Batch]:
    def batch() -> Batch:
        shape = SAMPLES, 4, 8, 8
        return {
            "sample": torch.randn(shape),
            "noise": torch.randn(shape),
            "timestep": torch.randint(16, (SAMPLES,)),
            **conditions(),
        }

    return batch


# Losses.


def _own_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss that a model of ``transformers`` computes itself."""
    loss: Tensor = model(**batch).loss
    return loss


def _contrastive_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch, return_loss=True).loss
    return loss


def _denoising_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean squared error of the noise that the model predicts."""
    others = {name: value for name, value in batch.items() if name not in ("sample", "noise")}
    return nn.functional.mse_loss(model(batch["sample"] + batch["noise"], **others).sample, batch["noise"])


def _decoder(name: str, routers: int = 0, **settings: Any) -> Architecture:
    """A decoder that predicts the next token."""
    return Architecture(_from_transformers(name, **{**_GROUPED, **settings}), _text, _own_loss, attention=2, routers=routers)


ARCHITECTURES: dict[str, Architecture] = {
    "GPT-2": Architecture(
        _from_transformers(
            "GPT2LMHeadModel",
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=32,
            bos_token_id=1,
            eos_token_id=2,
            use_cache=False,
        ),
        _text,
        _own_loss,
        attention=2,
    ),
    "Llama": _decoder("LlamaForCausalLM"),
    "Qwen2": _decoder("Qwen2ForCausalLM"),
    "Qwen3": _decoder("Qwen3ForCausalLM"),
    "Mistral": _decoder("MistralForCausalLM", sliding_window=8),
    "Mixtral": _decoder("MixtralForCausalLM", routers=2, num_local_experts=4, num_experts_per_tok=2),
    "OLMoE": _decoder("OlmoeForCausalLM", routers=2, num_experts=4, num_experts_per_tok=2),
    "Qwen2-MoE": _decoder(
        "Qwen2MoeForCausalLM",
        routers=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "DeepSeek-V3": Architecture(
        _from_transformers(
            "DeepseekV3ForCausalLM",
            **{**_TEXT, "num_key_value_heads": 4},
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            n_shared_experts=1,
            first_k_dense_replace=1,
            moe_intermediate_size=16,
            q_lora_rank=8,
            kv_lora_rank=8,
            qk_rope_head_dim=4,
            qk_nope_head_dim=4,
            v_head_dim=4,
        ),
        _text,
        _own_loss,
        attention=2,
        routers=1,
    ),
    "Gemma 2": _decoder("Gemma2ForCausalLM", sliding_window=8),
    "Gemma 3": _decoder("Gemma3ForCausalLM", sliding_window=8),
    "BERT": Architecture(
        _from_transformers("BertForSequenceClassification", **_TEXT, type_vocab_size=2), _padded_text, _own_loss, attention=2
    ),
    "T5": Architecture(
        _from_transformers(
            "T5ForConditionalGeneration",
            vocab_size=VOCABULARY,
            d_model=16,
            d_kv=4,
            d_ff=32,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            use_cache=False,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=2,
        ),
        _two_texts,
        _own_loss,
        attention=6,  # two in each of two decoder layers
        uncalled={"net.shared": "encoder and decoder hold its weight and are called instead"},
    ),
    "ViT": Architecture(
        _from_transformers("ViTForImageClassification", **_VISION), _images, _own_loss, attention=2, around=("net.vit.embeddings",)
    ),
    "DINOv2": Architecture(
        _from_transformers("Dinov2ForImageClassification", **_VISION),
        _images,
        _own_loss,
        attention=2,
        around=("net.dinov2.embeddings",),
    ),
    "CLIP": Architecture(_clip, _images_with_text, _contrastive_loss, attention=4, around=("net", "net.vision_model.embeddings")),
    "Whisper": Architecture(
        _from_transformers(
            "WhisperForConditionalGeneration",
            vocab_size=VOCABULARY,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=16,
            use_cache=False,
            **_MARKS,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        _speech,
        _own_loss,
        attention=6,
    ),
    "Mamba": Architecture(
        _from_transformers(
            "MambaForCausalLM",
            vocab_size=VOCABULARY,
            hidden_size=16,
            num_hidden_layers=2,
            state_size=4,
            use_cache=False,
            **_MARKS,
        ),
        _text,
        _own_loss,
        attention=0,
        uncalled={
            f"*.mixer.{name}": "the selective scan takes its weights, or its function, and does not call it"
            for name in ("conv1d", "act", "dt_proj")
        },
        around=("*.mixer",),
    ),
    "UNet": Architecture(
        _unet, _noised(lambda: {"encoder_hidden_states": torch.randn(SAMPLES, 5, 16)}), _denoising_loss, attention=8
    ),
    "DiT": Architecture(_dit, _noised(lambda: {"class_labels": torch.randint(16, (SAMPLES,))}), _denoising_loss, attention=2),
}
"""Name to architecture."""
