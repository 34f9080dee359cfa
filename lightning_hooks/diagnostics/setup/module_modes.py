"""In which mode dropouts, batch norms and spectral norms run, and how far the running statistics of batch norms move."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # the classes have no public base
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from lightning_hooks.declare.host import Position
from lightning_hooks.hooks.attributes import contents, in_training_mode, stored
from lightning_hooks.hooks.selection import clean_name, cleaned, outwards
from lightning_hooks.hooks.tensors import as_number, has_values, stored_tensor
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Span, Spans, largest

UNSEEN = 1e6  # the number of modules in eval mode around a module that no sampled batch has shown yet
LAST = 3  # sampled batches at the end of a window in which a module must be in eval mode that was in training mode before
FRESH = -1.0  # how far running statistics have moved that were never trained before this fit
AS_MADE = -2.0  # the same of those that still are as they were made: 0 and 1
SLOW_MOMENTUM = 5e-3  # momentum of a batch norm below which it is named; 0.1 is PyTorch's, and 0.01 TensorFlow's
FEW_VALUES = 16  # values per channel below which a batch norm is named in the report

_RUNNING = ("running_mean", "running_var")


class ModuleModes:
    """Follows the mode of each dropout and batch norm in the sampled batches.

    A module is in eval mode in a batch if it is when the batch starts and when backward starts: a part that is switched for a
    moment within ``training_step`` is not. It is in eval mode in a window if it is in all of its sampled batches, or in its last
    three: somebody called ``eval()`` in between. What is switched within the first sampled batch of training does not count in that
    batch: the model's own hooks at its start run after the monitors'.

    Attributes:
        since: Those that were in training mode in an earlier sampled batch, to the step at which they first were not.
        names: The modules whose result depends on the mode: dropouts that drop something, norms with running statistics, spectral
            norms; and attributes that are a share to drop, which a module passes to a function (``net.attention_dropout``).
    """

    def __init__(self, model: nn.Module, device: torch.device, position: Position) -> None:
        self._position, self.since = position, dict[str, int]()
        self._device, self._dtype = device, row_dtype(device)
        modules = dict(cleaned(model.named_modules()))
        dependent = {name: module for name, module in modules.items() if _depends_on_mode(module)}
        attributes = ((name, module, share, value) for name, module in modules.items() for share, value in contents(module).items())
        own = {  # what attention and nn.LSTM pass on with their mode
            f"{name}.{share}" if name else share: module
            for name, module, share, value in attributes
            if "dropout" in share and isinstance(value, float) and 0 < value < 1
        }
        self.names = [*dependent, *own]
        self._chains = [[modules[outer] if outer in modules else own[outer] for outer in outwards(name)] for name in self.names]
        self._levels = [UNSEEN] * len(self.names)
        self._at_start = self._levels
        self._last: deque[list[float]] = deque(maxlen=LAST)
        self._before: list[float] = []  # the levels in the sampled batch before
        self._first = True
        self.norms = {name: module for name, module in dependent.items() if isinstance(module, _NormBase)}
        self._sizes = [(norm, _channels(norm)) for norm in self.norms.values()]  # none while it is lazy
        owners = [place for place, (_, size) in enumerate(self._sizes) for _ in range(size)]
        self._owners = torch.tensor(owners, dtype=torch.int64, device=device)
        self._mean, self._std = self._running()
        self._trained = self._per_norm((self._mean != 0) | (self._std != 1))

    # Modes.

    def batch_start(self) -> None:
        """A sampled batch starts."""
        self._at_start = self._now()

    def before_backward(self) -> None:
        """Backward of a sampled batch starts."""
        now = self._now() if self._first or any(self._at_start) else self._at_start
        levels = [*map(min, self._at_start, now)]
        if self._first:
            levels = [UNSEEN if now[place] > level == 0 else level for place, level in enumerate(levels)]
            self._first = False
        if self._before and levels != self._before:
            step, before = self._position.global_step, zip(self.names, self._before, levels, strict=True)
            changed = {name: step if level else None for name, then, level in before if (then > 0) != (level > 0)}
            self.since = {name: now for name, now in (self.since | changed).items() if now is not None}
        self._levels, self._before = [*map(min, self._levels, levels)], levels
        self._last.append(levels)

    def _now(self) -> list[float]:
        """Of each module, how many are in eval mode from it outwards."""
        read = object.__getattribute__  # as contents does
        return [
            0.0
            if read(chain[0], "__dict__").get("training") is True
            else float(next((level for level, module in enumerate(chain) if in_training_mode(module)), len(chain)))
            for chain in self._chains
        ]

    def reset(self) -> None:
        """Start a new window."""
        self._levels = [UNSEEN] * len(self.names)
        self._last.clear()

    # The table, whose maximum is taken over ranks and windows.

    @property
    def spans(self) -> Spans:
        """How packed numbers merge."""
        return (Span(len(self.names) + len(self.norms), largest),)

    def pack(self) -> Tensor:
        """The negative levels of each module, and how far the statistics of each norm have moved since training started."""
        last = [min(levels) for levels in zip(*self._last, strict=True)] if len(self._last) == LAST else self._levels
        found = [max(pair) for pair in zip(self._levels, last, strict=True)]
        levels = torch.tensor([-level for level in found], dtype=self._dtype).to(self._device, non_blocking=True)
        mean, std = self._running()
        # The 2-Wasserstein distance of two normal distributions, over the standard deviation of the first; no mean has no distance.
        distance = (((mean - self._mean) / self._std) ** 2 + (std / self._std - 1) ** 2).nan_to_num()
        counts = self._per_norm(torch.ones_like(self._mean)).clamp_min(1)
        unchanged = self._per_norm((mean != 0) | (std != 1)) == 0
        moved = torch.where(self._trained > 0, (self._per_norm(distance) / counts).sqrt(), torch.where(unchanged, AS_MADE, FRESH))
        return torch.cat((levels, moved))

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        self._levels = [-level for level in packed[: len(self.names)].tolist()]

    def read(self, packed: Tensor) -> tuple[dict[str, int], dict[str, float]]:
        """Name packed numbers on the host.

        Returns:
            Each module that was in a sampled batch to its number of levels, and each norm to how far its statistics have moved:
            ``FRESH`` where they were not trained before, ``AS_MADE`` where they have not been since either.
        """
        levels, moved = packed[: len(self.names)].tolist(), packed[len(self.names) :].tolist()
        return (
            {name: int(-level) for name, level in zip(self.names, levels, strict=True) if -level < UNSEEN},
            dict(zip(self.norms, moved, strict=True)),
        )

    def slowest_momentum(self) -> float:
        """The smallest momentum of the norms with running statistics; 1 for none."""
        return min(filter(None, (as_number(stored(norm, "momentum")) for norm in self.norms.values())), default=1.0)

    def _running(self) -> tuple[Tensor, Tensor]:
        none = torch.zeros(0, device=self._device)
        of_norms = ([self._buffer(norm, name, size) for norm, size in self._sizes] for name in _RUNNING)
        mean, var = (torch.cat([none, *buffers]).to(self._dtype) for buffers in of_norms)
        return mean, var.sqrt()

    def _buffer(self, norm: nn.Module, name: str, size: int) -> Tensor:
        """A norm's buffer, as long as it was at the start; zeros where it is gone."""
        buffer = stored_tensor(norm, name) if size else None
        if buffer is None or buffer.numel() != size:
            return torch.zeros(size, device=self._device)
        return buffer.detach().to(self._device)

    def _per_norm(self, values: Tensor) -> Tensor:
        empty = torch.zeros(len(self.norms), dtype=self._dtype, device=self._device)
        return empty.index_add(0, self._owners, values.to(self._dtype))


