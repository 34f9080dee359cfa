"""The monitors in Hugging Face's Trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from typing_extensions import override

from lightning_hooks.hooks.attributes import exchange
from lightning_hooks.hosts.loop_monitor import LoopMonitor
from lightning_hooks.hosts.observers import TrainingReports
from lightning_hooks.hosts.plain import LoopStepAgain, PlainHost, inner_optimizer, instances, setup_of
from lightning_hooks.hosts.watch import as_loggers, observers_of

STATE = "lightning_hooks.pt"  # the file of the monitors' state in a checkpoint's folder


class MonitorCallback(TrainerCallback, TrainingReports):
    """Observes a training of Hugging Face's Trainer, as :class:`~lightning_hooks.TrainingMonitor` does in Lightning.

    The trackers of ``report_to`` that are TensorBoard, W&B or MLflow get the values; the reports are written into ``output_dir``. A
    training that goes on from a checkpoint goes on with its window. ``on_alert="stop"`` sets ``control.should_training_stop``.

    Args:
        **arguments: Those of :class:`~lightning_hooks.TrainingMonitor`, but ``progress_bar``.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type, or there is none of that name.
        ValueError: If an argument is out of range or needs Lightning.
    """

    def __init__(self, **arguments: Any) -> None:
        self.observers = observers_of("MonitorCallback", {"capsule": "auto", **arguments})
        self.loop: LoopMonitor | None = None
        self._epoch_over = False

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A Trainer is made: what ends its training is known to nobody but its ``train``."""
        self._close_after(trainer_of(args), "train")

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Training starts."""
        self._close("stopped")
        trainer = trainer_of(args)
        if "train" not in vars(trainer):  # the callback came later than the Trainer
            self._close_after(trainer, "training_step")
        host = host_of(trainer, args, state)
        self.loop = loop = LoopMonitor(host, self.observers)
        saved = _checkpoint(args, state) / STATE
        if state.global_step and saved.exists():
            loop.load_state_dict(torch.load(saved, map_location="cpu", weights_only=False))
        host.again = TrainersLoss(host, trainer, loop)
        loop.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A batch ends, and with it an optimizer step or, as a substep, none."""
        if self.loop is not None:
            self.loop.step()
            control.should_training_stop |= self.loop.should_stop

    on_substep_end = on_step_end

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An epoch ends; where an evaluation follows, its window ends after that."""
        self._epoch_over = self.loop is not None
        if str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "epoch":
            self._end_epoch(control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An evaluation is over."""
        if self.loop is not None and self.loop.running:
            self.loop.end_validation(kwargs.get("metrics") or {})
            self._end_epoch(control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint is written."""
        folder = _checkpoint(args, state)
        if self.loop is not None:
            saved = self.loop.state_dict()
            if state.is_world_process_zero and folder.is_dir():
                torch.save(saved, folder / STATE)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Training ends."""
        self._end_epoch(control)
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.finish()

    def _end_epoch(self, control: TrainerControl) -> None:
        if self._epoch_over and self.loop is not None:
            self._epoch_over = False
            self.loop.end_window()
            control.should_training_stop |= self.loop.should_stop

    def _close(self, how: str, error: BaseException | None = None) -> None:
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.close(how, error)

    def _close_after(self, trainer: Trainer, name: str) -> None:
        """Remove the hooks where a method of the Trainer raises, of which it calls no callback."""
        method: Callable[..., Any] = getattr(trainer, name)

        @wraps(method)
        def closing(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except BaseException as error:
                self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "exception", error)
                raise

        vars(trainer)[name] = closing


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"


def trainer_of(args: TrainingArguments) -> Trainer:
    """The Trainer that calls: it hands itself to no callback."""
    return next(trainer for trainer in instances(Trainer) if vars(trainer).get("args") is args)


def host_of(trainer: Trainer, args: TrainingArguments, state: TrainerState) -> PlainHost:
    """A Trainer whose training starts, as a session sees it."""
    handler = trainer.callback_handler
    loader: Any = handler.train_dataloader
    model = trainer.model_wrapped
    host = PlainHost(
        model,
        [inner_optimizer(handler.optimizer)],
        setup=setup_of(
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
        ),
        loggers=as_loggers(list(_trackers(handler.callbacks))),
        log_dir=Path(str(args.output_dir)),
        scaler=trainer.accelerator.scaler,
    )
    host.accumulation, host.global_step, host.epoch = args.gradient_accumulation_steps, state.global_step, int(state.epoch or 0)
    return host


class TrainersLoss(LoopStepAgain):
    """Runs the ``compute_loss`` of a Trainer again, which it calls once a micro-batch, with the batch."""

    def __init__(self, host: PlainHost, trainer: Trainer, loop: LoopMonitor) -> None:
        compute, train = trainer.compute_loss, trainer.training_step

        def loss_of(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with trainer.compute_loss_context_manager():
                found = compute(trainer.model_wrapped, inputs, *args, **kwargs)
            return found[0] if isinstance(found, tuple) else found

        @wraps(compute)
        def recorded(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not (model.training and torch.is_grad_enabled()):  # an evaluation
                return compute(model, inputs, *args, **kwargs)
            return loop.events.run(lambda _, *more, **named: compute(model, inputs, *more, **named), dict(inputs), *args, **kwargs)

        @wraps(train)
        def trained(*args: Any, **kwargs: Any) -> Any:
            loss = train(*args, **kwargs)
            if loop.running:  # clipping, for one, computes with each gradient
                loop.events.look_for_backward(False)
            return loss

        super().__init__(host, loss_of)
        self._put_back = exchange(trainer, compute_loss=recorded, training_step=trained)
        self.record(trainer.callback_handler.train_dataloader)

    @override
    def _fetched(self, iterator: Any) -> int:
        return int(iterator._num_yielded - 1 - self._host.batch)  # it fetches the batches of a whole update at once

    @override
    def release(self) -> None:
        super().release()
        self._put_back()


def _trackers(callbacks: Sequence[Any]) -> Iterator[Any]:
    """What the callbacks of ``report_to`` write to."""
    for callback in map(vars, callbacks):
        wandb, mlflow = callback.get("_wandb"), callback.get("_ml_flow")
        found = callback.get("tb_writer"), wandb and wandb.run, mlflow and mlflow.active_run()
        yield from (run for run in found if run is not None)
