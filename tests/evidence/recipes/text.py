"""Text: language models, classification, translation, tagging, preferences, speech-like sequences."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from transformers import (
    Adafactor,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers import get_cosine_schedule_with_warmup as cosine

from .case import Learner, Training, accuracy, cross_entropy, fault, healthy, hf_accuracy, hf_loss, hf_val
from .data import characters, feed, lines, names, replace, rng, words
from .nets import GPT, frozen, pretrain


def next_token(net: Any, batch: Any) -> Tensor:
    (ids,) = batch
    return F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def last_token(net: Any, batch: Any) -> dict[str, Tensor]:
    """The loss of a token that the net has not seen, as in sampling."""
    return {"val_loss": F.cross_entropy(net(batch[0][:, :24])[:, -1], batch[0][:, 24])}


@fault("no_causal_mask", "Attention sees the tokens to be predicted.", "val_loss", 0, causal=False)
@fault("language_model_rate_too_high", "The learning rate is 1.0, where 0.01 was meant.", "val_loss", 0, lr=1.0)
@healthy
def nanogpt_on_documentation(causal: bool = True, lr: float = 1e-2) -> Training:
    def optimizer(parameters: Any) -> AdamW:
        parameters = list(parameters)
        decayed = {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1}
        return AdamW([decayed, {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}], lr, (0.9, 0.95))

    schedule = partial(cosine, num_warmup_steps=10, num_training_steps=120)
    module = Learner(GPT(causal=causal), next_token, optimizer, last_token, schedule)
    return Training(module, feed(characters(1200), batch=32), {"max_epochs": 4, "gradient_clip_val": 1.0})


@fault("labels_shifted_twice", "Labels are shifted by hand although the model shifts them too.", "val_loss", 0, shift=1)
@healthy
def gpt2_with_accumulation(shift: int = 0) -> Training:
    config = GPT2Config(vocab_size=30, n_positions=32, n_embd=32, n_layer=2, n_head=4, initializer_range=0.1)
    net = GPT2LMHeadModel(config)
    ids = characters(1000)[:, :32]
    fed = feed(batch=16, input_ids=ids, labels=ids)
    if shift:
        replace(fed, "labels", lambda labels: F.pad(labels[:, shift:], (0, shift), value=-100))
    return Training(Learner(net, hf_loss, partial(AdamW, lr=1e-2), hf_val), fed, {"max_epochs": 3, "accumulate_grad_batches": 2})


@fault("lora_starts_at_zero", "Both matrices of LoRA start at zero and have no gradient.", "val_loss", 0, std=0.0)
@healthy
def lora_on_llama(std: float = 0.1, rank: int = 4) -> Training:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=30, max_position_embeddings=32, initializer_range=0.1, **sizes))
    old, new = characters(480)[:, :32], characters(640)[:, :32].flip(1)
    pretrain(net, hf_loss, [{"input_ids": b, "labels": b} for b in old.split(16)], lr=1e-2)

    class LoRA(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base
            self.a = nn.Parameter(torch.randn(rank, base.in_features) * std)
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + 4 * x @ self.a.T @ self.b.T

    net.requires_grad_(False)
    for name, layer in list(net.named_modules()):
        if name.endswith(("q_proj", "v_proj", "up_proj", "down_proj")):
            setattr(net.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], LoRA(layer))
    fed = feed(batch=16, input_ids=new, labels=new)
    return Training(Learner(net, hf_loss, partial(AdamW, lr=1e-2), hf_val), fed, {"max_epochs": 3})


@fault("tanh_saturated_from_the_start", "The first weights are 50 times too large.", "val_loss", 0, gain=10.0)
@healthy
def makemore_mlp(gain: float = 0.2, lr: float = 0.1) -> Training:
    padded = [[0, 0, 0, *(ord(c) - 96 for c in name), 0] for name in names()]
    pairs = [(row[i : i + 3], row[i + 3]) for row in padded for i in range(len(row) - 3)]
    x, y = (torch.tensor(column) for column in zip(*pairs, strict=True))
    net = nn.Sequential(nn.Embedding(27, 10), nn.Flatten(), nn.Linear(30, 100), nn.Tanh(), nn.Linear(100, 27))
    nn.init.normal_(net[2].weight, std=gain)
    nn.init.normal_(net[4].weight, std=gain / 20)
    module = Learner(net, cross_entropy, partial(SGD, lr=lr), accuracy)
    return Training(module, feed(x, y, batch=64), {"max_epochs": 2, "limit_train_batches": 150})


class WordModel(nn.Module):
    def __init__(self, tied: bool, dropout: float) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(300, 48), nn.LSTM(48, 48, batch_first=True), nn.Linear(48, 300)
        self.drop = nn.Dropout(dropout)
        self.embedding.weight.data.uniform_(-0.1, 0.1)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(self.drop(self.embedding(ids)))[0]))


@fault("clipped_to_almost_nothing", "Gradients are clipped to 0.0001.", "val_loss", 0, clip=1e-4)
@healthy
def word_language_model(clip: float = 0.25, dropout: float = 0.1) -> Training:
    ids = words()[:12_800].view(-1, 16)
    module = Learner(WordModel(True, dropout), next_token, partial(SGD, lr=20.0))
    return Training(module, feed(ids, batch=20), {"max_epochs": 4, "gradient_clip_val": clip})


@fault(
    "loss_on_visible_tokens",
    "The mask of the labels is inverted: the loss counts the tokens that can be seen.",
    "val_loss",
    0,
    inverted=True,
)
@healthy
def bert_on_counting(inverted: bool = False) -> Training:
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    net = BertForMaskedLM(BertConfig(vocab_size=32, max_position_embeddings=32, initializer_range=0.1, **sizes))
    start, pace = torch.randint(0, 31, (2, 1500, 1), generator=rng(1))
    ids = (start + (pace % 2 + 1) * torch.arange(16)) % 31
    hidden = torch.rand(ids.shape, generator=rng()) < 0.15
    fed = feed(input_ids=ids.masked_fill(hidden, 31), labels=ids.masked_fill(~hidden, -100), kept=ids, batch=32)
    for part in fed.values():
        kept = part.dataset.columns.pop("kept")
        if inverted and part is fed["train_dataloaders"]:
            part.dataset.columns["labels"] = kept.masked_fill(part.dataset.columns["labels"] != -100, -100)
    return Training(Learner(net, hf_loss, partial(AdamW, lr=5e-3), hf_val), fed, {"max_epochs": 5})


@fault("attention_mask_inverted", "The attention mask is inverted: only padding is attended to.", "val_acc", 0, inverted=True)
@healthy
def distilbert_on_lines(inverted: bool = False, freeze: bool = False) -> Training:
    sizes: dict[str, Any] = {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64, "initializer_range": 0.1}
    config = DistilBertConfig(vocab_size=400, max_position_embeddings=16, num_labels=4, **sizes)
    net = DistilBertForSequenceClassification(config)
    ids, y = lines()
    seen = (ids == 0).long() if inverted else (ids != 0).long()
    fed = feed(batch=32, input_ids=ids[::3], attention_mask=seen[::3], labels=y[::3])
    return Training(Learner(net, hf_loss, partial(AdamW, lr=3e-3), hf_accuracy), fed, {"max_epochs": 2})


@fault(
    "every_word_unknown",
    "Words are in capitals but the vocabulary is in small letters, so every word is unknown.",
    "val_acc",
    0,
    case=True,
)
@healthy
def embedding_bag_on_lines(case: bool = False) -> Training:
    ids, y = lines(case=case)
    net = nn.Sequential(nn.EmbeddingBag(400, 32, padding_idx=0), nn.Linear(32, 4))
    module = Learner(net, cross_entropy, partial(SGD, lr=3.0), accuracy)
    return Training(module, feed(ids[::2], y[::2], batch=16), {"max_epochs": 2, "gradient_clip_val": 0.1})


class Translator(nn.Module):
    """A GRU encoder and a GRU decoder with dot attention."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(16, width), nn.Linear(2 * width, 16)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.encoder(self.embedding(source))
        out, _ = self.decoder(self.embedding(target), last)
        weights = F.softmax(out @ states.transpose(1, 2), -1)
        return self.out(torch.cat([out, weights @ states], -1))


