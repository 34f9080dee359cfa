"""Subtler faults from users' questions: places, teachers, mixtures, blanks, signs, copies, masks; the training runs on.

A story names the kind of place where it is asked; what is in quotes there sums up such questions and is nobody's title.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.exam.cases import Built, Expected, fault
from tests.evidence.exam.pictures import Changed, digits, in_batches
from tests.evidence.exam.unseen_eight_tables import adam, mlp, scaled
from tests.evidence.exam.unseen_eight_wiring import ALIKE, RATE, STILL, Judged, convolutions, split, tells
from tests.evidence.exam.unseen_nine_pictures import Quantised
from tests.evidence.exam.unseen_nine_sequences import Strip, connectionist, pieces, strips
from tests.evidence.exam.unseen_nine_settings import ATTENDS, TiedWriter, right
from tests.evidence.exam.unseen_nine_tables import Explores
from tests.evidence.exam.unseen_nine_transfer import taught

UNLIKE = ("validation_shift", "overfitting")


class Order(nn.Module):
    """Which of two letters comes first: PyTorch's tutorial's positions, which are for (places, samples, width)."""

    table: Tensor

    def __init__(self, planted: bool, width: int = 32) -> None:
        super().__init__()
        self.planted, self.embedding = planted, nn.Embedding(20, width)
        angles = torch.arange(64)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, None])
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        places = self.table[: len(x)] if self.planted else self.table[: x.shape[1]].transpose(0, 1)
        return self.head(self.body(x + places).mean(1))


@fault("torch", "an issue on PyTorch's tutorial: with batch_first=True, pe[:x.size(0)] is a place for samples, not letters")
def letters_placed_by_sample(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 20, (4000, 10), generator=generator)
    places = torch.rand(4000, 10, generator=generator).argsort(1)[:, :2]
    ids.scatter_(1, places, torch.tensor([[0, 1]]).expand(4000, 2))
    module = Judged(Order(planted), tells, adam(2e-3), right)
    kinds = (*UNLIKE, *ATTENDS, "loss_plateau", "no_progress", "part_not_learning", "step_too_short", *ALIKE)
    expected = Expected(kinds, ("net", "net.*"))
    return Built(module, split(32, ids, (places[:, 0] > places[:, 1]).long()), {"max_epochs": 4}, expected)


@fault("torch", "a forum thread, 'DQN learns one value for all': gather() keeps (samples, 1), goals are (samples,), smooth_l1_loss")
def field_goals_broadcast(planted: bool = True) -> Built:
    kinds = ("output_range", "loss_plateau", "no_progress", "step_too_short", "part_not_learning", *ALIKE)
    options = {"max_epochs": 1, "gradient_clip_val": 10.0}
    return Built(Explores(broadcast=planted), in_batches(1, torch.zeros(400, 1)), options, Expected(kinds))


@fault(
    "torch",
    "an issue on distillation, 'both get worse': Adam has self.parameters(), the teacher's too, and nothing is detached",
)
def digits_teacher_follows(planted: bool = True) -> Built:
    images, shown = digits(8)
    nets = nn.ModuleDict({"teacher": taught(nn.Sequential(nn.Flatten(), *mlp(64, 96, 10)), images, shown)})
    nets["student"] = nn.Sequential(nn.Flatten(), *mlp(64, 32, 10))

    def loss(nets: Any, batch: Any) -> Tensor:
        told, soft = (nets[name](batch[0]).log_softmax(1) for name in ("student", "teacher"))
        return F.kl_div(told, soft if planted else soft.detach(), log_target=True, reduction="batchmean")

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam((module if planted else module.net["student"]).parameters(), 3e-3)

    kinds = ("output_range", "no_progress", "weights_growing", "update_too_large", "validation_shift", *ALIKE, *STILL)
    expected = Expected(kinds, ("net.teacher*", "net.student*"))
    module = Judged(nets, loss, optimizers, lambda nets, batch: right(nets["student"], batch))
    return Built(module, split(32, images, shown), {"max_epochs": 5}, expected)


class PaintsForReal(Judged):
    """A GAN with a binary cross-entropy; what the painter wants the judge to say is 1, or 0 by mistake."""

    planted = True

    def __init__(self) -> None:
        painter = nn.Sequential(nn.Linear(16, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU())
        judge = mlp(64, 64, 64, 1, activation=lambda: nn.LeakyReLU(0.2))
        super().__init__(nn.ModuleDict({"painter": painter.append(nn.Linear(96, 64)), "judge": judge}), None, None)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.net[name].parameters(), 1e-3, betas=(0.5, 0.999)) for name in ("painter", "judge")]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_judge = self.optimizers()
        painted, judge = self.net["painter"](torch.randn(len(batch[0]), 16)), self.net["judge"]
        ones, zeros = torch.ones(len(painted), 1), torch.zeros(len(painted), 1)
        found = F.binary_cross_entropy_with_logits(judge(batch[0]), ones)
        found = found + F.binary_cross_entropy_with_logits(judge(painted.detach()), zeros)
        of_judge.zero_grad()
        self.manual_backward(found)
        of_judge.step()
        liked = F.binary_cross_entropy_with_logits(judge(painted), zeros if self.planted else ones)
        of_painter.zero_grad()
        self.manual_backward(liked)
        of_painter.step()
        far = F.mse_loss(painted.mean(0), batch[0].mean(0)) + F.mse_loss(painted.std(0), batch[0].std(0))
        self.log("val_score", -far, on_step=False, on_epoch=True)
        return {"loss": (found + liked).detach()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """There is no validation."""


@fault("torch", "Stack Overflow, 'both GAN losses go to 0, pictures stay noise': the generator's step has the labels of fakes")
def digits_painted_to_be_found(planted: bool = True) -> Built:
    module = PaintsForReal()
    module.planted = planted
    kinds = ("output_range", "no_progress", "part_not_learning", "activation_outliers", "weights_growing", *ALIKE, *STILL)
    data = in_batches(64, digits(8)[0].flatten(1))
    return Built(module, data, {"max_epochs": 10}, Expected(kinds, ("net.painter*", "net.judge*")))


@fault("torch", "a forum thread, 'mixup hardly learns': lam weighs one picture, and in the loss the label of the other one")
def digits_mixed_the_other_way(planted: bool = True) -> Built:
    beta = torch.distributions.Beta(0.2, 0.2)

    class Mixes(Judged):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            share, order = float(beta.sample()), torch.randperm(len(batch[0]))
            told = self.net(share * batch[0] + (1 - share) * batch[0][order])
            own = 1 - share if planted else share
            return own * F.cross_entropy(told, batch[1]) + (1 - own) * F.cross_entropy(told, batch[1][order])

    kinds = ("loss_plateau", "no_progress", "step_too_short", "constant", "representation_collapse", "vanishing", *UNLIKE)
    images, shown = digits(8)
    module = Mixes(mlp(64, 64, 64, 10), tells, adam(2e-3), right)
    return Built(module, split(32, images.flatten(1), shown), {"max_epochs": 5}, Expected(kinds))


@fault("torch", "Stack Overflow, 'CTC never writes the first letter': labels run from 0 to 9, and 0 is the blank")
def lines_zero_is_the_blank(planted: bool = True) -> Built:
    lines, shown = strips(900)

    def read(net: Any, batch: Any) -> Tensor:
        best, wanted = net(batch[0]).argmax(-1), batch[1]
        found = []
        for row, line in zip(best.tolist(), wanted.tolist(), strict=True):
            letters = [one for one, before in zip(row, [0, *row[:-1]], strict=True) if one not in (0, before)]
            found.append(letters == line)
        return torch.tensor(found).float().mean()

    module = Judged(Strip(), connectionist, adam(5e-3), read)
    kinds = ("output_range", "labels_ignored", "loss_plateau", "no_progress", "step_too_short", "settings", "id_out_of_range")
    data = split(24, lines, shown - 1 if planted else shown)
    return Built(module, data, {"max_epochs": 7, "gradient_clip_val": 5.0}, Expected(kinds))


class Homes(nn.Module):
    """The price of a home and whether it will be sold within a month, from one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.price, self.sold = nn.Sequential(mlp(10, 48, 48), nn.ReLU()), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.price(hidden)[:, 0], self.sold(hidden)[:, 0]


