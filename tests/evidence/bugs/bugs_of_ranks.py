"""Bugs of two ranks, of the same collection (TrainCheck, OSDI 2025) and of an issue, each with its twin."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.bugs.cases import Built, Expected, bug
from tests.evidence.bugs.parts import ByHand, Digits, digits, mlp, sgd, two_ranks
from tests.evidence.faults import data


class PastDdp(ByHand):
    """Every second batch calls the bare module and ``backward`` past DDP."""

    def __init__(self, net: nn.Module, past: bool) -> None:
        super().__init__(net)
        self.past = past

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        if self.past and batch_idx % 2 == 0:
            loss.backward()
        else:
            self.manual_backward(loss)
        optimizer.step()


@bug("x.com/jxmnop/status/1778520637193240892", "every second batch goes past the DDP wrapper", processes=2)
def past_the_ddp_wrapper(planted: bool = True) -> Built:
    return Built(PastDdp(mlp(), planted), digits(batch_size=24), two_ranks(), Expected(("ranks_differ",)))


class Moved(Digits):
    """Replaces its parameters when DDP has wrapped them already, as moving a model to another device and back did."""

    def on_train_start(self) -> None:
        self.net[0] = copy.deepcopy(self.net[0])
        self.trainer.optimizers[0].param_groups[0]["params"][:2] = list(self.net[0].parameters())


@bug("pytorch/pytorch#104336", "parameters that are moved after DDP has wrapped them", processes=2)
def parameters_moved_after_ddp(planted: bool = True) -> Built:
    kind = Moved if planted else Digits
    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=True)
    return Built(
        kind(mlp()), digits(batch_size=24), {**two_ranks(), "strategy": strategy}, Expected(("ranks_differ",), ("net.0*",))
    )


class ClipsByOwnNorm(Digits):
    """The norms' weights are copies on each rank, and are clipped by a norm to which the rank's own shard adds."""

    def __init__(self, net: nn.Module, own_norm: bool) -> None:
        super().__init__(net, sgd(0.05))
        self.own_norm = own_norm

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        norms = [p for m in self.net.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]
        norm = torch.stack([p.grad.norm() for p in norms]).norm()
        if self.own_norm:
            norm = norm * (1 + self.global_rank)
        for parameter in norms:
            parameter.grad *= (0.05 / norm).clamp(max=1)


@bug("deepspeedai/DeepSpeed#1801", "norms' weights are clipped by another norm on each rank (BLOOM-176B)", processes=2)
def norm_weights_clipped_by_rank(planted: bool = True) -> Built:
    net = nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10)
    )
    expected = Expected(("ranks_differ",), ("net.1*", "net.4*"))
    return Built(ClipsByOwnNorm(net, planted), digits(batch_size=24), two_ranks(), expected)


class LosesTransfers(Digits):
    """One reduction in fifty gives rank 1 zeros."""

    reductions = 0

    def on_after_backward(self) -> None:
        self.reductions += 1
        if self.reductions % 50 == 10 and self.global_rank == 1:
            for parameter in self.parameters():
                parameter.grad.zero_()  # type: ignore[union-attr]


@bug("pytorch/pytorch#84803", "transfers between devices that give zeros now and then", processes=2)
def transfers_lost(planted: bool = True) -> Built:
    kind = LosesTransfers if planted else Digits
    expected = Expected(("ranks_differ",), None, batch=9)
    return Built(kind(mlp()), digits(batch_size=24), two_ranks(), expected)


@bug("yaak-ai/rbyte#106", "DDP without a DistributedSampler: all ranks get the same batches", processes=2)
def ranks_with_the_same_data(planted: bool = True) -> Built:
    x, y, _, _ = data.digits()
    train = DataLoader(TensorDataset(x, y), 24, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0))
    kwargs = {**two_ranks(), "use_distributed_sampler": not planted}
    return Built(Digits(mlp(), sgd()), {"train_dataloaders": train}, kwargs, Expected(("ranks_same_batch",)))
