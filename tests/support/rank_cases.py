"""Trainings that run alike in two DDP processes and in one; what a rank finds is pickled for the test to compare."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_hooks import ActivationPruner, GradientClipMonitor, monitors
from lightning_hooks.alerts import AlertError
from lightning_hooks.hosts.lightning_adapter import Adapter
from tests.support.models import Classifier, trainer
from tests.support.two_processes import hand_over


class Net(nn.Module):
    """An MLP with a branch for marked inputs only, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)
        self.sometimes, self.never, self.odd = nn.ReLU(), nn.ReLU(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] > 50).all()):
            self.sometimes(x)
        if bool((x[:, 0] < -50).any()):
            self.odd(x * torch.nan)
            x = x.clamp(min=-2)
        return self.second(self.act(self.first(x)))


class SumLoss(Classifier):
    """Averages the loss over a fixed number, so that uneven shards weigh like one batch."""

    def __init__(self, divisor: float) -> None:
        torch.manual_seed(0)
        super().__init__(Net(), lr=0.05)
        self.divisor = divisor

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y, reduction="sum") / self.divisor


class Breaks(SumLoss):
    """Its loss is NaN where an input is marked."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.nan if bool((batch[0][:, 0] < -50).any()) else loss


def batches(case: str) -> list[list[tuple[Tensor, Tensor]]]:
    """Per global step, each rank's shard."""
    generator = torch.Generator().manual_seed(3)
    sizes = [(4, 4), (4, 4), (4, 4)] if case != "uneven" else [(4, 4), (5, 2), (1, 6)]
    steps = []
    for step, pair in enumerate(sizes):
        shards = []
        for rank, size in enumerate(pair):
            x = torch.randn((size, 8), generator=generator)
            if case == "one_rank_only" and rank == 1 and step > 0:
                x[:, 0] = 100.0
            if case in ON_ALERT and rank == 1 and step == 1:
                x[0, 0] = -100.0
            shards.append((x, torch.randint(0, 3, (size,), generator=generator)))
        steps.append(shards)
    return steps


class Shards(Dataset[Any]):
    """Whole batches, chosen by rank; one process gets both shards joined (or in turn, where each must keep its own forward)."""

    def __init__(self, case: str, rank: int, world: int) -> None:
        steps = batches(case)
        if world == 2:
            self.items = [shards[rank] for shards in steps]
        elif case == "one_rank_only":
            self.items = [shard for shards in steps for shard in shards]
        else:
            self.items = [tuple(torch.cat(parts) for parts in zip(*shards, strict=True)) for shards in steps]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class CountCollectives(Callback):
    """Counts what an epoch's end sends."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def wrap(self, monitor: Any) -> None:
        original = monitor.on_train_epoch_end

        def counted(*args: Any) -> None:
            calls = []
            names = ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "broadcast", "barrier", "gather")
            saved = {name: getattr(torch.distributed, name) for name in names}
            for name in names:
                setattr(torch.distributed, name, lambda *a, _f=saved[name], **k: (calls.append(1), _f(*a, **k))[1])
            try:
                original(*args)
            finally:
                for name in names:
                    setattr(torch.distributed, name, saved[name])
            self.counts.append(len(calls))

        monitor.on_train_epoch_end = counted
        self.unwrap = lambda: setattr(monitor, "on_train_epoch_end", original)


def prune(world: int, rank: int) -> dict[str, Any]:
    """Two epochs in which one module runs on one rank only; a checkpoint in the middle of the second."""
    pruner = ActivationPruner(modules=["net.first", "net.sometimes", "net.second"], amount=0.5, end_epoch=1, summary=False)
    counting = CountCollectives()
    counting.wrap(pruner)
    kwargs = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False} if world == 2 else {"accumulate_grad_batches": 2}
    run = trainer([pruner], max_epochs=2, **kwargs)
    model = SumLoss(divisor=4.0)
    run.fit(model, DataLoader(Shards("one_rank_only", rank, world), batch_size=None))
    masks = {name: mask.tolist() for name, mask in pruner.masks.items()}
    return {"report": pruner.report, "masks": masks, "collectives": counting.counts}


class Branches(Classifier):
    """Two branches, of which the other comes first at every second batch and on every second rank; one vanishes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(16, 3), lr=0.05)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        if (self.global_rank + batch_idx) % 2 == 0:
            left = self.left(x)
            right = self.right(x)
        else:
            right = self.right(x)
            left = self.left(x)
        return nn.functional.cross_entropy(self.net(torch.cat([1e-6 * left, right], 1)), y)


class NanOnOneRank(SumLoss):
    """Its loss is NaN in rank 1's third batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.nan if batch_idx == 2 and self.global_rank == 1 else loss


class Apart(Classifier):
    """Steps by hand. Rank 1 alone uses a part that is built like another and has an optimizer; DDP leaves that part alone."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))
        self.automatic_optimization = False
        self.part = copy.deepcopy(self.net[0])
        self.tokens = Tokens()
        self._ddp_params_and_buffers_to_ignore = ["part.weight", "part.bias"]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.tokens(x, self.global_rank == 1)
        loss = nn.functional.cross_entropy(self.net(x), y)
        if self.global_rank == 1:
            loss = loss + (x @ self.part.weight).mean()
        self.manual_backward(loss * torch.nan if (self.current_epoch, batch_idx, self.global_rank) == (1, 2, 1) else loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.net, self.part)]


class Tokens(nn.Module):
    """Puts out integers where it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.table = Numbers()

    def forward(self, x: Tensor, called: bool) -> None:
        if called:
            self.table(x)


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0).long()


class Nodes(Callback):
    """Post-local SGD with one rank a node: gradients are not averaged over the ranks, the models now and then would be."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        alone = torch.distributed.new_subgroups(group_size=1)[0]
        state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
        trainer.strategy.model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)


