"""watch() in a loop with Accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hosts.loops import NetLayers, batches, sgd
from tests.support.models import hook_counts

accelerate = pytest.importorskip("accelerate")

from lightning_hooks.hosts.accelerate import watch  # noqa: E402  where there is Accelerate


@pytest.fixture(autouse=True)
def _a_process_of_its_own() -> Iterator[None]:
    """Accelerate keeps its state for the process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def run(accelerator: Any, clip: float | None = None, bad: int | None = None, **arguments: Any) -> tuple[Any, nn.Module, Any]:
    net = NetLayers()
    model, optimizer, loader = accelerator.prepare(net, sgd(net), batches())
    skipped = []
    with watch(accelerator, model, optimizer, **{"every_n_steps": 1, "summary": False, **arguments}) as monitor:
        for index, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(**batch)["loss"]
                accelerator.backward(loss * torch.inf if index == bad else loss)
                if accelerator.sync_gradients and clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                skipped.append(accelerator.optimizer_step_was_skipped)
                optimizer.zero_grad()
            monitor.step(loss)
        monitor.end_window()
    assert not any(hook_counts(net).values())
    assert torch._C._len_torch_function_stack() == 0
    return monitor, net, skipped


def test_accumulation_and_clips_are_seen() -> None:
    monitor, _, _ = run(accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2), clip=0.01)
    clips = monitor.clipping.optimizers["0-SGD"]
    assert (clips.steps, clips.clipped_steps) == (3, 3)
    assert clips.norm_after == pytest.approx(0.01, rel=1e-3)
    assert monitor.features.sites["first"].calls == 6
    assert 0.8 < monitor.gradients.loss.mean < 1.5


@pytest.mark.parametrize("clip", [None, 0.01])
def test_steps_that_the_scaler_skips_are_counted(clip: float | None) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # it makes none on the CPU
    monitor, _, _ = run(accelerator, clip, bad=2)
    # The optimizer was prepared before with this scaler: a step with a gradient that is not finite is skipped.
    clips = monitor.clipping.optimizers["0-SGD"]
    assert (clips.steps, clips.skipped_steps) == (5, 1)
    assert clips.clipped_steps == (5 if clip else 0)


def test_the_monitors_state_is_in_accelerates_checkpoints(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    net = NetLayers()
    model, optimizer, loader = accelerator.prepare(net, sgd(net), batches())
    monitor = watch(accelerator, model, optimizer, every_n_steps=1, summary=False)
    accelerator.register_for_checkpointing(monitor)
    with monitor:
        for batch in loader:
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
        accelerator.save_state(str(tmp_path))
    again = watch(accelerator, model, optimizer, every_n_steps=1, summary=False)
    accelerator._custom_objects.clear()
    accelerator.register_for_checkpointing(again)
    accelerator.load_state(str(tmp_path))
    assert again.host.global_step == 6
    with again:
        assert again.end_window()["clipping"].optimizers["0-SGD"].steps == 6


def test_what_is_wrong_is_an_error() -> None:
    net = NetLayers()
    with pytest.raises(TypeError, match=r"watch takes an accelerate\.Accelerator first"):
        watch(net, net, sgd(net))
