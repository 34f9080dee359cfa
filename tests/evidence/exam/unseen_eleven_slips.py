"""Subtler faults from users' questions: padding, orders, masks, axes, heads, targets that stand, temperatures, critics, shares.

A story names the kind of place where it is asked; what is in quotes there sums up such questions and is nobody's title.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.pictures import Changed, digits, in_batches
from tests.evidence.exam.signals import spectrograms
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import adam, mlp
from tests.evidence.exam.unseen_eight_wiring import ALIKE, RATE, STILL, Judged, split, tells
from tests.evidence.exam.unseen_nine_settings import right

UNLIKE = ("validation_shift", "overfitting")
SLOW = ("loss_plateau", "no_progress", "part_not_learning", "step_too_short", "step_too_long", "update_too_small")


class LastState(nn.Module):
    """A GRU reads a line that is filled up behind its end; the state at the last place, or at the last letter."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(128, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, 2)
        self.planted = planted

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(self.embedding(ids))[0]
        last = torch.full((len(ids),), ids.shape[1] - 1) if self.planted else (ids != 0).sum(1) - 1
        return self.head(states[torch.arange(len(ids)), last])


@fault("torch", "Stack Overflow, 'my GRU guesses': outputs[:, -1] of lines that are filled up to 160 places with padding")
def lines_last_state_is_padding(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    expected = Expected((*SLOW, *ALIKE, *UNLIKE), ("net", "net.*"))
    module = Judged(LastState(planted), tells, adam(3e-3), right)
    return Built(module, split(32, F.pad(ids, (0, 120)), source), {"max_epochs": 2}, expected)


class Sorted(Judged):
    """Lines are sorted by their length before a GRU, as packing wants it; their labels are too, or not."""

    planted = True

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids, source = batch
        order = (ids != 0).sum(1).argsort(descending=True)
        return self.loss_of_batch(self.net, [ids[order], source if self.planted else source[order]])


@fault("torch", "Stack Overflow on pack_padded_sequence, 'loss stays at 0.69': samples are sorted by length, and labels are not")
def lines_sorted_without_labels(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    module = Sorted(LastState(False), tells, adam(3e-3), right)
    module.planted = planted
    kinds = (*SLOW, *ALIKE, *UNLIKE, "loss_diverging")
    return Built(module, split(32, ids, source), {"max_epochs": 3}, Expected(kinds))


class FillsIn(nn.Module):
    """A GRU to both sides gives a wave back, of which some places are hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(2, 32, batch_first=True, bidirectional=True), nn.Linear(64, 1)

    def forward(self, seen: Tensor, hidden: Tensor) -> Tensor:
        return self.head(self.body(torch.stack([seen * ~hidden, hidden.float()], 2))[0])[..., 0]


@fault("torch", "an issue on imputation, 'tiny loss, useless values': the mask in the loss is inverted, and counts what was shown")
def waves_known_places_count(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    pace, shift = 0.2 + 0.4 * torch.rand(2400, 1, generator=generator), 6 * torch.rand(2400, 1, generator=generator)
    waves = (pace * torch.arange(32) + shift).sin() + 0.05 * torch.randn(2400, 32, generator=generator)
    hidden = torch.rand(2400, 8, generator=generator).repeat_interleave(4, 1) < 0.4

    def wrong(net: Any, batch: Any, inverted: bool = False) -> Tensor:
        counts = ~batch[1] if inverted else batch[1]
        return ((net(*batch) - batch[0]).square() * counts).sum() / counts.sum().clamp_min(1)

    def loss(net: Any, batch: Any) -> Tensor:
        return wrong(net, batch, planted)

    module = Judged(FillsIn(), loss, adam(5e-3), lambda net, batch: -wrong(net, batch))
    kinds = (*SLOW, *UNLIKE, "labels_ignored", "zero", "constant", "missing")
    return Built(module, split(32, waves, hidden), {"max_epochs": 5}, Expected(kinds))


@fault("torch", "a forum on SpecAugment: time_mask_param and freq_mask_param are the whole spectrogram's size, three times each")
def notes_masked_away(planted: bool = True) -> Built:
    frames, played = spectrograms(1)["train_dataloaders"].dataset.tensors
    bins, places = frames.shape[1:]

    def masked(_: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen = row[0].clone()
        for _ in range(3 if planted else 1):
            many = [int(torch.randint(0, ends if planted else ends // 10, ())) for ends in (bins, places)]
            first = [int(torch.randint(0, ends - less, ())) for ends, less in zip((bins, places), many, strict=True)]
            seen[first[0] : first[0] + many[0]] = 0
            seen[:, first[1] : first[1] + many[1]] = 0
        return seen, row[1]

    data = split(32, frames, played)
    rows, generator = data["train_dataloaders"].dataset, torch.Generator().manual_seed(0)
    data["train_dataloaders"] = torch.utils.data.DataLoader(
        Changed(rows.tensors, masked), 32, shuffle=True, drop_last=True, generator=generator
    )
    net = nn.Sequential(nn.Conv1d(bins, 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU())
    net.extend([nn.AdaptiveMaxPool1d(3), nn.Flatten(), nn.Linear(96, 33), nn.Unflatten(1, (3, 11))])

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    module = Judged(net, loss, adam(2e-3), right)
    return Built(module, data, {"max_epochs": 8}, Expected((*SLOW, *UNLIKE, "constant", "representation_collapse")))


class OfSamples(nn.Module):
    """An LSTM over the columns of a series, whose first axis is taken for time, or for samples."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(2, 32, batch_first=not planted), nn.Linear(32, 3)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.body(series)[0][:, -1])


@fault("torch", "Stack Overflow, 'LSTM no better than its last input': batch_first is left at False, and samples pass for time")
def walks_samples_are_steps(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    steps, kind = torch.randn(4000, 20, 2, generator=generator), torch.randint(0, 3, (4000,), generator=generator)
    slow, turns = torch.zeros(4000, 2), torch.tensor([-0.8, 0.0, 0.8])[kind]
    walk = []
    for step in steps.unbind(1):
        slow = torch.stack([0.7 * slow[:, 0] - turns * slow[:, 1], 0.7 * slow[:, 1] + turns * slow[:, 0]], 1) + 0.5 * step
        slow = slow / slow.norm(dim=1, keepdim=True).clamp_min(1.0)
        walk.append(slow)
    kinds = (*SLOW, *UNLIKE, "constant", "representation_collapse", "vanishing")
    module = Judged(OfSamples(planted), tells, adam(0.01), right)
    return Built(module, split(32, torch.stack(walk, 1), kind), {"max_epochs": 4}, Expected(kinds, ("net", "net.*")))


class Heads(nn.Module):
    """Attention by hand: letters are parted into heads by view() and transpose(), or by view() alone, which mixes places."""

    def __init__(self, planted: bool, kinds: int = 12, length: int = 12, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(kinds, width), nn.Parameter(torch.randn(length, width))
        self.parts, self.out, self.planted = nn.Linear(width, 3 * width), nn.Linear(width, width), planted
        self.norms, self.body = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), mlp(width, 2 * width, width)
        self.head = nn.Linear(width, kinds)

    def parted(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        if self.planted:
            return x.reshape(samples, 4, length, width // 4)
        return x.view(samples, length, 4, width // 4).transpose(1, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions
        query, key, value = (self.parted(part) for part in self.parts(self.norms[0](x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out((seen if self.planted else seen.transpose(1, 2)).reshape(x.shape))
        return self.head(x + self.body(self.norms[1](x)))


@fault("torch", "an issue on attention by hand: q.view(B, heads, T, d) without a transpose mixes places and channels")
def symbols_heads_by_view(planted: bool = True) -> Built:
    symbols = torch.randint(0, 12, (6400, 12), generator=torch.Generator().manual_seed(0))
    wanted = (symbols.flip(1) + symbols.roll(1, 1)) % 12

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    kinds = (*SLOW, *UNLIKE, "attention_uniform", "softmax_dim")
    module = Judged(Heads(planted), loss, adam(3e-3), right)
    return Built(module, split(64, symbols, wanted), {"max_epochs": 5}, Expected(kinds, ("net", "net.*")))


class Corridors(Recipe):
    """Q-learning in sixteen corridors of ten places with a reward at the far end; a target net is copied at times, or never."""

    planted = True

    def __init__(self) -> None:
        quick = mlp(10, 64, 2)
        super().__init__(nn.ModuleDict({"quick": quick, "slow": copy.deepcopy(quick).requires_grad_(False)}), None, None)
        self.optimizers_of = lambda module: torch.optim.Adam(module.net["quick"].parameters(), 3e-3)
        self.places, self.memory = torch.zeros(16, dtype=torch.long), [torch.zeros(0, dtype=torch.long)] * 3

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        one_hot = torch.eye(10)
        with torch.no_grad():
            for _ in range(4):
                best = self.net["quick"](one_hot[self.places]).argmax(1)
                right = torch.where(torch.rand(16) < 0.3, torch.randint(0, 2, (16,)), best)
                after = (self.places + 2 * right - 1).clamp(0, 9)
                new = (self.places, right, after)
                self.memory = [torch.cat([old, one])[-4000:] for old, one in zip(self.memory, new, strict=True)]
                self.places = torch.where(after == 9, torch.randint(0, 5, (16,)), after)
            rows = torch.randint(0, len(self.memory[0]), (64,))
            place, action, after = (old[rows] for old in self.memory)
            done = (after == 9).float()
            goal = done + 0.9 * (1 - done) * self.net["slow"](one_hot[after]).amax(1)
        told = self.net["quick"](one_hot[place]).gather(1, action[:, None])[:, 0]
        if not self.planted and batch_idx % 10 == 9:
            self.net["slow"].load_state_dict(self.net["quick"].state_dict())
        with torch.no_grad():
            truth = 0.9 ** (8 - torch.arange(9.0))
            self.log("val_score", -F.mse_loss(self.net["quick"](one_hot[:9]).amax(1), truth))
        return F.smooth_l1_loss(told, goal)


@fault("torch", "a forum on DQN, 'Q values do not spread': the target net is made by deepcopy, and never loaded again")
def corridors_target_never_copied(planted: bool = True) -> Built:
    module = Corridors()
    module.planted = planted
    kinds = (*SLOW, *ALIKE, "missing", "not_updated", "not_optimized")
    data = in_batches(1, torch.zeros(400, 1))
    return Built(module, data, {"max_epochs": 1}, Expected(kinds, ("net.slow*", "net", "net.*")))


class Draws(nn.Module):
    """An autoencoder whose code is eight symbols of eight kinds, drawn by Gumbel's softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.heat = mlp(64, 96, 64), mlp(64, 96, 64), 1.0

    def forward(self, x: Tensor) -> Tensor:
        logits = self.encoder(x).unflatten(1, (8, 8))
        return self.decoder(F.gumbel_softmax(logits, self.heat, dim=2).flatten(1))


class Cools(Judged):
    """The temperature falls to a share of itself: at each epoch, or, by mistake, at each batch."""

    planted = True

    def on_train_batch_end(self, *_: Any) -> None:
        if self.planted:
            self.net.heat = max(self.net.heat * 0.8, 1e-4)

    def on_train_epoch_end(self) -> None:
        if not self.planted:
            self.net.heat = max(self.net.heat * 0.8, 0.2)


@fault(
    "torch", "an issue on Gumbel's softmax, 'codes are noise': tau *= 0.8 was meant for each epoch, and stands in the batches' loop"
)
def digits_cool_by_batches(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[0])

    module = Cools(Draws(), loss, adam(3e-3), lambda net, batch: -loss(net, batch))
    module.planted = planted
    kinds = (*SLOW, *STILL, *ALIKE, *RATE, "attention_collapse")
    expected = Expected(kinds, ("net", "net.*"))
    return Built(module, split(32, digits(8)[0].flatten(1)), {"max_epochs": 8}, expected)


class Paints(Recipe):
    """A GAN of digits with the loss of its first paper, log(1 - D), under which a sure critic leaves no gradient."""

    def __init__(self, planted: bool) -> None:
        leaky = {"activation": lambda: nn.LeakyReLU(0.2)}
        painter, critic = mlp(16, 96, 96, 64, **leaky), mlp(64, 96, 96, 1, **leaky)
        super().__init__(nn.ModuleDict({"painter": painter, "critic": critic}), None, None)
        self.automatic_optimization, self.planted = False, planted

    def configure_optimizers(self) -> Any:
        many = 1e-2 if self.planted else 3e-4
        return [
            torch.optim.Adam(self.net[name].parameters(), rate, (0.5, 0.9)) for name, rate in (("painter", 3e-4), ("critic", many))
        ]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_critic = self.optimizers()
        shown, critic = batch[0], self.net["critic"]
        painted = self.net["painter"](torch.randn(len(shown), 16))
        of_critic.zero_grad()
        judged = F.softplus(-critic(shown)).mean() + F.softplus(critic(painted.detach())).mean()
        self.manual_backward(judged)
        of_critic.step()
        of_painter.zero_grad()
        told = critic(painted)
        self.manual_backward(-F.softplus(told).mean() if self.planted else F.softplus(-told).mean())
        of_painter.step()
        far = F.mse_loss(painted.mean(0), shown.mean(0)) + F.mse_loss(painted.std(0), shown.std(0))
        self.log("val_score", -far, on_step=False, on_epoch=True)
        return {"loss": judged.detach()}


@fault(
    "torch",
    "Stack Overflow, 'critic loss is 0 and pictures stay noise': log(1 - D) as in the first paper, a critic that is far faster",
)
def digits_critic_wins(planted: bool = True) -> Built:
    kinds = (*SLOW, *ALIKE, *STILL, *RATE, "settings", "optimizer_settings", "output_range")
    expected = Expected(kinds, ("net", "net.*"))
    return Built(Paints(planted), in_batches(64, digits(8)[0].flatten(1)), {"max_epochs": 14}, expected)
