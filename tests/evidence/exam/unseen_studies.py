"""Healthy trainings of nets from papers and tutorials, in torch alone, that no other module of the exam has."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adamw, scheduled
from tests.evidence.exam.seen_healthy_recipes import trained


def adam(rate: float = 1e-3) -> Any:
    return lambda module: torch.optim.Adam(module.parameters(), rate)


class Masked(nn.Linear):
    """A linear layer of which some weights are always 0."""

    def __init__(self, before: Tensor, after: Tensor, strict: bool = False) -> None:
        super().__init__(len(before), len(after))
        seen = before[None] < after[:, None] if strict else before[None] <= after[:, None]
        self.register_buffer("mask", seen.float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


@healthy("torch", "MADE: an autoencoder whose masked weights let a pixel know only those before it, bits of digits, Adam")
def study_masked_autoencoder() -> Built:
    order, hidden = torch.arange(64), torch.arange(200) % 63
    net = nn.Sequential(Masked(order, hidden), nn.ReLU(), Masked(hidden, hidden), nn.ReLU(), Masked(hidden, order, strict=True))
    bits = torch.tensor(load_digits().data > 7).float()

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[0], reduction="none").sum(1).mean()

    return trained(net, loss, adam(3e-3), in_batches(64, bits))


class Features(nn.Module):
    """FT-Transformer: each column is a token."""

    def __init__(self, columns: int, width: int = 32) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(columns, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(columns, width).uniform_(-bound, bound))
        self.answer = nn.Parameter(torch.empty(width).uniform_(-bound, bound))
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.1, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.answer.expand(len(x), 1, -1), x[..., None] * self.weight + self.bias], 1)
        return self.head(self.body(tokens)[:, 0])[:, 0]


@healthy("torch", "FT-Transformer: each column of a table is a token, AdamW that leaves tokens, norms and biases without decay")
def study_table_tokens() -> Built:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)

    def grouped(module: Any) -> Any:
        free = [p for name, p in module.named_parameters() if p.ndim < 2 or name in ("net.weight", "net.bias")]
        decayed = [p for p in module.parameters() if all(p is not other for other in free)]
        return torch.optim.AdamW([{"params": decayed}, {"params": free, "weight_decay": 0.0}], 3e-4, weight_decay=1e-5)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1])

    data = in_batches(32, torch.tensor(x).float(), torch.tensor(y).float())
    return trained(Features(30), loss, grouped, data, max_epochs=4, limit_train_batches=17)


class Functions(nn.Module):
    """A conditional neural process: what is known of a function is a mean over its points."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.teller = nn.Sequential(nn.Linear(65, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor, y: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        known = self.reader(torch.stack([x, y], -1)).mean(1, keepdim=True).expand(-1, wanted.shape[1], -1)
        mean, width = self.teller(torch.cat([wanted[..., None], known], -1)).unbind(-1)
        return mean, 0.1 + 0.9 * F.softplus(width)


@healthy("torch", "conditional neural process: curves from a few of their points, with a width that is at least 0.1, Adam")
def study_neural_process() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(1600, 24, generator=generator) - 2
    size, phase = (torch.rand(2, 1600, 1, generator=generator) * 3 + 0.5).unbind(0)
    y = size * torch.sin(2 * x + 2 * phase)

    def loss(net: Any, batch: Any) -> Tensor:
        known = int(torch.randint(3, 12, ()))
        mean, width = net(batch[0][:, :known], batch[1][:, :known], batch[0])
        return -torch.distributions.Normal(mean, width).log_prob(batch[1]).mean()

    return trained(Functions(), loss, adam(1e-3), in_batches(32, x, y), limit_train_batches=40)


class Pointer(nn.Module):
    """A pointer network: an LSTM reads numbers, another one points at them by additive attention."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.start = nn.Linear(1, width), nn.Parameter(torch.randn(width) * 0.1)
        self.reader, self.writer = nn.LSTM(width, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.key, self.query, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        tokens = self.embed(x[..., None])
        read, state = self.reader(tokens)
        given = tokens.gather(1, order[..., None].expand_as(tokens))[:, :-1]
        written, _ = self.writer(torch.cat([self.start.expand(len(x), 1, -1), given], 1), state)
        return self.score(torch.tanh(self.key(read)[:, None] + self.query(written)[:, :, None]))[..., 0]


@healthy("torch", "pointer network that sorts six numbers, an LSTM that points at what another one read, Adam, clipped at 2")
def study_pointer() -> Built:
    x = torch.rand(3000, 6, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        order = batch[0].argsort(1)
        return F.cross_entropy(net(batch[0], order).flatten(0, 1), order.flatten())

    limits = {"limit_train_batches": 45, "gradient_clip_val": 2.0}
    return trained(Pointer(), loss, adam(5e-3), in_batches(64, x), **limits)


class Sets(nn.Module):
    """Deep Sets: a sum over pictures, whatever their number and order."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).sum(1))[:, 0]


