"""Subtler faults from users' questions: trainings that run and whose loss may fall, and what comes out is no good."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import adam, mlp
from tests.evidence.exam.unseen_eight_wiring import ALIKE, BROKEN, RATE, STILL, Judged, split, tells


def shades(size: int = 16) -> tuple[Tensor, Tensor]:
    """Noisy digits, and which pixels are background, grey or bright."""
    images = digits(size)[0]
    noise = 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return images + noise, torch.bucketize(images[:, 0], torch.tensor([-0.2, 1.0]))


def segments() -> nn.Sequential:
    """Three convolutions that keep the size."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    return net.append(nn.Conv2d(16, 3, 1))


@fault("torch", "which pixels are grey or bright: ignore_index=0, and 0 is the background, which is never learned")
def pixels_background_ignored(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], ignore_index=0 if planted else -100)

    module = Judged(segments(), loss, adam(3e-3), lambda net, batch: (net(batch[0]).argmax(1) == batch[1]).float().mean())
    kinds = ("labels_ignored", "part_not_learning", "validation_shift", *ALIKE)
    return Built(module, split(24, *shades()), {"max_epochs": 3}, Expected(kinds))


@fault("torch", "the Dice coefficient itself is the loss, not one less it: what is bright is to be missed")
def pixels_dice_minimised(planted: bool = True) -> Built:
    images, shown = shades()

    def loss(net: Any, batch: Any) -> Tensor:
        found, bright = net(batch[0])[:, 0].sigmoid(), (batch[1] > 0).float()
        dice = (2 * (found * bright).sum((1, 2)) + 1) / (found.sum((1, 2)) + bright.sum((1, 2)) + 1)
        return dice.mean() if planted else 1 - dice.mean()

    def right(net: Any, batch: Any) -> Tensor:
        return ((net(batch[0])[:, 0] > 0) == (batch[1] > 0)).float().mean()

    kinds = ("output_range", "weights_growing", "loss_plateau", *ALIKE)
    return Built(Judged(segments(), loss, adam(3e-3), right), split(24, images, shown), {"max_epochs": 3}, Expected(kinds))


class Remembers(nn.Module):
    """A GRU's cell by hand over eight symbols; the last state is to tell the first of them."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.embedding, self.cell, self.head = planted, nn.Embedding(8, 16), nn.GRUCell(16, 48), nn.Linear(48, 8)

    def forward(self, ids: Tensor) -> Tensor:
        state = torch.zeros(len(ids), 48)
        for seen in self.embedding(ids).unbind(1):
            state = self.cell(seen, state.detach() if self.planted else state)
        return self.head(state)


@fault("torch", "the first of twelve symbols is to be told at the end: the state is detached at each symbol, not at each stretch")
def first_symbol_state_detached(planted: bool = True) -> Built:
    ids = torch.randint(0, 8, (3200, 12), generator=torch.Generator().manual_seed(0))
    module = Recipe(Remembers(planted), tells, adam(0.01))
    expected = Expected(("vanishing", "zero", "missing", "silent", *STILL), ("net", "net.cell*", "net.embedding*"))
    return Built(module, in_batches(32, ids, ids[:, 0]), {"max_epochs": 4, "gradient_clip_val": 1.0}, expected)


def numbered(texts: list[list[str]], number: dict[str, int]) -> Tensor:
    """Words by their numbers, ten a line; 0 where there is none or it has none."""
    return torch.tensor([[number.get(word, 0) for word in (*text[:10], *[""] * (10 - len(text)))] for text in texts])


def vocabulary(texts: list[list[str]]) -> dict[str, int]:
    """Words are numbered as they come."""
    words = dict.fromkeys(word for text in texts for word in text if word)
    return {word: i + 1 for i, word in enumerate(list(words)[:1999])}


@fault("torch", "the vocabulary is built once more from the lines for validation: the same words have other numbers there")
def words_numbered_anew(planted: bool = True) -> Built:
    ids, _, module = lines(60, 1)["train_dataloaders"].dataset.tensors
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    texts = ["".join(map(chr, ids[i].tolist())).replace("\0", "").replace("(", " ( ").replace(".", " . ").split() for i in order]
    many = int(0.8 * len(texts))
    known = vocabulary(texts[:many])
    seen = numbered(texts[:many], known)
    held = numbered(texts[many:], vocabulary(texts[many:]) if planted else known)
    data = in_batches(32, seen, module[order[:many]])
    data["val_dataloaders"] = in_batches(64, held, module[order[many:]])["train_dataloaders"]
    net = nn.Sequential(nn.Embedding(2000, 16), nn.Flatten(), nn.Dropout(0.3), nn.Linear(160, 2))
    recipe = Judged(net, tells, adam(3e-3), lambda net, batch: (net(batch[0]).argmax(1) == batch[1]).float().mean())
    return Built(recipe, data, {"max_epochs": 3}, Expected(("validation_shift", "overfitting"), None, batch=None))


class Variational(nn.Module):
    """A variational autoencoder of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + (log_variance / 2).exp() * torch.randn_like(mean)), mean, log_variance


