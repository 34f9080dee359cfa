"""The monitors in a loop of Lightning Fabric's."""

from __future__ import annotations

from typing import Any

from lightning.fabric import Fabric
from torch import nn

from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import HookManager
from lightning_hooks.hosts.lightning import folder_of
from lightning_hooks.hosts.loop_events import EventHook
from lightning_hooks.hosts.loop_monitor import LoopMonitor
from lightning_hooks.hosts.observers import TrainingReports
from lightning_hooks.hosts.plain import PlainHost, optimizers_of, setup_of, unwrapped


class FabricLoop:
    """Stands for a monitor among the callbacks of a Fabric: its events are others than a Trainer's.

    Hooks come with the first forward in training, when all models and optimizers are set up. Each optimizer step ends a batch. A
    quiet one warns of what cannot be observed, in place of raising.
    """

    def __init__(self, monitor: TrainingReports, fabric: Fabric, quiet: bool = False) -> None:
        self.monitor, self._fabric, self._quiet = monitor, fabric, quiet
        self._modules: list[nn.Module] = []
        self._hooks = HookManager()
        self.loop: LoopMonitor | None = None

    @classmethod
    def set_up(cls, monitor: TrainingReports, fabric: Fabric, module: Any, quiet: bool = False) -> None:
        """Take the place of a monitor among the callbacks of a Fabric that has set up a model; a quiet one leaves to others."""
        callbacks = fabric._callbacks  # there is no public name
        if quiet and any(isinstance(callback, cls) for callback in callbacks):
            callbacks[callbacks.index(monitor)] = object()  # its events are a Trainer's, and fabric.call would call them
            return
        callbacks[callbacks.index(monitor)] = loop = cls(monitor, fabric, quiet)
        loop.on_after_setup(fabric, module)

    def on_after_setup(self, fabric: Fabric, module: Any) -> None:
        """Fabric has set up a model in its wrapper."""
        if self.loop is None:
            self._modules.append(module._forward_module)  # which the optimizers train; there is no public name
            self._hooks.register(unwrapped(self._modules[-1]), EventHook(self.start), "forward_pre", with_kwargs=True)

    def start(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward starts, and with the first one in training the monitors."""
        if not module.training:
            return
        self._hooks.remove_all()
        several = {f"{place}-{type(model).__name__}": model for place, model in enumerate(map(unwrapped, self._modules))}
        model = self._modules[0] if len(self._modules) == 1 else nn.ModuleDict(several)
        try:
            observers, host = self.monitor.observers, _host(self._fabric, model)
            self.loop = LoopMonitor(host, observers, ends_at_step=True)
            if observers.resumed is not None:
                host.progress, observers.resumed = observers.resumed, None
            self.loop.start().events.enter(module, args, kwargs)
        except Exception as error:
            if not self._quiet:
                raise
            warn(f"LIGHTNING_HOOKS: this training runs without monitors, because of {type(error).__name__}: {error}")

    def on_train_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """An epoch ends, if the loop says so: the window under way ends with it."""
        if self.loop is not None and self.loop.running:
            self.loop.end_window()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Training ends, if the loop says so: the report is written, and the hooks are removed."""
        self._hooks.remove_all()
        loop, self.loop = self.loop, None
        callbacks = self._fabric._callbacks
        callbacks[:] = [self.monitor if callback is self else callback for callback in callbacks]
        if loop is not None:
            loop.finish()


def _host(fabric: Fabric, model: nn.Module) -> PlainHost:
    optimizers = optimizers_of(model)
    precision: Any = fabric._precision  # there is no public name
    return PlainHost(
        model,
        optimizers,
        setup=setup_of(
            model,
            device=fabric.device,
            is_global_zero=fabric.is_global_zero,
            automatic_optimization=len(optimizers) == 1,
            steps_announced=False,
            description={"precision": str(precision.precision), "accelerator": type(fabric.accelerator).__name__},
        ),
        loggers=fabric.loggers,
        log_dir=next((folder for logger in fabric.loggers if (folder := folder_of(logger)) is not None), None),
        scaler=getattr(precision, "scaler", None),
    )
