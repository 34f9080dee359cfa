"""Healthy programs, mostly of pytorch/examples, at small sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.evidence.bugs.cases import Built, Expected, Recipe, healthy
from tests.evidence.bugs.parts import EPOCHS, Digits, adam, digits, loader, mlp, two_ranks
from tests.evidence.faults import data

FINE = Expected()


def train_only(loaders: dict[str, Any]) -> dict[str, Any]:
    """Without the validation data."""
    return {"train_dataloaders": loaders["train_dataloaders"]}


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


# Graphs: every batch is the whole graph.


def graph() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Papers that are digits: features, adjacency of like images, labels, and which of them train."""
    x, y, _, _ = data.digits()
    x, y = x[:240], y[:240]
    near = torch.cdist(x, x).topk(6, largest=False).indices
    adjacency = torch.zeros(240, 240).scatter(1, near, 1.0)
    adjacency = ((adjacency + adjacency.T) > 0).float()
    return x, adjacency, y, torch.rand(240) < 0.5


class WholeGraph(Dataset[Any]):
    """One graph, epoch after epoch."""

    def __init__(self, normalised: bool) -> None:
        x, adjacency, y, trains = graph()
        root = adjacency.sum(1).rsqrt()
        self.item = x, root[:, None] * adjacency * root if normalised else adjacency, y, trains

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.item


def graph_loss(net: Any, batch: Any) -> Tensor:
    """Of the nodes that train."""
    x, adjacency, y, trains = batch
    return F.nll_loss(net(x, adjacency)[trains], y[trains])


class GraphConvolution(nn.Module):
    """A weight, and the mean of the neighbours."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.kernel, self.bias = nn.Parameter(torch.empty(fan_in, fan_out)), nn.Parameter(torch.zeros(fan_out))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ (x @ self.kernel) + self.bias


class Gcn(nn.Module):
    """Two of these."""

    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2, self.dropout = GraphConvolution(64, 16), GraphConvolution(16, 10), nn.Dropout(0.5)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return F.log_softmax(self.gc2(self.dropout(F.relu(self.gc1(x, adjacency))), adjacency), dim=1)


def graph_adam(module: Any) -> Any:
    """The examples' optimizer."""
    return torch.optim.Adam(module.parameters(), lr=5e-3, weight_decay=5e-4)


@healthy("pytorch/examples/gcn", "GCN: one graph, 60 epochs")
def gcn() -> Built:
    loaders = {"train_dataloaders": DataLoader(WholeGraph(True), batch_size=None)}
    return Built(Recipe(Gcn(), graph_loss, graph_adam), loaders, {"max_epochs": 60}, FINE)


class GraphAttention(nn.Module):
    """A node attends to its neighbours, written out."""

    def __init__(self, fan_in: int, hidden: int, heads: int, concat: bool) -> None:
        super().__init__()
        self.hidden, self.heads, self.concat = hidden, heads, concat
        self.W, self.a = nn.Parameter(torch.empty(fan_in, hidden * heads)), nn.Parameter(torch.empty(heads, 2 * hidden, 1))
        self.leakyrelu = nn.LeakyReLU(0.2)
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = F.dropout(x @ self.W, 0.4, training=self.training).view(len(x), self.heads, self.hidden).permute(1, 0, 2)
        scores = self.leakyrelu(h @ self.a[:, : self.hidden] + (h @ self.a[:, self.hidden :]).mT)
        attention = F.softmax(torch.where(adjacency > 0, scores, -9e16 * torch.ones_like(scores)), dim=-1)
        h = F.dropout(attention, 0.4, training=self.training) @ h
        return h.permute(1, 0, 2).flatten(1) if self.concat else h.mean(0)


class Gat(nn.Module):
    """Eight heads, then one."""

    def __init__(self) -> None:
        super().__init__()
        self.gat1, self.gat2 = GraphAttention(64, 8, 8, True), GraphAttention(64, 10, 1, False)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return F.log_softmax(self.gat2(F.elu(self.gat1(x, adjacency)), adjacency), dim=1)


@healthy("pytorch/examples/gat", "GAT: attention over a graph, written out")
def gat() -> Built:
    loaders = {"train_dataloaders": DataLoader(WholeGraph(False), batch_size=None)}
    return Built(Recipe(Gat(), graph_loss, graph_adam), loaders, {"max_epochs": 60}, FINE)


# Other ways to learn.


