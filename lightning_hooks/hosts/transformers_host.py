"""Hugging Face's Trainer, as a session sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerState, TrainingArguments

from lightning_hooks.hosts.found_objects import instances
from lightning_hooks.hosts.loggers import as_loggers
from lightning_hooks.hosts.loop_setup import setup_of
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
    optimizer: Any = handler.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)  # in Accelerate's wrapper, which has no step hooks
    loggers = as_loggers(list(_trackers(handler.callbacks)))
    folder, scaler = Path(str(args.output_dir)), trainer.accelerator.scaler
    host = PlainHost(model, [optimizer], setup=setup, loggers=loggers, log_dir=folder, scaler=scaler)
    host.accumulation, host.global_step, host.epoch = args.gradient_accumulation_steps, state.global_step, int(state.epoch or 0)
    return host


def _trackers(callbacks: Sequence[Any]) -> Iterator[Any]:
    """What the callbacks of ``report_to`` write to."""
    for callback in map(vars, callbacks):
        wandb, mlflow = callback.get("_wandb"), callback.get("_ml_flow")
        found = callback.get("tb_writer"), wandb and wandb.run, mlflow and mlflow.active_run()
        yield from (run for run in found if run is not None)
