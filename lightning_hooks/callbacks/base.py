"""The life of hooks inside a fit: in at train start, out on every way out."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar
from weakref import ref

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.either_package import EitherPackage
from lightning_hooks.callbacks.front import Front
from lightning_hooks.callbacks.shared_trackers import forget_trackers, trackers_of
from lightning_hooks.callbacks.trainer import epoch_ends, epoch_step
from lightning_hooks.hooks import Faults, Gate, HookManager, Meter, ModuleSelector, guarded, select_modules
from lightning_hooks.hooks.recorder import IN_GRAPHS, Recorder
from lightning_hooks.hooks.selection import check_selector, compiled_regions
from lightning_hooks.hooks.suspension import Suspension
from lightning_hooks.trackers import Trackers

# Lightning lends every callback these methods of the model, and with them the model.
_BORROWED = ("log", "log_dict")


@functools.cache
def _warn_of_tracing() -> None:
    rank_zero_warn(
        f"torch {torch.__version__} has no operators by which compiled graphs record, so hooks are traced into the graphs: whether "
        "a batch is sampled is then decided when a graph is compiled, and with activation checkpointing or several graphs training "
        "may fail. Use another version of torch, or choose modules that are not compiled."
    )


class HookedCallback(EitherPackage, ABC):
    """Base class of every callback here, and of your own: write :meth:`attach`, the rest is taken care of.

    Hooks registered through :meth:`listen` or ``self.hooks`` go in when training starts, all or none, and come out when it
    ends, when it raises or is interrupted, and when the trainer is torn down. Through :meth:`listen` a hook runs in the
    sampled training batches only: not in validation, sanity checks or prediction, and not again when activation
    checkpointing recomputes a layer. If such a hook raises, that is told once and the hook is off; training goes on. From the
    last training batch of an epoch to the next one's first, and in validation, such hooks are out of their modules, except for
    compiled ones: what is exported, scripted or quantised there has none of them.

    A subclass that overrides one of Lightning's hooks calls ``super()`` in it.

    Args:
        modules: Where to listen: a glob pattern on the names of ``named_modules()``, a module type (in YAML its full name, such as
            ``torch.nn.ReLU``), several of these, or a predicate of (name, module). None for every leaf that computes something.
        every_n_steps: Listen to training batches 0, n, 2n, … of each epoch; 1 for all.

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
    hears_recomputation: ClassVar[bool] = False
    """Whether hooks also run when activation checkpointing recomputes a layer during backward."""

    def __init__(self, *, modules: ModuleSelector | None = None, every_n_steps: int = 1) -> None:
        super().__init__()
        check_selector(modules)
        if isinstance(every_n_steps, bool) or not isinstance(every_n_steps, int):
            raise TypeError(f"every_n_steps must be an integer of at least 1; got {every_n_steps!r}.")
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1 (1 listens to every batch); got {every_n_steps!r}.")
        self.modules = modules
        self.every_n_steps = every_n_steps
        self.stride = every_n_steps  # what is in force
        self.hooks = HookManager()
        self.gate = Gate()
        self.faults = Faults()
        self.attached = False
        self._suspension = Suspension()
        self._traced = False  # it records, and this torch has no operators for that
        self._fit: tuple[ref[Trainer], ref[LightningModule]] | None = None  # which it is attached to
        self._trackers: Trackers | None = None
        self._logged_tags: set[str] = set()
        self._warned_of_taken = False

    @abstractmethod
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hooks of one fit. If this raises, whatever it registered is removed."""

    def check_attached(self) -> None:
        """Called after :meth:`attach`; where this raises, whatever was registered is removed."""

    def released(self) -> None:
        """Called after hooks were removed; drop here what only matters while they are in. May be called twice."""

    def select(self, pl_module: LightningModule) -> list[tuple[str, nn.Module]]:
        """Return the (name, module) pairs that ``modules`` chooses."""
        return select_modules(pl_module, self.modules)

    def listen(self, name: str, module: nn.Module, hook: Any, kind: str = "forward", **options: bool) -> None:
        """Register a hook that runs in sampled training batches and cannot hurt training.

        Args:
            name: The site's name, told if the hook fails.
            module: Where.
            hook: The function, of PyTorch's signature for ``kind``.
            kind: One of ``HOOK_KINDS``.
            **options: As for :meth:`lightning_hooks.HookManager.register`.
        """
        safe = guarded(hook, name, self.faults, when=self.gate, meter=self.meter)
        self._traced |= not IN_GRAPHS and isinstance(hook, Recorder)
        handle = self.hooks.register(module, safe, kind, label=name, **options)
        if isinstance(module, nn.Module):
            self._suspension.add(module, handle)

    @property
    def meter(self) -> Meter | None:
        """Where the time of hooks is added up, in a subclass that measures what it costs."""
        return None

    def detach(self) -> None:
        """Remove the hooks. Harmless when there are none."""
        self.attached = False
        self._suspension.forget()
        self.hooks.remove_all()
        self._remove_copies()
        self.gate.stop()
        self.released()

    def _remove_copies(self) -> None:
        """Remove hooks that others, such as ``prepare_qat``, have registered again on modules they put into the model."""
        model, self._fit = None if self._fit is None else self._fit[1](), None
        for module in () if model is None else model.modules():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                for number in [number for number, hook in hooks.items() if isinstance(hook, guarded) and hook.when is self.gate]:
                    del hooks[number]

    def skipped(self) -> None:
        """Called where a batch started and was skipped with the rest of its epoch (``on_train_batch_start`` returned -1)."""

    def elsewhere(self, trainer: Trainer) -> bool:
        """Whether it is attached in a fit of another trainer that is still running."""
        other = None if self._fit is None else self._fit[0]()
        return self.attached and other is not None and other is not trainer and not other.interrupted

    def tell_faults(self) -> None:
        """Warn, once each, of hooks that raised and are off since."""
        news: dict[str, list[str]] = {}
        for site, error in self.faults.take():
            news.setdefault(error, []).append(repr(site))
        for error, sites in news.items():
            rank_zero_warn(
                f"{type(self).__name__}: the hook at {', '.join(sites)} raised {error}; it is switched off and training goes on "
                "without it. Please report this with the model's code at that place."
            )

    def trackers(self, trainer: Trainer) -> Trackers:
        """Return the trainer's loggers behind one face: scalars, figures, histograms, text, tables, files.

        Write with it at step :func:`~lightning_hooks.callbacks.trainer.epoch_step`. On ranks other than 0 it is empty. A logger
        that raises is told once in a fit, by whichever callback wrote to it, and training goes on.
        """
        if self._trackers is None:
            self._trackers = trackers_of(trainer)
        return self._trackers

    def log_scalars(self, trainer: Trainer, scalars: Mapping[str, float], logged: Mapping[str, float] | None = None) -> None:
        """Log an epoch's numbers, the same on every rank: for loggers, and where EarlyStopping and ModelCheckpoint look.

        ``self.log_dict`` would warn without ``sync_dist``, and cost one collective per key with it. A key that somebody else logs
        keeps their value, with one warning.

        Args:
            trainer: The trainer.
            scalars: The numbers by tag, for ``trainer.callback_metrics``.
            logged: Those that loggers get; None for all.
        """
        logged = scalars if logged is None else logged
        known = trainer.callback_metrics  # Lightning makes it again each time it is asked for
        taken = {tag for tag in scalars if tag in known and tag not in self._logged_tags}
        if taken and not self._warned_of_taken:
            self._warned_of_taken = True
            named = ", ".join(map(repr, sorted(taken)[:3])) + " and others" * (len(taken) > 3)
            rank_zero_warn(
                f"{type(self).__name__} does not log {named}: these keys are logged by the model or another callback already. "
                "Rename them there to have both."
            )
        # Norms can be beyond float32.
        tensors = {tag: torch.tensor(value, dtype=torch.float64) for tag, value in scalars.items() if tag not in taken}
        self._logged_tags.update(tensors)
        known.update(tensors)
        trainer.logged_metrics.update({tag: tensors[tag] for tag in logged if tag in tensors})
        trackers = self.trackers(trainer)
        trackers.scalars({tag: value for tag, value in logged.items() if tag in tensors}, epoch_step(trainer))
        trackers.save()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self.elsewhere(trainer):
            raise RuntimeError(
                f"This {type(self).__name__} is attached to the fit of another Trainer that is still running, and one instance "
                f"observes one fit at a time. Give the Trainer inside it callbacks of its own: build another {type(self).__name__}."
            )

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.faults = Faults()
        self._trackers = None
        self.detach()  # what an earlier fit may have left, if it ended before its way out reached this callback
        self._fit = (ref(trainer), ref(pl_module))
        Front.join(trainer, HookedCallback)
        try:
            self.attach(trainer, pl_module)
            self.check_attached()
        except BaseException:
            self.detach()
            raise
        self.attached = True
        if self._traced and compiled_regions(pl_module):
            _warn_of_tracing()
        self._suspension.suspend(pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._suspension.restore()
        self.gate.start(batch_idx % self.stride == 0)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if not self.hears_recomputation:
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
            self.tell_faults()

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
        self.detach()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.elsewhere(trainer):
            return
        self.detach()
        self._forget_model()
        forget_trackers(trainer)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.elsewhere(trainer):
            return
        self.detach()
        self._forget_model()
        forget_trackers(trainer)

    def _forget_model(self) -> None:
        for borrowed in _BORROWED:
            vars(self).pop(borrowed, None)
        self._trackers = None

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to the fit under way."""
        state = {key: value for key, value in vars(self).items() if key not in _BORROWED}
        return {**state, **dict.fromkeys(self.fit_only), "attached": False, "_fit": None, "_trackers": None}
