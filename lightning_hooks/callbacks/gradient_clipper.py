"""GradientClipper: clips, and says what it did."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_hooks.callbacks.alerting import OnAlert, Rules
from lightning_hooks.callbacks.closing import Summary
from lightning_hooks.callbacks.gradient_clip import GradientClipMonitor
from lightning_hooks.callbacks.run_folder import ReportDir
from lightning_hooks.callbacks.step import Kept, Step
from lightning_hooks.callbacks.trainer import loss_scale, loss_scaler
from lightning_hooks.clipping import AGC, PerTensor, Value, make_policy
from lightning_hooks.clipping.policies import norm_factor
from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.gradients import as_real
from lightning_hooks.statistics.rows import row_dtype
from lightning_hooks.statistics.shards import whole_where_partial


class GradientClipper(GradientClipMonitor):
    """Clips gradients before the optimizer step, and reports the same events as :class:`GradientClipMonitor`.

    Unlike an observer it alters training. It clips at the loss scale in force, under automatic and manual optimisation,
    whatever its place in the list of callbacks: observers still see the gradients before. Where a GradientClipMonitor
    is in the list too, the first of the two logs. The state of the adaptive policies is in the checkpoint.

    Policies (``threshold`` and its default): ``norm``, all gradients together to a total L2 norm (1.0); ``value``, each element
    (of complex ones each part) to ±threshold (0.5); ``tensor``, each parameter's gradient by itself to an L2 norm (1.0), by a
    tensor hook during backward; ``agc``, each unit to a multiple of its weight's norm (0.01; Brock et al. 2021); ``zclip``,
    outliers by z-score (2.5; Kumar
    et al. 2025); ``autoclip``, to a percentile of past norms (10; Seetharaman et al. 2020). For their other numbers pass an object
    of :mod:`lightning_hooks.clipping`, for instance ``ZClip(z=2.5, alpha=0.97, warmup=25)``.

    With ``tensor`` a hook sees a backward pass's own gradient: under DDP that of this rank, and with accumulation that of one
    micro-batch. Its reported norms are root sums of squares over the micro-batches of a step.

    Args:
        policy: A policy's name, or a policy object.
        threshold: The policy's main number; None for its default.
        exclude: Glob patterns of parameters to leave alone, such as ``"head.*"`` for AGC.
        on_alert: ``log``, ``warn``, ``stop``, ``raise``, or a function of an Alert.
        rules: Rules to change, mute or add; see :class:`~lightning_hooks.alerts.RuleBook`.
        summary: What is printed at the end of training: True for three lines of all monitors together, ``full`` for tables before
            them, False for nothing.
        report_dir: As for :class:`FeatureStatsMonitor`.

    Raises:
        ValueError: If the policy is unknown, the threshold out of range, or, at train start, if ``exclude`` matches nothing.
        TypeError: If an argument is of a wrong type.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientClipper
        >>> trainer = Trainer(callbacks=[GradientClipper(policy="zclip")], logger=False)
    """

    fit_only: ClassVar[tuple[str, ...]] = (*GradientClipMonitor.fit_only, "_scaler")

    def __init__(
        self,
        *,
        policy: str | object = "norm",
        threshold: float | None = None,
        exclude: str | Sequence[str] = (),
        on_alert: OnAlert = "log",
        rules: Rules = (),
        summary: Summary = True,
        report_dir: ReportDir = "auto",
    ) -> None:
        super().__init__(on_alert=on_alert, rules=rules, summary=summary, report_dir=report_dir)
        self.policy = make_policy(policy, threshold)
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        wrong = [pattern for pattern in self.exclude if not isinstance(pattern, str)]
        if wrong:
            raise TypeError(f"exclude must be glob patterns on parameter names; got {wrong[0]!r}.")
        self._state: dict[str, dict[str, Tensor]] = {}  # optimizer -> the policy's state
        self._loaded: dict[str, dict[str, Tensor]] = {}

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().attach(trainer, pl_module)
        if isinstance(self.policy, PerTensor) and self._probe is not None and self._probe.shards is not None:
            raise RuntimeError(
                "policy='tensor' clips in hooks of the parameters, and those of sharded parameters are not called. Use "
                "policy='norm', 'agc', 'zclip', 'autoclip' or 'value'."
            )
        if trainer.gradient_clip_val and pl_module.automatic_optimization:
            rank_zero_warn(
                f"Gradients are clipped twice at each step: first by GradientClipper(policy={self.policy.name!r}), then by "
                f"Trainer(gradient_clip_val={trainer.gradient_clip_val}). Leave out one of the two."
            )
        for pattern in self.exclude:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in self._names):
                raise ValueError(
                    f"exclude={pattern!r} matches no parameter of {type(pl_module).__name__}. "
                    f"Its first are {', '.join(self._names[:3])}."
                )
        self._kept = self._excluded()
        self._limit = getattr(self.policy, "limit", None) if not self._kept else None
        self._scaler = loss_scaler(trainer)
        if isinstance(self.policy, PerTensor):
            self._clips: dict[int, _TensorClip] = {}
            self._hook_parameters(trainer)
        else:
            self._state = {name: self._fresh_state(self._loaded.get(name, {})) for name in self._optimizer_names}
            self._loaded = {}

    def _excluded(self) -> set[int]:
        return {i for i, name in enumerate(self._names) if any(fnmatch.fnmatchcase(name, p) for p in self.exclude)}

    def _fresh_state(self, loaded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The policy's state before the first step, or as it was loaded."""
        fresh = self.policy.initial(self._device, row_dtype(self._device)) if self._adapts else {}
        return {key: loaded.get(key, value).to(value) for key, value in fresh.items()}

    @override
    def on_changed(self, kept: Kept) -> None:
        super().on_changed(kept)
        self._kept = self._excluded()
        if not isinstance(self.policy, PerTensor):
            self._state = {name: self._state.get(name) or self._fresh_state({}) for name in self._optimizer_names}

    @property
    def _adapts(self) -> bool:
        return hasattr(self.policy, "factors")

    def _hook_parameters(self, trainer: Trainer) -> None:
        """Hook the optimizers' parameters that require gradients and have no hook yet."""
        for optimizer in trainer.optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                index = None if self._probe is None else self._probe.index_of(parameter)
                if index is None or index in self._kept or index in self._clips or not parameter.requires_grad:
                    continue
                self._clips[index] = _TensorClip(self.policy.max_norm, self._scaler)
                self.hooks.register(parameter, self._clips[index], "tensor", label=self._names[index])

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        super().on_before_backward(trainer, pl_module, loss)
        if isinstance(self.policy, PerTensor):
            self._hook_parameters(trainer)  # what was unfrozen since

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        super().on_before_optimizer_step(trainer, pl_module, optimizer)  # observers look first
        step = None if self._probe is None else self._probe.current(optimizer)
        if step is not None and step.indices and not isinstance(self.policy, PerTensor):
            self.clip(step)

    @torch.no_grad()
    def clip(self, step: Step) -> None:
        """Clip the gradients of one optimizer step in place."""
        chosen = [place for place, index in enumerate(step.indices) if index not in self._kept]
        for parameter in step.parameters:
            if parameter.grad is not None and parameter.grad.layout == torch.sparse_coo:
                parameter.grad = parameter.grad.coalesce()  # its values can be scaled in place then
            elif parameter.grad is not None and step.shards is not None:
                parameter.grad = whole_where_partial(parameter.grad)  # a part of a sum cannot be clipped
            elif parameter.grad is not None and (parameter.grad.is_conj() or parameter.grad.is_neg()):
                parameter.grad = parameter.grad.resolve_conj().resolve_neg()  # what torch only marks is not in memory
        present = step.gradients()
        gradients = [present[place] for place in chosen]
        if not gradients:
            return
        carried = step.loss_scale if step.carries_scale else None
        if isinstance(self.policy, Value):
            bound = self.policy.max_value if carried is None else self.policy.max_value * carried
            for gradient in gradients:
                as_real(gradient).clamp_(-bound, bound)  # type: ignore[arg-type]  # two numbers or two tensors
            return
        step.look_again()  # a user's own clipping may have come between
        norms = step.norms()
        norms = norms[torch.tensor([step.indices[place] for place in chosen]).to(norms.device, non_blocking=True)]
        parameters = [_touched(step.parameters[place]) for place in chosen]
        if step.shards is not None and isinstance(self.policy, AGC):  # a unit may be spread over processes: torch knows how
            gradients = [parameter.grad for parameter in (step.parameters[place] for place in chosen) if parameter.grad is not None]
        name = self._optimizer_names[step.optimizer]
        unscaled = gradients if carried is None else [gradient / carried for gradient in gradients]
        factors, self._state[name] = self.policy.factors(unscaled, parameters, norms, self._state[name])
        for gradient, factor in zip(gradients, factors, strict=True):
            gradient.mul_(factor.to(gradient.dtype))

    @override
    def on_gradients(self, step: Step) -> None:
        if isinstance(self.policy, PerTensor):
            return  # its norms are those the hooks saw
        super().on_gradients(step)

    @override
    def on_clipped(self, step: Step) -> None:
        if isinstance(self.policy, PerTensor):
            after = step.norms().clone()
            before = after.clone()
            for index in step.indices:
                if index in self._clips:
                    before[index], after[index] = self._clips[index].take()
            if not (step.again and step.optimizer in self._after):
                self._before[step.optimizer], self._after[step.optimizer] = before, after
            return
        super().on_clipped(step)

    @override
    def on_skipped(self, step: Step) -> None:
        if isinstance(self.policy, PerTensor):
            self.on_clipped(step)
        super().on_skipped(step)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "policy": {name: dict(state) for name, state in self._state.items()}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._loaded = state_dict["policy"]

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(policy=self.policy.name, exclude=self.exclude)


