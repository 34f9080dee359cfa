"""A callback that gives a fit the monitors it lacks."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks.monitor import SessionCallback
from lightning_hooks.callbacks.training_monitor import TrainingMonitor
from lightning_hooks.declare.warn import warn
from lightning_hooks.hosts.fabric import FabricLoop
from lightning_hooks.hosts.lightning_adapter import Adapter
from lightning_hooks.hosts.lightning_api import callbacks_of


class MonitorsFromEnvironment(TrainingMonitor):
    """Gives every fit the parts of :class:`~lightning_hooks.TrainingMonitor` that its trainer lacks; none is doubled.

    It is what ``LIGHTNING_HOOKS=1`` adds to a trainer. Unlike monitors that a script asks for, these never end a fit: a part that
    cannot observe this model (it has no modules, a pattern matches none of them, each rank holds a shard of the gradients) is left
    out, with a warning. The arguments are those of TrainingMonitor. Lightning prints the name of this class at the start.
    """

    @property
    @override
    def _legacy_state_key(self) -> str:  # type: ignore[override]  # Lightning looks for a callback's state in a checkpoint here too
        return self.state_key.replace(type(self).__qualname__, "MissingMonitors", 1)  # as earlier versions called it

    @override
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        FabricLoop.set_up(self, fabric, module, quiet=True)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not before training starts: models may be built after setup.
        others = [each for each in callbacks_of(trainer) if isinstance(each, SessionCallback) and each is not self]
        present = {member.kind.prefix for other in others for member in other.members}
        session = Adapter.of(trainer).session_of(trainer, pl_module)
        for part in self._parts:
            if part.member.kind.prefix in present:
                continue
            try:
                for member in part.joining(trainer, pl_module):
                    session.join(member)
            except Exception as error:  # noqa: BLE001  any error: the script must run as it does without us
                warn(
                    f"LIGHTNING_HOOKS: this fit runs without {type(part).__name__}, because of {type(error).__name__}: {error} "
                    "Training goes on."
                )
        self.outlets.add_to(session)
