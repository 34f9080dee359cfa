"""GradientTransform: changes selected gradients during backward."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.declare.step import loss_scale
from lightning_hooks.declare.warn import info
from lightning_hooks.hooks import HookManager, ModuleSelector, select_modules
from lightning_hooks.hooks.parameters import ParameterSelector, check_parameter_selector, select_parameters
from lightning_hooks.hooks.selection import compiled_around, compiled_regions
from lightning_hooks.hosts.lightning_api import is_sharded, loss_scaler
from lightning_hooks.trackers import some
from lightning_hooks.transforms.gradients import (
    TRANSFORMS,
    ChangeGradient,
    Factor,
    GradientFunction,
    GradientState,
    HookOutput,
    Schedule,
)

_LOW: dict[str, dict[str, Any]] = {"clamp": {"low": 0.0, "above": True}, "noise": {"low": 0.0}}  # bounds of the factor


class GradientTransform(HookedCallback):
    """Scales, zeroes, clamps or adds noise to selected gradients, or applies a function, by hooks that return a new gradient.

    **It alters training.** At ``parameters`` it changes the gradient of one backward pass before it is accumulated: under DDP that
    of this rank, before the average over ranks; with accumulation that of one micro-batch. At ``modules`` it changes the gradient
    at the module's output, and so those of the layers before it. Factors apply to the unscaled gradient; under a GradScaler
    nonfinite values are kept, so that the scaler skips the step (except with ``zero``).

    ``scale`` and ``zero`` commute with the average over ranks; with ``clamp`` and functions the results of the ranks are averaged.
    Noise at a parameter is the same on every rank, so the average keeps it; at modules it differs between ranks. Weights stay equal
    on all ranks. Noise is a function of seed, site, epoch and batch: a resumed run has the same noise as an uninterrupted one, and
    the global generators are not used.

    Weight decay, momentum and Adam's averages still change a parameter with a zeroed gradient. To freeze it use
    ``requires_grad_(False)``.

    Args:
        transform: ``scale`` (times ``factor``; -1 reverses), ``zero``, ``clamp`` (each element to ±``factor``), ``noise``
            (Gaussian with standard deviation ``factor``), or a function of the gradient, and of the factor if one is given, that
            returns a new gradient, or None for no change.
        factor: A number, above 0 for ``clamp`` and at least 0 for ``noise``; ``{epoch: number}``, each from its epoch on, with no
            change before the first; or a function of the epoch that returns a number, or None for no change. Required except for
            ``zero`` and functions.
        parameters: Glob patterns on parameter names, or a predicate of (name, parameter).
        modules: Modules whose output gradient is changed: patterns, types, or a predicate.
        seed: The seed of the noise.
        name: The name in trackers: ``gradient_transform/<name>/factor``, different for each callback. None for
            the transform's name.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or neither ``parameters`` nor ``modules`` is given; at train start, if a pattern
            matches nothing, or a module runs under ``torch.compile``.
        RuntimeError: At train start, under a strategy that shards parameters.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientTransform
        >>> slow = GradientTransform(transform="scale", factor={0: 0.0, 2: 0.1}, parameters="backbone.*")
        >>> trainer = Trainer(callbacks=[slow], logger=False)
    """

    records_recomputation: ClassVar[bool] = True  # reentrant checkpointing builds its graph in the recomputation
    fit_only: ClassVar[tuple[str, ...]] = ("_sites", "_waiting", "_state")
    _sites: dict[str, ChangeGradient]
    _waiting: dict[str, nn.Parameter]

    def __init__(
        self,
        *,
        transform: Literal["scale", "zero", "clamp", "noise"] | GradientFunction,
        factor: Factor | None = None,
        parameters: ParameterSelector | None = None,
        modules: ModuleSelector | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(modules=modules)
        if not callable(transform) and transform not in TRANSFORMS:
            raise ValueError(f"transform must be one of {', '.join(TRANSFORMS)}, or a function of the gradient; got {transform!r}.")
        if parameters is None and modules is None:
            raise ValueError("GradientTransform needs parameters= (patterns on parameter names), modules=, or both; got neither.")
        if parameters is not None:
            check_parameter_selector(parameters)
        if transform == "zero" and factor is not None:
            raise ValueError(f"transform='zero' takes no factor; got {factor!r}. For a schedule use transform='scale' with 0.0.")
        if factor is None and not callable(transform) and transform != "zero":
            raise ValueError(f"transform={transform!r} needs a factor: a number, {{epoch: number}}, or a function of the epoch.")
        default = transform if isinstance(transform, str) else getattr(transform, "__name__", type(transform).__name__)
        bound = {} if callable(transform) else _LOW.get(transform, {})
        self._schedule = None if factor is None else Schedule("factor", factor, **bound)
        self.transform, self.factor, self.parameters, self.seed = transform, factor, parameters, seed
        self.name: str = name or str(default)
        self._state, self._sites, self._waiting = GradientState(transform, seed), {}, {}

    def factor_at(self, epoch: int) -> float | None:
        """Return the factor of an epoch, or None."""
        return None if self._schedule is None else self._schedule.at(epoch)

    def apply_to(self, model: nn.Module, *, epoch: int = 0) -> HookManager:
        """Change gradients in plain PyTorch, until the returned manager's ``remove_all()``, or in a ``with`` block.

        Args:
            model: The model.
            epoch: The epoch of the factor; :meth:`set_epoch` changes it.

        Example:
            >>> import torch
            >>> from lightning_hooks import GradientTransform
            >>> layer = torch.nn.Linear(2, 1)
            >>> with GradientTransform(transform="scale", factor=0.5, parameters="weight").apply_to(layer):
            ...     layer(torch.ones(1, 2)).sum().backward()
            >>> layer.weight.grad
            tensor([[0.5000, 0.5000]])
        """
        with HookManager().all_or_nothing() as hooks:
            self._hook(model, hooks, rank=0)
            self.set_epoch(epoch)
        self._state.active = True
        return hooks

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, in plain PyTorch."""
        self._state.factor, self._state.step = self.factor_at(epoch), str(epoch)

    def _hook(self, model: nn.Module, hooks: HookManager, rank: int) -> None:
        self._state = state = GradientState(self.transform, self.seed, needs_factor=self._schedule is not None)
        self._waiting = {} if self.parameters is None else dict(select_parameters(model, self.parameters))
        self._sites = {name: ChangeGradient(state, name) for name in self._waiting}
        if self.modules is not None:
            regions = compiled_regions(model)
            for name, module in select_modules(model, self.modules):
                if compiled_around(name, regions) is not None:
                    raise ValueError(
                        f"{name!r} runs under torch.compile, which would compile the first epoch's factor into its graph. Select a "
                        "module outside of it, or use parameters=."
                    )
                change = self._sites[name] = ChangeGradient(state, name, stream=f"rank {rank}")
                hooks.register(module, HookOutput(change), "forward", label=name, with_kwargs=True)
        self._hook_parameters(hooks)

    def _hook_parameters(self, hooks: HookManager) -> None:
        for name in [name for name, parameter in self._waiting.items() if parameter.requires_grad]:
            hooks.register(self._waiting.pop(name), self._sites[name], "tensor", label=name)

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if sharded := is_sharded(trainer, pl_module):
            raise RuntimeError(
                f"GradientTransform changes whole gradients by tensor hooks, which under {sharded} never run, or receive a "
                "shard. Train with strategy='ddp' or on one device, or remove this callback."
            )
        self._hook(pl_module, self.hooks, trainer.global_rank)
        scaler = loss_scaler(trainer)
        self._state.loss_scale = None if scaler is None else lambda: loss_scale(scaler)
        where = (("parameters", self.parameters), ("outputs of", self.modules))
        chosen = " and ".join(f"{what} {selector!r}" for what, selector in where if selector is not None)
        info(f"GradientTransform alters training: {self.name} of the gradients of {chosen}.")

    @override
    def released(self) -> None:
        state: GradientState | None = self._state  # a copy has none
        if state is not None:
            state.active = False  # tensor hooks exist as long as their graph, which the user may keep
        self._waiting = {}

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._state.factor = self.factor_at(trainer.current_epoch)  # here, since a resumed epoch has no start
        self._state.step = f"{trainer.current_epoch}/{batch_idx}"

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        super().on_before_backward(trainer, pl_module, loss)
        if self.attached:
            self._hook_parameters(self.hooks)  # parameters unfrozen since
            self._state.active = True  # not for torch.autograd.grad at other times

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_after_backward(trainer, pl_module)
        self._state.active = False

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        factor = self.factor_at(trainer.current_epoch)
        if trainer.current_epoch == 0 and not any(site.reached for site in self._sites.values()):
            rank_zero_warn(
                f"GradientTransform: there is no gradient at {some([*self._sites])}: frozen, unused, detached, or, with manual "
                "optimisation, by loss.backward() instead of self.manual_backward(loss)."
            )
        self.log_scalars(trainer, {f"gradient_transform/{self.name}/factor": math.nan if factor is None else factor})