class GoodnessLayer(nn.Module):
    """Normalises its input, so that a layer before it tells it directions only."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(fan_in, fan_out), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.linear(x / (x.norm(2, 1, keepdim=True) + 1e-4)))


class ForwardForward(LightningModule):
    """Each layer learns alone to be active for the right label and not for a wrong one, with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.ModuleList((GoodnessLayer(64, 64), GoodnessLayer(64, 64)))
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        wrong = (y + torch.randint(1, 10, y.shape)) % 10
        right, false = (torch.cat((F.one_hot(label, 10), x[:, 10:]), 1) for label in (y, wrong))
        for layer, optimizer in zip(self.net, self.optimizers(), strict=True):  # type: ignore[arg-type]
            good, bad = layer(right), layer(false)
            loss = F.softplus(torch.cat((2 - good.square().mean(1), bad.square().mean(1) - 2))).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            right, false = good.detach(), bad.detach()
        self.losses.append(loss.detach())

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(layer.parameters(), lr=0.03) for layer in self.net]


@healthy("pytorch/examples/mnist_forward_forward", "the forward-forward algorithm: an optimizer for each layer")
def forward_forward() -> Built:
    x, y, _, _ = data.digits()
    return Built(ForwardForward(), {"train_dataloaders": loader(x, y, batch_size=48)}, EPOCHS, FINE)


class Pole:
    """A pole on a cart, pushed to the left or to the right: the equations of Barto, Sutton and Anderson."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self) -> Tensor:
        self.state = torch.rand(4, generator=self.generator) * 0.1 - 0.05
        return self.state

    def step(self, action: int) -> tuple[Tensor, bool]:
        """Where it is after a fiftieth of a second, and whether it fell."""
        x, speed, angle, turning = self.state.tolist()
        push = 10.0 if action else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        pull = (push + 0.05 * turning**2 * sin) / 1.1
        falling = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = pull - 0.05 * falling * cos / 1.1
        self.state = torch.tensor([x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turning, turning + 0.02 * falling])
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Episodes(Dataset[Any]):
    """Numbers of episodes."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


class Policy(LightningModule):
    """REINFORCE, or an actor with a critic: an episode is a batch."""

    def __init__(self, critic: bool) -> None:
        super().__init__()
        self.affine1, self.dropout = nn.Linear(4, 128), nn.Dropout(0.0 if critic else 0.6)
        self.action_head = nn.Linear(128, 2)
        self.value_head = nn.Linear(128, 1) if critic else None
        self.pole = Pole()

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = F.relu(self.dropout(self.affine1(state)))
        return F.softmax(self.action_head(hidden), dim=-1), None if self.value_head is None else self.value_head(hidden)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        state, chosen, values = self.pole.reset(), [], []
        for _ in range(60):
            probabilities, value = self(state[None])
            choice = torch.distributions.Categorical(probabilities)
            action = choice.sample()
            chosen.append(choice.log_prob(action))
            values.append(value)
            state, done = self.pole.step(int(action))
            if done:
                break
        rewards = torch.ones(len(chosen))
        returns = torch.stack([(0.99 ** torch.arange(len(rewards) - t) * rewards[t:]).sum() for t in range(len(rewards))])
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        log_probabilities = torch.cat(chosen)
        if self.value_head is None:
            return -(log_probabilities * returns).sum()
        estimates = torch.cat(values).squeeze(1)  # type: ignore[arg-type]
        return -(log_probabilities * (returns - estimates.detach())).sum() + F.smooth_l1_loss(estimates, returns, reduction="sum")

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=3e-2 if self.value_head is not None else 1e-2)


@healthy("pytorch/examples/reinforcement_learning", "REINFORCE on a pole: an episode is a batch")
def reinforce() -> Built:
    return Built(Policy(critic=False), {"train_dataloaders": DataLoader(Episodes(), batch_size=None)}, EPOCHS, FINE)


@healthy("pytorch/examples/reinforcement_learning", "an actor and a critic on a pole")
def actor_critic() -> Built:
    return Built(Policy(critic=True), {"train_dataloaders": DataLoader(Episodes(), batch_size=None)}, EPOCHS, FINE)


# Precision and ranks.


@healthy("pytorch/examples/distributed/ddp-tutorial-series", "DDP: two ranks over gloo", processes=2)
def ddp() -> Built:
    return Built(Digits(mlp()), digits(batch_size=24), two_ranks(), FINE)


@healthy("pytorch.org/tutorials/recipes/recipes/amp_recipe.html", "autocast: three linear layers in bfloat16")
def autocast() -> Built:
    return Built(Digits(mlp(width=96)), digits(), {**EPOCHS, "precision": "bf16-mixed"}, FINE)
