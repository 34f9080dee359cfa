"""One callback class for both of Lightning's packages, ``lightning.pytorch`` and ``pytorch_lightning``."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import Self, override

LENT = ("log", "log_dict")

BATCH_EVENTS = (
    *("on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"),
    *("on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end"),
)
"""The events of each batch."""


class EitherPackage(Callback):
    """A callback of ``lightning.pytorch`` that is one of ``pytorch_lightning`` too, wherever that is imported.

    They are two packages with the same classes twice. A Trainer of ``pytorch_lightning`` below 2.6 raises "Expected a parent" for a
    callback that is not of its own class.
    """

    joins_session: ClassVar[bool] = False
    """Whether it has members in the session of a fit."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004  those of __init__
        """Make an instance, after both packages know its class."""
        join()
        return super().__new__(cls)

    def in_another_fit(self, trainer: Trainer) -> bool:
        """Whether it is attached in a fit of another trainer that is still running."""
        return False

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self.in_another_fit(trainer):
            raise RuntimeError(
                f"This {type(self).__name__} is attached to the fit of another Trainer that is still running, and one instance "
                f"observes one fit at a time. Give the Trainer inside it callbacks of its own: build another {type(self).__name__}."
            )

    def on_init_end(self, *args: Any, **kwargs: Any) -> None:
        """Hugging Face's Trainer calls this when it is made.

        Raises:
            TypeError: Always: it calls other events than Lightning's.
        """
        raise TypeError(
            f"{type(self).__name__} is a callback of Lightning's Trainer, and this is Hugging Face's. Give it "
            "lightning_hooks.hosts.transformers.MonitorCallback, which takes the arguments of TrainingMonitor."
        )

    def skip_unused_events(self) -> None:
        """Let Lightning, which calls what is callable, skip the batch events that this class does not handle, for this fit."""
        unused = [name for name in BATCH_EVENTS if getattr(type(self), name) is getattr(Callback, name)]
        vars(self).update({name: None for name in unused if name not in vars(self)})

    def forget_model(self) -> None:
        """Drop what belongs to a fit: the methods of the model that Lightning lends a callback, and with them the model."""
        own = vars(self)
        for name in [name for name, value in own.items() if _of_fit(name, value)]:
            del own[name]

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to a fit."""
        return {name: value for name, value in vars(self).items() if not _of_fit(name, value)}


def _of_fit(name: str, value: object) -> bool:
    return name in LENT or (name in BATCH_EVENTS and value is None)


def join() -> None:
    """Make pytorch_lightning's Callback, if it is imported, a base class too, behind all others: no method is taken from it."""
    twin = getattr(sys.modules.get("pytorch_lightning"), "Callback", None)
    if isinstance(twin, type) and not issubclass(EitherPackage, twin):
        with suppress(TypeError):  # a subclass of both, the other one first, has an order of its own
            EitherPackage.__bases__ = (*EitherPackage.__bases__, twin)
