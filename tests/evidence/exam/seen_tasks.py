"""Healthy trainings of plain nets by well-known tutorials and papers that no other module of the exam has."""

from __future__ import annotations

import collections
import functools
import itertools
import textwrap
import typing
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, healthy
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import scheduled
from tests.evidence.exam.seen_healthy_recipes import adam, trained
from tests.evidence.exam.texts import VOCABULARY, batches, corpus

WELL = Expected()


class Convolutions(nn.Module):
    """The net of PyTorch's example for MNIST, on smaller pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(2304, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


@healthy("torch", "PyTorch's example for MNIST: two convolutions, two dropouts, Adadelta at 1 whose rate falls by 0.7 an epoch")
def task_adadelta() -> Built:
    def optimizers(module: Any) -> Any:
        chosen = torch.optim.Adadelta(module.parameters(), lr=1.0)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, step_size=1, gamma=0.7)]

    loss = lambda net, batch: F.nll_loss(net(batch[0]), batch[1])  # noqa: E731
    return trained(Convolutions(), loss, optimizers, pictures(64, 16), max_epochs=3, limit_train_batches=20)


class Continued(nn.Module):
    """PyTorch's example for time sequences: two LSTM cells that give the next value of a sine, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 24), nn.LSTMCell(24, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second, outputs = None, None, []
        for value in x.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


@healthy("torch", "PyTorch's example for sines: LSTM cells in double precision, all data in each step of L-BFGS at 0.8")
def task_sines() -> Built:
    generator = torch.Generator().manual_seed(2)
    shifts = torch.randint(-80, 80, (40, 1), generator=generator)
    waves = torch.sin((torch.arange(40) + shifts) / 6.0).double()
    loss = lambda net, batch: F.mse_loss(net(batch[0][:, :-1]), batch[0][:, 1:])  # noqa: E731
    lbfgs = lambda module: torch.optim.LBFGS(module.parameters(), lr=0.8, max_iter=3)  # noqa: E731
    return trained(Continued().double(), loss, lbfgs, batches(40, waves), max_epochs=30, precision="64-true")


class Carried(LightningModule):
    """PyTorch's example for words: an LSTM whose state is carried from stretch to stretch; uniform weights, SGD at 20."""

    def __init__(self, rows: int = 20) -> None:
        super().__init__()
        self.drop, self.encoder, self.decoder = nn.Dropout(0.2), nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)
        self.rnn = nn.LSTM(64, 64, 2, dropout=0.2)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        self.rows, self.hidden = rows, self._zeros(rows)

    @staticmethod
    def _zeros(rows: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, rows, 64), torch.zeros(2, rows, 64)

    def on_train_epoch_start(self) -> None:
        self.hidden = self._zeros(self.rows)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids, targets = batch[0][:-1], batch[0][1:]
        output, (hidden, cell) = self.rnn(self.drop(self.encoder(ids)), self.hidden)
        self.hidden = (hidden.detach(), cell.detach())
        return F.cross_entropy(self.decoder(self.drop(output)).flatten(0, 1), targets.flatten())

    def configure_optimizers(self) -> Any:
        chosen = torch.optim.SGD(self.parameters(), lr=20)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.25)]


@healthy("torch", "PyTorch's example for words: an LSTM whose state goes from stretch to stretch, SGD at 20, clipped at 0.25")
def task_words() -> Built:
    codes, rows, length = corpus(), 20, 35
    columns = codes[: len(codes) // rows * rows].view(rows, -1).T.contiguous()
    stretches = torch.stack([columns[start : start + length + 1] for start in range(0, 40 * length, length)])
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(stretches), batch_size=None)
    return Built(Carried(rows), {"train_dataloaders": data}, {"max_epochs": 2, "gradient_clip_val": 0.25}, WELL)


