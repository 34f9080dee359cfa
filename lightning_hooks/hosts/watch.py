"""The monitors in a training loop in plain PyTorch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_hooks.hooks.checks import brief, check_count
from lightning_hooks.hosts.loop_monitor import LoopMonitor
from lightning_hooks.hosts.observers import TrainingMembers
from lightning_hooks.hosts.plain import LoopStepAgain, PlainHost, inner_optimizer, setup_of


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    *,
    scaler: torch.amp.GradScaler | None = None,
    loggers: Any = None,
    log_dir: str | os.PathLike[str] | None = None,
    batches_per_epoch: int | None = None,
    loss_function: Callable[[Any], Any] | None = None,
    **arguments: Any,
) -> LoopMonitor:
    """Observe a training in plain PyTorch, as :class:`~lightning_hooks.TrainingMonitor` does in Lightning. Training is not altered.

    A batch starts with the model's forward, with gradients and in training mode. Other forwards are not recorded. Gradients are
    read when ``loss.backward()`` returns, before anybody clips them, and again in ``optimizer.step()``.

    Args:
        model: The model; with DDP or Fabric the wrapper. Of several models an ``nn.ModuleDict``.
        optimizer: Its optimizer, or several.
        scaler: The ``GradScaler``, where there is one: without it scaled gradients count as they are.
        loggers: Where values go: TensorBoard's ``SummaryWriter``, a run of W&B's or MLflow's, a function of (values by tag, step),
            or several of these.
        log_dir: Where the run's reports are written; None for nowhere.
        batches_per_epoch: How many batches come before each ``end_window()``, where that is known: ``report_every_n_steps="auto"``
            goes by it.
        loss_function: What gives a batch's loss, so that a bad step can be run again; the loop calls ``monitor.loss(batch)`` in its
            place. ``capsule`` and ``keep_batches`` need it, and what ``learning`` measures by running steps again.
        **arguments: Those of :class:`~lightning_hooks.TrainingMonitor`, but ``progress_bar``.

    Returns:
        A context manager around the loop, with ``step(loss)`` for each batch's end, ``end_window()``, ``loss(batch)`` and
        ``batches(loader)`` where a bad step is to be run again, and the attributes of
        TrainingMonitor: ``alerts``, ``verdict``, ``features``, ``gradients``, ``clipping``, ``report``, ….

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type, or there is none of that name.
        ValueError: If an argument is out of range or needs Lightning.

    Example:
        >>> import torch
        >>> from lightning_hooks import watch
        >>> net = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with watch(net, optimizer, summary=False) as monitor:
        ...     for _ in range(3):
        ...         loss = net(torch.ones(8, 4)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         monitor.step(loss)
        >>> monitor.clipping.optimizers["0-SGD"].steps
        3
    """
    _check_model(model)
    optimizers = _optimizers(optimizer)
    if scaler is not None and not hasattr(scaler, "unscale_"):
        raise TypeError(f"scaler must be a GradScaler, or None where losses are not scaled; got {brief(scaler)}.")
    batches = math.inf if batches_per_epoch is None else float(check_count("batches_per_epoch", batches_per_epoch, least=1))
    kept = {each: arguments[each] for each in ("capsule", "keep_batches") if arguments.get(each)}
    if loss_function is None and kept:
        raise ValueError(
            "watch: a bad step is kept where it can be run again, by the function that gives a batch's loss. Pass it, "
            f"watch(…, loss_function=…), and call monitor.loss(batch) in its place; got {kept!r} and no loss_function."
        )
    if loss_function is not None and not callable(loss_function):
        raise TypeError(f"loss_function must be a function of a batch that returns its loss; got {brief(loss_function)}.")
    host = PlainHost(
        model,
        [inner_optimizer(each) for each in optimizers],
        setup=setup_of(model, automatic_optimization=len(optimizers) == 1, steps_announced=False, batches_per_epoch=batches),
        loggers=as_loggers(loggers),
        log_dir=None if log_dir is None else Path(log_dir),
        scaler=scaler if scaler is not None and scaler.is_enabled() else None,
    )
    if loss_function is not None:
        host.again = LoopStepAgain(host, loss_function)
        arguments = {"capsule": "auto", **arguments}
    return LoopMonitor(host, observers_of("watch", arguments))


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"watch takes a torch.nn.Module first, the model; got {brief(model)}.")
    lazy = [name for name, parameter in model.named_parameters() if nn.parameter.is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"The model has parameters that its first forward makes: {', '.join(lazy[:3])}{' and others' * (len(lazy) > 3)}. Run "
            "one batch through it, model(batch), before its optimizer is made and watch is called."
        )


def _optimizers(given: Any) -> list[Any]:
    found = [given] if _is_optimizer(given) or not isinstance(given, Iterable) else list(given)
    if not found or not all(map(_is_optimizer, found)):
        raise TypeError(
            f"optimizer must be the torch.optim.Optimizer that trains the model, or several in a list; got {brief(given)}. Pass "
            "what the loop calls step() of: watch(model, optimizer)."
        )
    return found


def _is_optimizer(given: Any) -> bool:
    return not isinstance(given, type) and hasattr(given, "param_groups") and callable(getattr(given, "step", None))


def observers_of(name: str, arguments: dict[str, Any]) -> TrainingMembers:
    """What observes a training in a loop without a progress bar of Lightning's."""
    if arguments.get("progress_bar"):
        raise ValueError(f"{name}: progress_bar=True needs Lightning's Trainer, whose bar it is. Leave it out here.")
    return TrainingMembers(**arguments)


@dataclass(eq=False)
class LoopLogger:
    """What trackers ask of a Lightning logger, for an object that values are written to by ``write(values by tag, step)``."""

    experiment: Any
    write: Callable[[dict[str, Any], int], Any]
    save: Callable[[], Any] = lambda: None
    run_id: str | None = None

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write values."""
        self.write(dict(metrics), step)


def as_loggers(given: Any) -> list[Any]:
    """Return loggers that trackers write to.

    Args:
        given: One or several of: a ``SummaryWriter``, a run of W&B's or MLflow's, a function of (values, step), a logger of
            Lightning's; or None.

    Raises:
        TypeError: If one is something else.
    """
    # a run of MLflow's is iterable, too
    return [_as_logger(one) for one in (given if isinstance(given, list | tuple) else [given]) if one is not None]


def _as_logger(given: Any) -> Any:
    if hasattr(given, "log_metrics") and hasattr(given, "save"):
        return given
    if hasattr(given, "add_scalar") and hasattr(given, "flush"):
        return LoopLogger(given, lambda values, step: [given.add_scalar(*entry, step) for entry in values.items()], given.flush)
    if hasattr(given, "log_artifact") and hasattr(given, "define_metric"):  # W&B's, which counts its own steps
        return LoopLogger(given, lambda values, step: given.log({**values, "trainer/global_step": step}))
    if hasattr(getattr(given, "info", None), "run_id"):
        from mlflow.tracking import MlflowClient

        client, run = MlflowClient(), str(given.info.run_id)
        return LoopLogger(
            client, lambda values, step: [client.log_metric(run, *each, step=step) for each in values.items()], run_id=run
        )
    if callable(given):
        return LoopLogger(None, given)
    raise TypeError(
        "loggers must be TensorBoard's SummaryWriter, a run of W&B's or MLflow's, a function of (values, step), a logger of "
        f"Lightning's, or several of these; got {brief(given)}."
    )
