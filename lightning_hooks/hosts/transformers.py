"""The monitors in Hugging Face's Trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lightning_hooks.hosts.loop_monitor import LoopMonitor
from lightning_hooks.hosts.observers import TrainingReports
from lightning_hooks.hosts.transformers_host import TrainersLoss, host_of, trainer_of
from lightning_hooks.hosts.watch import observers_of

STATE = "lightning_hooks.pt"
"""The file of the monitors' state in a checkpoint's folder."""


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
            self.loop.load_state_dict(torch.load(saved, map_location="cpu", weights_only=False))
        host.again = TrainersLoss(host, trainer, loop.run)
        loop.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A batch ends, and with it an optimizer step or, as a substep, none."""
        if self.loop is not None:
            self.loop.step()
            self._stop(control)

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
            self._stop(control)

    def _stop(self, control: TrainerControl) -> None:
        if self.loop is not None and self.loop.should_stop:
            control.should_training_stop = True

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
