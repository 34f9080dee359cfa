"""Models of transformers at tiny sizes, with random weights, and their losses; for healthy families and for planted ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, masked

WIDE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
ENCODER: dict[str, Any] = {**WIDE, **TOKENS, "intermediate_size": 96, "max_position_embeddings": 66}
DECODER: dict[str, Any] = {**ENCODER, "num_key_value_heads": 2}


def language_model(net: Any, batch: Any) -> Tensor:
    """The loss of the next token; the model shifts the labels itself."""
    return net(input_ids=batch[0], labels=batch[0]).loss


def masked_language_model(net: Any, batch: Any) -> Tensor:
    """The loss of tokens that are hidden."""
    inputs, labels = masked(batch[0])
    return net(input_ids=inputs, attention_mask=(batch[0] != PAD).long(), labels=labels).loss


def classifier(net: Any, batch: Any) -> Tensor:
    """The loss of a line's class."""
    return net(input_ids=batch[0], attention_mask=batch[1], labels=batch[2]).loss


def image_classifier(net: Any, batch: Any) -> Tensor:
    """The loss of a picture's class."""
    return net(pixel_values=batch[0], labels=batch[1]).loss


def translation(net: Any, batch: Any) -> Tensor:
    """The loss of what is to be written."""
    return net(input_ids=batch[0], labels=batch[1]).loss


def gpt2_net(**options: Any) -> Any:
    """GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**{**config, **_ends(), **options}))


def llama_net(**options: Any) -> Any:
    """Llama, with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**{**DECODER, **options}))


def bert_net(**options: Any) -> Any:
    """BERT, for masked tokens."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**{**ENCODER, **options}))


def roberta_net(**options: Any) -> Any:
    """RoBERTa, for two classes."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return RobertaForSequenceClassification(RobertaConfig(**{**ENCODER, "num_labels": 2, **options}))


def distilbert_net(**options: Any) -> Any:
    """DistilBERT, for two classes."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = {"vocab_size": VOCABULARY, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "pad_token_id": PAD}
    return DistilBertForSequenceClassification(DistilBertConfig(**{**config, "max_position_embeddings": 66, **options}))


def t5_net(**options: Any) -> Any:
    """T5."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    ends = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END}
    return T5ForConditionalGeneration(T5Config(**{**config, **ends, **options}))


BART: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    **TOKENS,
    "decoder_start_token_id": START,
    "forced_eos_token_id": END,
}


def bart_net(**options: Any) -> Any:
    """BART."""
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**{**BART, **options}))


def mixtral_net(**options: Any) -> Any:
    """Mixtral, with four experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = {**DECODER, "num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.02}
    return MixtralForCausalLM(MixtralConfig(**{**config, **options}))


VISION: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
PICTURES: dict[str, Any] = {**VISION, "image_size": 16, "patch_size": 4}


def vit_net(**options: Any) -> Any:
    """ViT, for ten classes."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**{**PICTURES, "num_labels": 10, **options}))


def swin_net(**options: Any) -> Any:
    """Swin, for ten classes."""
    from transformers import SwinConfig, SwinForImageClassification

    config = {"image_size": 16, "patch_size": 2, "embed_dim": 24, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
    return SwinForImageClassification(SwinConfig(**{**config, "num_labels": 10, **options}))


def convnext_net(**options: Any) -> Any:
    """ConvNeXt, for ten classes."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = {"image_size": 32, "patch_size": 4, "num_stages": 2, "hidden_sizes": [24, 48], "depths": [2, 2], "num_labels": 10}
    return ConvNextForImageClassification(ConvNextConfig(**{**config, **options}))


def clip_net(**options: Any) -> Any:
    """CLIP."""
    from transformers import CLIPConfig, CLIPModel

    text = {**ENCODER, "max_position_embeddings": 16}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=PICTURES, projection_dim=32, **options))


def contrast(net: Any, batch: Any) -> Tensor:
    """CLIP's loss of pictures and their captions."""
    return net(pixel_values=batch[0], input_ids=batch[1], return_loss=True).loss


def wav2vec2_net(**options: Any) -> Any:
    """wav2vec 2.0 with CTC."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return Wav2Vec2ForCTC(Wav2Vec2Config(**{**SOUND, "vocab_size": 12, "ctc_loss_reduction": "mean", **options}))


SOUND: dict[str, Any] = {
    **VISION,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (8, 4, 4),
    "conv_stride": (4, 4, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_length": 2,
    "pad_token_id": PAD,
}


def whisper_net(**options: Any) -> Any:
    """Whisper, for a few notes."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"vocab_size": 16, "num_mel_bins": 40, "max_source_positions": 32, "max_target_positions": 8}
    return WhisperForConditionalGeneration(
        WhisperConfig(**{**BART, **sizes, "suppress_tokens": None, "begin_suppress_tokens": None, **options})
    )


def _ends() -> dict[str, int]:
    return {"bos_token_id": START, "eos_token_id": END}
