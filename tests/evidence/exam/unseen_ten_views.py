"""Healthy trainings on pictures: views without labels, patches, standardised filters, a body that thaws, places of digits."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.optimizers import ByWeight
from tests.evidence.exam.pictures import digits, in_batches, views
from tests.evidence.exam.unseen_eight_tables import WELL
from tests.evidence.exam.unseen_eight_wiring import convolutions
from tests.evidence.exam.unseen_nine_pictures import warmed
from tests.evidence.exam.unseen_nine_transfer import taught


class Lars(ByWeight):
    """SGD with momentum; the step of a matrix is in proportion to its own norm."""

    def __init__(self, parameters: Any, lr: float, momentum: float = 0.9, weight_decay: float = 1e-5, trust: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @override
    def update(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        way = weight.grad
        if weight.dim() > 1:
            way = way + group["weight_decay"] * weight
            way = way * group["trust"] * weight.norm() / (way.norm() + 1e-9)
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.mul_(group["momentum"]).add_(way)
        weight.sub_(group["lr"] * momentum)


def redundancy(first: Tensor, second: Tensor) -> Tensor:
    """Barlow Twins' loss: each column agrees with itself in the other view, and with no other one."""
    a, b = ((codes - codes.mean(0)) / (codes.std(0) + 1e-5) for codes in (first, second))
    products = a.T @ b / len(a)
    own = products.diagonal()
    return (1 - own).square().sum() + 0.01 * (products.square().sum() - own.square().sum())


def projected(width: int = 64) -> nn.Sequential:
    """The convolutions with a projector."""
    return convolutions().extend([nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, width)])


@healthy("torch", "Barlow Twins: columns of two views' codes agree with themselves alone; LARS by hand, warm-up and cosine")
def digits_by_twins() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return redundancy(net(batch[0]), net(batch[1]))

    module = Recipe(projected(), loss, warmed(lambda module: Lars(module.parameters(), 0.5), 196))
    return Built(module, views(64), {"max_epochs": 7}, WELL)


class AgainstQueue(Recipe):
    """MoCo: a view's code is found among those of other pictures, which a slow copy made in the batches before."""

    queue: Tensor

    def __init__(self) -> None:
        quick = projected(32)
        nets = nn.ModuleDict({"quick": quick, "slow": copy.deepcopy(quick).requires_grad_(False)})
        super().__init__(nets, None, warmed(self.with_decay, 224))
        self.register_buffer("queue", F.normalize(torch.randn(256, 32), dim=1))

    def with_decay(self, module: Any) -> Any:
        return torch.optim.AdamW(module.net["quick"].parameters(), 3e-3, weight_decay=1e-4)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for slow, quick in zip(self.net["slow"].parameters(), self.net["quick"].parameters(), strict=True):
                slow.lerp_(quick, 0.1)
            keys = F.normalize(self.net["slow"](batch[1]), dim=1)
        codes = F.normalize(self.net["quick"](batch[0]), dim=1)
        scores = torch.cat([(codes * keys).sum(1, keepdim=True), codes @ self.queue.T], 1) / 0.1
        self.queue = torch.cat([keys, self.queue[: -len(keys)]])
        return F.cross_entropy(scores, torch.zeros(len(codes), dtype=torch.long))


@healthy("torch", "MoCo: a view is found among a queue of codes of other pictures by a slow copy; AdamW, warm-up, cosine")
def digits_against_a_queue() -> Built:
    return Built(AgainstQueue(), views(64), {"max_epochs": 8}, WELL)


class Patches(nn.Module):
    """A small ViT with a class token; whole branches are dropped at times."""

    def __init__(self, width: int = 40, layers: int = 2) -> None:
        super().__init__()
        self.stem, self.token = nn.Conv2d(1, width, 4, 4), nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.layers, self.norm, self.head = nn.ModuleList(), nn.LayerNorm(width), nn.Linear(width, 10)
        for _ in range(layers):
            parts = {"first": nn.LayerNorm(width), "attention": nn.MultiheadAttention(width, 4, batch_first=True)}
            second = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            self.layers.append(nn.ModuleDict({**parts, "second": second}))

    def dropped(self, branch: Tensor, rate: float) -> Tensor:
        if not self.training or rate == 0:
            return branch
        return branch * (torch.rand(len(branch), 1, 1) >= rate) / (1 - rate)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        for i, layer in enumerate(self.layers):
            parts: Any = layer
            seen = parts["first"](x)
            x = x + self.dropped(parts["attention"](seen, seen, seen, need_weights=False)[0], 0.05 * i)
            x = x + self.dropped(parts["second"](x), 0.05 * i)
        return self.head(self.norm(x[:, 0]))


@healthy("torch", "a ViT as it is fine-tuned: mixup, smoothed labels, dropped branches, a rate for each layer, AdamW")
def digits_in_patches() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        images, shown = batch
        share, order = float(torch.distributions.Beta(0.2, 0.2).sample()), torch.randperm(len(images))
        told = net(share * images + (1 - share) * images[order])
        first, second = (F.cross_entropy(told, labels, label_smoothing=0.05) for labels in (shown, shown[order]))
        return share * first + (1 - share) * second

    def optimizers(module: Any) -> Any:
        net, rate = module.net, 3e-3
        groups = [{"params": [*net.norm.parameters(), *net.head.parameters()], "lr": rate}]
        for i, layer in enumerate(net.layers):
            groups.append({"params": list(layer.parameters()), "lr": rate * 0.75 ** (2 - i)})
        groups.append({"params": [*net.stem.parameters(), net.token, net.positions], "lr": rate * 0.75**3})
        return torch.optim.AdamW(groups, rate, betas=(0.9, 0.95), weight_decay=0.05)

    module = Recipe(Patches(), loss, warmed(optimizers, 336, 40))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 6, "gradient_clip_val": 1.0}, WELL)


