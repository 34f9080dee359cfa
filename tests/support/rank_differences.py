"""Trainings on 2 to 8 real processes over gloo in which ranks are not alike; what each found is pickled for the test to compare.

The processes are forked from one that has imported everything, so that eight of them start as soon as two.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import lightning_hooks
from lightning_hooks import FeatureStatsMonitor, TrainingMonitor, monitors, watch
from tests.support.models import Classifier, trainer
from tests.support.two_processes import free_port

TIMEOUT = 8.0
"""Seconds that a collective of the training waits."""
BAD = 5
"""The batch of the first epoch at which something happens on rank 1."""
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast", "reduce", "barrier")


def data(rank: int, batches: int = 10) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn((4, 8), generator=generator), torch.randint(0, 3, (4,), generator=generator)) for _ in range(batches)]


class Net(Classifier):
    """Calls a function on rank 1 at one batch."""

    def __init__(self, layers: int = 1, at_bad: Callable[[], Any] = lambda: None) -> None:
        torch.manual_seed(0)
        hidden = [layer for _ in range(layers) for layer in (nn.Linear(8, 8), nn.ReLU())]
        super().__init__(nn.Sequential(*hidden, nn.Linear(8, 3)))
        self.at_bad = at_bad

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if (self.global_rank, batch_idx, self.current_epoch) == (1, BAD, 0):
            self.at_bad()
        return super().training_step(batch, batch_idx)


def count_collectives() -> list[str]:
    """Write down each collective that the package calls from now on, in this process."""
    calls: list[str] = []

    def counting(name: str, function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith("lightning_hooks."):
                calls.append(name)
            return function(*args, **kwargs)

        return counted

    for name in COLLECTIVES:
        setattr(torch.distributed, name, counting(name, getattr(torch.distributed, name)))
    return calls


def fit(
    rank: int,
    world: int,
    folder: Path,
    *,
    model: Net | None = None,
    ours: Any = None,
    batches: int = 10,
    epochs: int = 2,
    **arguments: Any,
) -> dict[str, Any]:
    """A fit with windows of three batches; what this rank has in the end."""
    model = Net() if model is None else model
    if ours is None:
        ours = [TrainingMonitor(**{"every_n_steps": 1, "report_every_n_steps": 3, "report_dir": folder, **arguments})]
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=TIMEOUT))
    run = trainer(ours, max_epochs=2, devices=world, use_distributed_sampler=False, strategy=strategy)
    warned: list[str] = []
    warnings.showwarning = lambda message, *_, **__: warned.append(str(message))  # type: ignore[method-assign]
    calls, error, began = count_collectives(), "", time.perf_counter()
    try:
        run.fit(model, DataLoader(data(rank, batches), batch_size=None))  # type: ignore[arg-type]
    except Exception as raised:  # noqa: BLE001  what is raised is what is tested
        error = f"{type(raised).__name__}: {raised}"
    return {
        "error": error,
        "warnings": [text for text in warned if "anks" in text],
        "seconds": time.perf_counter() - began,
        "hooked": sum(bool(module._forward_hooks or module._forward_pre_hooks) for module in model.modules()),
        "steps": run.global_step,
        "collectives": calls,
        "windows": [
            (report.epoch, report.step) for one in ours if isinstance(one, TrainingMonitor) for report in one.history["gradients"]
        ],
        "losses": model.losses,
    }


def differing(**arguments: tuple[Any, Any]) -> Callable[..., Any]:
    """Ranks with other arguments."""
    return lambda rank, *at: fit(rank, *at, **{name: pair[rank] for name, pair in arguments.items()})


def raises() -> None:
    raise ValueError("no such file")


def trio(chosen: slice) -> list[Any]:
    return list(monitors(every_n_steps=1, report_every_n_steps=3, summary=False))[chosen]


def another_version(rank: int, *at: Any) -> Any:
    lightning_hooks.__version__ = "0.0.1" if rank else "0.1.0"
    return fit(rank, *at)


def step(loss: Tensor, optimizer: torch.optim.Optimizer, monitor: Any) -> None:
    """One step of a plain loop."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss)