@fault("torch", "Stack Overflow on two heads: a price in dollars under a squared error is added to a binary cross-entropy")
def homes_in_dollars(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2400, 10, generator=generator)
    price = 3e5 + 1e5 * (x[:, 0] + 0.5 * x[:, 1] * x[:, 2])
    sold = ((x[:, 3] * x[:, 4] + 0.7 * x[:, 5] - 0.3 * x[:, 0]) > 0).float()

    def loss(net: Any, batch: Any) -> Tensor:
        told, chance = net(batch[0])
        return F.mse_loss(told, batch[1]) + F.binary_cross_entropy_with_logits(chance, batch[2])

    def found(net: Any, batch: Any) -> Tensor:
        return ((net(batch[0])[1] > 0) == batch[2].bool()).float().mean()

    kinds = ("part_not_learning", "output_range", "activation_outliers", "always_clipped", "poor_init", *RATE, *STILL)
    data = split(32, x, price if planted else scaled(price[:, None])[:, 0], sold)
    module = Judged(Homes(), loss, adam(3e-3), found)
    return Built(module, data, {"max_epochs": 6}, Expected(kinds))


@fault("torch", "Stack Overflow, 'REINFORCE gets worse and worse': the loss is log_prob * advantage, without the minus")
def digits_policy_without_minus(planted: bool = True) -> Built:
    class Guesses(Judged):
        usual = 0.1

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            policy = torch.distributions.Categorical(logits=self.net(batch[0]))
            guess = policy.sample()
            reward = (guess == batch[1]).float()
            advantage = reward - self.usual
            self.usual = 0.95 * self.usual + 0.05 * reward.mean().item()
            gained = (policy.log_prob(guess) * advantage).mean()
            return gained if planted else -gained

    images, shown = digits(8)
    module = Guesses(mlp(64, 64, 10), tells, adam(3e-3), right)
    kinds = ("output_range", "no_progress", "loss_plateau", "activation_outliers", *UNLIKE, *RATE, *ALIKE)
    return Built(module, split(48, images.flatten(1), shown), {"max_epochs": 12}, Expected(kinds))


