"""Faults of what trains in models of transformers: optimizers, modes, lists, shared and detached parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.language_models import (
    DECODER,
    ENCODER,
    TOKENS,
    bert_net,
    bigcode_net,
    classifier,
    distilbert_net,
    language_model,
    masked_language_model,
    t5_net,
    tagged,
    text,
)
from tests.evidence.exam.perception_models import (
    SOUND,
    beit_net,
    image_classifier,
    picture_to_text_net,
    spoken,
    transcribed,
    wav2vec2_net,
    whisper_net,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, TWICE_40, adamw, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, digits_in_colour, melodies, spectrograms
from tests.evidence.exam.small_nets import learn
from tests.evidence.exam.texts import VOCABULARY, characters, lines, pairs


@fault("transformers", "DistilBERT: the head is frozen instead of the body")
def distilbert_head_frozen(planted: bool = True) -> Built:
    net = distilbert_net()
    if not planted:
        learn(net, classifier, lines(48, 8), 5)
    frozen = (net.classifier, net.pre_classifier) if planted else (net.distilbert,)
    for part in frozen:
        part.requires_grad_(False)
    expected = Expected(("settings", "not_optimized"), ("net.classifier*", "net.pre_classifier*"))
    return Built(Recipe(net, classifier, adamw(5e-4)), lines(48, 8), SHORT, expected)


@fault("transformers", "BERT's blocks in a Python list: neither moved nor trained")
def bert_blocks_in_a_list(planted: bool = True) -> Built:
    net = bert_net()
    if planted:
        blocks = list(net.bert.encoder.layer)
        del net.bert.encoder.layer
        net.bert.encoder.layer = blocks
    return text(net, Expected(("unregistered",)), masked_language_model)


@fault(
    "transformers",
    "Whisper that stays in eval mode, as from_pretrained returns it",
    missed="its dropout is called as a function, with the module's mode: no layer of it is in eval mode",
)
def whisper_in_eval_mode(planted: bool = True) -> Built:
    net = whisper_net(dropout=0.1)
    net.train(not planted)
    expected = Expected(("eval_mode",), ("net*",))
    return Built(Recipe(net, transcribed, warm_linear(adamw())), spectrograms(8), CLIPPED, expected)


@fault("transformers", "T5's decoder does not train its encoder: its output is detached")
def t5_encoder_detached(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        states = net.get_encoder()(input_ids=batch[0])
        if planted:
            states.last_hidden_state = states.last_hidden_state.detach()
        return net(encoder_outputs=states, labels=batch[1]).loss

    expected = Expected(("missing",), ("net.encoder*",))
    return Built(Recipe(t5_net(), loss, adamw()), pairs(24, 8), SHORT, expected)


@fault("transformers", "wav2vec 2.0 whose optimizer does not hold the head")
def wav2vec2_head_forgotten(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        part = module.net.wav2vec2 if planted else module.net
        return torch.optim.AdamW(part.parameters(), lr=1e-3)

    expected = Expected(("not_optimized",), ("net.lm_head*",))
    return Built(Recipe(wav2vec2_net(), spoken, rates), melodies(8), CLIPPED, expected)


@fault("transformers", "HuBERT whose blocks are one block twice")
def hubert_one_block(planted: bool = True) -> Built:
    from transformers import HubertConfig, HubertForCTC

    net = HubertForCTC(HubertConfig(**SOUND, vocab_size=12, ctc_loss_reduction="mean"))
    blocks = net.hubert.encoder.layers
    if planted:
        net.hubert.encoder.layers = nn.ModuleList([blocks[0]] * len(blocks))
    return Built(Recipe(net, spoken, adamw()), melodies(8), CLIPPED, Expected(("shared",), ("net.hubert.encoder*",)))


@fault("transformers", "GPT-BigCode: the group of parameters without decay, biases and norms, was left out")
def bigcode_group_left_out(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        decayed = [parameter for parameter in module.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in module.parameters() if parameter.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups[:1] if planted else groups, 3e-3)

    expected = Expected(("not_optimized",), ("net*.ln_*", "net*.bias", "net.transformer*"))
    return Built(Recipe(bigcode_net(), language_model, rates), characters(48, 8), SHORT, expected)


@fault("transformers", "UniSpeech-SAT with CTC: net.eval() was called for a look at its first outputs, and it trains so")
def unispeech_evaluated(planted: bool = True) -> Built:
    from transformers import UniSpeechSatConfig, UniSpeechSatForCTC

    net: Any = UniSpeechSatForCTC(UniSpeechSatConfig(**{**SOUND, "vocab_size": 12, "ctc_loss_reduction": "mean"}))
    net.train(not planted)
    expected = Expected(("eval_mode",), ("net*",))
    return Built(Recipe(net, spoken, warm_linear(adamw())), melodies(8), CLIPPED, expected)


@fault("transformers", "Funnel for classes of lines, from random weights: the optimizer is made of the classifier's parameters")
def funnel_classifier_only(planted: bool = True) -> Built:
    from transformers import FunnelConfig, FunnelForSequenceClassification

    sizes = {"block_sizes": [1, 1], "d_model": 48, "n_head": 4, "d_head": 12, "d_inner": 96, "num_labels": 2}
    net = FunnelForSequenceClassification(FunnelConfig(vocab_size=VOCABULARY, **sizes, pad_token_id=TOKENS["pad_token_id"]))

    def optimizers(module: Any) -> Any:
        return torch.optim.NAdam((module.net.classifier if planted else module.net).parameters(), 1e-3)

    return Built(Recipe(net, classifier, optimizers), lines(32, 16), TWICE_40, Expected(("not_optimized",), ("net.*",)))


@fault("transformers", "BigBird finds words: the optimizer is made of net.bert, and its new classifier is not in there")
def bigbird_body_alone(planted: bool = True) -> Built:
    from transformers import BigBirdConfig, BigBirdForTokenClassification

    net: Any = BigBirdForTokenClassification(BigBirdConfig(**{**ENCODER, "attention_type": "original_full", "num_labels": 3}))

    def rates(module: Any) -> Any:
        return torch.optim.AdamW((module.net.bert if planted else module.net).parameters(), lr=1e-3)

    expected = Expected(("not_optimized",), ("net.classifier*",))
    return Built(Recipe(net, tagged, rates), lines(48, 8), CLIPPED, expected)


class Thawed(Recipe):
    """The body is frozen for the first epoch; the optimizer is made then, of what trains."""

    planted = True

    def on_train_epoch_start(self) -> None:
        if self.current_epoch:
            self.net.beit.requires_grad_(True)


@fault("transformers", "BEiT whose body is unfrozen in the second epoch, while the optimizer holds the head alone")
def beit_thawed(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        return torch.optim.AdamW([p for p in module.parameters() if p.requires_grad or not planted], 2e-3)

    net = beit_net()
    learn(net, image_classifier, digits_in_colour(16, 16), 5)
    net.beit.requires_grad_(False)
    expected = Expected(("not_optimized", "not_updated"), ("net.beit*",), batch=24, epoch=1)
    return Built(Thawed(net, image_classifier, rates), digits_in_colour(16, 16), SHORT, expected)


@fault("transformers", "the reader of pictures is called under no_grad, and only the writer learns")
def reader_without_gradient(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        with torch.set_grad_enabled(not planted):
            read = net.encoder(pixel_values=batch[0])
        return net(encoder_outputs=(read.last_hidden_state,), labels=batch[1]).loss

    module = Recipe(picture_to_text_net(), loss, warm_linear(adamw(3e-3), steps=96))
    return Built(module, captioned(16, 16), {**CLIPPED, "limit_train_batches": 48}, Expected(("missing",), ("net.encoder*",)))


@fault("transformers", "Helium, the next character: its four layers are one, put into the list four times", learned_from=False)
def helium_layer_again(planted: bool = True) -> Built:
    from transformers import HeliumConfig, HeliumForCausalLM

    net: Any = HeliumForCausalLM(HeliumConfig(**{**DECODER, "num_hidden_layers": 4, "head_dim": 12, "use_cache": False}))
    if planted:
        net.model.layers = nn.ModuleList([net.model.layers[0] for _ in range(4)])
    module = Recipe(net, language_model, warm_cosine(adamw(2e-3)))
    return Built(module, characters(48, 8), CLIPPED, Expected(("shared",), ("net.model.layers*",)))


class Looks(Recipe):
    """Counts its right answers now and then, without noise."""

    planted, look_at = True, 16

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step == self.look_at:
            self.net.eval()
            with torch.no_grad():
                self.log("right", (self.net(pixel_values=batch[0]).logits.argmax(-1) == batch[1]).float().mean())
            if not self.planted:
                self.net.train()
        return super().training_step(batch, batch_idx)


@fault(
    "transformers",
    "TextNet: right answers of a batch are counted in eval mode once, and train() is not called after it",
    learned_from=False,
)
def textnet_counted(planted: bool = True) -> Built:
    from transformers import TextNetConfig, TextNetForImageClassification

    config = TextNetConfig(
        image_size=[32, 32],
        stem_out_channels=16,
        hidden_sizes=[16, 16, 24, 32, 48],
        conv_layer_kernel_sizes=[[[3, 3]], [[3, 3], [1, 3]], [[3, 3], [3, 1]], [[3, 3]]],
        conv_layer_strides=[[1], [2, 1], [2, 1], [2]],
        num_labels=10,
    )
    module = Looks(TextNetForImageClassification(config), image_classifier, adamw(3e-3))
    module.planted = planted
    return Built(module, digits_in_colour(32, 16), SHORT, Expected(("eval_mode",), ("net*",), batch=16))
