"""What is asked of Lightning, most of it without a public name there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from torch.optim import optimizer as torch_optimizer

from lightning_hooks.declare.host import GradientChanges
from lightning_hooks.declare.warn import Once
from lightning_hooks.hooks.attributes import exchange, stored
from lightning_hooks.hooks.tensors import is_distributed
from lightning_hooks.replay.rows import LoaderRows
from lightning_hooks.session.rank_checks import wait_for_ranks
from lightning_hooks.statistics.reduction import all_ranks, all_reduce
from lightning_hooks.trackers import Trackers


def callbacks_of(trainer: Trainer) -> list[Any]:
    """The callbacks of a trainer, in their order."""
    return trainer.callbacks  # type: ignore[attr-defined, no-any-return]  # set by one of the trainer's connectors


def log_step(trainer: Trainer) -> int:
    """The step at which Lightning itself logs what is logged now: at the end of a training batch, or of an epoch.

    Lightning counts batches that ended in an optimizer step, and steps its count back by one for the epoch's metrics;
    ``global_step`` counts every optimizer and would put our points elsewhere on the axis. The count has no public name.
    """
    loop = trainer.fit_loop.epoch_loop
    stepped: int = getattr(loop, "_batches_that_stepped", trainer.global_step)
    progress: Any = loop.batch_progress.current
    batch_ends = progress.processed > progress.completed
    return stepped if batch_ends or trainer.validating else max(stepped - 1, 0)  # the batch that ends is not counted yet


def world_size(trainer: Trainer) -> int:
    """The ranks of a trainer that collectives reach: 1 where there is no process group, whatever the strategy says."""
    among = all_ranks()
    return 1 if among is None else min(trainer.world_size, among.count)


def batches_per_epoch(trainer: Trainer) -> float:
    """Training batches of an epoch, the most of any rank; infinite where that is not known."""
    batches = float(trainer.num_training_batches)
    if world_size(trainer) == 1:
        return batches
    wait_for_ranks("lightning_hooks")
    most = torch.tensor(batches, device=trainer.strategy.root_device)
    all_reduce(most, "max")
    return float(most)


def loss_scaler(trainer: Trainer) -> Any:
    """The trainer's GradScaler, or None if its precision has none."""
    return getattr(trainer.precision_plugin, "scaler", None)


def own_loss_scaler(pl_module: LightningModule) -> Any:
    """A GradScaler that a LightningModule under manual optimization keeps as an attribute; None without."""
    scalers = (value for value in vars(pl_module).values() if isinstance(value, torch.amp.GradScaler))
    return next((scaler for scaler in scalers if scaler.is_enabled()), None)


def around_steps(trainer: Trainer, context: Callable[..., AbstractContextManager[None]]) -> Callable[[], None]:
    """Run ``training_step`` and ``validation_step`` within a context, which is given their arguments; return what ends that.

    No callback of Lightning is around a step. The strategy, which belongs to the trainer, calls it: its method is exchanged on the
    instance. Whatever else was put there before is called, and comes back.
    """
    strategy = trainer.strategy
    return exchange(strategy, **{name: _within(context, getattr(strategy, name)) for name in ("training_step", "validation_step")})


def _within(context: Callable[..., AbstractContextManager[None]], step: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with context(*args, **kwargs):
            return step(*args, **kwargs)

    return call


def epoch_ends(trainer: Trainer) -> bool:
    """Whether the training batch that ends now is the epoch's last, as far as is known before other callbacks have decided.

    It may be wrong where somebody asked to stop and ``min_epochs`` or ``min_steps`` are not reached: training goes on then.
    """
    return bool(trainer.is_last_batch or trainer.should_stop or 0 <= trainer.max_steps <= trainer.global_step)


def planned_steps(trainer: Trainer, pl_module: LightningModule) -> int | None:
    """The ``global_step`` at which ``max_steps`` or ``max_epochs`` ends training; None where that is not known.

    ``estimated_stepping_batches`` would make the data loaders.
    """
    limits = [trainer.max_steps] if trainer.max_steps > 0 else []
    scheduled = any("accumulat" in type(callback).__name__.lower() for callback in callbacks_of(trainer))
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    if pl_module.automatic_optimization and not scheduled and epochs and epochs > 0 and math.isfinite(batches):
        limits.append(math.ceil(batches / trainer.accumulate_grad_batches) * epochs)  # under manual optimisation any number
    return min(limits, default=None)


def watched_tags(trainer: Trainer) -> dict[str, list[str]]:
    """What EarlyStopping, ModelCheckpoint, a scheduler or another callback monitors, by name, and the modes: ``min``, ``max``."""
    watchers = [(callback, callback) for callback in callbacks_of(trainer)]
    watchers += [(config, config.scheduler) for config in trainer.lr_scheduler_configs]
    found: dict[str, list[str]] = {}
    for watcher, judge in watchers:
        tag, mode = stored(watcher, "monitor"), stored(judge, "mode")
        if isinstance(tag, str):
            found.setdefault(tag, []).extend([mode] if isinstance(mode, str) and mode in ("min", "max") else [])
    return found


_IN_THE_MODULE = ("configure_gradient_clipping", "clip_gradients", "on_before_optimizer_step", "optimizer_step")


def configured_norm(trainer: Trainer, pl_module: LightningModule) -> float | None:
    """The total norm to which Lightning is configured to clip, or None."""
    by_norm = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm) or "norm") == "norm"
    value: Any = trainer.gradient_clip_val
    return float(value) if value and by_norm and pl_module.automatic_optimization else None