def _touched(parameter: Tensor) -> Tensor:
    """The rows of a parameter that its gradient is of: all, or those a sparse one holds."""
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.sparse_coo:
        return parameter.detach()
    return parameter.detach().index_select(0, gradient.indices()[0])


class _TensorClip(Listener):
    """Tensor hook of one parameter: scales its gradient to a norm, and keeps the norms before and after."""

    def __init__(self, max_norm: float, scaler: Any) -> None:
        self.max_norm, self.scaler = max_norm, scaler
        self.squares: Tensor | None = None  # of the norms before and after, summed over a step's micro-batches

    def __call__(self, gradient: Tensor) -> Tensor:
        scale = None if self.scaler is None else loss_scale(self.scaler)
        norm = torch.linalg.vector_norm(as_real(plain_values(gradient)), dtype=torch.float32)
        norm = norm if scale is None else norm / scale
        factor = norm_factor(norm, self.max_norm)
        squares = torch.stack((norm, norm * factor)).double() ** 2
        self.squares = squares if self.squares is None else self.squares + squares
        if gradient.layout == torch.sparse_coo:
            gradient = gradient.coalesce()
            values = gradient.values() * factor.to(gradient.dtype)
            return torch.sparse_coo_tensor(gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False)
        return gradient * factor.to(gradient.dtype)

    def take(self) -> Tensor:
        """Return the norms before and after of the step, shape ``(2,)``, and start anew."""
        squares, self.squares = self.squares, None
        return torch.zeros(2, dtype=torch.float64) if squares is None else squares.sqrt()
