"""Characters, words, forecasts and sets: recurrent nets, attention, language models and a few pooled ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, AdamW, NAdam, SparseAdam
from transformers import ElectraConfig, ElectraForSequenceClassification, LlamaConfig, LlamaForCausalLM
from transformers import get_linear_schedule_with_warmup as linear_schedule

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_accuracy, hf_loss, mse
from .data import characters, digits, feed, lines, rng, waves, words
from .nets import block, mlp


class Sines(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[1])[:, None] / 100 ** (torch.arange(0, x.shape[2], 2) / x.shape[2])
        return x + torch.cat([angle.sin(), angle.cos()], 1)


@fault("no_positions", "A transformer has no encoding of the positions.", "val_acc", 1.02, places=nn.Identity)
@healthy
def which_token_comes_first(places: Any = Sines) -> Training:
    ids = torch.randint(2, 10, (2000, 12), generator=rng())
    ids.scatter_(1, torch.rand(2000, 12, generator=rng(1)).argsort(1)[:, :2], torch.tensor([0, 1]).expand(2000, 2))
    pooled = nn.Sequential(nn.LayerNorm(32), nn.AdaptiveAvgPool2d((1, 32)), nn.Flatten(), nn.Linear(32, 2))
    net = nn.Sequential(nn.Embedding(10, 32), places(), block(32), block(32), pooled)
    y = (ids == 0).float().argmax(1) < (ids == 1).float().argmax(1)
    return fit(net, cross_entropy, partial(AdamW, lr=2e-3), feed(ids, y.long(), batch=32), 6, accuracy)


class CharGRU(nn.Module):
    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self.read: Any = (lambda ids: ids[..., None].float()) if numbers else nn.Embedding(30, 32)
        self.gru, self.head = nn.GRU(1 if numbers else 32, 64, batch_first=True), nn.Linear(64, 30)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.gru(self.read(ids))[0])


@fault("labels_not_shifted", "The labels are the inputs, not the characters after them.", "val_loss", 4.66, shift=0)
@fault("ids_fed_as_numbers", "Ids of characters are fed as numbers, without an embedding.", "val_loss", 0.51, numbers=True)
@healthy
def characters_of_a_gru(shift: int = 1, numbers: bool = False) -> Training:
    def next_character(net: Any, batch: Any) -> Tensor:
        ahead = shift if net.training else 1
        return F.cross_entropy(net(batch[0][:, : 32 - ahead]).mT, batch[0][:, ahead:])

    return fit(CharGRU(numbers), next_character, partial(Adam, lr=5e-3), feed(characters(2000), batch=32), 4)


class Reverser(nn.Module):
    def __init__(self, handed: bool) -> None:
        super().__init__()
        self.source, self.target, self.head, self.handed = nn.Embedding(12, 32), nn.Embedding(12, 32), nn.Linear(64, 12), handed
        self.encoder, self.decoder = nn.GRU(32, 64, batch_first=True), nn.GRU(32, 64, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        state = self.encoder(self.source(source))[1]
        return self.head(self.decoder(self.target(target), state if self.handed else None)[0]).mT


@fault("state_not_handed_over", "The decoder starts from zeros, not from the encoder's state.", "val_acc", 0.98, handed=False)
@healthy
def teacher_forced_reversal(handed: bool = True) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0], batch[1][:, :-1]), batch[1][:, 1:], ignore_index=0)

    def score(net: Any, batch: Any) -> dict[str, Tensor]:
        out, y = net(batch[0], batch[1][:, :-1]).argmax(1), batch[1][:, 1:]
        return {"val_acc": (out == y)[y > 0].float().mean()}

    source = torch.randint(2, 12, (2400, 6), generator=rng())
    source = source * (torch.arange(6) >= torch.randint(0, 4, (2400, 1), generator=rng(1)))
    target = F.pad(source.flip(1), (1, 0), value=1)
    return fit(Reverser(handed), loss, partial(Adam, lr=5e-3), feed(source, target, batch=32), 8, score, gradient_clip_val=1.0)


class LastState(nn.Module):
    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(400, 24), nn.LSTM(24, 32, batch_first=True), nn.Linear(32, 4)
        self.padded = padded

    def forward(self, ids: Tensor) -> Tensor:
        states, last = self.lstm(self.embedding(ids))[0], (ids > 0).sum(1) - 1
        return self.head(states[:, -1] if self.padded else states[torch.arange(len(ids)), last])


@fault("last_state_is_padding", "The state after 40 places of padding is read, not the last word's.", "val_acc", 0.68, padded=True)
@healthy
def lstm_reads_the_last_word(padded: bool = False) -> Training:
    fed = feed(*lines(str.lower, length=56), batch=32)
    return fit(LastState(padded), cross_entropy, partial(Adam, lr=5e-3), fed, 3, accuracy, gradient_clip_val=1.0)


class Bag(nn.Module):
    def __init__(self, axis: int) -> None:
        super().__init__()
        self.features, self.axis = nn.Sequential(nn.Linear(64, 48), nn.ReLU()), axis
        self.score, self.head = nn.Sequential(nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Linear(48, 2)

    def forward(self, bags: Tensor) -> Tensor:
        h = self.features(bags)
        return self.head((self.score(h).softmax(self.axis) * h).sum(1))


@fault("attention_over_the_batch", "Attention's softmax runs over the batch, not over the bag.", "val_loss", 0.46, axis=0)
@healthy
def bags_of_digits(axis: int = 1) -> Training:
    x, y = digits()
    rows = torch.randint(0, len(x), (1600, 6), generator=rng())
    fed = feed(x.flatten(1)[rows], (y[rows] == 7).any(1).long(), batch=16)
    return fit(Bag(axis), cross_entropy, partial(Adam, lr=2e-3), fed, 8, accuracy)


class Forecaster(nn.Module):
    def __init__(self, back: bool) -> None:
        super().__init__()
        self.net, self.back = mlp(36, 64, 12, act=nn.GELU), back
        for p in self.net[-1].parameters():
            nn.init.zeros_(p)

    def forward(self, past: Tensor) -> Tensor:
        mean, spread = past.mean(1, True), past.std(1, keepdim=True) + 1e-3
        out = self.net((past - mean) / spread)
        return out * spread + mean if self.back else out


@fault("forecast_not_scaled_back", "Each window is scaled, and its forecast is not scaled back.", "val_error", 6.7, back=False)
@healthy
def windows_scaled_by_themselves(back: bool = True) -> Training:
    def error(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_error": mse(net, batch).sqrt()}

    series = waves(1200) + 5 * torch.randn(1200, 1, generator=rng())
    return fit(Forecaster(back), mse, partial(NAdam, lr=2e-3), feed(series[:, :36], series[:, 36:], batch=32), 12, error)


@fault("kl_div_of_probabilities", "kl_div is given probabilities in place of their logarithms.", "val_loss", 1.9, log=torch.softmax)
@healthy
def votes_of_ten_annotators(log: Any = torch.log_softmax) -> Training:
    def divergence(net: Any, batch: Any) -> Tensor:
        return F.kl_div((log if net.training else torch.log_softmax)(net(batch[0]), 1), batch[1], reduction="batchmean")

    x, y = lines(str.lower)
    votes = torch.distributions.Multinomial(10, 0.2 / 4 + 0.8 * F.one_hot(y, 4)).sample() / 10
    net = nn.Sequential(nn.EmbeddingBag(400, 32, padding_idx=0), nn.Dropout(0.3), nn.Linear(32, 4))
    return fit(net, divergence, partial(Adam, lr=1e-2), feed(x, votes, batch=64), 5)


@fault("no_negative_samples", "Skip-gram learns from true pairs only, without negatives.", "val_auc", 0.45, against=0.0)
@healthy
def sparse_skipgrams(against: float = 1.0) -> Training:
    def score(net: Any, a: Tensor, b: Tensor) -> Any:
        return (net["word"](a) * net["context"](b)).sum(1)

    def loss(net: Any, batch: Any) -> Tensor:
        fake = score(net, batch[0], batch[1][torch.randperm(len(batch[1]))])
        return -F.logsigmoid(score(net, *batch)).mean() - against * F.logsigmoid(-fake).mean()

    def auc(net: Any, batch: Any) -> dict[str, Tensor]:
        fakes = torch.stack([score(net, batch[0], batch[1].roll(i)) for i in range(1, 20)])
        return {"val_auc": (score(net, *batch) > fakes).float().mean()}

    ids = words()
    centre, near = torch.cat([torch.stack([ids[:-i], ids[i:]], 1) for i in (1, 2)])[:24000].T
    kept = (centre > 0) & (near > 0)
    net = nn.ModuleDict({part: nn.Embedding(300, 24, sparse=True) for part in ("word", "context")})
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.1)
    return fit(net, loss, partial(SparseAdam, lr=1e-2), feed(centre[kept], near[kept], batch=64), 8, auc)


@fault("rate_of_sgd_for_adamw", "AdamW is left with the rate of SGD, 0.1.", "val_loss", 0.38, lr=0.1)
@healthy
def small_llama(lr: float = 3e-3) -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=30, num_key_value_heads=2, tie_word_embeddings=True, **size))
    fed = feed(input_ids=characters(1200), labels=characters(1200), batch=32)
    schedule = partial(linear_schedule, num_warmup_steps=12, num_training_steps=360)
    return fit(net, hf_loss, partial(AdamW, lr=lr), fed, 12, None, schedule, gradient_clip_val=1.0)


@fault("warmup_stepped_by_epoch", "The warm-up is counted in steps and stepped by epoch.", "val_acc", 0.62, interval="epoch")
@healthy
def electra_reads_code(interval: str = "step") -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape: dict[str, Any] = {"vocab_size": 400, "embedding_size": 32, "num_labels": 4, "initializer_range": 0.05}
    net = ElectraForSequenceClassification(ElectraConfig(**shape, **size))
    x, y = lines(str.lower)
    fed = feed(input_ids=x[::3], attention_mask=(x[::3] > 0).long(), labels=y[::3], batch=32)
    schedule = partial(linear_schedule, num_warmup_steps=40, num_training_steps=300)
    return fit(net, hf_loss, partial(AdamW, lr=3e-3), fed, 4, hf_accuracy, schedule, interval)