def gradient_changes(trainer: Trainer, pl_module: LightningModule) -> GradientChanges:
    """What could change gradients between ``on_before_optimizer_step`` and the update.

    It is known only where nobody else has a place to do it: automatic optimisation without a loss scaler, no override in the
    module, no other callback with a hook there, no plugin of the user's, no other step hook. Then nothing does without
    ``gradient_clip_val``, and with it, by norm, one multiplication of all of them.
    """
    known = pl_module.automatic_optimization and not _others_change(trainer, pl_module)
    if not trainer.gradient_clip_val:
        return "none" if known else "any"
    return "scaled" if known and configured_norm(trainer, pl_module) is not None else "any"


def _others_change(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Whether anything but Lightning's own clipping could change gradients before the update."""
    own_plugin = not type(trainer.precision_plugin).__module__.startswith(("lightning.", "pytorch_"))
    if own_plugin or loss_scaler(trainer) is not None or any(_overridden(pl_module, name) for name in _IN_THE_MODULE):
        return True
    callbacks = (callback for callback in callbacks_of(trainer) if not stored(callback, "only_observes"))
    if any(_overridden(callback, "on_before_optimizer_step") for callback in callbacks):
        return True
    # torch keeps step hooks under private names; without them nobody else's could be seen.
    hooked = [getattr(optimizer, "_optimizer_step_pre_hooks", ()) for optimizer in trainer.optimizers]
    return any(hooked) or bool(getattr(torch_optimizer, "_global_optimizer_pre_hooks", ()))


def _overridden(instance: Any, name: str) -> bool:
    """Whether a class between the instance's and Lightning's own writes the method, or the instance carries one."""
    if name in vars(instance):
        return vars(instance)[name] is not None  # None: Lightning skips it
    for kind in type(instance).__mro__:
        if name in vars(kind):
            return not kind.__module__.startswith(("lightning.pytorch.", "pytorch_lightning."))
    return False


def unreadable_shards(trainer: Trainer, pl_module: LightningModule) -> str:
    """What makes a rank hold shards of gradients in a form that does not say how they are spread, in words; empty for nothing.

    DTensors, as FSDP2 and tensor parallelism make them, say how they are spread; what FSDP's first version and DeepSpeed
    keep does not.
    """
    sharded = is_sharded(trainer, pl_module)
    if sharded not in ("ModelParallelStrategy", _DTENSORS) or not torch.distributed.is_initialized():
        return sharded
    return sharded if any(hasattr(each, "to_local") and not is_distributed(each) for each in pl_module.parameters()) else ""


_DTENSORS = "sharded (DTensor) parameters"


def is_sharded(trainer: Trainer, pl_module: LightningModule) -> str:
    """What makes a rank hold only shards of the parameters, in words; empty if it holds them whole."""
    # By name: DeepSpeed's may not be installed, and pytorch_lightning's strategies are other classes than lightning's.
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    sharded = min(kinds & {"FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy", "XLAFSDPStrategy"}, default="")
    return sharded or (_DTENSORS if any(hasattr(parameter, "to_local") for parameter in pl_module.parameters()) else "")


def data_parallel_size(trainer: Trainer) -> int:
    """How many ranks gradients are averaged over: all, but for those that share a batch under tensor parallelism."""
    mesh: Any = getattr(trainer.strategy, "device_mesh", None)
    if mesh is not None and "data_parallel" in (mesh.mesh_dim_names or ()):
        return int(mesh["data_parallel"].size())
    return world_size(trainer)


def record_rows(trainer: Trainer) -> Callable[[], None]:
    """Record which indices the training loaders of a trainer draw; return what ends that.

    The loaders often do not exist before training starts, and their first batches are drawn before any callback is asked again. The
    strategy, which belongs to the trainer, is handed each final loader: its method is exchanged on the instance.
    """
    rows, process = LoaderRows(), trainer.strategy.process_dataloader

    def recording(loader: object) -> object:
        found = process(loader)
        if not trainer.sanity_checking and not trainer.validating:
            rows.record(found)
        return found

    put_back = exchange(trainer.strategy, process_dataloader=recording)
    combined: Any = trainer.fit_loop._combined_loader  # has no public name
    for loader in () if combined is None else combined.flattened:
        rows.record(loader)

    def end() -> None:
        rows.release()
        put_back()

    return end


def known_metrics(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """What ``callback_metrics`` and ``logged_metrics``, which compute metric objects, hold now; the names logged in this epoch."""
    metas, connector = [result.meta for result in (trainer._results or {}).values()], trainer._logger_connector  # no public names
    names = {name for meta in metas for name in (meta.name, meta.forked_name(True), meta.forked_name(False))}
    return connector._callback_metrics, connector._logged_metrics, names


def logged_in_epoch(trainer: Trainer) -> dict[str, Any]:
    """What is logged for the epoch under way, by name: a metric object, or of a mean over batches its sum and its weight."""
    results = [one for one in (trainer._results or {}).values() if one.meta.on_epoch and not one.has_reset]
    objects = {one.meta.name: one.value for one in results if not one.is_tensor}
    means = (one for one in results if one.is_tensor and one.meta.is_mean_reduction)
    return {**objects, **{one.meta.name: (one.value, one.cumulated_batch_size) for one in means}}


class EpochLog:
    """Logs numbers that are the same on every rank: for loggers, and where EarlyStopping and ModelCheckpoint read them.

    ``self.log_dict`` would warn without ``sync_dist``, and cost one collective per key with it. A key that somebody else logs
    keeps their value, with one warning.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._warn_once = Once()

    def write(
        self, who: str, trainer: Trainer, trackers: Trackers, scalars: Mapping[str, float], logged: Mapping[str, float]
    ) -> None:
        """Log numbers by tag, the same for all of ``trainer.callback_metrics`` and, if they are ``logged``, the loggers."""
        known, shown, names = known_metrics(trainer)
        taken = {tag for tag in scalars if tag not in self._tags and (tag in known or tag in names)}
        if taken:
            named = ", ".join(map(repr, sorted(taken)[:3])) + " and others" * (len(taken) > 3)
            self._warn_once(
                f"{who} does not log {named}: these keys are logged by the model or another callback already. "
                "Rename them there to have both."
            )
        own = {tag: value for tag, value in scalars.items() if tag not in taken} if taken else scalars
        # Of thousands of numbers one tensor, of which these are views: a quarter of the time. Norms can be beyond float32.
        values = dict.fromkeys(own.values())  # many are 0, or the same
        made = dict(zip(values, torch.tensor([*values], dtype=torch.float64).unbind(), strict=True))
        tensors = {tag: made[value] for tag, value in own.items()}
        for tag in watched_tags(trainer).keys() & tensors.keys():
            tensors[tag] = tensors[tag].clone()  # it may be saved in a checkpoint, without all the others
        self._tags.update(tensors)
        known.update(tensors)
        logged = {tag: value for tag, value in logged.items() if tag in tensors} if taken else logged
        shown.update({tag: tensors[tag] for tag in logged})
        trackers.scalars(logged, log_step(trainer))
        trackers.save()

    def withdraw(self, trainer: Trainer) -> None:
        """Take the numbers out of ``trainer.callback_metrics`` again where they would be sent to another process.

        A process of ``ddp_spawn`` sends them through a pipe that holds 64 KB, which is read only when the process has ended: with a
        few hundred of them it never ends.
        """
        if hasattr(trainer.strategy.launcher, "get_extra_results"):
            for tag in self._tags:
                known_metrics(trainer)[0].pop(tag, None)