def unusual_settings(model: nn.Module) -> dict[str, dict[str, float]]:
    """Module to its unusual settings, as :class:`~.ModelSetup` has them. Reads the device."""
    found: dict[str, dict[str, float]] = {}
    for name, module in model.named_modules():
        share, is_norm = _share_dropped(module), "norm" in type(module).__name__.lower()
        eps = as_number(stored(module, "eps", stored(module, "variance_epsilon"))) or 0.0  # the latter of RMSNorm in transformers
        momentum = as_number(stored(module, "momentum")) if isinstance(module, _NormBase) and _untrained(module) else None
        unusual = (
            ("p", share, share > 0.5),
            ("eps", eps, is_norm and eps > 0.01),
            ("momentum", momentum or 0.0, momentum is not None and momentum < SLOW_MOMENTUM),
            ("normalized", 1.0, isinstance(module, nn.LayerNorm) and math.prod(stored(module, "normalized_shape", (0,))) == 1),
        )
        found[clean_name(name)] = {setting: value for setting, value, holds in unusual if holds}
    return {name: settings for name, settings in found.items() if settings}


def _share_dropped(module: nn.Module) -> float:
    # Stochastic depth is in timm, transformers and torchvision.
    if isinstance(module, _DropoutNd) or type(module).__name__.lower().endswith(("droppath", "stochasticdepth")):
        return as_number(stored(module, "drop_prob", stored(module, "p"))) or 0.0
    return 0.0


def values_per_channel(modes: ModuleModes, levels: Mapping[str, int], stats: Mapping[str, Any]) -> dict[str, float]:
    """The values from which each batch norm in training mode computed a mean, where those are few.

    ``stats`` are of the gradient at the output of each site, which has as many numbers.
    """
    found = {
        name: stats[name].count / stats[name].calls / _channels(norm)
        for name, norm in modes.norms.items()
        # Numbers that are not finite are not counted.
        if levels.get(name) == 0 and name in stats and stats[name].calls and not stats[name].nonfinite_fraction
        # The means of an instance norm are over a sample, those of a synchronised one over all ranks.
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and _channels(norm)
    }
    return {name: values for name, values in found.items() if values < FEW_VALUES}


def _depends_on_mode(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return _share_dropped(module) > 0
    if isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return True  # its power iteration runs in training mode only
    if not isinstance(module, _NormBase):
        return False
    running = [stored(module, name) for name in _RUNNING]
    return all(isinstance(buffer, Tensor) and (has_values(buffer) or nn.parameter.is_lazy(buffer)) for buffer in running)


def _channels(norm: nn.Module) -> int:
    """How many running means a norm has; 0 while they are lazy."""
    mean = stored_tensor(norm, "running_mean")
    return 0 if mean is None else mean.numel()


def _untrained(norm: nn.Module) -> bool:
    """Whether running statistics are as they were made; where they are not, momentum 0 keeps them on purpose."""
    mean = stored_tensor(norm, "running_mean")
    return mean is not None and not mean.any()