@fault("torch", "a variational autoencoder whose divergence has lost its minus: codes are rewarded for being far from the prior")
def digits_divergence_without_minus(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        again, mean, log_variance = net(batch[0])
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return F.mse_loss(again, batch[0], reduction="none").sum(1).mean() + (-0.5 if planted else 0.5) * divergence

    kinds = (*RATE, *BROKEN, "activation_outliers", "attention_logits", "always_clipped", "output_range")
    module = Recipe(Variational(), loss, adam(2e-3))
    return Built(module, in_batches(32, digits(8)[0].flatten(1)), {"max_epochs": 5}, Expected(kinds))


class Walks(Recipe):
    """Q-learning from what others did in a corridor of eight places, with a net that follows."""

    def __init__(self, planted: bool) -> None:
        super().__init__(nn.ModuleDict({"quick": mlp(8, 32, 2), "slow": mlp(8, 32, 2)}), None, None)
        self.planted = planted
        self.net["slow"].load_state_dict(self.net["quick"].state_dict())
        self.net["slow"].requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net["quick"].parameters(), 5e-3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        place, action, reward, after, ended = batch
        goal = reward + 0.97 * (1.0 if self.planted else ~ended) * self.net["slow"](after).amax(1)
        return F.smooth_l1_loss(self.net["quick"](place).gather(1, action[:, None])[:, 0], goal)

    def on_train_batch_end(self, *_: Any) -> None:
        for slow, new in zip(self.net["slow"].parameters(), self.net["quick"].parameters(), strict=True):
            slow.data.lerp_(new.data, 0.1)

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        start = self.net["slow"](torch.eye(8)[:1]).amax()
        self.log("value_of_start_is_wrong_by", (start - 0.97**7).abs())


@fault("torch", "Q-learning in a corridor: goals go on beyond the end of an episode, to the start that follows by reset")
def corridor_without_end(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, 8, (12000,), generator=generator)
    actions = torch.randint(0, 2, (12000,), generator=generator)
    after = (places + 2 * actions - 1).clamp_min(0)
    ended = after == 8
    rows = (torch.eye(8)[places], actions, ended.float(), torch.eye(8)[after.masked_fill(ended, 0)], ended)
    kinds = (*RATE, "output_range", "activation_outliers", "no_progress", "loss_plateau")
    return Built(Walks(planted), in_batches(32, *rows), {"max_epochs": 1}, Expected(kinds))


@fault("torch", "pairs of digits under Hadsell's loss: 1 is taken for the same kind, and the data set means another kind by it")
def pairs_the_other_way_round(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        codes = net(batch[0])
        first, second = codes.chunk(2)
        differ = (batch[1].chunk(2)[0] != batch[1].chunk(2)[1]).float()
        near = 1 - differ if not planted else differ
        far = (first - second).norm(dim=1)
        return (near * far.square() + (1 - near) * (2 - far).clamp_min(0).square()).mean()

    def nearest(net: Any, batch: Any) -> Tensor:
        codes = net(batch[0])
        far = torch.cdist(codes, codes).fill_diagonal_(torch.inf)
        return (batch[1][far.argmin(1)] == batch[1]).float().mean()

    images, shown = digits(8)
    module = Judged(mlp(64, 64, 16), loss, adam(), nearest)
    kinds = ("representation_collapse", "constant", "vanishing", *STILL)
    return Built(module, split(64, images.flatten(1), shown), {"max_epochs": 10}, Expected(kinds))


class MadeAnew(Recipe):
    """A loop by hand; the optimizer is made in it, again and again, or once."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.configure_optimizers() if self.planted else self.optimizers()
        chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        chosen.step()
        return {"loss": loss.detach()}


@fault("torch", "a loop by hand that makes SGD anew at each batch: its momentum of 0.98 always begins at 0")
def digits_optimizer_made_anew(planted: bool = True) -> Built:
    module = MadeAnew(mlp(64, 64, 64, 10), tells, lambda module: torch.optim.SGD(module.parameters(), 0.002, 0.98))
    module.planted = planted
    images, shown = digits(8)
    expected = Expected(("optimizer_settings", "settings", "not_optimized", *STILL))
    return Built(module, in_batches(32, images.flatten(1), shown), {"max_epochs": 5}, expected)
