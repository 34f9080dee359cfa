"""Python calls of the package in each training step, which unlike times do not depend on the machine.

``python -m tests.benchmarks.calls`` prints them. A step is what happens from one start of a batch to the next one; its calls are
those of functions in files of the package, generators and comprehensions among them, as ``sys.setprofile`` counts them. Calls of
torch and Lightning are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric
from lightning.pytorch.callbacks import LambdaCallback
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

import lightning_hooks
from lightning_hooks import AttentionMonitor, FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, TrainingMonitor, watch
from tests.benchmarks import epoch_end
from tests.benchmarks.workloads import DigitsCNN, ManyLayers, Task

PACKAGE = str(Path(lightning_hooks.__file__).parent)

Calls = Counter[tuple[str, str]]
"""How often each function was called, by file and name."""


class CallCounter:
    """Counts the calls of the package's functions, step by step."""

    def __init__(self) -> None:
        self.steps: list[Calls] = []
        self._names: dict[CodeType, tuple[str, str] | None] = {}

    def next_step(self) -> None:
        """A step begins."""
        self.steps.append(Counter())
        sys.setprofile(self._event)

    def stop(self) -> None:
        """The last step is over."""
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._names:
            file = code.co_filename
            self._names[code] = (file[len(PACKAGE) + 1 :], code.co_qualname) if file.startswith(PACKAGE) else None
        name = self._names[code]
        if name is not None:
            self.steps[-1][name] += 1


class StepBoundary(pl.Callback):
    """Comes first in the list of callbacks: what is counted after it is of the step that it begins."""

    def __init__(self, counter: CallCounter) -> None:
        self._counter = counter

    @override
    def on_train_batch_start(self, *args: Any) -> None:
        self._counter.next_step()

    @override
    def on_train_epoch_end(self, *args: Any) -> None:
        self._counter.stop()


def cnn() -> tuple[nn.Module, TensorDataset]:
    """Ten modules, eight parameters."""
    return DigitsCNN(), TensorDataset(torch.randn(256, 1, 8, 8), torch.randint(10, (256,)))


class SmallTransformer(nn.Module):
    """Two encoder layers of width 32."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    @override
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(ids)).mean(1))


def transformer() -> tuple[nn.Module, TensorDataset]:
    """Two encoder layers."""
    return SmallTransformer(), TensorDataset(torch.randint(50, (256, 8)), torch.randint(10, (256,)))


def many_layers() -> tuple[nn.Module, TensorDataset]:
    """A thousand linear layers."""
    return ManyLayers(), TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))


MODELS: dict[str, Callable[[], tuple[nn.Module, TensorDataset]]] = {
    "cnn": cnn,
    "transformer": transformer,
    "1000 layers": many_layers,
}
MONITORS: dict[str, Callable[..., Any]] = {
    "TrainingMonitor": TrainingMonitor,
    "FeatureStatsMonitor": FeatureStatsMonitor,
    "GradientFlowMonitor": GradientFlowMonitor,
    "GradientClipMonitor": GradientClipMonitor,
    "AttentionMonitor": AttentionMonitor,
}


def lightning_steps(model: str, monitor: Any, steps: int, clip: float | None = None) -> list[Calls]:
    """Train with Lightning's Trainer, and count each step but the last, which ends the epoch."""
    torch.manual_seed(0)
    net, data = MODELS[model]()
    counter = CallCounter()
    loader = DataLoader(data, batch_size=max(1, len(data) // steps // 2 * 2) if steps < len(data) else 1)
    trainer = pl.Trainer(
        callbacks=[StepBoundary(counter), monitor],
        max_epochs=1,
        limit_train_batches=steps,
        gradient_clip_val=clip,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Task(net), loader)
    return counter.steps[:-1]


def epoch_end_calls(sites: int) -> Calls:
    """Train linear layers and rectifiers in turn for three epochs, and count what the end of the last one calls."""
    torch.manual_seed(0)
    counter = CallCounter()
    trainer = pl.Trainer(
        callbacks=[
            LambdaCallback(on_train_epoch_end=lambda *_: counter.next_step()),
            TrainingMonitor(every_n_steps=1, summary=False),
            LambdaCallback(on_train_epoch_end=lambda *_: counter.stop()),
        ],
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(epoch_end.Task(epoch_end.Deep(sites)), DataLoader([torch.randn(8, 4)] * 2, batch_size=None))  # type: ignore[arg-type]
    return counter.steps[-1]


def loop_steps(model: str, steps: int, host: str = "watch", **arguments: Any) -> list[Calls]:
    """Train in a loop of one's own, with ``watch``, Fabric or Accelerate, and count each step."""
    torch.manual_seed(0)
    net, data = MODELS[model]()
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=1e-4)
    counter, inputs, targets = CallCounter(), *data.tensors
    backward: Callable[[Any], Any] = torch.Tensor.backward
    with contextlib.ExitStack() as stack:
        monitor: Any = None
        if host == "fabric":
            fabric = Fabric(accelerator="cpu", devices=1, callbacks=[TrainingMonitor(**arguments)])
            net, optimizer = fabric.setup(net, optimizer)
            backward = fabric.backward
        elif host == "accelerate":
            from accelerate import Accelerator

            from lightning_hooks.hosts import accelerate

            accelerator = Accelerator(cpu=True)
            net, optimizer = accelerator.prepare(net, optimizer)
            monitor = stack.enter_context(accelerate.watch(accelerator, net, optimizer, **arguments))
            backward = accelerator.backward
        else:
            monitor = stack.enter_context(watch(net, optimizer, **arguments))
        for _ in range(steps):
            counter.next_step()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs[:4]), targets[:4])
            backward(loss)
            optimizer.step()
            if monitor is not None:
                monitor.step(loss)
        counter.stop()
    return counter.steps


