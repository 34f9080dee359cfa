"""More text: sequences to sequences, tags, spans, dialogues, experts, rewards, pairs of sentences."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, RAdam
from torch.optim.lr_scheduler import LambdaLR

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, hf_accuracy, hf_loss
from .data import characters, feed, lines, replace, rng


@fault("rate_100_times_too_high", "The learning rate is 0.5, not 0.005.", "val_acc", 0.87, lr=0.5)
@healthy
def t5_sorts_numbers(lr: float = 5e-3) -> Training:
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0}
    net = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=16, **size, decoder_start_token_id=0))
    numbers = torch.randint(2, 16, (1500, 6), generator=rng())
    fed = feed(input_ids=numbers, labels=numbers.sort(1).values, batch=32)
    return fit(net, hf_loss, partial(AdamW, lr=lr), fed, 4, hf_accuracy, gradient_clip_val=1.0)


@fault(
    "start_token_without_a_tag",
    "Tags lie one place off: only words got a start token.",
    "val_acc",
    0.99,
    moved=1,
)
@healthy
def roberta_tags_words(moved: int = 0) -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.RobertaConfig(vocab_size=40, **size, num_labels=6, initializer_range=0.1, max_position_embeddings=20)
    ids = torch.randint(3, 40, (1200, 12), generator=rng())
    fed = feed(input_ids=ids, labels=ids % 3 + 3 * (ids.roll(1, 1) > 20), batch=16)
    replace(fed, "labels", lambda y: y.roll(moved, 1))
    net = transformers.RobertaForTokenClassification(config)
    return fit(net, hf_loss, partial(AdamW, lr=5e-3), fed, 4, hf_accuracy)


@healthy
def bert_finds_answers() -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    net = transformers.BertForQuestionAnswering(transformers.BertConfig(vocab_size=32, **size, initializer_range=0.1))
    start = torch.randint(2, 22, (1500,), generator=rng())
    ids = torch.randint(4, 32, (1500, 24), generator=rng(1)).scatter(
        1, torch.stack([start, start + 1], 1), torch.tensor([[2, 3]]).expand(1500, 2)
    )

    def found(net: Any, batch: Any) -> dict[str, Tensor]:
        out = net(**batch)
        return {"val_loss": out.loss, "val_acc": (out.start_logits.argmax(1) == batch["start_positions"]).float().mean()}

    fed = feed(input_ids=ids, start_positions=start, end_positions=start + 1, batch=32)
    return fit(net, hf_loss, partial(AdamW, lr=3e-3), fed, 4, found)


class TextCNN(nn.Module):
    def __init__(self, mixed: bool, kept: type) -> None:
        super().__init__()
        self.words, self.mixed, self.head = nn.Embedding(400, 32, 0), mixed, nn.Linear(72, 4)
        self.filters = kept(nn.Conv1d(32, 24, size, padding=size // 2) for size in (2, 3, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = x.view(len(x), 32, -1) if self.mixed else x.transpose(1, 2)
        return self.head(torch.cat([F.relu(part(x)).amax(2) for part in self.filters], 1))


@fault("filters_in_a_plain_list", "The convolutions are kept in a list of Python and do not learn.", "val_loss", 0.6, kept=list)
@fault("view_for_a_transpose", "Words and channels are swapped with view in place of transpose.", "val_loss", 0.59, mixed=True)
@healthy
def textcnn_on_lines(mixed: bool = False, kept: type = nn.ModuleList) -> Training:
    ids, y = (column[::3] for column in lines(str.lower))
    return fit(TextCNN(mixed, kept), cross_entropy, partial(Adam, lr=2e-3), feed(ids, y, batch=32), 2, accuracy)


class Depth(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.signs, self.out = nn.Embedding(2, 16), nn.Linear(32, 5)
        self.rnn = nn.GRU(16, 32, batch_first=batch_first)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.signs(ids))[0]).transpose(1, 2)


@fault("batch_taken_for_time", "The recurrent net lacks batch_first and runs over the batch.", "val_acc", 0.59, batch_first=False)
@healthy
def gru_counts_brackets(batch_first: bool = True) -> Training:
    ids, depth = torch.randint(0, 2, (1200, 20), generator=rng()), [torch.zeros(1200, dtype=torch.long)]
    for column in ids.T:
        depth.append((depth[-1] + 2 * column - 1).clamp(0, 4))
    fed = feed(ids, torch.stack(depth[1:], 1), batch=32)
    return fit(Depth(batch_first), cross_entropy, partial(RAdam, lr=1e-2), fed, 4, accuracy, gradient_clip_val=1.0)


@fault("warmup_outlasts_the_training", "The warm-up takes 20000 steps of a training of 100.", "val_loss", 0.93, warmup=20_000)
@healthy
def mixtral_on_documentation(warmup: int = 10) -> Training:
    size: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.01}
    net = transformers.MixtralForCausalLM(
        transformers.MixtralConfig(vocab_size=30, **size, **experts, num_key_value_heads=2, initializer_range=0.1)
    )

    def text_only(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_loss": F.cross_entropy(net(batch["input_ids"]).logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:])}

    fed = feed(input_ids=characters(1000), labels=characters(1000), batch=16)
    schedule = partial(transformers.get_inverse_sqrt_schedule, num_warmup_steps=warmup)
    return fit(net, hf_loss, partial(AdamW, lr=5e-3), fed, 2, text_only, schedule, gradient_clip_val=1.0)


@fault("rate_for_a_factor", "LambdaLR's function gives the rate itself, not a factor for it.", "val_acc", 1.0, unit=3e-3)
@healthy
def qwen_answers_questions(unit: float = 1.0) -> Training:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    net = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(vocab_size=24, **size, initializer_range=0.1))
    asked = torch.randint(0, 20, (1500, 4), generator=rng())
    ids = torch.cat([asked, torch.full((1500, 1), 20), (asked.flip(1) + 1) % 20], 1)

    def answered(net: Any, batch: Any) -> dict[str, Tensor]:
        out = net(**batch)
        return {"val_loss": out.loss, "val_acc": (out.logits[:, 4:-1].argmax(-1) == batch["labels"][:, 5:]).float().mean()}

    fed = feed(input_ids=ids, labels=ids.masked_fill(torch.arange(9) < 5, -100), batch=32)
    schedule = partial(LambdaLR, lr_lambda=lambda step: unit * min(1, (step + 1) / 20, (160 - step) / 100))
    return fit(net, hf_loss, partial(AdamW, lr=3e-3), fed, 4, answered, schedule)


class Reward(nn.Module):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.place, self.head = place, nn.Linear(32, 1)
        size: dict[str, Any] = {"n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 4, "initializer_range": 0.1}
        self.body = transformers.GPT2Model(transformers.GPT2Config(vocab_size=30, **size))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(ids).last_hidden_state[:, self.place])[:, 0]


@fault("reward_of_the_first_token", "The reward is read at the first token, which sees no other.", "val_acc", 0.94, place=0)
@healthy
def reward_model_of_preferences(place: int = -1) -> Training:
    def bradley_terry(net: Any, batch: Any) -> Tensor:
        return -F.logsigmoid(net(batch["chosen"]) - net(batch["rejected"])).mean()

    def ranked(net: Any, batch: Any) -> dict[str, Tensor]:
        right = net(batch["chosen"]) > net(batch["rejected"])
        return {"val_loss": bradley_terry(net, batch), "val_acc": right.float().mean()}

    a, b = characters(2400, 16).split(1200)
    better = ((a == 0).sum(1) > (b == 0).sum(1))[:, None]
    fed = feed(chosen=torch.where(better, a, b), rejected=torch.where(better, b, a), batch=32)
    return fit(Reward(place), bradley_terry, partial(SGD, lr=0.1, momentum=0.9), fed, 5, ranked, gradient_clip_val=1.0)
