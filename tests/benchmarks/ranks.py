"""What a rank's end of a window costs where there are many: ``python -m tests.benchmarks.ranks``.

The process group is torch's ``fake`` one: this process is rank 0 of so many, its collectives return at once, and the other ranks
have what it has. The network's part of a collective is not in it.
"""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from lightning_hooks import watch
from lightning_hooks.statistics.reduction import Span, TableIndex, over_ranks
from lightning_hooks.statistics.rows import N_COLUMNS, Column, empty_table


def sent_by_tables(modules: int, units: int, ranks: int) -> dict[str, float]:
    """Collectives, and megabytes that a rank sends: of the outputs of so many modules, and which of so many units ever fired."""
    from lightning_hooks.diagnostics.features.table import _fired_anywhere

    sent: dict[str, float] = {}
    for name, tables in (
        ("sums", [((Span(modules * N_COLUMNS, Column.merge()),), empty_table(modules).reshape(-1))]),
        ("units", [((Span(units, _fired_anywhere),), torch.zeros(units, dtype=torch.float64))]),
    ):
        calls: list[Tensor] = []
        over_ranks(tables, TableIndex(0, ranks), lambda tensor, _, kept=calls: kept.append(tensor))
        sent[name] = sum(tensor.numel() * tensor.element_size() for tensor in calls) / 1e6
    return sent


def window_end(modules: int, ranks: int) -> dict[str, float]:
    """A window of ``watch`` on rank 0: collectives, megabytes sent, seconds, and how much the process's memory grows at most."""
    sent: list[int] = []
    if ranks > 1:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        reduce = torch.distributed.all_reduce

        def all_reduce(tensor: Tensor, *args: Any) -> None:
            sent.append(tensor.numel() * tensor.element_size())
            reduce(tensor, *args)

        def all_gather_object(found: list[Any], own: Any) -> None:
            pickled = pickle.dumps(own)
            sent.append(len(pickled))
            found[:] = [pickle.loads(pickled) for _ in found]

        torch.distributed.all_reduce, torch.distributed.all_gather_object = all_reduce, all_gather_object
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(modules // 2):
        layers += [nn.Linear(4, 4), nn.ReLU()]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with watch(model, optimizer, every_n_steps=1, report_every_n_steps=None, summary=False) as monitor:
        for _ in range(3):
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
        sent.clear()
        began, trained = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        monitor.end_window()
        seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = {"training": (trained - before) / 1e3, "more": (after - trained) / 1e3}  # from kilobytes
    return {"collectives": len(sent), "MB": sum(sent) / 1e6, "s": seconds, **megabytes}


def main() -> None:
    """Print the tables, each window in a process of its own."""
    print(
        "| modules | ranks | collectives | MB sent | s of rank 0 | MB of memory in training | MB more at the end |\n|" + "---|" * 7
    )
    for modules in (100, 1_000, 10_000):
        for ranks in (1, 2, 64, 1_024):
            command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.ranks", str(modules), str(ranks)]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1], flush=True)
    print("\n| ranks | MB sent of 10 000 modules' sums | MB sent of 100 000 units |\n|---|---|---|")
    for ranks in (2, 8, 64, 1_024, 4_096):
        found = sent_by_tables(10_000, 100_000, ranks)
        print(f"| {ranks} | {found['sums']:.2f} | {found['units']:.2f} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:]:
        modules, ranks = map(int, sys.argv[1:])
        found = window_end(modules, ranks)
        numbers = f"{found['collectives']} | {found['MB']:.2f} | {found['s']:.2f} | {found['training']:.0f} | {found['more']:.0f}"
        print(f"| {modules} | {ranks} | {numbers} |")
    else:
        main()
