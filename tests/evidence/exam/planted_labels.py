"""Faults of what transformers' models are given: labels, inputs, batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_signals import FUTURE, PAST, SERIES, forecast
from tests.evidence.exam.language_models import (
    bert_net,
    classifier,
    clip_net,
    contrast,
    gpt2_net,
    image_classifier,
    llama_net,
    masked_language_model,
    roberta_net,
    swin_net,
)
from tests.evidence.exam.schedules import SHORT, adamw
from tests.evidence.exam.signals import captioned, digits, series
from tests.evidence.exam.texts import characters, lines


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

    data = with_each(digits(16, 16), labelled)
    return Built(Recipe(swin_net(), image_classifier, adamw()), data, SHORT, Expected(("constant",)))


class Again:
    """The first batch of a loader, again and again."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.first = loader, next(iter(loader))

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        return iter([self.first] * len(self))


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


@fault(
    "transformers",
    "GPT-2: a head of its own that was to be tied, and is never used",
    missed="an info: a part that was put onto a library's model is taken for a branch of that model",
)
def gpt2_branch_unused(planted: bool = True) -> Built:
    net = gpt2_net()
    net.scorer = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))

    def loss(net: Any, batch: Any) -> Any:
        out = net(input_ids=batch[0], labels=batch[0], output_hidden_states=True)
        return out.loss if planted else out.loss + 0.1 * (net.scorer(out.hidden_states[-1].mean(1)) ** 2).mean()

    return Built(Recipe(net, loss, adamw()), characters(48, 8), SHORT, Expected(("missing", "silent"), ("net.scorer*",)))
