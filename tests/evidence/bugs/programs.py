"""Healthy programs of pytorch/examples over images, series and words, at small sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.evidence.bugs.cases import Built, Expected, Recipe, healthy
from tests.evidence.bugs.parts import EPOCHS, Digits, adam, digits, loader
from tests.evidence.faults import data

FINE = Expected()


# Images.


class Mnist(nn.Module):
    """The net of the example: log-probabilities, two dropouts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 1), nn.Conv2d(16, 32, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def nll(net: Any, batch: Any) -> Tensor:
    """The loss of log-probabilities."""
    return F.nll_loss(net(batch[0]), batch[1])


def adadelta(module: Any) -> Any:
    """The example's optimizer and schedule."""
    optimizer = torch.optim.Adadelta(module.parameters(), lr=1.0)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)]


@healthy("pytorch/examples/mnist", "MNIST: a CNN with dropout, Adadelta")
def mnist() -> Built:
    return Built(Digits(Mnist(), adadelta, nll), digits(image=True), EPOCHS, FINE)


class MnistRnn(nn.Module):
    """An LSTM over the rows, batch norm on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 64, batch_first=True)
        self.batchnorm = nn.BatchNorm1d(64)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        output = self.batchnorm(self.rnn(x.view(-1, 8, 8))[0][:, -1])
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(self.dropout1(output))))), dim=1)


@healthy("pytorch/examples/mnist_rnn", "MNIST-RNN: an LSTM over the rows")
def mnist_rnn() -> Built:
    return Built(Digits(MnistRnn(), adadelta, nll), digits(image=True), EPOCHS, FINE)


class Dcgan(LightningModule):
    """A convolutional GAN, two optimizers by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            *(nn.ConvTranspose2d(16, 32, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU(True)),
            *(nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(True)),
            *(nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh()),
        )
        self.discriminator = nn.Sequential(
            *(nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)),
            *(nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True)),
            *(nn.Conv2d(32, 1, 2, bias=False), nn.Sigmoid()),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0] * 2 - 1
        ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
        optimizer_g, optimizer_d = self.optimizers()  # type: ignore[misc]
        optimizer_d.zero_grad()
        loss_d = F.binary_cross_entropy(self.discriminator(real).flatten(), ones)
        self.manual_backward(loss_d)
        fake = self.generator(torch.randn(len(real), 16, 1, 1))
        self.manual_backward(F.binary_cross_entropy(self.discriminator(fake.detach()).flatten(), zeros))
        optimizer_d.step()
        optimizer_g.zero_grad()
        self.losses.append(loss_d.detach())
        self.manual_backward(F.binary_cross_entropy(self.discriminator(fake).flatten(), ones))
        optimizer_g.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999)) for part in (self.generator, self.discriminator)]


@healthy("pytorch/examples/dcgan", "DCGAN")
def dcgan() -> Built:
    x, y, _, _ = data.images()
    return Built(Dcgan(), {"train_dataloaders": loader(x, y, batch_size=48)}, EPOCHS, FINE)


class Vae(nn.Module):
    """The example's autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(64, 48), nn.Linear(48, 8), nn.Linear(48, 8)
        self.fc3, self.fc4 = nn.Linear(8, 48), nn.Linear(48, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(x))
        mu, logvar = self.fc21(hidden), self.fc22(hidden)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def evidence(net: Any, batch: Any) -> Tensor:
    """Reconstruction and divergence, summed over the batch as in the example."""
    output, mu, logvar = net(batch[0])
    reconstruction = F.binary_cross_entropy(output, batch[0], reduction="sum")
    return reconstruction - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


@healthy("pytorch/examples/vae", "VAE, its loss summed over the batch")
def vae() -> Built:
    x, y, _, _ = data.digits()
    return Built(Recipe(Vae(), evidence, adam(1e-3)), {"train_dataloaders": loader(x, y)}, EPOCHS, FINE)


class Pairs(Dataset[Any]):
    """Two digits, of one class or of two."""

    def __init__(self) -> None:
        self.x, self.y, _, _ = data.images()
        self.of = [(self.y == label).nonzero().flatten() for label in range(10)]

    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> Any:
        first = int(torch.randint(10, ()))
        second = first if index % 2 == 0 else (first + int(torch.randint(1, 10, ()))) % 10
        chosen = (self.of[label][torch.randint(len(self.of[label]), ())] for label in (first, second))
        return *(self.x[place] for place in chosen), torch.tensor(float(first == second))


class Siamese(nn.Module):
    """One body for both images, and a comparison that ends in a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.fc = nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 1))
        self.sigmoid = nn.Sigmoid()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.sigmoid(self.fc(torch.cat((self.body(first), self.body(second)), 1))).squeeze(1)


