"""One net, one order of data, five training loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_hooks import TrainingMonitor, watch
from tests.support.models import trainer

EPOCHS, BATCHES, CLIP, RATE = 2, 6, 0.05, 0.5
ARGUMENTS: dict[str, Any] = {"every_n_steps": 2, "report_every_n_steps": None, "summary": False, "on_alert": "log"}
ARGUMENTS["min_probability"] = 0.0  # so that there is an alert


class Samples(Dataset[Any]):
    """Samples as mappings."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(BATCHES * 16, 4, generator=generator)
        self.labels = torch.randint(0, 3, (BATCHES * 16,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def batches() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=16)


class NetLayers(nn.Module):
    """What all nets here are made of: a dead layer among them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)
        nn.init.constant_(self.first.bias[:7].detach(), -20.0)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.last(self.act(self.first(inputs)))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


class LitNet(LightningModule):
    """The net in Lightning, with the names that it has elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        layers = NetLayers()
        self.first, self.act, self.last = layers.first, layers.act, layers.last

    forward = NetLayers.forward

    def training_step(self, batch: Mapping[str, Tensor], index: int) -> Tensor:
        return self(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return sgd(self)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


Result = tuple[nn.Module, Any]
"""The trained net, and its monitors."""


def in_lightning(folder: Path | None, **arguments: Any) -> Result:
    net = LitNet()
    monitor = TrainingMonitor(**{**ARGUMENTS, "report_dir": folder, **arguments})
    trainer([monitor], max_epochs=EPOCHS, gradient_clip_val=CLIP, logger=False).fit(net, batches())
    return net, monitor


def in_plain_pytorch(folder: Path | None, **arguments: Any) -> Result:
    net = NetLayers()
    optimizer = sgd(net)
    with watch(net, optimizer, log_dir=folder, **{**ARGUMENTS, **arguments}) as monitor:
        for _ in range(EPOCHS):
            for batch in batches():
                loss = net(**batch)["loss"]
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
                monitor.step(loss)
            monitor.end_window()
    return net, monitor


def in_fabric(folder: Path | None, **arguments: Any) -> Result:
    monitor = TrainingMonitor(**{**ARGUMENTS, "report_dir": folder, **arguments})
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[monitor])
    net = NetLayers()
    model, optimizer = fabric.setup(net, sgd(net))
    loader = fabric.setup_dataloaders(batches())
    for _ in range(EPOCHS):
        for batch in loader:
            fabric.backward(model(**batch)["loss"])
            fabric.clip_gradients(model, optimizer, max_norm=CLIP)
            optimizer.step()
            optimizer.zero_grad()
        fabric.call("on_train_epoch_end")
    fabric.call("on_train_end")
    return net, monitor


def in_hugging_faces_trainer(folder: Path | None, **arguments: Any) -> Result:
    import transformers

    from lightning_hooks.hosts.transformers import MonitorCallback

    class InOrder(transformers.Trainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            return batches()

    net = NetLayers()
    monitor = MonitorCallback(**{**ARGUMENTS, "report_dir": folder, **arguments})
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        max_grad_norm=CLIP,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    optimizer = sgd(net)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    InOrder(net, settings, callbacks=[monitor], train_dataset=Samples(), optimizers=(optimizer, constant)).train()
    return net, monitor


def in_accelerate(folder: Path | None, **arguments: Any) -> Result:
    from accelerate import Accelerator

    from lightning_hooks.hosts.accelerate import watch as watch_accelerated

    accelerator = Accelerator(cpu=True)
    net = NetLayers()
    model, optimizer, loader = accelerator.prepare(net, sgd(net), batches())
    with watch_accelerated(accelerator, model, optimizer, log_dir=folder, **{**ARGUMENTS, **arguments}) as monitor:
        for _ in range(EPOCHS):
            for batch in loader:
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
                monitor.step(loss)
            monitor.end_window()
    return net, monitor


LOOPS: dict[str, Callable[..., Result]] = {
    "lightning": in_lightning,
    "plain": in_plain_pytorch,
    "fabric": in_fabric,
    "transformers": in_hugging_faces_trainer,
    "accelerate": in_accelerate,
}