@fault(
    "decoder_input_not_shifted",
    "The decoder is given the token it has to predict, because its input is not shifted.",
    "val_acc",
    0,
    shifted=False,
)
@healthy
def translation_with_attention(shifted: bool = True, lr: float = 5e-3) -> Training:
    source = torch.randint(2, 16, (1280, 6), generator=rng())
    target = (source.flip(1) + 5) % 14 + 2

    def teacher_forcing(net: Any, batch: Any) -> Tensor:
        given = F.pad(batch[1][:, :-1], (1, 0), value=1) if shifted else batch[1]
        return F.cross_entropy(net(batch[0], given).flatten(0, 1), batch[1].flatten())

    def greedy(net: Any, batch: Any) -> dict[str, Tensor]:
        given = torch.ones_like(batch[1][:, :1])
        for _ in range(6):
            given = torch.cat([given, net(batch[0], given)[:, -1:].argmax(-1)], 1)
        return {"val_acc": (given[:, 1:] == batch[1]).float().mean()}

    module = Learner(Translator(), teacher_forcing, partial(Adam, lr=lr), greedy)
    return Training(module, feed(source, target, batch=32), {"max_epochs": 6, "gradient_clip_val": 1.0})


@fault("adafactor_rate_too_low", "The learning rate is 200 times too low.", "val_acc", 0, lr=5e-5)
@healthy
def t5_with_adafactor(lr: float = 1e-2) -> Training:
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0}
    net = T5ForConditionalGeneration(T5Config(vocab_size=16, decoder_start_token_id=0, **sizes))
    source = torch.randint(2, 10, (1600, 6), generator=rng())
    adafactor = partial(Adafactor, lr=lr, relative_step=False, scale_parameter=False)
    fed = feed(batch=32, input_ids=source, labels=source.sort(1).values)
    return Training(Learner(net, hf_loss, adafactor, hf_accuracy), fed, {"max_epochs": 3})


