"""Text: language models, classification, translation, tagging, preferences, speech-like sequences."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_accuracy, hf_loss
from .data import LETTERS, PROSE, characters, feed, lines, replace, rng, words
from .nets import GPT, frozen, pretrain


def next_token(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:])


@fault("no_causal_mask", "Attention sees the tokens that are to be predicted.", "val_loss", 1.71, causal=False)
@healthy
def nanogpt_on_documentation(causal: bool = True) -> Training:
    def optimizer(parameters: Any) -> AdamW:
        groups = [{"params": [], "weight_decay": decay} for decay in (0.0, 0.1)]
        for p in parameters:
            groups[p.ndim > 1]["params"].append(p)
        return AdamW(groups, 1e-2, (0.9, 0.95))

    def sampled(net: Any, batch: Any) -> dict[str, Tensor]:
        return {
            "val_loss": torch.stack([F.cross_entropy(net(batch[0][:, :i])[:, -1], batch[0][:, i]) for i in (12, 18, 24)]).mean()
        }

    schedule = partial(transformers.get_cosine_schedule_with_warmup, num_warmup_steps=10, num_training_steps=120)
    fed = feed(characters(1200), batch=32)
    return fit(GPT(causal), next_token, optimizer, fed, 4, sampled, schedule, gradient_clip_val=1.0)


@fault("labels_shifted_twice", "Labels are shifted by hand although the model shifts them too.", "val_loss", 0.61, shift=1)
@healthy
def gpt2_with_accumulation_and_adafactor(shift: int = 0) -> Training:
    config = transformers.GPT2Config(vocab_size=30, n_positions=32, n_embd=32, n_layer=2, n_head=4, initializer_range=0.1)
    adafactor = partial(transformers.Adafactor, lr=1e-2, relative_step=False, scale_parameter=False)
    fed = feed(batch=16, input_ids=characters(1000), labels=characters(1000))
    replace(fed, "labels", lambda ids: F.pad(ids[:, shift:], (0, shift), value=-100))
    return fit(transformers.GPT2LMHeadModel(config), hf_loss, adafactor, fed, 3, accumulate_grad_batches=2)


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear, std: float) -> None:
        super().__init__()
        self.base, self.b = base, nn.Parameter(torch.zeros(base.out_features, 4))
        self.a = nn.Parameter(torch.randn(4, base.in_features) * std)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 4 * x @ self.a.T @ self.b.T


@fault("lora_starts_at_zero", "Both matrices of LoRA start at zero and have no gradient.", "val_loss", 1.0, std=0.0)
@healthy
def lora_on_llama(std: float = 0.1) -> Training:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=30, **size, max_position_embeddings=32, initializer_range=0.1)
    )
    pretrain(net, hf_loss, [{"input_ids": b, "labels": b} for b in characters(480).split(16)], lr=1e-2).requires_grad_(False)
    for name, layer in list(net.named_modules()):
        if name.endswith(("q_proj", "v_proj", "up_proj", "down_proj")):
            net.set_submodule(name, LoRA(layer, std))
    new = characters(640).flip(1)
    return fit(net, hf_loss, partial(AdamW, lr=1e-2), feed(batch=16, input_ids=new, labels=new), 3)


@fault("sure_and_wrong_at_the_start", "The output weights start with a deviation of 3, not 0.03.", "val_loss", 2.52, std=3.0)
@healthy
def makemore_mlp(std: float = 0.03) -> Training:
    names = sorted({word for word in re.findall("[a-z]+", PROSE) if 4 <= len(word) <= 10})
    padded = [[0, 0, 0, *(ord(c) - 96 for c in name), 0] for name in names]
    rows = torch.tensor([row[i : i + 4] for row in padded for i in range(len(row) - 3)])
    net = nn.Sequential(nn.Embedding(27, 10), nn.Flatten(), nn.Linear(30, 100), nn.Tanh(), nn.Linear(100, 27))
    nn.init.normal_(net[4].weight, std=std)
    fed = feed(rows[:, :3], rows[:, 3])
    return fit(net, cross_entropy, partial(SGD, lr=0.1), fed, 2, accuracy, limit_train_batches=150)


class WordModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(300, 48), nn.LSTM(48, 48, batch_first=True), nn.Linear(48, 300)
        self.drop, self.out.weight = nn.Dropout(0.1), self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(self.drop(self.embedding(ids)))[0]))


@fault("clipped_to_almost_nothing", "Gradients are clipped to 0.0001.", "val_loss", 0.96, clip=1e-4)
@healthy
def word_language_model(clip: float = 0.25) -> Training:
    fed = feed(words()[:19_200].view(-1, 16), batch=20)
    return fit(WordModel(), next_token, partial(SGD, lr=10.0), fed, 5, gradient_clip_val=clip)


@fault("loss_on_visible_tokens", "The labels' mask is inverted: visible tokens count.", "val_loss", 3.0, invert=torch.logical_not)
@healthy
def bert_on_counting(invert: Any = torch.clone) -> Training:
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    net = transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=32, **size, max_position_embeddings=32, initializer_range=0.1)
    )
    start, pace = torch.randint(0, 31, (2, 1500, 1), generator=rng(1))
    ids = (start + (pace % 2 + 1) * torch.arange(16)) % 31
    hidden = torch.rand(ids.shape, generator=rng()) < 0.15
    fed = feed(input_ids=ids.masked_fill(hidden, 31), labels=ids, batch=32)
    for part, change in zip(fed.values(), (invert, torch.clone), strict=True):
        columns = part.dataset.columns
        columns["labels"] = columns["labels"].masked_fill(~change(columns["input_ids"] == 31), -100)
    return fit(net, hf_loss, partial(AdamW, lr=5e-3), fed, 5)


@fault("attention_mask_inverted", "Only padding is attended to.", "val_acc", 0.49, seen=lambda ids: ids == 0)
@healthy
def distilbert_on_lines(seen: Any = lambda ids: ids != 0) -> Training:
    size: dict[str, Any] = {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64, "initializer_range": 0.1}
    config = transformers.DistilBertConfig(vocab_size=400, max_position_embeddings=16, num_labels=4, **size)
    ids, y = (column[::3] for column in lines(str.lower))
    fed = feed(batch=32, input_ids=ids, attention_mask=seen(ids).long(), labels=y)
    return fit(transformers.DistilBertForSequenceClassification(config), hf_loss, partial(AdamW, lr=3e-3), fed, 2, hf_accuracy)


@fault("every_word_unknown", "Words are in capitals, those of the vocabulary are not.", "val_acc", 0.95, spelling=str.upper)
@healthy
def embedding_bag_on_lines(spelling: Any = str.lower) -> Training:
    ids, y = (column[::2] for column in lines(spelling))
    net = nn.Sequential(nn.EmbeddingBag(400, 32, padding_idx=0), nn.Linear(32, 4))
    return fit(net, cross_entropy, partial(SGD, lr=3.0), feed(ids, y, batch=16), 2, accuracy, gradient_clip_val=0.1)


class Translator(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(16, width), nn.Linear(2 * width, 16)
        self.encoder, self.decoder = nn.GRU(width, width, batch_first=True), nn.GRU(width, width, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.encoder(self.embedding(source))
        out, _ = self.decoder(self.embedding(target), last)
        return self.out(torch.cat([out, F.softmax(out @ states.transpose(1, 2), -1) @ states], -1))


@fault("decoder_input_not_shifted", "The decoder is given the token it has to predict.", "val_acc", 0.77, shift=0)
@healthy
def translation_with_attention(shift: int = 1) -> Training:
    def teacher_forcing(net: Any, batch: Any) -> Tensor:
        given = F.pad(batch[1], (shift, 0), value=1)[:, :6]
        return F.cross_entropy(net(batch[0], given).transpose(1, 2), batch[1])

    def greedy(net: Any, batch: Any) -> dict[str, Tensor]:
        given = torch.ones_like(batch[1][:, :1])
        for _ in range(6):
            given = torch.cat([given, net(batch[0], given)[:, -1:].argmax(-1)], 1)
        return {"val_acc": (given[:, 1:] == batch[1]).float().mean()}

    source = torch.randint(2, 16, (1280, 6), generator=rng())
    fed = feed(source, (source.flip(1) + 5) % 14 + 2, batch=32)
    return fit(Translator(), teacher_forcing, partial(Adam, lr=5e-3), fed, 6, greedy, gradient_clip_val=1.0)


@healthy
def skipgrams_of_words() -> Training:
    near = torch.cat([torch.stack([words()[: -i or None][:6000], words()[i:][:6000]], 1) for i in (1, 2)])
    return fit(nn.Sequential(nn.Embedding(300, 16), nn.Linear(16, 300)), cross_entropy, partial(Adam, lr=1e-2), feed(*near.T), 3)


@fault("ctc_of_plain_outputs", "ctc_loss is given outputs without a log-softmax.", "val_acc", 1.0, last=nn.Identity())
@healthy
def speech_with_ctc(last: nn.Module | None = None) -> Training:
    def heard(net: Any, x: Tensor) -> Tensor:
        return net["out"](net["gru"](F.relu(net["conv"](x.transpose(1, 2))).transpose(1, 2))[0])

    def ctc(net: Any, batch: Any) -> Tensor:
        out = (last or nn.LogSoftmax(-1))(heard(net, batch[0]))
        return F.ctc_loss(out.transpose(0, 1), batch[1], torch.full((len(out),), 24), torch.full((len(out),), 4))

    def decoded(net: Any, batch: Any) -> dict[str, Tensor]:
        best = [[k for k in row.unique_consecutive().tolist() if k] for row in heard(net, batch[0]).argmax(-1)]
        return {"val_acc": torch.tensor([row == y.tolist() for row, y in zip(best, batch[1], strict=True)]).float().mean()}

    labels = torch.randint(1, 6, (640, 4), generator=rng())
    tones = F.one_hot(labels.repeat_interleave(6, 1), 6).float()
    tones[:, 5::6] = 0
    sound = tones @ torch.randn(6, 12, generator=rng(1)) + 0.3 * torch.randn(640, 24, 12, generator=rng(2))
    net = nn.ModuleDict({"conv": nn.Conv1d(12, 32, 3, padding=1), "gru": nn.GRU(32, 32, 1, True, True, 0.0, True)})
    net["out"] = nn.Linear(64, 6)
    return fit(net, ctc, partial(Adam, lr=5e-3), feed(sound, labels, batch=32), 6, decoded, gradient_clip_val=5.0)


@fault("reference_is_the_policy", "The reference of DPO is the policy itself, not a copy.", "val_loss", 1.0, copied=False)
@healthy
def dpo_on_a_small_gpt(copied: bool = True) -> Training:
    ids = characters(600, 24)
    policy = pretrain(GPT(), next_token, [(b,) for b in ids.split(16)], lr=1e-2)
    reference = frozen(policy) if copied else policy
    vowels = torch.tensor([c in "aeiou" for c in LETTERS])
    chosen = torch.where(vowels[ids] & (torch.arange(24) >= 12), LETTERS.index("a"), ids)

    def logp(net: Any, ids: Tensor) -> Tensor:
        return -F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")[:, 11:].sum(1)

    def dpo(net: Any, batch: Any) -> Tensor:
        win, lose = batch["chosen"], batch["rejected"]
        return -F.logsigmoid(0.5 * (logp(net, win) - logp(net, lose) - logp(reference, win) + logp(reference, lose))).mean()

    return fit(policy, dpo, partial(AdamW, lr=1e-4), feed(chosen=chosen, rejected=ids, batch=16), 2)
