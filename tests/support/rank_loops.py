"""Loops without a Trainer in two processes, and the same in one; what a rank finds is pickled for the test to compare."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from lightning_hooks import TrainingMonitor, watch
from tests.support.two_processes import hand_over

BATCHES, SIZE, CLIP = 6, 8, 0.05


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


def batches(rank: int, ranks: int) -> list[tuple[Tensor, Tensor]]:
    """This rank's part of each batch."""
    generator = torch.Generator().manual_seed(1)
    whole = [(torch.randn(SIZE, 4, generator=generator), torch.randint(0, 3, (SIZE,), generator=generator)) for _ in range(BATCHES)]
    return [(x[rank::ranks], y[rank::ranks]) for x, y in whole]


def plain(kind: str, rank: int, ranks: int) -> dict[str, Any]:
    net: Any = Net()
    model = net
    if kind == "ddp" and ranks > 1:
        model = DistributedDataParallel(net)
    if kind == "fsdp2" and ranks > 1:
        from torch.distributed.fsdp import fully_shard

        for layer in (net.first, net.last):
            fully_shard(layer)
        fully_shard(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, every_n_steps=1, summary=False, report_every_n_steps=None) as monitor:
        for x, y in batches(rank, ranks):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
        return monitor.end_window()


def in_fabric(rank: int, ranks: int) -> dict[str, Any]:
    monitor = TrainingMonitor(every_n_steps=1, summary=False, report_every_n_steps=None)
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", callbacks=[monitor])
    if ranks > 1:
        fabric.launch()
    net = Net()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for x, y in batches(rank, ranks):
        fabric.backward(nn.functional.cross_entropy(model(x), y))
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        optimizer.zero_grad()
    fabric.call("on_train_end")
    return {"features": monitor.features, "gradients": monitor.gradients, "clipping": monitor.clipping}


def run(case: str, rank: int, ranks: int) -> dict[str, Any]:
    return in_fabric(rank, ranks) if case == "fabric" else plain(case, rank, ranks)


CASES = ("ddp", "fsdp2", "fabric")


def bad_sample(folder: Path | None) -> dict[str, Any]:
    """DDP with buffers that ranks exchange, and a sample of one rank whose logarithm is infinite."""
    from tests.hosts.test_loop_replay import Net as WithBuffers
    from tests.hosts.test_loop_replay import adam, first, left_by, loader, loss_of

    net = WithBuffers()
    model = DistributedDataParallel(net)
    data, optimizer, losses = loader("log"), adam(net), []
    data = DataLoader(data.dataset, 8, sampler=DistributedSampler(data.dataset, seed=2))
    function = loss_of(model)
    given = {} if folder is None else {"loss_function": function, "log_dir": folder}
    with watch(model, optimizer, summary=False, **given) as monitor:
        for batch in data if folder is None else monitor.batches(data):
            loss = function(batch) if folder is None else monitor.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
            losses.append(loss.item())
    alert = first(monitor)
    return {"left": left_by(net, losses, optimizer), "samples": alert.samples, "text": alert.seen}


if __name__ == "__main__":
    rank, folder = int(os.environ["LOCAL_RANK"]), Path(sys.argv[1])
    os.environ["RANK"] = str(rank)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    found = {case: run(case, rank, 2) for case in CASES}
    found["replay"] = {"without": bad_sample(None), "with": bad_sample(folder)}
    hand_over(folder, found)
