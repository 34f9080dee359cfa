"""A monitor that also watches optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_hooks.alerts import AlertError
from lightning_hooks.callbacks.monitor import Monitor, R
from lightning_hooks.callbacks.step import Kept, Step
from lightning_hooks.callbacks.steps import StepObserver, StepProbe
from lightning_hooks.hooks import guarded
from lightning_hooks.statistics.shards import is_distributed


class StepMonitor(Monitor[R]):
    """A monitor that also watches optimizer steps."""

    fit_only: ClassVar[tuple[str, ...]] = ("_probe",)
    only_looks: ClassVar[bool] = True
    """That this callback, told of an optimizer step, leaves its gradients as they are."""
    _probe: StepProbe | None = None

    def watch_steps(self, trainer: Trainer, pl_module: LightningModule) -> StepProbe:
        """Subscribe to the trainer's optimizer steps; to be called in ``attach``."""
        refuse_sharded(trainer, pl_module, type(self).__name__)
        self._probe = StepProbe.of(trainer)

        def safe(function: Callable[[Any], None]) -> Callable[[Any], Any]:
            site = f"optimizer step ({function.__name__})"
            return guarded(function, site, self.faults, passes=(AlertError,), meter=self.meter)

        observer = StepObserver(
            gradients=safe(self.on_gradients),
            clipped=safe(self.on_clipped),
            taken=safe(self.on_taken),
            skipped=safe(self.on_skipped),
            changed=safe(self.on_changed),
        )
        self._probe.subscribe(self, observer, trainer, pl_module)
        return self._probe

    def on_gradients(self, step: Step) -> None:
        """Gradients are ready and not clipped."""

    def on_clipped(self, step: Step) -> None:
        """Gradients are as the update will see them."""

    def on_taken(self, step: Step) -> None:
        """The optimizer has stepped."""

    def on_skipped(self, step: Step) -> None:
        """A loss scaler did not let the optimizer step."""

    def on_changed(self, kept: Kept) -> None:
        """There are new parameters, at the end of the probe's names, or other optimizers than before."""

    @override
    def released(self) -> None:
        if self._probe is not None:
            self._probe.unsubscribe(self)
            self._probe = None

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.batch_starts(trainer, pl_module)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.epoch_ends(trainer.current_epoch)
        super().on_train_epoch_end(trainer, pl_module)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        super().on_before_backward(trainer, pl_module, loss)
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.before_backward()

    @override
    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        super().on_before_zero_grad(trainer, pl_module, optimizer)
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.before_zero_grad(optimizer)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_after_backward(trainer, pl_module)
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.after_backward(trainer, pl_module)

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.before_optimizer_step(trainer, pl_module, optimizer)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._probe is not None and self._probe.led_by(self, trainer):
            self._probe.batch_end()


def refuse_sharded(trainer: Trainer, pl_module: LightningModule, who: str) -> None:
    """Raise if a rank holds shards of gradients in a form from which the whole one's norm cannot be told.

    DTensors, as FSDP2 and tensor parallelism make them, say how they are spread; what FSDP's first version and DeepSpeed
    keep does not.

    Raises:
        RuntimeError: Under FSDP, DeepSpeed or another strategy that shards parameters, other than as DTensors.
    """
    sharded = is_sharded(trainer, pl_module)
    if sharded and not (sharded in _TELLS_SHARDS and torch.distributed.is_initialized() and not _odd_shards(pl_module)):
        raise RuntimeError(
            f"{who} needs whole gradients at the optimizer step, and under {sharded} each rank holds a shard of them: "
            "its norms would be wrong. Train with strategy='ddp', with FSDP2 (fully_shard under ModelParallelStrategy) or on one "
            "device, or leave this callback out; FeatureStatsMonitor needs no gradients and is not concerned."
        )


_DTENSORS = "sharded (DTensor) parameters"
_TELLS_SHARDS = ("ModelParallelStrategy", _DTENSORS)


def is_sharded(trainer: Trainer, pl_module: LightningModule) -> str:
    """What makes a rank hold only shards of the parameters, in words; empty if it holds them whole."""
    # By name: DeepSpeed's may not be installed, and pytorch_lightning's strategies are other classes than lightning's.
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    sharded = sorted(kinds & {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy"})
    if not sharded and any(hasattr(parameter, "to_local") for parameter in pl_module.parameters()):
        sharded = [_DTENSORS]
    return sharded[0] if sharded else ""


def _odd_shards(pl_module: LightningModule) -> bool:
    """Whether a parameter has shards and does not say how it is spread."""
    return any(hasattr(parameter, "to_local") and not is_distributed(parameter) for parameter in pl_module.parameters())


def data_parallel_size(trainer: Trainer) -> int:
    """How many ranks gradients are averaged over: all, but for those that share a batch under tensor parallelism."""
    mesh: Any = getattr(trainer.strategy, "device_mesh", None)
    if mesh is not None and "data_parallel" in (mesh.mesh_dim_names or ()):
        return int(mesh["data_parallel"].size())
    return trainer.world_size
