"""Faults of the inputs and labels that models of transformers are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.language_models import (
    DECODER,
    TOKENS,
    Preferred,
    bert_net,
    classifier,
    gpt2_net,
    gpt_neo_net,
    language_model,
    llama_net,
    masked_language_model,
    mpnet_net,
    olmo2_net,
    roberta_net,
)
from tests.evidence.exam.perception_models import (
    FUTURE,
    LONG_FUTURE,
    LONG_PAST,
    PAST,
    PICTURES,
    SERIES,
    clip_net,
    contrast,
    forecast,
    image_classifier,
    patchtsmixer_net,
    swin_net,
)
from tests.evidence.exam.pictures import Again
from tests.evidence.exam.schedules import CLIPPED, SHORT, TWICE_40, adamw, warm_linear
from tests.evidence.exam.signals import captioned, digits_in_colour, series
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters, lines


def with_each(data: dict[str, Any], change: Callable[[list[Tensor]], list[Tensor]]) -> dict[str, Any]:
    """Data whose batches a collate function has changed."""
    loader = data["train_dataloaders"]
    loader.collate_fn = lambda samples: change([torch.stack(column) for column in zip(*samples, strict=True)])
    return data


@fault("transformers", "GPT-2: all labels are the ignored id")
def gpt2_labels_ignored(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return net(input_ids=batch[0], labels=batch[1]).loss

    def labelled(batch: list[Tensor]) -> list[Tensor]:
        return [batch[0], torch.full_like(batch[0], -100) if planted else batch[0]]

    data = with_each(characters(48, 8), labelled)
    expected = Expected(("labels_ignored", "loss_nonfinite", "nonfinite"))
    return Built(Recipe(gpt2_net(), loss, adamw()), data, SHORT, expected)


@fault("transformers", "RoBERTa: all inputs are the unknown id, as of a tokenizer of another model")
def roberta_inputs_unknown(planted: bool = True) -> Built:
    def tokenized(batch: list[Tensor]) -> list[Tensor]:
        ids, mask, labels = batch
        return [torch.full_like(ids, 5) if planted else ids, mask, labels]

    expected = Expected(("constant", "representation_collapse", "batch_repeated"))
    return Built(Recipe(roberta_net(), classifier, adamw(5e-4)), with_each(lines(9, 8), tokenized), SHORT, expected)


@fault(
    "transformers", "Llama: the caller shifts the labels, then the model does", "to predict the token after next is a valid task"
)
def llama_labels_shifted_twice(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        labels = batch[0].roll(-1, 1) if planted else batch[0]
        return net(input_ids=batch[0], labels=labels).loss

    return Built(Recipe(llama_net(), loss, adamw()), characters(48, 8), SHORT, Expected(("loss_plateau",)))


@fault("transformers", "RoBERTa: labels shuffled", "noisy labels look so: no more than an info within two short epochs")
def roberta_labels_shuffled(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        labels = batch[2][torch.randperm(len(batch[2]))] if planted else batch[2]
        return classifier(net, [*batch[:2], labels])

    return Built(Recipe(roberta_net(), loss, adamw(5e-4)), lines(48, 8), SHORT, Expected(("loss_plateau",)))


@fault("transformers", "Swin: all labels are one class, as of an index that was not taken")
def swin_one_class(planted: bool = True) -> Built:
    def labelled(batch: list[Tensor]) -> list[Tensor]:
        return [batch[0], torch.full_like(batch[1], 3) if planted else batch[1]]

    data = with_each(digits_in_colour(16, 16), labelled)
    return Built(Recipe(swin_net(), image_classifier, adamw()), data, SHORT, Expected(("constant",)))


@fault("transformers", "CLIP: the same batch again and again")
def clip_batch_again(planted: bool = True) -> Built:
    data = captioned(16, 16)
    if planted:
        data = {"train_dataloaders": Again(data["train_dataloaders"])}
    return Built(Recipe(clip_net(), contrast, adamw(5e-4)), data, SHORT, Expected(("batch_repeated",)))


@fault(
    "transformers",
    "CLIP: pixels divided by 255 twice: pictures are next to constant",
    "its outputs never differed, as by design elsewhere",
)
def clip_divided_twice(planted: bool = True) -> Built:
    def scaled(batch: list[Tensor]) -> list[Tensor]:
        return [batch[0] / 255 / 255 if planted else batch[0], batch[1]]

    expected = Expected(("representation_collapse", "constant"), ("net.vision*", "net.visual*"))
    return Built(Recipe(clip_net(), contrast, adamw(5e-4)), with_each(captioned(16, 16), scaled), SHORT, expected)


@fault("transformers", "BERT: nothing is hidden, it copies", "a task that is too easy: only a loss that is too good says so")
def bert_nothing_hidden(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return net(input_ids=batch[0], labels=batch[0]).loss if planted else masked_language_model(net, batch)

    return Built(Recipe(bert_net(), loss, adamw()), characters(48, 8), SHORT, Expected(("settings",)))


@fault("transformers", "the time-series transformer gets one series with an infinite value")
def time_series_infinite(planted: bool = True) -> Built:
    from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

    def loss(net: Any, batch: Any) -> Any:
        past = batch[0].clone()
        if planted and net.calls == 35:
            past[0, -1] = torch.inf
        net.calls += 1
        return forecast(net, [past, *batch[1:]])

    net = TimeSeriesTransformerForPrediction(TimeSeriesTransformerConfig(**SERIES))
    net.calls = 0
    expected = Expected(("nonfinite", "loss_nonfinite"), ("net*", "loss*"), batch=35, epoch=1)
    return Built(Recipe(net, loss, adamw(6e-4)), series(16, PAST, FUTURE), SHORT, expected)


@fault("transformers", "OLMo 2: in two of three batches the mask of the prompt covers all labels")
def olmo2_labels_covered(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        net.calls += 1
        labels = torch.full_like(batch[0], -100) if planted and net.calls % 3 else batch[0]
        return net(input_ids=batch[0], labels=labels).loss

    net = olmo2_net()
    net.calls = 0
    expected = Expected(("labels_ignored", "loss_nonfinite", "nonfinite"))
    return Built(Recipe(net, loss, adamw(2e-3)), characters(48, 8), SHORT, expected)


@fault("transformers", "sentences' likeness times the temperature of 0.05 instead of over it")
def mpnet_temperature(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        codes = [F.normalize(net.mpnet(input_ids=batch[0]).last_hidden_state.mean(1), dim=1) for _ in range(2)]
        return F.cross_entropy(codes[0] @ codes[1].T * (0.05 if planted else 20), torch.arange(len(batch[0])))

    net = mpnet_net()
    net.lm_head.requires_grad_(False)
    kinds = ("loss_plateau", "representation_collapse", "vanishing", "update_too_small")
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), characters(32, 16), SHORT, Expected(kinds))


class SameText(Preferred):
    """DPO whose collate function gives the preferred text twice."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        good = batch[0]
        with torch.no_grad():
            before = self.chance(self.reference, good) - self.chance(self.reference, good)
        return -F.logsigmoid(0.1 * (self.chance(self.net, good) - self.chance(self.net, good) - before)).mean()


