"""MonitorCallback in Hugging Face's Trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hosts.loops import NetLayers, Samples
from tests.support.models import hook_counts

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

import transformers

from lightning_hooks.hosts.transformers import MonitorCallback


def arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    settings = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 16,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
        **options,
    }
    return transformers.TrainingArguments(output_dir=str(folder), **settings)


def new_trainer(folder: Path, *callbacks: Any, net: nn.Module | None = None, **options: Any) -> transformers.Trainer:
    net = NetLayers() if net is None else net
    settings = arguments(folder, **options)
    return transformers.Trainer(net, settings, train_dataset=Samples(), eval_dataset=Samples(), callbacks=[*callbacks])


def monitor(**options: Any) -> MonitorCallback:
    return MonitorCallback(**{"every_n_steps": 1, "summary": False, **options})


def is_clean(trainer: transformers.Trainer) -> bool:
    return not any(hook_counts(trainer.model).values()) and torch._C._len_torch_function_stack() == 0


def test_training_is_not_altered(tmp_path: Path) -> None:
    weights = []
    for callbacks in ([], [monitor()]):
        trainer = new_trainer(tmp_path, *callbacks, net=NetLayers())
        trainer.train()
        weights.append([*trainer.model.parameters()])
    assert all(map(torch.equal, *weights))
    assert is_clean(trainer)


def test_accumulation_and_the_clip_are_seen(tmp_path: Path) -> None:
    ours = monitor()
    new_trainer(tmp_path, ours, gradient_accumulation_steps=3, max_grad_norm=0.01, num_train_epochs=1).train()
    clips = ours.clipping.optimizers["0-AdamW"]
    assert (clips.steps, clips.clipped_steps, clips.limit) == (2, 2, 0.01)
    assert clips.norm_after == pytest.approx(0.01, rel=1e-3)
    assert clips.norm_before > 0.05
    assert ours.features.sites["first"].calls == 6
    assert ours.gradients.loss.mean == pytest.approx(math.log(3), rel=0.2), "not a third of it"


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("later", [False, True])
def test_every_exit_is_clean(error: BaseException, later: bool, tmp_path: Path) -> None:
    class Failing(NetLayers):
        def forward(self, inputs: Any, labels: Any) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 4:
                raise error
            return super().forward(inputs, labels)

    ours = monitor()
    trainer = new_trainer(tmp_path, *([] if later else [ours]), net=Failing())
    if later:
        trainer.add_callback(ours)
    with pytest.raises(type(error)):
        trainer.train()
    assert is_clean(trainer)
    assert ours.members[0].end["how"] == ("interrupted" if isinstance(error, KeyboardInterrupt) else "exception")
    assert (tmp_path / "lightning_hooks" / "report.html").exists() or ours.features is None


def test_a_resumed_training_goes_on_with_its_window(tmp_path: Path) -> None:
    whole = monitor()
    new_trainer(tmp_path / "whole", whole).train()
    first, second = monitor(), monitor()
    new_trainer(tmp_path / "parts", first, save_strategy="steps", save_steps=4).train()
    assert (tmp_path / "parts" / "checkpoint-4" / "lightning_hooks.pt").exists()
    resumed = new_trainer(tmp_path / "parts", second)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-4"))
    assert (
        [report.step for report in second.history["features"]] == [report.step for report in whole.history["features"]] == [6, 12]
    )
    assert second.history["features"][0].sites == whole.history["features"][0].sites
    assert second.history["clipping"][0].optimizers["0-AdamW"].steps == 6
    assert is_clean(resumed)
