"""ActivationPruner: masks the units with the lowest activity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.base import EvaluatedCallback
from lightning_hooks.hooks import Gate, ModuleSelector, select_modules
from lightning_hooks.hooks.checks import check_bools, check_optional_integer
from lightning_hooks.hooks.selection import compiled_around, compiled_regions, describe_selector
from lightning_hooks.pruning import PruningReport, UnitSites, target_at
from lightning_hooks.pruning.sites import check_schedule
from lightning_hooks.trackers import show


class ActivationPruner(EvaluatedCallback):
    """Masks the units (channels, features) of selected modules with the lowest activity, more of them in each epoch.

    **It alters training**: from the epoch after ``start_epoch`` on, a forward hook returns the module's output with the masked
    units at zero, in training, validation, testing and prediction, and no gradient passes them. The activity of a unit is its mean
    absolute output over the epoch's sampled training batches and all ranks, so that all ranks make the same masks. Weights are
    unchanged: without the hooks the model is unpruned. The masks are saved in the checkpoint.

    A forward hook receives the output of the hooks before it: a monitor listed before this callback observes the whole output, one
    listed after it the masked output.

    Logged each epoch: ``pruning/<module>/sparsity``, ``pruning/<module>/threshold`` (the largest activity that was masked),
    ``pruning/sparsity`` over all units and ``pruning/target``.

    Args:
        modules: The modules to prune: a glob pattern, a type, several of these, or a predicate. They must return one floating-point
            tensor. Leave out the last layer, whose units are the model's output. Prefer rectifiers to the layers before them, where
            large negative values count as active.
        amount: The final share of masked units of each module, above 0 and below 1. At least one unit stays.
        start_epoch: The epoch at whose end the first units are masked.
        end_epoch: The epoch at whose end ``amount`` is reached, by a cubic schedule (Zhu and Gupta 2017); None for ``start_epoch``.
        every_n_steps: Measure training batches 0, n, 2n, … of each epoch; 1 for all.
        unit_dim: The dimension of the units in the output; None to infer it: the channels for convolutions and batch norms, the
            last dimension for linear layers and layer norms.
        summary: Whether to print a table at the end of training.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.pruning.PruningReport`; None before the first.

    Raises:
        TypeError: If an argument is of a wrong type; while training, if a chosen module does not return one tensor.
        ValueError: If a number is out of its range, or, at train start, if ``modules`` matches nothing.
        RuntimeError: At train start, if a chosen module runs under ``torch.compile``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import ActivationPruner
        >>> pruner = ActivationPruner(modules="encoder.*.linear1", amount=0.5, start_epoch=2, end_epoch=8)
        >>> trainer = Trainer(callbacks=[pruner], logger=False)
    """

    prefix: ClassVar[str] = "pruning"
    fit_only: ClassVar[tuple[str, ...]] = ("_sites",)
    _sites: UnitSites | None = None

    def __init__(
        self,
        *,
        modules: ModuleSelector,
        amount: float = 0.5,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        every_n_steps: int = 1,
        unit_dim: int | None = None,
        summary: bool = True,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        if modules is None:
            raise TypeError("modules must name the modules to prune, for instance 'encoder.*'; got None.")
        end_epoch = start_epoch if end_epoch is None else end_epoch
        check_schedule(amount, start_epoch, end_epoch)
        check_bools(summary=summary)
        check_optional_integer("unit_dim", unit_dim)
        self.amount, self.start_epoch, self.end_epoch = float(amount), start_epoch, end_epoch
        self.unit_dim, self.summary = unit_dim, summary
        self.report: PruningReport | None = None
        self._masks: dict[str, Tensor] = {}  # which units stay, on the host
        self._resumes = self._removed = False  # whether masks were loaded, for a fit that may follow; whether they were removed

    @property
    def masks(self) -> dict[str, Tensor]:
        """Module to which of its units stay, boolean, ``(units,)``; empty before the end of the first epoch."""
        return {name: mask.clone() for name, mask in self._masks.items()}

    def remove(self) -> None:
        """Remove masks and hooks for the rest of the fit: the model is unpruned."""
        self.hooks.remove_all()
        self._masks, self._sites, self._removed = {}, None, True

    @contextmanager
    def masking(self, model: nn.Module) -> Iterator[None]:
        """Mask a model in your own training loop, and measure it in training mode.

        In the block call :meth:`prune` at the end of each epoch. At its end the hooks are removed and the masks stay. Existing
        masks (of an earlier block, or loaded by ``load_state_dict``) apply at once.

        Args:
            model: The model.

        Raises:
            RuntimeError: If hooks of this pruner are registered already, or a selected module runs under ``torch.compile``.

        Example:
            >>> import torch
            >>> from lightning_hooks import ActivationPruner
            >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
            >>> pruner = ActivationPruner(modules="0", amount=0.25)
            >>> with pruner.masking(model):
            ...     _ = model(torch.randn(16, 4))
            ...     report = pruner.prune(0)
            >>> report.sites["0"].masked
            2
        """
        if self.hooks.alive:
            raise RuntimeError("This ActivationPruner already masks a model. Use one for each model, or leave its block first.")
        self._removed = self._resumes = False
        self._install(model, Gate(open=True), training_only=True)
        try:
            yield
        finally:
            self.hooks.remove_all()
            self._sites = None

    def prune(self, epoch: int, step: int = 0) -> PruningReport:
        """End an epoch, counted from 0: make masks by its activity and the schedule. A Trainer calls it at the end of each epoch.

        Args:
            epoch: The epoch that ends.
            step: The step in the report.

        Raises:
            RuntimeError: If no hooks are registered.
        """
        if self._sites is None:
            raise RuntimeError("prune() has no measurements: call it in the block of masking(model), or let a Trainer call it.")
        self.report = report = self._sites.end_epoch(epoch, step, target_at(epoch, self.amount, self.start_epoch, self.end_epoch))
        self._masks = self._sites.masks
        return report

    def _install(self, model: nn.Module, gate: Gate, training_only: bool = False) -> None:
        chosen, regions = select_modules(model, self.modules), compiled_regions(model)
        compiled = next((name for name, _ in chosen if compiled_around(name, regions) is not None), None)
        if compiled is not None:
            raise RuntimeError(
                f"{compiled!r} runs under torch.compile, and a compiled graph does not run later masks. Train uncompiled with the "
                "pruner."
            )
        unknown = sorted(self._masks.keys() - dict(chosen).keys())
        if unknown:
            raise ValueError(
                f"There is a mask for {unknown[0]!r}, which modules={self.modules!r} does not select in {type(model).__name__}. "
                "Continue with the same model and modules as before, or start with a new ActivationPruner."
            )
        sites = UnitSites(chosen, model, self.unit_dim, gate, training_only)
        with self.hooks.all_or_nothing():
            for site, (name, module) in zip(sites.sites, chosen, strict=True):
                if name in self._masks:
                    site.mask(self._masks[name], sites.device)
                self.hooks.register(module, site, "forward", label=name)
        self._sites = sites

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._resumes:
            self._masks = {}
        self._resumes, self._removed, self.report = False, False, None
        self._install(pl_module, self.gate)

    @override
    def released(self) -> None:
        self._sites = None

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if not self._removed:
            self.log_scalars(trainer, self.prune(trainer.current_epoch, trainer.global_step).scalars(self.prefix))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self.summary and self.report is not None and trainer.is_global_zero:
            show(["", *self.report.summary_lines()])

    @override
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        of_new_fit = trainer.state.fn == "fit" and not self._resumes  # its sanity check
        if self._masks and not (self._removed or of_new_fit):
            self._install(pl_module, Gate())

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._resumes, self._masks = True, {name: mask.bool() for name, mask in state_dict["masks"].items()}

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(modules=describe_selector(self.modules))
