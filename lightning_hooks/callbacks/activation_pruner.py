"""ActivationPruner: masks the units that do least."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.evaluation import EvaluatedCallback
from lightning_hooks.hooks import Gate, ModuleSelector, select_modules
from lightning_hooks.hooks.checks import check_count
from lightning_hooks.hooks.selection import compiled_regions, describe_selector
from lightning_hooks.metrics import PackedTable
from lightning_hooks.pruning import SCHEDULES, PruningReport, UnitSites, target_at, zero_units
from lightning_hooks.pruning.sites import Activity, MaskListener, report_of
from lightning_hooks.trackers import show, table_lines


class ActivationPruner(EvaluatedCallback):
    """Masks the weakest units (channels, features) of chosen modules, more of them from epoch to epoch.

    It alters training: from the epoch after ``start_epoch`` on, a forward hook returns the module's output with the masked units at
    zero, in training, validation, testing and prediction, and no gradient passes them. Weakest are the units with the smallest
    mean absolute output over the epoch's training batches and over all ranks, so all ranks mask the same. Weights are left as
    they are: without the hooks the model is whole again. The masks are in the checkpoint.

    A forward hook sees what the hooks before it returned: a monitor listed before this callback sees the whole output, one listed
    after it the masked one.

    Logged each epoch: ``pruning/<module>/sparsity``, ``pruning/<module>/threshold`` (the largest activity that was masked),
    ``pruning/sparsity`` over all units and ``pruning/target``.

    Args:
        modules: Whose units: a glob pattern, a type, several of these, or a predicate. They return one floating-point tensor. The
            model's last layer is better left out: its units are the answer. Rather choose rectifiers than the layers before
            them, where what is far below zero counts as active.
        amount: The share of each module's units that is masked in the end, above 0 and below 1. One unit always stays.
        start_epoch: At the end of this epoch the first units are masked.
        end_epoch: At the end of this epoch all of ``amount`` is; None for ``start_epoch``, at once.
        schedule: ``cubic`` (Zhu and Gupta 2017) or ``linear``.
        regrow: Whether masked units may come back when they do more than others; what they would put out is still measured.
        every_n_steps: Measure training batches 0, n, 2n, … of each epoch; 1 for all.
        unit_dim: The dimension of the output in which units lie; None to tell by the module: for convolutions and batch norms the
            channels, for linear layers and layer norms the last.
        summary: Print a table at the end of training.

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
        schedule: str = "cubic",
        regrow: bool = False,
        every_n_steps: int = 1,
        unit_dim: int | None = None,
        summary: bool = True,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        if modules is None:
            raise TypeError("modules must say whose units to mask, for instance 'encoder.*'; got None.")
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            raise TypeError(f"amount must be a number above 0 and below 1; got {amount!r}.")
        if not 0 < amount < 1:
            raise ValueError(f"amount must be above 0 and below 1, the share of units to mask; got {amount!r}.")
        check_count("start_epoch", start_epoch, least=0)
        end_epoch = start_epoch if end_epoch is None else end_epoch
        check_count("end_epoch", end_epoch, least=start_epoch)
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; got {schedule!r}.")
        for name, value in (("regrow", regrow), ("summary", summary)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False; got {value!r}.")
        if unit_dim is not None and (isinstance(unit_dim, bool) or not isinstance(unit_dim, int)):
            raise TypeError(f"unit_dim must be an integer or None; got {unit_dim!r}.")
        self.amount, self.start_epoch, self.end_epoch, self.schedule = float(amount), start_epoch, end_epoch, schedule
        self.regrow, self.unit_dim, self.summary = regrow, unit_dim, summary
        self.report: PruningReport | None = None
        self._masks: dict[str, Tensor] = {}  # which units stay, on the host
        self._loaded: dict[str, Any] | None = None
        self._removed = False
        self._world_size = 1
        self._measured = 0  # batches of this epoch

    # Masks, and what can be done with them.

    def mask(self, name: str) -> Tensor:
        """Return which units of a module stay, boolean, ``(units,)``; all of them where nothing is masked yet.

        Raises:
            KeyError: If there is no mask for it: it was not chosen, or no epoch has ended.
        """
        if name not in self._masks:
            have = ", ".join(repr(known) for known in self._masks) or "none: masks are made at the end of an epoch"
            raise KeyError(f"There is no mask for {name!r}. There are: {have}.")
        return self._masks[name].clone()

    @property
    def masks(self) -> dict[str, Tensor]:
        """All masks, by module."""
        return {name: mask.clone() for name, mask in self._masks.items()}

    def remove(self) -> None:
        """Drop masks and hooks, now and for the rest of the fit: the model is whole again."""
        self.hooks.remove_all()
        self._masks, self._sites, self._removed = {}, None, True

    def apply(self, model: nn.Module) -> list[str]:
        """Make the masks permanent: set the weights and biases of masked units to zero.

        The model then gives without hooks what it gave with them. To be called after training; an optimizer that goes on would
        move the weights away from zero.

        Args:
            model: The model the masks are of, with the same module names.

        Returns:
            The names of the modules that were changed.

        Raises:
            ValueError: If a masked module has no weights that make its units; nothing is changed then.
        """
        if self.unit_dim is not None:
            raise ValueError(
                f"apply() zeroes the weights that make a module's channels or features; with unit_dim={self.unit_dim} the masked "
                "units may be others. Leave unit_dim to be found, or keep the masks."
            )
        return zero_units(model, self._masks)

    # Without Lightning.

    @contextmanager
    def masking(self, model: nn.Module) -> Iterator[None]:
        """Mask a model in a training loop of your own, and measure it while it is in training mode.

        In the block call :meth:`prune` at the end of each epoch. Afterwards the hooks are gone and the masks are still here. Masks
        that there are already (from an earlier block, or loaded by ``load_state_dict``) are in force at once.

        Args:
            model: The model.

        Raises:
            RuntimeError: If hooks of this pruner are in place already, or a chosen module runs under ``torch.compile``.

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
            raise RuntimeError("This ActivationPruner masks a model already. Use one for each model, and leave its block first.")
        self._removed = False
        self._world_size = torch.distributed.get_world_size() if _distributed() else 1
        self._take_loaded()
        gate = Gate(open=True)
        self._install(model, gate, training_only=True)
        try:
            yield
        finally:
            self.hooks.remove_all()
            self._sites = None

    def prune(self, epoch: int, step: int = 0) -> PruningReport:
        """End an epoch: mask what its activity and the schedule say. Called for you in a fit.

        Args:
            epoch: The epoch that ends, from 0.
            step: What the report says as its step.

        Raises:
            RuntimeError: If no hooks are in place.
        """
        if self._sites is None:
            raise RuntimeError("prune() has nothing measured: call it in the block of masking(model), or let a Trainer call it.")
        target = target_at(epoch, self.amount, self.start_epoch, self.end_epoch, self.schedule)
        report = report_of(self._sites, self._merged(self._sites), target, self.regrow, epoch, step)
        self._sites.reset()
        self._measured = 0
        self._masks = {site.name: site.kept for site in self._sites.sites if site.kept is not None}
        self.report = report
        return report

    def _merged(self, sites: UnitSites) -> dict[str, Activity]:
        """The epoch's activity of all ranks: one collective, one copy to the host."""
        fixed = self._world_size > 1
        table = PackedTable(sites.merge_packed)
        table.update(sites.pack(fixed))
        return sites.read(table.compute().to("cpu"), fixed)

    def _install(self, model: nn.Module, gate: Gate, training_only: bool) -> None:
        chosen = select_modules(model, self.modules)
        regions = compiled_regions(model)
        compiled = [name for name, _ in chosen if any(not r or name == r or name.startswith(f"{r}.") for r in regions)]
        if compiled:
            raise RuntimeError(
                f"{compiled[0]!r} runs under torch.compile, and a compiled graph does not see masks that come later. Train "
                "uncompiled with the pruner; then apply(model), and compile."
            )
        sites = UnitSites(chosen, model, self.unit_dim)
        strange = sorted(set(self._masks) - {site.name for site in sites.sites})
        if strange:
            raise ValueError(
                f"There is a mask for {strange[0]!r}, which modules={self.modules!r} does not choose in {type(model).__name__}. Go "
                "on with the same model and modules as before, or start with a new ActivationPruner."
            )
        for site in sites.sites:
            if site.name in self._masks:
                if site.units is not None:
                    site.kept = self._masks[site.name]
                    site.settle(site.units)
                site.mask(self._masks[site.name], sites.device)
        with self.hooks.all_or_nothing():
            for site, (name, module) in zip(sites.sites, chosen, strict=True):
                self.hooks.register(module, MaskListener(site, gate, training_only), "forward", label=name)
        self._sites = sites

    # In a fit.

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        resumed = self._loaded
        self._masks, self._removed, self.report, self._measured = {}, False, None, 0
        self._world_size = trainer.world_size
        self._take_loaded()
        self._install(pl_module, self.gate, training_only=False)
        activity = (resumed or {}).get("activity")
        if activity and self._sites is not None and trainer.is_global_zero:  # it is that of all ranks together
            self._sites.restore({name: Activity(entry["sums"], entry["count"]) for name, entry in activity.items()})
        last = trainer.max_epochs
        if last is not None and 0 <= last <= self.end_epoch:
            rank_zero_warn(
                f"ActivationPruner masks all of amount={self.amount:g} at the end of epoch {self.end_epoch}, and training ends "
                f"with epoch {last - 1}. Lower end_epoch, or train longer."
            )

    def _take_loaded(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._masks = {name: mask.bool() for name, mask in loaded["masks"].items()}

    @override
    def released(self) -> None:
        self._sites = None

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._measured += self.gate.sampled

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self._removed:
            return
        report = self.prune(trainer.current_epoch, trainer.global_step)
        self.log_scalars(trainer, self.scalars(report))

    def scalars(self, report: PruningReport) -> dict[str, float]:
        """What is logged of a report, with full tags."""
        scalars: dict[str, float] = {}
        for name in [*report.sites, *(silent for silent in report.silent if silent not in report.sites)]:
            found = report.sites.get(name)
            scalars[f"{self.prefix}/{name}/sparsity"] = found.sparsity if found else math.nan
            scalars[f"{self.prefix}/{name}/threshold"] = found.threshold if found else math.nan
        scalars[f"{self.prefix}/sparsity"] = report.sparsity
        scalars[f"{self.prefix}/target"] = report.target
        return scalars

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self.summary and self.report is not None and trainer.is_global_zero:
            show(["", *summary_lines(self.report)])

    @override
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._removed or (trainer.state.fn == "fit" and self._loaded is None):  # the sanity check of a fit that starts afresh
            return
        if self._loaded is not None:  # it stays for the fit that may follow
            self._masks = {name: mask.bool() for name, mask in self._loaded["masks"].items()}
        if self._masks:
            self._install(pl_module, Gate(), training_only=False)

    # Checkpoints.

    @override
    def state_dict(self) -> dict[str, Any]:
        if self._sites is None and self._loaded is not None:
            return self._loaded  # restored and not yet used
        state: dict[str, Any] = {"masks": self.masks}
        if self._sites is not None and self._measured:  # in the middle of an epoch; every rank is asked, and has as many batches
            found = self._merged(self._sites)
            state["activity"] = {name: {"sums": activity.sums, "count": activity.count} for name, activity in found.items()}
        return state

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._loaded = dict(state_dict)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(modules=describe_selector(self.modules))


def summary_lines(report: PruningReport) -> list[str]:
    """A report as lines for the terminal."""
    lines = [f"Pruning, epoch {report.epoch}: {report.sparsity:.0%} of the units are masked (asked for: {report.target:.0%})."]
    rows = [(name, site.units, site.masked, site.threshold, site.activity) for name, site in report.sites.items()]
    return lines + [f"  {line}" for line in table_lines(("module", "units", "masked", "threshold", "activity of the rest"), rows)]


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