class Tagger(nn.Module):
    """A BiLSTM with the scores of a conditional random field."""

    def __init__(self, tags: int = 5) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(40, 16), nn.LSTM(16, 16, bidirectional=True, batch_first=True)
        self.out, self.move = nn.Linear(32, tags), nn.Parameter(torch.zeros(tags, tags))

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(ids))[0])

    def likelihood(self, ids: Tensor, tags: Tensor) -> Tensor:
        unary = self(ids)
        gold = unary.gather(2, tags[..., None]).sum((1, 2)) + self.move[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = unary[:, 0]
        for t in range(1, ids.shape[1]):
            alpha = (alpha[:, :, None] + self.move).logsumexp(1) + unary[:, t]
        return (gold - alpha.logsumexp(1)).mean()


@fault("likelihood_minimised", "The log-likelihood is minimised, not its negative.", "val_acc", 0, sign=1.0)
@healthy
def crf_tagging(sign: float = -1.0) -> Training:
    ids = torch.randint(0, 40, (1000, 12), generator=rng())
    tags = (ids % 4 + 1) * (ids < 20)
    tags[:, 1:] = torch.where(ids[:, :-1] > 30, 4, tags[:, 1:])

    def hits(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_acc": (net(batch[0]).argmax(-1) == batch[1]).float().mean()}

    module = Learner(Tagger(), lambda net, batch: sign * net.likelihood(*batch), partial(Adam, lr=1e-2), hits)
    return Training(module, feed(ids, tags, batch=32), {"max_epochs": 4})


@fault("ctc_of_plain_outputs", "ctc_loss is given outputs without log-softmax.", "val_acc", 0, log=False)
@healthy
def speech_with_ctc(log: bool = True) -> Training:
    labels = torch.randint(1, 6, (640, 4), generator=rng())
    gaps = F.one_hot(labels.repeat_interleave(6, 1), 6).float()
    gaps[:, 5::6] = 0
    sound = gaps @ torch.randn(6, 12, generator=rng(1)) + 0.3 * torch.randn(640, 24, 12, generator=rng(2))

    class Listener(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gru = nn.Conv1d(12, 32, 3, padding=1), nn.GRU(32, 32, bidirectional=True, batch_first=True)
            self.out = nn.Linear(64, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.gru(F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))[0])

    def ctc(net: Any, batch: Any) -> Tensor:
        out = net(batch[0])
        out, size = out.log_softmax(-1) if log else out, len(out)
        lengths = torch.full((size,), 24), torch.full((size,), 4)
        return F.ctc_loss(out.transpose(0, 1), batch[1], *lengths)

    def decoded(net: Any, batch: Any) -> dict[str, Tensor]:
        best = [[k for k in row.unique_consecutive().tolist() if k] for row in net(batch[0]).argmax(-1)]
        return {"val_acc": torch.tensor([float(row == y.tolist()) for row, y in zip(best, batch[1], strict=True)]).mean()}

    module = Learner(Listener(), ctc, partial(Adam, lr=5e-3), decoded)
    return Training(module, feed(sound, labels, batch=32), {"max_epochs": 6, "gradient_clip_val": 5.0})


@fault("reference_is_the_policy", "The reference of DPO is the policy itself and not a copy of it.", "val_loss", 0, copied=False)
@healthy
def dpo_on_a_small_gpt(copied: bool = True, beta: float = 0.5) -> Training:
    ids = characters(600)[:, :24]
    policy = pretrain(GPT(), next_token, [(b,) for b in ids.split(16)], lr=1e-2)
    reference = frozen(policy) if copied else policy
    vowels = torch.tensor([c in "aeiou" for c in " .,\nabcdefghijklmnopqrstuvwxyz"])
    good = ids.clone()
    good[:, 12:] = torch.where(vowels[ids[:, 12:]], 4, ids[:, 12:])

    def logp(net: Any, ids: Tensor) -> Tensor:
        return -F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")[:, 11:].sum(1)

    def margin(net: Any, batch: Any) -> Tensor:
        win, lose = batch["chosen"], batch["rejected"]
        with torch.set_grad_enabled(not copied and net.training):
            base = logp(reference, win) - logp(reference, lose)
        return beta * (logp(net, win) - logp(net, lose) - base)

    def loss(net: Any, batch: Any) -> Tensor:
        return -F.logsigmoid(margin(net, batch)).mean()

    module = Learner(policy, loss, partial(AdamW, lr=1e-4))
    return Training(module, feed(chosen=good, rejected=ids, batch=16), {"max_epochs": 2})