class Standardised(nn.Conv2d):
    """A convolution whose filters have mean 0 and deviation 1, up to a scale."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5) / self.weight[0].numel() ** 0.5
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class Ahead(nn.Module):
    """A pre-activation block of a ResNet with group norm; its last norm begins at 0.2."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, before), nn.GroupNorm(4, after)])
        self.first, self.second = Standardised(before, after, 3, stride, 1), Standardised(after, after, 3, 1, 1)
        self.past = nn.Conv2d(before, after, 1, stride)
        nn.init.constant_(self.norms[1].weight, 0.2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.norms[0](x).relu())
        return self.past(x) + self.second(self.norms[1](hidden).relu())


@healthy("torch", "BiT's recipe: a ResNet with group norm and standardised filters, Nesterov's momentum, one cycle, cutout")
def digits_by_standardised_filters() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), Ahead(16, 24, 2), Ahead(24, 32, 2), nn.GroupNorm(4, 32), nn.ReLU())
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)])

    def loss(net: Any, batch: Any) -> Tensor:
        images, place = batch[0].clone(), torch.randint(0, 12, (2,)).tolist()
        images[:, :, place[0] : place[0] + 4, place[1] : place[1] + 4] = 0
        return F.cross_entropy(net(images), batch[1])

    def cycle(module: Any) -> Any:
        chosen = torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(chosen, 0.3, total_steps=280)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Built(Recipe(net, loss, cycle), in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


class ThawsLater(Recipe):
    """A head learns over a trained body that stays; then the body joins at a tenth of the rate, its norms as they are."""

    def __init__(self, body: nn.Module, head: nn.Module, since: int) -> None:
        nets = nn.ModuleDict({"body": body.requires_grad_(False), "head": head})
        super().__init__(nets, self.tells, lambda module: torch.optim.Adam(module.net["head"].parameters(), 3e-3))
        self.since = since

    @staticmethod
    def tells(nets: Any, batch: Any) -> Tensor:
        return F.cross_entropy(nets["head"](nets["body"](batch[0])), batch[1])

    def on_train_epoch_start(self) -> None:
        self.net["body"].eval()
        if self.current_epoch == self.since:
            body = list(self.net["body"].requires_grad_(True).parameters())
            chosen: Any = self.optimizers()
            chosen.param_groups[0]["lr"] = 1e-3
            chosen.add_param_group({"params": body, "lr": 3e-4})


@healthy("torch", "transfer in two stages: a head learns over a frozen body in eval mode, then the body joins at a lower rate")
def digits_thawed_in_stages() -> Built:
    images, shown = digits(16)
    small = shown < 5
    body = convolutions()
    taught(nn.Sequential(body, nn.Linear(64, 5)), images[small], shown[small])
    module = ThawsLater(body, nn.Linear(64, 5), 5)
    return Built(module, in_batches(32, images[~small], shown[~small] - 5), {"max_epochs": 9}, WELL)


def scenes(count: int = 1600) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two digits in a picture; bumps at their middles, one map a kind; how far they are from the grid's, and where."""
    generator = torch.Generator().manual_seed(0)
    images, shown = digits(8)
    dark = float(images.min())
    pictures, bumps = torch.full((count, 1, 24, 24), dark), torch.zeros(count, 10, 6, 6)
    away, where = torch.zeros(count, 2, 6, 6), torch.zeros(count, 1, 6, 6)
    grid = torch.arange(6) * 4 + 1.5
    for row in range(count):
        for half in range(2):
            one = int(torch.randint(0, len(images), (), generator=generator))
            y, x = (int(torch.randint(0, ends, (), generator=generator)) for ends in (17, 5))
            x += 12 * half
            pictures[row, 0, y : y + 8, x : x + 8] = images[one, 0]
            i, j = (y + 4) // 4, (x + 4) // 4
            distance = (grid[:, None] - grid[i]).square() + (grid - grid[j]).square()
            kind = int(shown[one])
            bumps[row, kind] = torch.maximum(bumps[row, kind], (-distance / 8).exp())
            away[row, :, i, j] = (torch.tensor([y + 3.5, x + 3.5]) - torch.stack([grid[i], grid[j]])) / 4
            where[row, 0, i, j] = 1
    return pictures, bumps, away, where


@healthy("torch", "CenterNet: bumps at the middles of two digits under its focal loss, a bias for rare bumps, two batches a step")
def digits_by_their_middles() -> Built:
    body = nn.Sequential(nn.Conv2d(1, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1))
    body.extend([nn.BatchNorm2d(48), nn.ReLU(), nn.Conv2d(48, 64, 3, padding=1), nn.ReLU()])
    nets = nn.ModuleDict({"body": body, "bumps": nn.Conv2d(64, 10, 1), "away": nn.Conv2d(64, 2, 1)})
    nn.init.constant_(nets["bumps"].bias, -2.19)  # type: ignore[arg-type]

    def loss(nets: Any, batch: Any) -> Tensor:
        images, bumps, away, where = batch
        hidden = nets["body"](images)
        told, many = nets["bumps"](hidden), where.sum()
        chance, here = told.sigmoid(), bumps == 1
        missed = torch.where(here, (1 - chance).square() * F.logsigmoid(told), (1 - bumps) ** 4 * chance**2 * F.logsigmoid(-told))
        return -missed.sum() / many + ((nets["away"](hidden) - away).abs() * where).sum() / many

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.parameters(), 5e-3, weight_decay=1e-4)

    options = {"max_epochs": 8, "accumulate_grad_batches": 2}
    return Built(Recipe(nets, loss, optimizers), in_batches(32, *scenes()), options, WELL)