def counts(monitor: Any) -> dict[str, Any]:
    """End the window; how many values of each site it has."""
    return {"counts": {name: stats.count for name, stats in monitor.end_window()["features"].sites.items()}}


def stage(names: Callable[[int], list[str]]) -> Callable[..., Any]:
    """A loop over a module of this rank alone, as a stage of a pipeline or local experts are."""

    def loop(rank: int, world: int, folder: Path) -> Any:
        join(rank, world)
        torch.manual_seed(rank)
        model = nn.ModuleDict({name: nn.Linear(8, 8) for name in names(rank)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with watch(model, optimizer, every_n_steps=1, report_every_n_steps=None, summary=False) as monitor:
                for x, _ in data(rank):
                    for layer in model.values():
                        x = layer(x)
                    step(x.square().mean(), optimizer, monitor)
                return counts(monitor)
        except RuntimeError as error:
            return {"error": str(error)}

    return loop


def uneven_loop(window: int | None) -> Callable[..., Any]:
    """A plain loop under DDP's ``join()``, in which rank 1 has fewer batches."""

    def loop(rank: int, world: int, folder: Path) -> Any:
        join(rank, world)
        model = DistributedDataParallel(Net().net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            with watch(model, optimizer, every_n_steps=1, report_every_n_steps=window, summary=False) as monitor:
                with model.join():
                    for x, y in data(rank, 10 - 3 * rank):
                        step(nn.functional.cross_entropy(model(x), y), optimizer, monitor)
                return counts(monitor)
        except RuntimeError as error:
            return {"error": str(error)}

    return loop


def join(rank: int, world: int) -> None:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT))


Case = Callable[[int, int, Path], Any]
COUNTED: dict[str, tuple[int, Case]] = {
    **{str(world): (world, lambda *at: fit(*at)) for world in (2, 4, 8)},
    "deep": (2, lambda *at: fit(*at, model=Net(layers=20))),
    "features alone": (
        2,
        lambda *at: fit(*at, ours=[FeatureStatsMonitor(every_n_steps=1, report_every_n_steps=3, summary=False)]),
    ),
}
ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "learning": (True, False),
    "max_overhead": (0.01, None),
    "on_alert": ("log", "stop"),
    "functional": (True, False),
    "histograms": (True, False),
}
CASES: dict[str, tuple[int, Case]] = {
    **COUNTED,
    "dies": (2, lambda *at: fit(*at, model=Net(at_bad=lambda: os.kill(os.getpid(), signal.SIGKILL)))),
    "raises": (2, lambda *at: fit(*at, model=Net(at_bad=raises))),
    "missing on 1": (2, lambda rank, *at: fit(rank, *at, ours=[] if rank else None)),
    "missing on 0": (2, lambda rank, *at: fit(rank, *at, ours=None if rank else [])),
    "one fewer": (2, lambda rank, *at: fit(rank, *at, ours=trio(slice(3 - rank)))),
    "order": (2, lambda rank, *at: fit(rank, *at, ours=trio(slice(None, None, -1 if rank else 1)))),
    **{name: (2, differing(**{name: pair})) for name, pair in ARGUMENTS.items()},
    "version": (2, another_version),
    "stages": (2, stage(lambda rank: [f"layer{2 * rank + number}" for number in range(2)])),
    "experts": (2, stage(lambda _: ["expert0", "expert1"])),
    "join": (2, uneven_loop(None)),
    "join, windows": (2, uneven_loop(4)),
}


def process(case: Case, rank: int, world: int, port: int, folder: Path) -> None:
    """One rank of a case."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NODE_RANK="0", WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    with (folder / f"{rank}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        found = case(rank, world, folder / "run")
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(found))
    os._exit(0)  # a process group of which a rank is gone may wait at exit


def run_case(name: str, folder: Path) -> None:
    """Fork the ranks of a case, and wait for them."""
    world, case = CASES[name]
    place, port = folder / name, free_port()
    place.mkdir()
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=process, args=(case, rank, world, port, place)) for rank in range(world)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)
        one.kill()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:] or CASES:
        run_case(name, Path(sys.argv[1]))
