"""A slow, plain record of a training: what the peers' rules need to know of every batch. Shares no code with the monitors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.evidence.faults.training import loss_of

Array = NDArray[np.float64]

OUTPUT = ("std", "variance_in", "dead", "saturated", "beyond_range", "nonfinite", "nonfinite_in", "kurtosis")
GRADIENT = ("norm", "nonfinite")
PARAMETER = ("norm", "mean_abs", "zeros", "nonfinite", "missing", "update_ratio", "moved", "nonfinite_weight")
RANGES = {"Tanh": (-9.4999, 9.4999), "Sigmoid": (-23.0, 16.99999)}  # SageMaker's, where the slope is below 1e-7


@dataclass
class Recording:
    """What happened at every batch; NaN where something was not seen.

    Attributes:
        sites: The leaf modules, and their types in ``types``.
        parameters: The parameters that require a gradient, at any time.
        outputs: Shape ``(batches, sites, len(OUTPUT))``; likewise ``gradients`` (at outputs) and ``of_parameters``.
        losses: Shape ``(batches,)``, likewise ``total_norm`` (before clipping) and ``accepted`` (was a step taken).
        epochs: The epoch of each batch. ``scores``: The validation score after each epoch.
    """

    sites: list[str]
    types: list[str]
    parameters: list[str]
    outputs: Array
    gradients: Array
    of_parameters: Array
    losses: Array
    total_norm: Array
    accepted: Array
    epochs: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def output(self, column: str) -> Array:
        """A statistic of the outputs, ``(batches, sites)``."""
        return self.outputs[:, :, OUTPUT.index(column)]

    def gradient(self, column: str) -> Array:
        """A statistic of the gradients at outputs, ``(batches, sites)``."""
        return self.gradients[:, :, GRADIENT.index(column)]

    def parameter(self, column: str) -> Array:
        """A statistic of the parameters, ``(batches, parameters)``."""
        return self.of_parameters[:, :, PARAMETER.index(column)]


def output_statistics(module: nn.Module, given: Tensor | None, output: Tensor) -> Tensor:
    """The numbers of ``OUTPUT``. A unit is a position of the output; it is dead if no sample of the batch moves it."""
    x = output.detach().float()
    size = x.abs()
    dead = (size.flatten(1) if x.dim() > 1 else size[:, None]).amax(0) < 1e-9
    nothing = torch.tensor(math.nan)
    variance_in = beyond = nothing
    broken_in = torch.tensor(0.0)
    if given is not None and given.is_floating_point():
        source = given.detach().float()
        broken_in = _broken(source)
        if isinstance(module, nn.ReLU):
            variance_in = source.var()
        if type(module).__name__ in RANGES:
            low, high = RANGES[type(module).__name__]
            beyond = (((source > low) & (source < high)).reshape(len(source), -1).float().mean(0) < 0.01).float().mean()
    spread = x.std() if x.numel() > 1 else nothing
    kurtosis = ((x - x.mean()) / spread).pow(4).mean() - 3 if x.numel() > 1 else nothing
    dead_share, saturated = dead.float().mean(), (size > 0.95).float().mean()
    return torch.stack((spread, variance_in, dead_share, saturated, beyond, _broken(x), broken_in, kurtosis))


def _broken(x: Tensor) -> Tensor:
    """1 where a value is NaN or infinite, which a sum shows."""
    return (~x.sum(dtype=torch.float64).isfinite()).float()


class Recorder(Callback):
    """Keeps a :class:`Recording` of a fit in ``recording``."""

    def __init__(self) -> None:
        self.recording: Recording | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.model, self.recording_batch = pl_module, False
        leaves = [(name, m) for name, m in pl_module.named_modules() if name and not list(m.children())]
        self.sites = [name for name, _ in leaves]
        self.types = [type(m).__name__ for _, m in leaves]
        self.names = [name for name, _ in pl_module.named_parameters()]
        self.index = {parameter: i for i, (_, parameter) in enumerate(pl_module.named_parameters())}
        self.rows: list[tuple[Array, Array, Array]] = []
        self.losses: list[float] = []
        self.totals: list[float] = []
        self.accepted: list[float] = []
        self.epochs: list[int] = []
        self.scores: list[float] = []
        self.handles = [m.register_forward_hook(self._forward(i)) for i, (_, m) in enumerate(leaves)]
        for optimizer in trainer.optimizers:
            inner = getattr(optimizer, "optimizer", optimizer)
            self.handles.append(inner.register_step_post_hook(self._stepped))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.outputs: dict[int, Tensor] = {}
        self.gradients: dict[int, Tensor] = {}
        self.of_parameters: dict[int, list[Tensor]] = {}
        self.total, self.steps, self.recording_batch = math.nan, 0, True
        self.before: dict[int, Tensor] = {}

    def _forward(self, index: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            if (
                not self.recording_batch
                or not isinstance(output, Tensor)
                or torch._C._functorch.is_functorch_wrapped_tensor(output)
            ):
                return  # under torch.func there are no numbers to read
            if not (output.is_floating_point() and output.dim() and len(output)):
                return
            given = next((a for a in args if isinstance(a, Tensor)), None)
            self.outputs[index] = output_statistics(module, given, output)
            if output.requires_grad and not output.is_leaf:
                output.register_hook(lambda g: self._gradient(index, g.detach()))

        return hook

    def _gradient(self, index: int, gradient: Tensor) -> None:
        if self.recording_batch:
            norm = torch.linalg.vector_norm(gradient, dtype=torch.float64)
            self.gradients[index] = torch.stack((norm, (~norm.isfinite()).double()))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        squares = torch.zeros((), dtype=torch.float64)
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p in self.index):  # the model's
            i = self.index[parameter]
            self.before[i] = parameter.detach().clone()
            if parameter.grad is None:
                self.of_parameters[i] = [torch.tensor([math.nan] * 4 + [1.0])]
                continue
            g = parameter.grad.detach()
            g = g.coalesce().values() if g.is_sparse else torch.view_as_real(g.resolve_conj()) if g.is_complex() else g
            norm = torch.linalg.vector_norm(g, dtype=torch.float64)
            zeros = (g == 0).double().mean()
            row = (norm, g.abs().double().mean(), zeros, (~norm.isfinite()).double(), torch.zeros((), dtype=torch.float64))
            self.of_parameters[i] = [torch.stack(row)]
            squares = squares + norm.square()
        self.total = squares.sqrt().nan_to_num(nan=math.inf).item()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if p in self.index):  # the model's
            i = self.index[parameter]
            if i not in self.before:
                continue
            before, after = self.before.pop(i), parameter.detach()
            change = (after - before).abs()
            ratio = change.norm() / (before.norm() + 1e-9)
            moved = (change > 1e-8 + 1e-5 * before.abs()).any().float()
            self.of_parameters[i].append(torch.stack((ratio, moved, _broken(after))))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.recording_batch = False
        parameters = {i: torch.cat([part.double() for part in parts]) for i, parts in self.of_parameters.items()}
        self.rows.append(
            (
                _array(self.outputs, len(self.sites), len(OUTPUT)),
                _array(self.gradients, len(self.sites), len(GRADIENT)),
                _array(parameters, len(self.names), len(PARAMETER)),
            )
        )
        self.losses.append(loss_of(trainer, pl_module, outputs).item())
        self.totals.append(self.total)
        self.accepted.append(float(self.steps > 0))
        self.epochs.append(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.scores.append(float(trainer.callback_metrics.get("val_score", math.nan)))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        for handle in self.handles:
            handle.remove()
        if not self.rows:  # training ended before its first batch did
            return
        outputs, gradients, parameters = (np.stack(part) for part in zip(*self.rows, strict=True))
        self.recording = Recording(
            self.sites, self.types, self.names, outputs, gradients, parameters,
            np.array(self.losses), np.array(self.totals), np.array(self.accepted), self.epochs, self.scores,
        )  # fmt: skip
        self.handles, self.rows, self.model, self.index = [], [], None, {}


def _array(rows: dict[int, Tensor], n: int, width: int) -> Array:
    """Rows by their index, shape ``(n, width)``; NaN where there is none, or where a row ends early."""
    result = np.full((n, width), np.nan)
    for index, row in rows.items():
        result[index, : len(row)] = row.numpy()
    return result
