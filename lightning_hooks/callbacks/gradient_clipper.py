"""GradientClipper: clips gradients, and reports the clipping events."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_hooks.alerts import ClipReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.clipping.policies import AGC, GlobalNorm, PerTensor, Value, make_policy
from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector, TensorClip, TensorClipCollector
from lightning_hooks.hooks import HookManager
from lightning_hooks.hooks.tensors import as_real
from lightning_hooks.hosts.lightning_api import loss_scaler
from lightning_hooks.session.settings import OnAlert, ReportDir, ReportEvery, Rules, Settings, Summary, arguments_in
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.weight_sample import whole_where_partial


class GradientClipper(Monitor[ClipReport]):
    """Clips gradients before the optimizer step, and reports the same events as :class:`GradientClipMonitor`.

    Unlike an observer it alters training. It clips at the loss scale in force, under automatic and manual optimisation,
    whatever its place in the list of callbacks: observers still see the gradients before. Where a GradientClipMonitor
    is in the list too, the first of the two logs. The state of the adaptive policies is in the checkpoint.

    Policies (``threshold`` and its default): ``norm``, all gradients together to a total L2 norm (1.0); ``value``, each element
    (of complex ones each part) to ±threshold (0.5); ``tensor``, each parameter's gradient by itself to an L2 norm (1.0), by a
    tensor hook during backward; ``agc``, each unit to a multiple of its weight's norm (0.01; Brock et al. 2021); ``zclip``,
    outliers by z-score (2.5; Kumar et al. 2025); ``autoclip``, to a percentile of past norms (10; Seetharaman et al. 2020). For
    their other numbers pass an object of :mod:`lightning_hooks.clipping`, for instance ``ZClip(z=2.5, alpha=0.97, warmup=25)``.

    With ``tensor`` a hook sees a backward pass's own gradient: under DDP that of this rank, and with accumulation that of one
    micro-batch. Its reported norms are root sums of squares over the micro-batches of a step.

    Args:
        policy: A policy's name, or a policy object.
        threshold: The policy's main number; None for its default.
        exclude: Glob patterns of parameters to leave alone, such as ``"head.*"`` for AGC.
        report_every_n_steps: As for :class:`~lightning_hooks.TrainingMonitor`, and so are the others.

    Raises:
        ValueError: If the policy is unknown, the threshold out of range, or, at train start, if ``exclude`` matches nothing.
        TypeError: If an argument is of a wrong type.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientClipper
        >>> trainer = Trainer(callbacks=[GradientClipper(policy="zclip")], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = ClipCollector

    def __init__(
        self,
        *,
        policy: str | object = "norm",
        threshold: float | None = None,
        exclude: str | Sequence[str] = (),
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        summary: Summary = True,
        report_dir: ReportDir = "auto",
    ) -> None:
        settings = Settings(**arguments_in(locals(), "policy", "threshold", "exclude"))
        self.policy: Any = make_policy(policy, threshold)
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        for pattern in self.exclude:
            if not isinstance(pattern, str):
                raise TypeError(f"exclude must be glob patterns on parameter names; got {pattern!r}.")
        super().__init__(settings, TensorClipCollector if isinstance(self.policy, PerTensor) else None)
        self._state: dict[str, dict[str, Tensor]] = {}  # optimizer -> the policy's state
        self._loaded: dict[str, dict[str, Tensor]] = {}  # what a checkpoint holds for the next fit
        self._excluded: tuple[int, set[int]] = (0, set())  # of so many parameters, those that are left alone
        self._hooks = HookManager()

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        names, collector = self.member.context.steps.names, self.member.live
        assert isinstance(collector, ClipCollector)
        if isinstance(collector, TensorClipCollector) and self.member.context.steps.shards is not None:
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
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"exclude={pattern!r} matches no parameter of {type(pl_module).__name__}. Its first are {', '.join(names[:3])}."
                )
        self._excluded = (0, set())
        collector.limit = self.policy.max_norm if isinstance(self.policy, GlobalNorm) and not self._left_alone() else None
        self._state = {name: self._new_state(name) for name in self.member.context.steps.optimizer_names}
        self._loaded = {}
        self._hooks.remove_all()
        if isinstance(collector, TensorClipCollector):
            self._hook_parameters(trainer, collector)

    def _left_alone(self) -> set[int]:
        """The indices of the parameters that ``exclude`` names; looked up again when there are new ones."""
        names = self.member.context.steps.names
        if self._excluded[0] != len(names):
            found = {i for i, name in enumerate(names) if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)}
            self._excluded = len(names), found
        return self._excluded[1]

    def _hook_parameters(self, trainer: Trainer, collector: TensorClipCollector) -> None:
        """Hook the optimizers' parameters that require gradients and have no hook yet."""
        steps, scaler, excluded = self.member.context.steps, loss_scaler(trainer), self._left_alone()
        for optimizer in trainer.optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                index = steps.index_of(parameter)
                if index is None or index in excluded or index in collector.clips or not parameter.requires_grad:
                    continue
                collector.clips[index] = TensorClip(self.policy.max_norm, scaler)
                self._hooks.register(parameter, collector.clips[index], "tensor", label=steps.names[index])

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if isinstance(self.member.collector, TensorClipCollector) and self.member.session is not None:
            self._hook_parameters(trainer, self.member.collector)  # what was unfrozen since

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self.member.session is None or isinstance(self.policy, PerTensor):
            return
        step = self.member.session.probe.current(optimizer)  # collectors have read its gradients
        if step is not None and step.indices:
            self.clip(step)

    @torch.no_grad()
    def clip(self, step: Step) -> None:
        """Clip the gradients of one optimizer step in place."""
        excluded = self._left_alone()
        chosen = [place for place, index in enumerate(step.indices) if index not in excluded]
        present = writable_gradients(step)
        gradients = [present[place] for place in chosen]
        if not gradients:
            return
        carried = step.loss_scale if step.carries_scale else None
        if isinstance(self.policy, Value):
            bound = self.policy.max_value if carried is None else self.policy.max_value * carried
            for gradient in gradients:
                as_real(gradient).clamp_(-bound, bound)  # type: ignore[arg-type]  # two numbers or two tensors
            return
        step.refresh()  # a user's own clipping may have come between
        norms = step.norms()
        norms = norms[torch.tensor([step.indices[place] for place in chosen]).to(norms.device, non_blocking=True)]
        parameters = [_touched(step.parameters[place]) for place in chosen]
        if step.shards is not None and isinstance(self.policy, AGC):  # a unit may be spread over processes: torch knows how
            gradients = [parameter.grad for parameter in (step.parameters[place] for place in chosen) if parameter.grad is not None]
        unscaled = gradients if carried is None else [gradient / carried for gradient in gradients]
        name = self.member.context.steps.optimizer_names[step.optimizer]
        state = self._state.get(name) or self._new_state(name)  # of an optimizer that came within the fit
        factors, self._state[name] = self.policy.factors(unscaled, parameters, norms, state)
        for gradient, factor in zip(gradients, factors, strict=True):
            gradient.mul_(factor.to(gradient.dtype))

    def _new_state(self, optimizer: str) -> dict[str, Tensor]:
        """The policy's state before the first step, or as it was loaded."""
        device, loaded = self.member.context.host.setup.device, self._loaded.get(optimizer, {})
        return {key: loaded.get(key, value).to(value) for key, value in self.policy.initial(device, row_dtype(device)).items()}

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hooks.remove_all()

    @override
    def forget_model(self) -> None:
        super().forget_model()
        self._hooks.remove_all()

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


def writable_gradients(step: Step) -> list[Tensor]:
    """The gradients of a step, in a form that can be written in place."""
    for parameter in step.parameters:
        if parameter.grad is not None and parameter.grad.layout == torch.sparse_coo:
            parameter.grad = parameter.grad.coalesce()  # its values can be scaled in place then
        elif parameter.grad is not None and step.shards is not None:
            parameter.grad = whole_where_partial(parameter.grad)  # a part of a sum cannot be clipped
        elif parameter.grad is not None and (parameter.grad.is_conj() or parameter.grad.is_neg()):
            parameter.grad = parameter.grad.resolve_conj().resolve_neg()  # what torch only marks is not in memory
    return step.gradients()


def _touched(parameter: Tensor) -> Tensor:
    """The rows of a parameter that its gradient is of: all, or those a sparse one holds."""
    gradient = parameter.grad
    if gradient is None or gradient.layout != torch.sparse_coo:
        return parameter.detach()
    return parameter.detach().index_select(0, gradient.indices()[0])