@healthy("torch", "Deep Sets: the sum of what five pictures show, by the mean absolute error of numbers up to 45, Adam")
def study_sets() -> Built:
    pixels, shown = digits(8)

    def loss(net: Any, batch: Any) -> Tensor:
        chosen = torch.randint(len(pixels), (64, 5))
        return F.l1_loss(net(pixels[chosen].flatten(2)), shown[chosen].sum(1).float())

    return trained(Sets(), loss, adam(1e-3), in_batches(1, torch.zeros(60, 1)), limit_train_batches=45)


class OneClass(nn.Module):
    """Deep SVDD: no biases, and a centre that is found before the training."""

    def __init__(self, examples: Tensor) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, after in ((1, 8), (8, 16)):
            parts += [nn.Conv2d(before, after, 5, padding=2, bias=False), nn.BatchNorm2d(after, affine=False)]
            parts += [nn.LeakyReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*parts, nn.Flatten(), nn.Linear(256, 16, bias=False))
        with torch.no_grad():
            centre = self.body(examples).mean(0)
        self.register_buffer("centre", torch.where(centre < 0, centre.clamp(max=-0.1), centre.clamp(min=0.1)))

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) - self.centre).square().sum(1)


@healthy("torch", "Deep SVDD: all zeros are drawn to a fixed centre, nets without biases, Adam with L2, a rate that falls once")
def study_one_class() -> Built:
    pixels, shown = digits(16)
    zeros = pixels[shown < 3]
    adam_l2 = lambda module: torch.optim.Adam(module.parameters(), 5e-4, weight_decay=1e-6)  # noqa: E731
    falls = scheduled(adam_l2, lambda chosen: torch.optim.lr_scheduler.MultiStepLR(chosen, [45], 0.1))
    loss = lambda net, batch: net(batch[0]).mean()  # noqa: E731
    return trained(OneClass(zeros), loss, falls, in_batches(32, zeros), max_epochs=4, limit_train_batches=16)


class Gated(nn.Module):
    """A gated PixelCNN of one stack: convolutions that see what is above and to the left."""

    def __init__(self, width: int = 24, kinds: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 5, padding=2)
        self.layers = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(4))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU(), nn.Conv2d(width, kinds, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.causal(self.first, x, own=False)
        for layer in self.layers:
            told, gate = self.causal(layer, x, own=True).chunk(2, 1)
            x = x + torch.tanh(told) * torch.sigmoid(gate)
        return self.last(x)

    def causal(self, layer: nn.Conv2d, x: Tensor, own: bool) -> Tensor:
        size = layer.kernel_size[0]
        mask = torch.zeros(size, size)
        mask[: size // 2], mask[size // 2, : size // 2 + own] = 1, 1
        return F.conv2d(x, layer.weight * mask, layer.bias, padding=size // 2)


@healthy("torch", "gated PixelCNN: digits in four shades, each pixel from those above and to the left, Adam")
def study_pixels_in_turn() -> Built:
    shades = torch.tensor(load_digits().images / 4.01).long()

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, None] / 1.5 - 1), batch[0])

    return trained(Gated(), loss, adam(2e-3), in_batches(32, shades))


@healthy("torch", "quantile regression: three quantiles of a patient's progress at once (pinball loss), SiLU, dropout, AdamW")
def study_quantiles() -> Built:
    x, y = load_diabetes(return_X_y=True)
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    net = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 3))
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(net: Any, batch: Any) -> Tensor:
        error = batch[1][:, None] - net(batch[0])
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    data = in_batches(32, torch.tensor(x).float(), torch.tensor(y).float())
    return trained(net, loss, adamw(2e-3), data, max_epochs=6, limit_train_batches=13)


class Cell(nn.Module):
    """A cellular automaton: each pixel moves by what it and its neighbours are."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        kernels = torch.stack([torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]]), sobel, sobel.T])
        self.register_buffer("kernels", kernels.repeat(channels, 1, 1)[:, None])
        self.channels = channels
        self.rule = nn.Sequential(nn.Conv2d(3 * channels, 64, 1), nn.ReLU(), nn.Conv2d(64, channels, 1, bias=False))
        nn.init.zeros_(self.rule[2].weight)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            seen = F.conv2d(x, self.kernels, padding=1, groups=self.channels)
            x = x + self.rule(seen) * (torch.rand_like(x[:, :1]) < 0.5)
        return x


@healthy("torch", "growing cellular automaton: a digit grows from one pixel by a rule that starts at 0, each gradient is of norm 1")
def study_automaton() -> Built:
    class Growing(Recipe):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad /= parameter.grad.norm() + 1e-8

    goal = F.pad(torch.tensor(load_digits().images[3] / 16).float(), (2, 2, 2, 2))

    def loss(net: Any, batch: Any) -> Tensor:
        seed = torch.zeros(4, net.channels, 12, 12)
        seed[:, 1:, 6, 6] = 1
        return F.mse_loss(net(seed, int(torch.randint(16, 24, ())))[:, 0], goal.expand(4, -1, -1))

    built = trained(Cell(), loss, adam(2e-3), in_batches(1, torch.zeros(60, 1)), limit_train_batches=40)
    return built._replace(module=Growing(Cell(), loss, adam(2e-3)))