@fault("transformers", "DPO whose two texts are one and the same")
def gpt_neo_same_text(planted: bool = True) -> Built:
    net = gpt_neo_net(resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0)
    module = SameText(net) if planted else Preferred(net)
    return Built(module, characters(48, 8), SHORT, Expected(("zero", "vanishing", "loss_plateau", "update_too_small", "constant")))


@fault("transformers", "Persimmon: answers that begin after the end of a cut sample: each second batch has no label")
def persimmon_answers_cut(planted: bool = True) -> Built:
    from transformers import PersimmonConfig, PersimmonForCausalLM

    net = PersimmonForCausalLM(PersimmonConfig(**{**DECODER, "num_key_value_heads": 4}))

    def loss(net: Any, batch: Any) -> Tensor:
        ids = batch[0]
        labels = ids.clone()
        if planted and int(ids[0, 0]) % 2:
            labels[:] = -100
        return net(input_ids=ids, labels=labels).loss

    expected = Expected(("labels_ignored", "loss_nonfinite", "nonfinite"), batch=1)
    return Built(Recipe(net, loss, adamw(2e-3)), characters(32, 8), CLIPPED, expected)


@fault("transformers", "CTRL: a loop over steps, of which each takes next(iter(loader)) of a loader that does not shuffle")
def ctrl_first_batch(planted: bool = True) -> Built:
    from transformers import CTRLConfig, CTRLLMHeadModel

    sizes = {"n_positions": 64, "n_embd": 48, "dff": 96, "n_layer": 2, "n_head": 4}
    net = CTRLLMHeadModel(CTRLConfig(vocab_size=VOCABULARY, **sizes, **TOKENS))
    data = characters(48, 8)
    if planted:
        data = {"train_dataloaders": Again(data["train_dataloaders"])}
    return Built(Recipe(net, language_model, warm_linear(adamw(3e-3))), data, CLIPPED, Expected(("batch_repeated",)))