class WithLoss(nn.Module):
    """A model that returns its loss, as Hugging Face's Trainer wants it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    @override
    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.net(inputs), labels)}


def transformers_steps(model: str, steps: int, **arguments: Any) -> list[Calls]:
    """Train with Hugging Face's Trainer, and count each step but the last."""
    import transformers

    from lightning_hooks.hosts.transformers import MonitorCallback

    class Boundary(transformers.TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            counter.next_step()

        def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            counter.stop()

    torch.manual_seed(0)
    net, data = MODELS[model]()
    counter = CallCounter()
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=4, report_to=[], save_strategy="no", logging_strategy="no",
            use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        samples = [{"inputs": x, "labels": y} for x, y in data]
        ours = MonitorCallback(**arguments)
        transformers.Trainer(WithLoss(net), settings, train_dataset=samples, callbacks=[Boundary(), ours]).train()
    return counter.steps[:-1]


HOSTS: dict[str, Callable[..., list[Calls]]] = {
    "watch": loop_steps,
    "Fabric": partial(loop_steps, host="fabric"),
    "Accelerate": partial(loop_steps, host="accelerate"),
    "transformers": transformers_steps,
}
"""Of Lightning's Trainer see :data:`MONITORS`."""


def of_kinds(steps: Sequence[Calls], every: int) -> dict[str, Calls]:
    """One step of each kind: among the first, sampled and not, without what happens once in many steps."""
    later = range(len(steps) // 2, len(steps))
    sampled = [steps[at] for at in later if at % every == 0]
    others = [steps[at] for at in later if at % every]
    middle = lambda some: sorted(some, key=Counter.total)[len(some) // 2]  # noqa: E731
    return {"first": max(steps[:16], key=Counter.total), "sampled": middle(sampled), "not sampled": middle(others)}


def main() -> None:
    """Print the calls of each kind of step, by function for one of them with ``--functions``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", choices=("first", "sampled", "not sampled"), help="list the functions of such a step")
    parser.add_argument("--model", choices=tuple(MODELS), help="of this model only")
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    for model in [given.model] if given.model else MODELS:
        for name, monitor in MONITORS.items():
            for clip in (None, 1e-3):
                steps = lightning_steps(
                    model, monitor(**({} if name == "GradientClipMonitor" else {"every_n_steps": 5})), given.steps, clip
                )
                show(f"{model}, {name}{', clipped' if clip else ''}", of_kinds(steps, 5), given.functions)
        for name, host in HOSTS.items():
            with contextlib.suppress(ImportError):
                show(f"{model}, {name}", of_kinds(host(model, given.steps, every_n_steps=5, summary=False), 5), given.functions)


def show(label: str, kinds: dict[str, Calls], functions: str | None) -> None:
    """Print one line, and the functions of one kind of step."""
    print(f"{label:40}", "  ".join(f"{kind} {calls.total():5}" for kind, calls in kinds.items()), flush=True)
    for (file, function), count in kinds[functions].most_common() if functions else ():
        print(f"    {count:5}  {file}:{function}")


if __name__ == "__main__":
    main()