class Straightened(nn.Module):
    """PyTorch's tutorial on spatial transformers: a net that looks where to look, from the identity on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.conv2_drop, self.fc1, self.fc2 = nn.Dropout2d(), nn.Linear(320, 50), nn.Linear(50, 10)
        places = [nn.Conv2d(1, 8, 7), nn.MaxPool2d(2, 2), nn.ReLU(True), nn.Conv2d(8, 10, 5), nn.MaxPool2d(2, 2), nn.ReLU(True)]
        self.localization = nn.Sequential(*places)
        self.fc_loc = nn.Sequential(nn.Linear(90, 32), nn.ReLU(True), nn.Linear(32, 6))
        self.fc_loc[2].weight.data.zero_()
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))

    def forward(self, x: Tensor) -> Tensor:
        theta = self.fc_loc(self.localization(x).flatten(1)).view(-1, 2, 3)
        x = F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2)).flatten(1)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


@healthy("torch", "PyTorch's tutorial on spatial transformers: a net looks where to look, beginning with the identity, SGD")
def task_spatial() -> Built:
    loss = lambda net, batch: F.nll_loss(net(batch[0]), batch[1])  # noqa: E731
    sgd = lambda module: torch.optim.SGD(module.parameters(), lr=0.03)  # noqa: E731
    return trained(Straightened(), loss, sgd, pictures(32, 28), max_epochs=2, limit_train_batches=50)


def squash(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-8).sqrt()


class Capsules(nn.Module):
    """Capsules that agree by routing, and the picture that is drawn from the capsule of its class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5, stride=2)
        self.weights = nn.Parameter(0.1 * torch.randn(128, 10, 8, 8))
        drawn = [nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256), nn.Sigmoid()]
        self.decoder = nn.Sequential(*drawn)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.primary(self.conv(x).relu()).view(len(x), 8, 8, -1).permute(0, 1, 3, 2).flatten(1, 2)
        votes = torch.einsum("bni,ncio->bnco", squash(parts), self.weights)
        agreed = torch.zeros(votes.shape[:3])
        for _ in range(2):
            found = squash((agreed.softmax(2)[..., None] * votes.detach()).sum(1))
            agreed = agreed + (votes.detach() * found[:, None]).sum(-1)
        return squash((agreed.softmax(2)[..., None] * votes).sum(1))


@healthy("torch", "capsules that agree by routing: a loss of margins and a small one of the picture drawn again, Adam decays")
def task_capsules() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        capsules, shown = net(batch[0]), F.one_hot(batch[1], 10)
        lengths = capsules.norm(dim=2)
        margins = shown * (0.9 - lengths).relu().square() + 0.5 * (1 - shown) * (lengths - 0.1).relu().square()
        drawn = net.decoder((capsules * shown[..., None]).flatten(1))
        return margins.sum(1).mean() + 0.0005 * (drawn - batch[0].flatten(1)).square().sum(1).mean()

    decays = scheduled(adam(1e-3), lambda chosen: torch.optim.lr_scheduler.ExponentialLR(chosen, 0.9), "epoch")
    images, shown = digits(16)
    images = (images - images.min()) / (images.max() - images.min())
    return trained(Capsules(), loss, decays, in_batches(32, images, shown), limit_train_batches=35)