def by_rank(case: str, rank: int) -> dict[str, Any]:
    """A training in which ranks call, or get, something else; a rank that waits for the other gives up after some seconds."""
    ours = monitors(every_n_steps=1, summary=False, on_alert="stop" if case == "branches" else "log",
                    check_every_n_steps=None if case == "branches" else 1)  # fmt: skip
    reported: list[Any] = []
    for monitor in ours:
        monitor.subscribe(reported.append)
    strategy = DDPStrategy(timeout=timedelta(seconds=40), process_group_backend="gloo")
    callbacks = [*ours, Nodes()] if case == "nodes" else list(ours)
    run = trainer(callbacks, max_epochs=3, strategy=strategy, devices=2, use_distributed_sampler=False)
    model = {"nodes": lambda: NanOnOneRank(8.0), "branches": Branches, "apart": Apart}[case]()
    run.fit(model, DataLoader(Shards("even", rank, 2), batch_size=None))
    return {
        "reports": [monitor.report for monitor in ours],
        "reported": reported,
        "epochs": run.current_epoch,
        "faults": [monitor.faults.errors for monitor in ours],
    }


class ClipsOnRankZero(SumLoss):
    """Has larger gradients on rank 1, step by step more so, and forgets to clip them there; keeps the norms of its steps."""

    def __init__(self) -> None:
        super().__init__(divisor=4.0)
        self.before: list[float] = []
        self.after: list[float] = []

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad *= 1.0 + self.global_rank * (1 + self.global_step)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        self.before.append(self.norm())
        if self.global_rank == 0:
            self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm="norm")
        self.after.append(self.norm())

    def norm(self) -> float:
        return float(torch.stack([p.grad.double().norm() for p in self.parameters() if p.grad is not None]).norm())


def clip_by_rank(rank: int) -> dict[str, Any]:
    clip = GradientClipMonitor(summary=False)
    model = ClipsOnRankZero()
    run = trainer([clip], strategy="ddp", devices=2, use_distributed_sampler=False, gradient_clip_val=0.2)
    run.fit(model, DataLoader(Shards("even", rank, 2), batch_size=None))
    return {"report": clip.report, "before": model.before, "after": model.after}


# Cases with trouble on rank 1 at its second batch. In early_gradient the NaN is in the loss, elsewhere aside of it.
ON_ALERT = {"stop": "stop", "raise": "raise", "early_stop": "stop", "early_raise": "raise", "early_gradient": "stop"}
BY_RANK = ("branches", "nodes", "apart")
CASES = ("even", "windows", "uneven", "one_rank_only", "prune", "clip_by_rank", *ON_ALERT, *BY_RANK)


def run_case(case: str, world: int, rank: int = 0) -> dict[str, Any]:
    if case == "prune":
        return prune(world, rank)
    if case in BY_RANK:
        return by_rank(case, rank)
    if case == "clip_by_rank":
        return clip_by_rank(rank)
    ours = monitors(
        every_n_steps=1,
        summary=False,
        histograms=True,
        on_alert=ON_ALERT.get(case, "log"),
        check_every_n_steps=2 if case.startswith("early") else None,
        report_every_n_steps=2 if case == "windows" else None,
    )
    counting = CountCollectives()
    counting.wrap(Adapter)  # whose epoch end is that of all monitors
    reported: list[Any] = []
    for monitor in ours:
        monitor.subscribe(reported.append)
    kwargs: dict[str, Any] = {"max_epochs": 3 if case in ON_ALERT else 1}
    if world == 2:
        kwargs.update(strategy="ddp", devices=2, use_distributed_sampler=False)
    if case == "one_rank_only" and world == 1:
        kwargs["accumulate_grad_batches"] = 2
    run = trainer(list(ours), gradient_clip_val=0.2, **kwargs)
    # Under DDP each rank's loss counts half of what one process's does, so it is summed over twice as little.
    model = (Breaks if case == "early_gradient" else SumLoss)(divisor=4.0 if world == 2 or case == "one_rank_only" else 8.0)
    error = None
    try:
        run.fit(model, DataLoader(Shards(case, rank, world), batch_size=None))
    except AlertError as raised:
        error = type(raised).__name__
    finally:
        counting.unwrap()
    return {
        "reports": [monitor.report for monitor in ours],
        "windows": [list(monitor.history) for monitor in ours],
        "histograms": [monitor.histograms for monitor in ours],
        "collectives": counting.counts,
        "epochs": ours[0].report.epoch + 1 if ours[0].report else 0,
        "alerts": [(alert.kind, alert.site) for monitor in ours if monitor.report for alert in monitor.report.alerts],
        "error": error,
        "reported": reported,
        "steps": run.global_step,
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
    }


class Save(Callback):
    """Writes each spawned rank's reports, which the parent process never sees."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        reports = [callback.report for callback in trainer.callbacks if hasattr(callback, "report")]
        Path(self.folder, f"spawn-{trainer.global_rank}.pickle").write_bytes(pickle.dumps(reports))


class RankShards(TensorDataset):
    """The shard of whichever rank asks."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(3))

    def __getitem__(self, index: int) -> Any:
        return Shards("even", torch.distributed.get_rank(), 2)[index]


def spawn(folder: str) -> None:
    ours = monitors(every_n_steps=1, summary=False)
    run = trainer([*ours, Save(folder)], strategy="ddp_spawn", devices=2, gradient_clip_val=0.2, use_distributed_sampler=False)
    run.fit(SumLoss(divisor=4.0), DataLoader(RankShards(), batch_size=None))


if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    found = {case: run_case(case, world=2, rank=rank) for case in CASES}
    hand_over(Path(sys.argv[1]), found)
