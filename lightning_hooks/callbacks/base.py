"""The life of hooks inside a fit: in at train start, out on every way out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import ref

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.warn import skipped_message, warn_of_faults
from lightning_hooks.hooks import Faults, Gate, HookManager, ModuleSelector, guarded, select_modules
from lightning_hooks.hooks.checks import check_count
from lightning_hooks.hooks.manager import Suspension, remove_hooks
from lightning_hooks.hooks.selection import check_selector
from lightning_hooks.hooks.wrappers import skipping
from lightning_hooks.hosts.lightning_adapter import Adapter, EitherPackage
from lightning_hooks.hosts.lightning_api import EpochLog, epoch_ends
from lightning_hooks.trackers import Trackers


class HookedCallback(EitherPackage, ABC):
    """Base class of every callback here, and of your own: write :meth:`attach`, the rest is taken care of.

    Hooks registered through :meth:`listen` or ``self.hooks`` go in when training starts, all or none, and come out when it
    ends, when it raises or is interrupted, and when the trainer is torn down. Through :meth:`listen` a hook runs in the
    sampled training batches only: not in validation, sanity checks or prediction, and not again when activation
    checkpointing recomputes a layer. If such a hook raises, one warning says so, and it is disabled. From the
    last training batch of an epoch to the next one's first, and in validation, such hooks are out of their modules, except for
    compiled ones: what is exported, scripted or quantised there has none of them.

    A subclass that overrides one of Lightning's hooks calls ``super()`` in it.

    Args:
        modules: Which modules are observed: a glob pattern on the names of ``named_modules()``, a module type (in YAML its full
            name, such as ``torch.nn.ReLU``), several of these, or a predicate of (name, module). None for every leaf that computes
            something.
        every_n_steps: Sample training batches 0, n, 2n, … of each epoch; 1 for all.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If ``every_n_steps`` is below 1, or, at train start, if ``modules`` matches nothing.

    Example:
        >>> from lightning_hooks import HookedCallback
        >>> class Shapes(HookedCallback):
        ...     def attach(self, trainer, pl_module):
        ...         self.shapes = {}
        ...         for name, module in self.select(pl_module):
        ...             self.listen(name, module, lambda m, args, out, name=name: self.shapes.update({name: out.shape}))
    """

    fit_only: ClassVar[tuple[str, ...]] = ()
    """Attributes that belong to one fit: a copy or a pickle of the callback has None there."""
    records_recomputation: ClassVar[bool] = False
    """Whether hooks also run when activation checkpointing recomputes a layer during backward."""

    def __init__(self, *, modules: ModuleSelector | None = None, every_n_steps: int = 1) -> None:
        super().__init__()
        check_selector(modules)
        self.modules, self.every_n_steps = modules, check_count("every_n_steps", every_n_steps, 1)
        self.hooks, self.gate, self.faults, self.attached = HookManager(), Gate(), Faults(), False
        self._suspension = Suspension()
        self._fit: tuple[ref[Trainer], ref[LightningModule]] | None = None  # which it is attached to
        self._epoch_log = EpochLog()

    @abstractmethod
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hooks of one fit. If this raises, whatever it registered is removed."""

    def released(self) -> None:
        """Called after hooks were removed; drop here what only matters while they are in. May be called twice."""

    def select(self, pl_module: LightningModule) -> list[tuple[str, nn.Module]]:
        """Return the (name, module) pairs that ``modules`` chooses."""
        return select_modules(pl_module, self.modules)

    def listen(self, name: str, module: nn.Module, hook: Any, kind: str = "forward", **options: bool) -> None:
        """Register a hook that runs in sampled training batches and cannot hurt training.

        Args:
            name: The site's name, for the warning if the hook fails.
            module: Where.
            hook: The function, of PyTorch's signature for ``kind``.
            kind: One of ``HOOK_KINDS``.
            **options: As for :meth:`lightning_hooks.HookManager.register`.
        """
        handle = self.hooks.register(module, skipping(hook, name, self.faults, when=self.gate), kind, label=name, **options)
        if isinstance(module, nn.Module):
            self._suspension.add(handle)

    def detach(self) -> None:
        """Remove the hooks. Harmless when there are none."""
        self.attached = False
        self._suspension.forget()
        self.hooks.remove_all()
        model, self._fit = None if self._fit is None else self._fit[1](), None
        if model is not None:  # others, such as ``prepare_qat``, may have registered them again on modules they put into it
            remove_hooks(model, lambda hook: isinstance(hook, guarded) and hook.when is self.gate)
        self.gate.stop()
        self.released()

    def skipped(self) -> None:
        """Called where a batch started and was skipped with the rest of its epoch (``on_train_batch_start`` returned -1)."""

    @override
    def in_another_fit(self, trainer: Trainer) -> bool:
        other = None if self._fit is None else self._fit[0]()
        return self.attached and other is not None and other is not trainer and not other.interrupted

    def warn_of_faults(self) -> None:
        """Warn, once each, of hooks that raised and are off since."""
        warn_of_faults(type(self).__name__, self.faults)

    def trackers(self, trainer: Trainer) -> Trackers:
        """Return the trainer's loggers behind one interface: scalars, figures, histograms, text, tables, files.

        Write with it at step :func:`~lightning_hooks.hosts.lightning_api.log_step`. On ranks other than 0 it is empty. A
        logger that raises gives one warning in a fit, and training goes on.
        """
        return Adapter.of(trainer).of_fit.trackers

    def log_scalars(self, trainer: Trainer, scalars: Mapping[str, float]) -> None:
        """Log an epoch's numbers, the same on every rank: for loggers, and where EarlyStopping and ModelCheckpoint look.

        ``self.log_dict`` would warn without ``sync_dist``, and cost one collective per key with it. A key that somebody else logs
        keeps their value, with one warning.

        Args:
            trainer: The trainer.
            scalars: The numbers by tag.
        """
        self._epoch_log.write(type(self).__name__, trainer, self.trackers(trainer), scalars, scalars)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.faults = Faults()
        self.detach()  # what an earlier fit may have left, if it ended before its way out reached this callback
        self._fit = (ref(trainer), ref(pl_module))
        Adapter.of(trainer)
        try:
            self.attach(trainer, pl_module)
        except BaseException:
            self.detach()
            raise
        self.attached = True
        self._suspension.suspend(pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._suspension.restore()
        self.gate.start(batch_idx % self.every_n_steps == 0)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if not self.records_recomputation:
            self.gate.pause()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:  # a manual loop may run forward again in the same batch
            self.gate.resume()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.gate.stop()
        if epoch_ends(trainer):
            self._suspension.suspend(pl_module)
        if self.faults.unreported:
            self.warn_of_faults()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._suspension.suspend(pl_module)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.gate.running:
            self.skipped()
        self.gate.stop()
        self._suspension.suspend(pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.faults.skipped:
            rank_zero_info(f"{type(self).__name__}: {skipped_message(self.faults.skipped)}")
        self.detach()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not self.in_another_fit(trainer):
            self.detach()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not self.in_another_fit(trainer):
            self.detach()
            self._epoch_log.withdraw(trainer)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to the fit under way."""
        return {**super().__getstate__(), **dict.fromkeys(self.fit_only), "attached": False, "_fit": None}


class EvaluatedCallback(HookedCallback):
    """Base class of callbacks that change a model's outputs: their hooks are also registered in evaluation outside of a fit.

    They are registered at the start of ``trainer.validate``, ``test`` and ``predict`` and of the sanity check before a fit, and
    removed at teardown, on an exception, and when training starts, which registers its own.
    """

    @abstractmethod
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hooks for evaluation, if needed."""

    def _enter(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.hooks.alive:  # else a fit is running, and they are registered
            with self.hooks.all_or_nothing():
                self.install(trainer, pl_module)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        self._enter(trainer, pl_module)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._enter(trainer, pl_module)

    on_predict_start = on_test_start
