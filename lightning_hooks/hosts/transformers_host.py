"""Hugging Face's Trainer, as a session sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerState, TrainingArguments
from typing_extensions import override

from lightning_hooks.hosts.found_objects import instances
from lightning_hooks.hosts.loggers import as_loggers
from lightning_hooks.hosts.loop_replay import LoopStepAgain
from lightning_hooks.hosts.loop_setup import inner_optimizer, setup_of
from lightning_hooks.hosts.plain import PlainHost


def trainer_of(args: TrainingArguments) -> Trainer:
    """The Trainer that calls: it hands itself to no callback."""
    return next(trainer for trainer in instances(Trainer) if vars(trainer).get("args") is args)


def host_of(trainer: Trainer, args: TrainingArguments, state: TrainerState) -> PlainHost:
    """A Trainer whose training starts, as a session sees it."""
    handler = trainer.callback_handler
    loader: Any = handler.train_dataloader
    model = trainer.model_wrapped
    setup = setup_of(
        model,
        device=args.device,
        is_global_zero=state.is_world_process_zero,
        steps_announced=False,
        clip_norm=args.max_grad_norm or None,
        batches_per_epoch=float(len(loader)) if hasattr(loader, "__len__") else float("inf"),
        planned_steps=state.max_steps if state.max_steps > 0 else None,
        description={
            "precision": "bf16-mixed" if args.bf16 else "16-mixed" if args.fp16 else "32-true",
            "max_epochs": state.num_train_epochs,
        },
    )
    loggers = as_loggers(list(_trackers(handler.callbacks)))
    folder, scaler = Path(str(args.output_dir)), trainer.accelerator.scaler
    host = PlainHost(model, [inner_optimizer(handler.optimizer)], setup=setup, loggers=loggers, log_dir=folder, scaler=scaler)
    host.accumulation, host.global_step, host.epoch = args.gradient_accumulation_steps, state.global_step, int(state.epoch or 0)
    return host


class TrainersLoss(LoopStepAgain):
    """Runs the ``compute_loss`` of a Trainer again, which it calls once a micro-batch, with the batch.

    Args:
        host: The Trainer, as a session sees it.
        trainer: The Trainer.
        run: Calls a function on a batch as the loop does.
    """

    def __init__(self, host: PlainHost, trainer: Trainer, run: Callable[..., Any]) -> None:
        compute, self._trainer = trainer.compute_loss, trainer

        def loss_of(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with trainer.compute_loss_context_manager():
                found = compute(trainer.model_wrapped, inputs, *args, **kwargs)
            return found[0] if isinstance(found, tuple) else found

        @wraps(compute)
        def recorded(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not (model.training and torch.is_grad_enabled()):  # an evaluation
                return compute(model, inputs, *args, **kwargs)
            return run(lambda _, *more, **named: compute(model, inputs, *more, **named), dict(inputs), *args, **kwargs)

        super().__init__(host, loss_of)
        self._before, vars(trainer)["compute_loss"] = vars(trainer).get("compute_loss"), recorded
        self.record(trainer.callback_handler.train_dataloader)

    @override
    def _fetched(self, iterator: Any) -> int:
        return int(iterator._num_yielded - 1 - self._host.batch)  # it fetches the batches of a whole update at once

    @override
    def release(self) -> None:
        super().release()
        vars(self._trainer).pop("compute_loss", None)
        if self._before is not None:
            vars(self._trainer)["compute_loss"] = self._before


def _trackers(callbacks: Sequence[Any]) -> Iterator[Any]:
    """What the callbacks of ``report_to`` write to."""
    for callback in map(vars, callbacks):
        wandb, mlflow = callback.get("_wandb"), callback.get("_ml_flow")
        found = callback.get("tb_writer"), wandb and wandb.run, mlflow and mlflow.active_run()
        yield from (run for run in found if run is not None)
