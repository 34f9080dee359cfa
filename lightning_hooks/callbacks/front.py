"""Who is asked first when training raises."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks.either_package import EitherPackage
from lightning_hooks.callbacks.trainer import callbacks_of


class Front(EitherPackage):
    """Stands at the front of a trainer's callbacks during a fit: when training raises, callbacks of one class are asked first.

    Lightning calls ``on_exception`` of one callback after the other, and of none after one that raises itself. A callback that has
    hooks to remove would never be asked then.

    Args:
        first: The class of the callbacks that are asked first.
    """

    def __init__(self, first: type) -> None:
        super().__init__()
        self.first = first

    @classmethod
    def join(cls, trainer: Trainer, first: type) -> None:
        """Put one at the front, if there is none."""
        callbacks = callbacks_of(trainer)
        if not any(isinstance(callback, cls) for callback in callbacks):
            # A new list: Lightning goes through the old one just now, and it may be the user's own.
            trainer.callbacks = [cls(first), *callbacks]  # type: ignore[attr-defined]

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        under_way = callbacks_of(trainer)  # the list that Lightning goes through just now, and is at the first of
        self._leave(trainer)
        ours = [callback for callback in under_way if isinstance(callback, self.first)]
        others = [callback for callback in under_way if callback is not self and not isinstance(callback, self.first)]
        under_way[:] = [self, *ours, *others]

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._leave(trainer)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._leave(trainer)

    def _leave(self, trainer: Trainer) -> None:
        trainer.callbacks = [callback for callback in callbacks_of(trainer) if callback is not self]  # type: ignore[attr-defined]