@fault("torch", "an issue on VQ-VAE, 'pictures are one blur': x + (q - x).detach() was left out, and the decoder gets q itself")
def digits_codes_without_a_way_back(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        again, away = net(batch[0])
        return F.mse_loss(again, batch[0]) + 0.25 * away

    module = Judged(Quantised(straight=not planted), loss, adam(2e-3), lambda net, batch: -F.mse_loss(net(batch[0])[0], batch[0]))
    kinds = ("missing", "router_collapse", *ALIKE, *STILL)
    expected = Expected(kinds, ("net", "net.encoder*"))
    return Built(module, split(48, digits(16)[0]), {"max_epochs": 5}, expected)


@fault("torch", "a forum thread on augmentation: noise is added in place, to the data set's own tensor, epoch by epoch")
def digits_noise_in_place(planted: bool = True) -> Built:
    def noisy(_: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        noise = torch.randn_like(row[0])
        return (row[0].add_(noise) if planted else row[0] + noise, *row[1:])

    images, shown = digits(8)
    data = split(32, images.flatten(1).clone(), shown)
    rows = data["train_dataloaders"].dataset
    generator = torch.Generator().manual_seed(0)
    data["train_dataloaders"] = DataLoader(Changed(rows.tensors, noisy), 32, shuffle=True, drop_last=True, generator=generator)
    kinds = ("loss_diverging", "loss_plateau", "no_progress", "feature_scale", *UNLIKE)
    module = Judged(mlp(64, 64, 64, 10), tells, adam(2e-3), lambda net, batch: -tells(net, batch))
    return Built(module, data, {"max_epochs": 9}, Expected(kinds, None, batch=44, epoch=1))


class JudgedByAverage(Judged):
    """A moving average of the net is what is validated; it follows parameters, and buffers too or not."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.average = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def on_train_batch_end(self, *_: Any) -> None:
        for slow, quick in zip(self.average.parameters(), self.net.parameters(), strict=True):
            slow.lerp_(quick, 0.1)
        if not self.planted:
            for slow, quick in zip(self.average.buffers(), self.net.buffers(), strict=True):
                slow.copy_(quick)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", tells(self.average, batch))
        self.log("val_score", right(self.average, batch))


@fault(
    "torch",
    "an issue, 'EMA weights score far below the model': the average follows parameters, not batch norm's buffers",
)
def digits_average_without_buffers(planted: bool = True) -> Built:
    net = convolutions().append(nn.Linear(64, 10))
    images, shown = digits(16)
    module = JudgedByAverage(net, tells, adam(2e-3), right)
    module.planted = planted
    kinds = ("frozen_statistics", "eval_mode", "not_updated", *UNLIKE)
    data = split(32, images, shown)
    return Built(module, data, {"max_epochs": 4}, Expected(kinds, ("average*", "net*")))


@fault("torch", "Stack Overflow on attn_mask: True means 'may not look'; torch.tril(..., -1) hides what was, and shows what comes")
def manual_looks_ahead(planted: bool = True) -> Built:
    class Looks(TiedWriter):
        def forward(self, ids: Tensor) -> Tensor:
            square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
            mask = square.tril(-1) if planted else square.triu(1)
            return self.head(self.body(self.embedding(ids) + self.positions[: ids.shape[1]], mask=mask))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    def goes_on(net: Any, batch: Any) -> Tensor:
        found = [(net(batch[0][:, :many])[:, -1].argmax(1) == batch[0][:, many]).float().mean() for many in (10, 20, 30, 40)]
        return torch.stack(found).mean()

    kinds = ("masked_rows", "output_range", "settings", *ATTENDS, *UNLIKE)
    module = Judged(Looks(0.02), loss, adam(3e-3), goes_on)
    return Built(module, split(16, pieces(49)[:2900]), {"max_epochs": 2}, Expected(kinds, ("net", "net.body*")))
