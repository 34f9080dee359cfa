"""What others do, restated as Lightning callbacks, to compare with ours: the same model, the same steps, every step.

Each follows its source in what it reads and how it brings it to the host; how it then shows it is left out, so that only the
measuring is compared.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn


def leaves(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if not list(each.children()) and not isinstance(each, nn.Identity)]


class _Hooked(Callback):
    """Registers in ``on_train_start`` what ``hooks`` gives, and removes it at the end."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.handles = list(self.hooks(pl_module))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        for handle in self.handles:
            handle.remove()

    def hooks(self, pl_module: nn.Module) -> Any:
        return ()


class NothingFloor(_Hooked):
    """Hooks that do nothing: a forward hook and a hook on the gradient of each output."""

    def hooks(self, pl_module: nn.Module) -> Any:
        for module in leaves(pl_module):
            yield module.register_forward_hook(self.observe)

    def observe(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            self.read(output)
            if output.requires_grad:
                output.register_hook(self.read)

    def read(self, tensor: torch.Tensor) -> None:
        return None


class SumFloor(NothingFloor):
    """The floor: each hooked tensor read once (``sum``), and the gradients once (multi-tensor norm)."""

    def read(self, tensor: torch.Tensor) -> None:
        tensor.detach().sum()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        torch._foreach_norm([parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None])


class FiveItems(_Hooked):
    """Plain hooks as tutorials write them: five ``.item()`` for each output and each parameter's gradient."""

    def hooks(self, pl_module: nn.Module) -> Any:
        for module in leaves(pl_module):
            yield module.register_forward_hook(lambda m, args, output: self.read(output))
        for parameter in pl_module.parameters():
            yield parameter.register_hook(self.read)

    def read(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            x = tensor.detach().float()
            self.last = (x.mean().item(), x.std().item(), x.min().item(), x.max().item(), (x == 0).float().mean().item())


class FastaiActivationStats(_Hooked):
    """fastai's ActivationStats with histograms: mean, std, near-zero, 40 bins, each brought to the host."""

    def hooks(self, pl_module: nn.Module) -> Any:
        self.kept: list[Any] = []
        for module in leaves(pl_module):
            yield module.register_forward_hook(self.observe)

    def observe(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            x = output.detach().float()
            self.kept.append(
                (x.mean().item(), x.std().item(), (x <= 0.05).long().sum().item() / x.numel(), x.histc(40, 0, 10).cpu())
            )


class Instruments(_Hooked):
    """torchinstruments at every forward: moments, extremes and norm of every leaf's output."""

    def hooks(self, pl_module: nn.Module) -> Any:
        for module in leaves(pl_module):
            yield module.register_forward_hook(self.observe)

    def observe(self, module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            x = output.detach().float()
            self.last = torch.stack((x.mean(), x.std(), x.amin(), x.amax(), x.norm())).cpu()


class GradientStatistics(Callback):
    """Lightning's open gradient-statistics callback: global and per-layer norm, mean, std and sparsity at each step."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        total = 0.0
        for _, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                g = parameter.grad.detach()
                norm = g.norm(2).item()
                total += norm**2
                self.last = (norm, g.mean().item(), g.std().item() if g.numel() > 1 else 0.0, (g == 0).float().mean().item())
        self.total = total**0.5


class WandbWatch(Callback):
    """``wandb.watch(log_freq=1)`` in an offline run: gradient histograms."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.run = _wandb_run()
        self.run.watch(pl_module, log="gradients", log_freq=1)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.run.log({"step": batch_idx})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.run.unwatch(pl_module)


@functools.cache
def _wandb_run() -> Any:
    """One run for all fits: it takes a second to start."""
    import wandb

    os.environ["WANDB_SILENT"] = "true"
    with contextlib.redirect_stdout(io.StringIO()):
        return wandb.init(mode="offline", project="bench", dir=tempfile.mkdtemp())


class TensorBoardHistograms(Callback):
    """``add_histogram`` of every parameter and its gradient at an epoch's end."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for name, parameter in pl_module.named_parameters():
            trainer.logger.experiment.add_histogram(name, parameter, trainer.current_epoch)
            if parameter.grad is not None:
                trainer.logger.experiment.add_histogram(f"{name}.grad", parameter.grad, trainer.current_epoch)


# Key to what tables call it, its callback, and for peers the package that it needs.
FLOORS = {
    "nothing": ("hooks that do nothing", NothingFloor),
    "sum": ("one sum of each tensor", SumFloor),
}
PEERS = {
    "five-items": ("five `.item()` per tensor", FiveItems, ""),
    "wandb": ("`wandb.watch(log_freq=1)`", WandbWatch, "wandb"),
    "fastai": ("fastai's ActivationStats", FastaiActivationStats, ""),
    "torchinstruments": ("torchinstruments", Instruments, ""),
    "lightning-gradients": ("Lightning's gradient statistics", GradientStatistics, ""),
}
