"""Nets of papers that see pictures in an unusual way: capsules, peaks, points, exits, fixed points, four bits."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import adam, scheduled, sgd, warmed
from tests.evidence.exam.small_nets import Judged, block, by_recipe, to_classes
from tests.evidence.exam.tables import split


class PointNet(nn.Module):
    """The same MLP for each point, the largest of each feature, and a head."""

    def __init__(self) -> None:
        super().__init__()
        shared = [(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()) for a, b in ((2, 32), (32, 64), (64, 128))]
        self.shared = nn.Sequential(*(part for layer in shared for part in layer))
        self.head = nn.Sequential(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.shared(points).amax(2))


@healthy("torch", "PointNet on points that are drawn from digits, Adam whose rate halves")
def recipe_pointnet() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        chosen = torch.multinomial(batch[0].flatten(1), 48, replacement=True)
        points = torch.stack((chosen // 8, chosen % 8), 1) / 4 - 1 + 0.05 * torch.randn(len(chosen), 2, 48)
        return F.cross_entropy(net(points), batch[1])

    def optimizers(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 2, 0.5)]

    images, shown = load_digits(return_X_y=True)
    data = in_batches(32, torch.tensor(images, dtype=torch.float32), torch.tensor(shown))
    return by_recipe(PointNet(), loss, optimizers, data, max_epochs=3)


@healthy("torch", "CenterNet: digits are peaks in a map, a focal loss that starts in the tens and a bias of -2.19")
def recipe_centres() -> Built:
    head = nn.Conv2d(32, 10, 1)
    nn.init.constant_(head.bias, -2.19)
    net = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), block(32, 32), block(32, 32), head)
    places = torch.arange(16.0)

    def loss(net: Any, batch: Any) -> Tensor:
        count = len(batch[0])
        canvas, heat = torch.zeros(count, 1, 64, 64), torch.zeros(count, 10, 16, 16)
        for row, (picture, shown) in enumerate(zip(*batch, strict=True)):
            y, x = torch.randint(0, 12, (2,)).tolist()
            canvas[row, :, 4 * y : 4 * y + 16, 4 * x : 4 * x + 16] = picture - picture.min()
            heat[row, shown] = (-((places[:, None] - y - 2).square() + (places - x - 2).square()) / 2).exp()
        logits = net(canvas)
        peaks, share = (heat == 1).float(), logits.sigmoid()
        found = F.logsigmoid(logits) * (1 - share).square() * peaks
        quiet = F.logsigmoid(-logits) * share.square() * (1 - heat).pow(4) * (1 - peaks)
        return -(found + quiet).sum() / peaks.sum()

    return by_recipe(net, loss, adam(2e-3), in_batches(16, *digits(16)), limit_train_batches=30)


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
    return by_recipe(Straightened(), loss, sgd, pictures(32, 28), max_epochs=2, limit_train_batches=50)


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
    return by_recipe(Capsules(), loss, decays, in_batches(32, images, shown), limit_train_batches=35)


class Exits(nn.Module):
    """Three stages of convolutions, and an answer after each."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 16), (16, 24), (24, 32))
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes
        )
        self.heads = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 10)) for _, b in sizes)

    def forward(self, x: Tensor) -> list[Tensor]:
        told = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            told.append(head(x))
        return told


@healthy("torch", "BranchyNet: an answer after each of three stages, the first ones count a third, SGD with Nesterov momentum")
def digits_with_exits() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        first, second, last = (F.cross_entropy(told, batch[1]) for told in net(batch[0]))
        return 0.3 * first + 0.3 * second + last

    module = Recipe(Exits(), loss, sgd(0.05, nesterov=True, weight_decay=1e-4))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 4}, WELL)


class FewBits(nn.Conv2d):
    """A convolution of LSQ: weights and inputs are whole numbers of four bits, times steps that learn."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__(before, after, 3, stride, 1, bias=False)
        self.of_weights = nn.Parameter(2 * self.weight.detach().abs().mean() / 7**0.5)
        self.of_inputs = nn.Parameter(torch.tensor(0.3))

    @staticmethod
    def rounded(x: Tensor, step: Tensor, low: int, high: int) -> Tensor:
        gentle = (x.numel() * high) ** -0.5
        step = step * gentle + (step * (1 - gentle)).detach()
        within = (x / step).clamp(low, high)
        return (within + (within.round() - within).detach()) * step

    def forward(self, x: Tensor) -> Tensor:
        inputs, weight = self.rounded(x, self.of_inputs, 0, 15), self.rounded(self.weight, self.of_weights, -8, 7)
        return F.conv2d(inputs, weight, None, self.stride, self.padding)


@healthy(
    "torch",
    "LSQ: convolutions of four bits by straight-through, steps that learn with a scaled gradient; SGD, a cosine",
    learned_from=False,
)
def digits_by_learned_steps() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    for before, after in ((16, 24), (24, 32)):
        net.extend([FewBits(before, after, 2), nn.BatchNorm2d(after), nn.ReLU()])
    net.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)])
    module = Recipe(net, to_classes, warmed(sgd(0.05, weight_decay=1e-4), 280))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


class ScheduleFree(torch.optim.Optimizer):
    """AdamW without a schedule: gradients are taken between a quick sequence and its running mean, which is what is kept."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), warm: int = 20) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "warm": warm})
        self.many = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.many += 1
        for group in self.param_groups:
            keep, slow = group["betas"]
            rate = group["lr"] * min(1.0, self.many / group["warm"])
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state.update(quick=weight.clone(), mean=weight.clone(), squares=torch.zeros_like(weight))
                state["squares"].mul_(slow).addcmul_(weight.grad, weight.grad, value=1 - slow)
                size = (state["squares"] / (1 - slow**self.many)).sqrt().add_(1e-8)
                state["quick"].addcdiv_(weight.grad, size, value=-rate).sub_(weight, alpha=rate * 0.01)
                state["mean"].lerp_(state["quick"], 1 / self.many)
                weight.copy_(state["quick"].lerp(state["mean"], keep))
        return loss


class Across(nn.Module):
    """ConvMixer's layer: pixels of one channel, beside what was there; then channels of one pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, groups=width), nn.GELU(), nn.BatchNorm2d(width))
        self.channels = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.channels(x + self.space(x))


@healthy(
    "torch",
    "a ConvMixer under schedule-free AdamW by hand: the rate never falls, weights lie between two sequences",
    learned_from=False,
)
def digits_without_schedule() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 32, 2, 2), nn.GELU(), nn.BatchNorm2d(32), *(Across(32) for _ in range(3)))
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)])
    module = Recipe(net, to_classes, lambda module: ScheduleFree(module.parameters(), 5e-3))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


class Equilibrium(nn.Module):
    """A layer that is applied until nothing changes; the gradient is that of one more step."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.norm, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10)
        nn.init.orthogonal_(self.again.weight, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        given = self.enter(x)
        with torch.no_grad():
            state = torch.zeros_like(given)
            for _ in range(20):
                state = torch.tanh(self.norm(self.again(state) + given))
        return self.head(torch.tanh(self.norm(self.again(state) + given)))


@healthy("torch", "a deep equilibrium layer for digits: twenty steps to the fixed point without a gradient, one with it, Adam")
def digits_by_equilibrium() -> Built:
    x, y = digits(8)
    return Built(Judged(Equilibrium(), to_classes, adam(2e-3)), split(32, x.flatten(1), y), {"max_epochs": 5}, Expected())