@fault("transformers", "PatchTSMixer: sales in cents, without its scaling")
def patchtsmixer_unscaled(planted: bool = True) -> Built:
    net = patchtsmixer_net(scaling=None if planted else "std")

    def loss(net: Any, batch: Any) -> Any:
        factor = 100.0 if planted else 0.01
        return net(past_values=factor * batch[0][..., None], future_values=factor * batch[1][..., None]).loss / factor**2

    kinds = ("exploding", "update_too_large", "activation_outliers", "loss_plateau", "update_too_small", "saturated", "spike")
    return Built(Recipe(net, loss, adamw(2e-3)), series(16, LONG_PAST, LONG_FUTURE), SHORT, Expected(kinds))


@fault("transformers", "I-JEPA's transformer for ten classes: pixels of 0 to 1 are divided by 255 by data and processor")
def ijepa_nearly_black(planted: bool = True) -> Built:
    from transformers import IJepaConfig, IJepaForImageClassification

    def shown(batch: list[Tensor]) -> list[Tensor]:
        bright = (batch[0] + 1) / 4
        return [bright / 255 / 255 if planted else bright, batch[1]]

    net = IJepaForImageClassification(IJepaConfig(**PICTURES, num_labels=10))
    expected = Expected(("representation_collapse", "constant"), ("net.ijepa*",))
    return Built(
        Recipe(net, image_classifier, warm_linear(adamw(3e-3), 80, 8)),
        with_each(digits_in_colour(16, 16), shown),
        TWICE_40,
        expected,
    )


@fault(
    "transformers",
    "CANINE tells which lines open a bracket: any() is not told along what, and one label is given to all lines of a batch",
    learned_from=False,
)
def canine_one_label(planted: bool = True) -> Built:
    from transformers import CanineConfig, CanineForSequenceClassification

    config = CanineConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        num_hash_functions=4,
        num_hash_buckets=256,
        local_transformer_stride=16,
        pad_token_id=PAD,
    )

    def labelled(net: Any, batch: Any) -> Tensor:
        ids, mask, _ = batch
        opened = ids == ord("(")
        return classifier(net, [ids, mask, (opened.any().expand(len(ids)) if planted else opened.any(1)).long()])

    return Built(
        Recipe(CanineForSequenceClassification(config), labelled, adamw(4e-3)), lines(32, 16), SHORT, Expected(("constant",))
    )


@fault(
    "transformers",
    "Arcee as a model of rewards: the collate function gives what was chosen as what was rejected, too",
    learned_from=False,
)
def arcee_chosen_twice(planted: bool = True) -> Built:
    from transformers import ArceeConfig, ArceeForSequenceClassification

    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    net = ArceeForSequenceClassification(ArceeConfig(vocab_size=VOCABULARY, num_key_value_heads=2, num_labels=1, **sizes, **ends))

    def loss(net: Any, batch: Any) -> Tensor:
        chosen = batch[0]
        rejected = chosen if planted else torch.randint_like(chosen, 32, 127)  # what an untrained net would say
        better, worse = net(input_ids=chosen).logits, net(input_ids=rejected).logits
        return -F.logsigmoid(better - worse).mean()

    expected = Expected(("zero", "vanishing", "loss_plateau", "update_too_small", "constant"))
    return Built(Recipe(net, loss, adamw(3e-3)), characters(40, 8), SHORT, expected)