@healthy("pytorch/examples/siamese_network", "a siamese net, BCELoss")
def siamese() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy(net(batch[0], batch[1]), batch[2])

    def optimizers(module: Any) -> Any:
        return torch.optim.Adadelta(module.parameters(), lr=1.0)

    return Built(Recipe(Siamese(), loss, optimizers), {"train_dataloaders": DataLoader(Pairs(), 32, shuffle=True)}, EPOCHS, FINE)


class BasicBlock(nn.Module):
    """Of ResNet-18."""

    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module | None = None
        if stride != 1 or fan_in != width:
            self.downsample = nn.Sequential(nn.Conv2d(fan_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet18(nn.Module):
    """ResNet-18 with eight channels where the paper has 64."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        layers: list[nn.Module] = []
        for place, (a, b) in enumerate(((1, 1), (1, 2), (2, 4), (4, 8))):
            layers += [BasicBlock(a * width, b * width, 1 if place == 0 else 2), BasicBlock(b * width, b * width, 1)]
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(8 * width, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


@healthy("pytorch/examples/imagenet", "ResNet-18, SGD with momentum and weight decay")
def resnet18() -> Built:
    def optimizers(module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)]

    return Built(Digits(ResNet18(), optimizers), digits(image=True), EPOCHS, FINE)


# Series, words, numbers.


@healthy("pytorch/examples/regression", "a polynomial of degree four, fitted by one linear layer")
def regression() -> Built:
    x = torch.randn(960, 1)
    powers = torch.cat([x**degree for degree in range(1, 5)], 1)
    y = powers @ (5 * torch.randn(4, 1)) + 5 * torch.randn(1)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.smooth_l1_loss(net(batch[0]), batch[1])

    module = Recipe(nn.Linear(4, 1), loss, lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    return Built(module, {"train_dataloaders": loader(powers, y)}, EPOCHS, FINE)


class Sequence(nn.Module):
    """Two LSTM cells that predict the next value."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.lstm1, self.lstm2 = nn.LSTMCell(1, width), nn.LSTMCell(width, width)
        self.linear = nn.Linear(width, 1)

    def forward(self, series: Tensor) -> Tensor:
        h1, c1, h2, c2 = (torch.zeros(len(series), self.width, dtype=series.dtype) for _ in range(4))
        outputs = []
        for value in series.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, 1)


@healthy("pytorch/examples/time_sequence_prediction", "sine waves by two LSTM cells in float64 and LBFGS, one batch an epoch")
def time_sequence() -> Built:
    phases = torch.rand(24, 1) * 40
    waves = torch.sin((torch.arange(30)[None] + phases) / 4).double()

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0][:, :-1]), batch[0][:, 1:])

    module = Recipe(Sequence().double(), loss, lambda m: torch.optim.LBFGS(m.parameters(), lr=0.8, max_iter=8))
    return Built(module, {"train_dataloaders": DataLoader(TensorDataset(waves), 24)}, {"max_epochs": 6}, FINE)


class Words(nn.Module):
    """The example's recurrent language model, by characters."""

    def __init__(self, vocabulary: int, width: int = 48) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.decoder(self.drop(self.rnn(self.drop(self.encoder(x)))[0])), -1)


class WordsTransformer(nn.Module):
    """The example's transformer: PyTorch's own layers, sine positions."""

    def __init__(self, vocabulary: int, width: int = 48) -> None:
        super().__init__()
        self.width = width
        self.input_emb = nn.Embedding(vocabulary, width)
        steps = torch.arange(64)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        self.register_buffer("positions", torch.stack((steps.sin(), steps.cos()), -1).flatten(1))
        self.dropout = nn.Dropout(0.2)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, vocabulary)
        nn.init.uniform_(self.input_emb.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        x = self.dropout(self.input_emb(x) * math.sqrt(self.width) + self.positions[: x.shape[1]])
        return F.log_softmax(self.decoder(self.encoder(x, mask=mask)), -1)


def next_word(net: Any, batch: Any) -> Tensor:
    """The loss of the next character."""
    return F.nll_loss(net(batch[0]).flatten(0, 1), batch[1].flatten())


def text() -> dict[str, Any]:
    """Text of Python's own documentation."""
    return {"train_dataloaders": loader(*data.text()[:2])}


@healthy("pytorch/examples/word_language_model", "an LSTM language model, SGD of 5 with clipping at 0.25")
def words_lstm() -> Built:
    module = Recipe(Words(data.VOCABULARY), next_word, lambda m: torch.optim.SGD(m.parameters(), lr=5.0))
    return Built(module, text(), {**EPOCHS, "gradient_clip_val": 0.25}, FINE)


@healthy("pytorch/examples/word_language_model", "a transformer language model, SGD of 1 with clipping at 0.25")
def words_transformer() -> Built:
    module = Recipe(WordsTransformer(data.VOCABULARY), next_word, lambda m: torch.optim.SGD(m.parameters(), lr=1.0))
    return Built(module, text(), {**EPOCHS, "gradient_clip_val": 0.25}, FINE)