class SkipGram(nn.Module):
    """Vectors of words and of what stands near them."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.of_words, self.of_contexts = nn.Embedding(words, width), nn.Embedding(words, width)
        nn.init.uniform_(self.of_words.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.of_contexts.weight)

    def forward(self, words: Tensor, contexts: Tensor) -> Tensor:
        return (self.of_words(words)[:, None] * self.of_contexts(contexts)).sum(-1)


@functools.cache
def neighbours() -> tuple[Tensor, Tensor, Tensor]:
    """Words of docstrings and a word near each, and how often each word occurs."""
    text = " ".join(str(thing.__doc__) for module in (typing, textwrap, torch) for thing in vars(module).values())
    words = [word for word in text.lower().split() if word.isalpha()][:40000]
    counted = sorted(collections.Counter(words).items(), key=lambda pair: (-pair[1], pair[0]))[:400]
    known = {word: index for index, (word, _) in enumerate(counted)}
    ids = torch.tensor([known[word] for word in words if word in known])
    middle = torch.cat([ids[2:-2]] * 4)
    near = torch.cat([ids[:-4], ids[1:-3], ids[3:-1], ids[4:]])
    return middle, near, torch.tensor([float(count) for _, count in counted])


@healthy("torch", "word2vec: words and their neighbours against five random words, contexts that start at 0, Adam")
def task_skip_gram() -> Built:
    words, near, counts = neighbours()

    def loss(net: Any, batch: Any) -> Tensor:
        others = torch.multinomial(counts**0.75, 5 * len(batch[0]), replacement=True).view(-1, 5)
        scores = net(batch[0], torch.cat((batch[1][:, None], others), 1))
        return -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(1)).mean()

    return trained(SkipGram(len(counts)), loss, adam(3e-3), batches(512, words, near), limit_train_batches=50)


class Coloured(LightningModule):
    """pix2pix: a U-Net draws, a judge of pieces sees the sketch beside the picture; absolute error times a hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.down = nn.ModuleList([self._down(1, 16, norm=False), self._down(16, 32), self._down(32, 64)])
        self.up = nn.ModuleList([self._up(64, 32), self._up(64, 16)])
        self.last = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh())
        seen = [self._down(2, 16, norm=False), self._down(16, 32), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 3, 1, 1)]
        self.judge = nn.Sequential(*seen)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(layer.weight, 0.0, 0.02)
                nn.init.zeros_(layer.bias) if layer.bias is not None else None

    @staticmethod
    def _down(fan_in: int, fan_out: int, norm: bool = True) -> nn.Sequential:
        before = [nn.LeakyReLU(0.2)] if norm else []
        return nn.Sequential(*before, nn.Conv2d(fan_in, fan_out, 4, 2, 1), *([nn.BatchNorm2d(fan_out)] if norm else []))

    @staticmethod
    def _up(fan_in: int, fan_out: int) -> nn.Sequential:
        return nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(fan_in, fan_out, 4, 2, 1), nn.BatchNorm2d(fan_out))

    def forward(self, sketch: Tensor) -> Tensor:
        high = self.down[0](sketch)
        middle = self.down[1](high)
        up = self.up[0](self.down[2](middle))
        return self.last(torch.cat((self.up[1](torch.cat((up, middle), 1)), high), 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        picture = batch[0].clamp(-1, 1)
        sketch = (F.avg_pool2d(picture, 3, 1, 1) > 0).float() * 2 - 1
        of_drawer, of_judge = self.optimizers()
        drawn = self(sketch)
        said = [self.judge(torch.cat((sketch, shown), 1)) for shown in (picture, drawn.detach())]
        goals = [torch.ones_like(said[0]), torch.zeros_like(said[1])]
        judged = sum(F.binary_cross_entropy_with_logits(*pair) for pair in zip(said, goals, strict=True)) / 2
        of_judge.zero_grad()
        self.manual_backward(judged)
        of_judge.step()
        believed = self.judge(torch.cat((sketch, drawn), 1))
        loss = F.binary_cross_entropy_with_logits(believed, torch.ones_like(believed)) + 100 * F.l1_loss(drawn, picture)
        of_drawer.zero_grad()
        self.manual_backward(loss)
        of_drawer.step()
        return {"loss": loss.detach()}

    def configure_optimizers(self) -> Any:
        drawer = itertools.chain(self.down.parameters(), self.up.parameters(), self.last.parameters())
        return [torch.optim.Adam(part, 1e-3, betas=(0.5, 0.999)) for part in (drawer, self.judge.parameters())]


@healthy("torch", "pix2pix: a U-Net fills in sketches of digits, a judge sees pieces, absolute error times 100, weights of 0.02")
def task_pix2pix() -> Built:
    return Built(Coloured(), pictures(16, 16), {"max_epochs": 2, "limit_train_batches": 40}, WELL)
