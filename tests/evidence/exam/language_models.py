"""Language models of transformers at tiny sizes, with random weights, and their losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.schedules import CLIPPED, SHORT, Optimizers, adamw, decayed_apart, warm_cosine
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters, masked

WIDE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
ENCODER: dict[str, Any] = {**WIDE, **TOKENS, "intermediate_size": 96, "max_position_embeddings": 66}
DECODER: dict[str, Any] = {**ENCODER, "num_key_value_heads": 2}
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
Loss = Callable[[Any, Any], Tensor]
ENDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
PLAIN_DECODER = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, **ENDS}
PLAIN_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64}
PLAIN_LAYERS = {
    f"{part}_{size}": n for part in ("encoder", "decoder") for size, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
}


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


def bart_net(**options: Any) -> Any:
    """BART."""
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**{**BART, **options}))


def mixtral_net(**options: Any) -> Any:
    """Mixtral, with four experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = {**DECODER, "num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.02}
    return MixtralForCausalLM(MixtralConfig(**{**config, **options}))


def _ends() -> dict[str, int]:
    return {"bos_token_id": START, "eos_token_id": END}


def distillation(net: Any, batch: Any) -> Any:
    """What the student says of the teacher's soft labels, at temperature 2, and of the tokens."""
    with torch.no_grad():
        soft = (net["teacher"](input_ids=batch[0]).logits / 2).softmax(-1)
    logits = net["student"](input_ids=batch[0]).logits
    hard = F.cross_entropy(logits.flatten(0, 1), batch[0].flatten())
    return 4 * F.kl_div((logits / 2).log_softmax(-1), soft, reduction="batchmean") / logits.shape[1] + hard


def with_adapter(net: Any, config: Any) -> Any:
    """A model with an adapter; all else is frozen."""
    from peft import get_peft_model

    return get_peft_model(net, config)


def trained_on_text(net: Any, optimizers: Optimizers, kwargs: dict[str, Any] | None = None, loss: Any = language_model) -> Built:
    """A language model in training."""
    return Built(Recipe(net, loss, optimizers), characters(48, 8), kwargs or SHORT, WELL)


def text(net: Any, expected: Expected, loss: Loss = language_model, rate: float = 1e-3) -> Built:
    """A training on stretches of text."""
    return Built(Recipe(net, loss, adamw(rate)), characters(48, 8), SHORT, expected)


def bigcode_net(**options: Any) -> Any:
    """GPT-BigCode: one key for all heads."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4}
    return GPTBigCodeForCausalLM(GPTBigCodeConfig(**{**sizes, "bos_token_id": 2, "eos_token_id": 3, **options}))


def tags(ids: Tensor) -> Tensor:
    """For each character whether a word begins there (1), goes on (2), or neither (0)."""
    within = ((ids >= 97) & (ids <= 122)) | ((ids >= 65) & (ids <= 90)) | (ids == 95)
    before = F.pad(within[:, :-1], (1, 0))
    return within.long() + (within & before).long()


def tagged(net: Any, batch: Any) -> Tensor:
    labels = tags(batch[0]).masked_fill(batch[0] == PAD, -100)
    return net(input_ids=batch[0], attention_mask=batch[1], labels=labels).loss


def gpt_neo_net(**options: Any) -> Any:
    """GPT-Neo, whose layers attend to all and to the last tokens in turn."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64}
    config = {"vocab_size": VOCABULARY, "attention_types": [[["global", "local"], 1]], "window_size": 16}
    return GPTNeoForCausalLM(GPTNeoConfig(**{**sizes, **config, "bos_token_id": START, "eos_token_id": END, **options}))


def falcon_net(**options: Any) -> Any:
    """Falcon: one key for all heads, attention beside the MLP."""
    from transformers import FalconConfig, FalconForCausalLM

    return FalconForCausalLM(FalconConfig(**{**WIDE, "bos_token_id": START, "eos_token_id": END, **options}))


def cohere_net(**options: Any) -> Any:
    """Cohere: blocks in parallel, norms without a bias."""
    from transformers import CohereConfig, CohereForCausalLM

    return CohereForCausalLM(CohereConfig(**{**DECODER, "logit_scale": 0.25, **options}))


def olmo2_net(**options: Any) -> Any:
    """OLMo 2: norms after each branch, and of queries and keys."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    return Olmo2ForCausalLM(Olmo2Config(**{**DECODER, **options}))


def mpnet_net(**options: Any) -> Any:
    """MPNet, for masked tokens."""
    from transformers import MPNetConfig, MPNetForMaskedLM

    return MPNetForMaskedLM(MPNetConfig(**{**ENCODER, **options}))


def mbart_net(**options: Any) -> Any:
    """mBART: norms before each branch."""
    from transformers import MBartConfig, MBartForConditionalGeneration

    return MBartForConditionalGeneration(MBartConfig(**{**BART, **options}))


def on_text(net: Any, optimizers: Optimizers, loss: Callable[..., Any] = language_model, **kwargs: Any) -> Built:
    """Trained on stretches of 48 characters, clipped at 1."""
    return Built(Recipe(net, loss, optimizers), characters(48, 8), {**CLIPPED, **kwargs}, WELL)


class Preferred(Recipe):
    """DPO: the text as it is, over the same text with its letters in another order, against a copy that stays."""

    def __init__(self, net: Any) -> None:
        super().__init__(net, lambda *_: None, adamw(5e-4, 0.0))
        self.reference = copy.deepcopy(net).eval().requires_grad_(False)

    def chance(self, net: Any, ids: Any) -> Any:
        logits = net(input_ids=ids).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, ids[:, 1:, None]).sum((1, 2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        good, bad = batch[0], batch[0][:, torch.randperm(batch[0].shape[1])]
        with torch.no_grad():
            before = self.chance(self.reference, good) - self.chance(self.reference, bad)
        return -F.logsigmoid(0.1 * (self.chance(self.net, good) - self.chance(self.net, bad) - before)).mean()


def written(net: Any, rate: float = 2e-3, length: int = 48) -> Built:
    """A decoder that learns to write code: a warm-up and a cosine, matrices decay, clipped at 1."""
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(rate))), characters(length, 8), CLIPPED, WELL)
