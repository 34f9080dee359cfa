"""Trainings in two DDP processes in which ranks hold the same model, and such in which something makes them differ."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor
from tests.support.models import Classifier, trainer
from tests.support.two_processes import hand_over


def data(rank: int) -> Any:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn((40, 8), generator=generator)
    return DataLoader(TensorDataset(x, torch.randint(0, 3, (40,), generator=generator)), batch_size=4)


class Net(Classifier):
    def __init__(self, lr: float = 0.05) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), lr=lr)


class Branches(Net):
    """One branch is used on neither rank, one on rank 1 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.never, self.sometimes = nn.Linear(8, 3), nn.Linear(8, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x) + (self.sometimes(x) if self.global_rank else 0), y)


class Gan(Net):
    """Two optimizers by hand, with two backward passes a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.ModuleDict({"generator": nn.Linear(3, 8), "discriminator": nn.Linear(8, 1)})

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0]
        generator, discriminator = self.optimizers()
        fake = self.net["generator"](torch.randn(4, 3))
        self.toggle_optimizer(discriminator)
        both = self.net["discriminator"](real).mean() - self.net["discriminator"](fake.detach()).mean()
        self.manual_backward(nn.functional.softplus(both))
        discriminator.step()
        discriminator.zero_grad()
        self.untoggle_optimizer(discriminator)
        self.toggle_optimizer(generator)
        self.manual_backward(nn.functional.softplus(self.net["discriminator"](self.net["generator"](torch.randn(4, 3)))).mean())
        generator.step()
        generator.zero_grad()
        self.untoggle_optimizer(generator)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.net[part].parameters(), lr=0.01) for part in ("generator", "discriminator")]


class ByHand(Net):
    """Accumulates two batches by hand, the first of them without a reduction."""

    past_ddp = False

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        if self.past_ddp:
            loss.backward()
        elif batch_idx % 2 == 0:
            with self.trainer.model.no_sync():
                self.manual_backward(loss)
        else:
            self.manual_backward(loss)
        if batch_idx % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()


class PastDDP(ByHand):
    """Calls ``loss.backward()``, which DDP does not know of."""

    past_ddp = True


class Unfreezes(Net):
    """Its first layer is frozen when DDP looks, and trains from the first batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].requires_grad_(False)

    def on_train_start(self) -> None:
        self.net[0].requires_grad_(True)


class LostTransfer(Net):
    """Rank 1's last bias is written by hand in the middle of the epoch."""

    def on_train_batch_end(self, *_: Any) -> None:
        if self.global_rank == 1 and self.global_step == 4:
            with torch.no_grad():
                self.net[2].bias += 0.01


class ClipsAlone(Net):
    """Clips on rank 1 only."""

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        if self.global_rank == 1:
            self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")


class Ignored(Net):
    """DDP leaves the last layer to each rank."""

    def __init__(self) -> None:
        super().__init__()
        self._ddp_params_and_buffers_to_ignore = ["net.2.weight", "net.2.bias"]


class Hook(Callback):
    """Gives DDP a communication hook when training starts."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self.kind == "local":
            alone = torch.distributed.new_subgroups(group_size=1)[0]
            state: Any = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
            trainer.strategy.model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        elif self.kind == "wrapped":
            alone = torch.distributed.new_subgroups(group_size=1)[0]
            state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
            hook = default_hooks.fp16_compress_wrapper(post_localSGD_hook.post_localSGD_hook)
            trainer.strategy.model.register_comm_hook(state, hook)
        else:
            trainer.strategy.model.register_comm_hook(None, default_hooks.fp16_compress_hook)


HEALTHY: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "plain": (Net, {}),
    "accumulation": (Net, {"accumulate_grad_batches": 4}),
    "clipping": (Net, {"gradient_clip_val": 0.1}),
    "unused": (Branches, {"strategy": "ddp_find_unused_parameters_true"}),
    "gan": (Gan, {"strategy": "ddp_find_unused_parameters_true"}),
    "by_hand": (ByHand, {}),
    "ignored": (Ignored, {}),
    "local": (Net, {"hook": "local"}),
    "wrapped": (Net, {"hook": "wrapped"}),
    "compressed": (Net, {"hook": "compressed"}),
}
FAULTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "past_ddp": (PastDDP, {}),
    "unfreezes": (Unfreezes, {}),
    "lost_transfer": (LostTransfer, {}),
    "clips_alone": (ClipsAlone, {}),
}


def run_case(make: Callable[[], Any], settings: dict[str, Any], rank: int) -> Any:
    settings = {"strategy": DDPStrategy(process_group_backend="gloo"), **settings}
    hook = settings.pop("hook", None)
    monitor = GradientFlowMonitor(every_n_steps=3, summary=False)
    callbacks = [monitor, *([Hook(hook)] if hook else [])]
    run = trainer(callbacks, max_epochs=1, devices=2, use_distributed_sampler=False, **settings)
    model = make()
    run.fit(model, data(rank))
    alerts = [alert for alert in monitor.report.alerts if alert.kind == "ranks_differ"]
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return {"alerts": alerts, "found": monitor.report.ranks_differ, "weights": weights}


def refused(rank: int, **arguments: Any) -> str:
    """What is raised where ranks give a monitor other arguments."""
    monitor = FeatureStatsMonitor(**arguments, summary=False)
    run = trainer(
        [monitor], max_epochs=1, devices=2, use_distributed_sampler=False, strategy=DDPStrategy(process_group_backend="gloo")
    )
    try:
        run.fit(Net(), data(rank))
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    found: dict[str, Any] = {case: run_case(*what, rank) for case, what in (HEALTHY | FAULTS).items()}
    found["other_modules"] = refused(rank, modules=["net.0"] if rank == 0 else ["net.0", "net.2"])
    for argument in ("report_every_n_steps", "every_n_steps", "check_every_n_steps"):
        found[argument] = refused(rank, **{argument: 2 + rank})
    found["default_window"] = refused(rank, report_every_n_steps=3 if rank else None)
    hand_over(Path(sys.argv[1]), found)
