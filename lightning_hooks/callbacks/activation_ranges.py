"""ActivationRangeObserver: the range of what every layer puts out, for quantisation to eight bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.alerts import RangeReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.ranges import RangeCollector
from lightning_hooks.extraction.batches import Forward, check_forward, device_of, run_model, undisturbed
from lightning_hooks.hooks import HookManager, ModuleSelector, select_modules
from lightning_hooks.hooks.listener import OutputTo
from lightning_hooks.quantization import RangeTable, check_levels, check_range_options
from lightning_hooks.session.settings import Settings, Summary


class ActivationRangeObserver(Monitor[RangeReport]):
    """Finds the range of every layer's output, and the scale and zero point that quantise it to eight bits.

    Nothing is quantised and training is unchanged. Ranges are those of the sampled batches of one epoch, since the weights change;
    they equal those of ``torch.ao.quantization``'s MinMaxObserver and MovingAverageMinMaxObserver for the same outputs. NaN and
    infinite values are counted, and are in no range.

    Logged each epoch: ``ranges/<module>/<stat>`` with stat one of min, max, scale, zero_point (NaN while a module is silent).

    Args:
        modules: The modules to observe; None for every leaf that computes something.
        every_n_steps: Sample training batches 0, n, 2n, … of each epoch; 1 for all.
        method: How a range is chosen: ``minmax``, the smallest and largest value; ``moving_average``, a moving average of each
            call's smallest and largest; ``percentile``, the range that holds the middle ``percentile`` percent.
        dtype: ``int8`` (-128 to 127) or ``uint8`` (0 to 255).
        scheme: ``affine``, or ``symmetric`` (zero point 0, or 128 for uint8).
        percentile: Percent of the values in a range of method ``percentile``, above 0 and at most 100.
        summary: What is printed at the end of training: True for three lines for all monitors, ``full`` also for tables, False for
            nothing.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.alerts.RangeReport`; None before the first.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or, at train start, if ``modules`` matches nothing.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import ActivationRangeObserver
        >>> trainer = Trainer(callbacks=[ActivationRangeObserver(method="percentile")], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = RangeCollector

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 1,
        method: Literal["minmax", "moving_average", "percentile"] = "minmax",
        dtype: Literal["int8", "uint8"] = "int8",
        scheme: Literal["affine", "symmetric"] = "affine",
        percentile: float = 99.99,
        summary: Summary = True,
    ) -> None:
        settings = Settings(modules=modules, every_n_steps=every_n_steps, report_every_n_steps=None, summary=summary)
        check_range_options(method, percentile)
        check_levels(dtype, scheme)
        self.method, self.dtype, self.scheme, self.percentile = method, dtype, scheme, percentile
        self._new_table = partial(RangeTable, method=method, percentile=percentile)
        super().__init__(settings, partial(RangeCollector, new_table=self._new_table, levels=(dtype, scheme)))

    @classmethod
    def calibrate(cls, model: nn.Module, batches: Iterable[Any], *, forward: Forward | None = None, **options: Any) -> RangeReport:
        """Find the ranges of a trained model in plain PyTorch, in evaluation mode and without gradients.

        Args:
            model: The model; it is unchanged. Compiled modules run uncompiled, so that the hooks of every module run.
            batches: The batches: tensors; tuples or lists, whose first entry is the input; or mappings, passed by keyword.
            forward: The name of the submodule or method to call instead of the model, or a function of (model, batch).
            **options: The arguments of :class:`ActivationRangeObserver`.

        Returns:
            The ranges over all batches; ``epoch`` and ``step`` are 0.

        Raises:
            TypeError: If ``batches`` is a single tensor or mapping, and as the constructor.
            ValueError: If there is no batch, and as the constructor.

        Example:
            >>> import torch
            >>> from lightning_hooks import ActivationRangeObserver
            >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
            >>> report = ActivationRangeObserver.calibrate(net, [torch.randn(16, 4)], dtype="uint8")
            >>> report.sites["1"].zero_point
            0
        """
        observer = cls(**options)
        check_forward(forward)
        if isinstance(batches, Tensor | Mapping):
            raise TypeError(
                f"batches must be several, such as a list or a DataLoader; got one {type(batches).__name__}: write [batch]."
            )
        sites = select_modules(model, observer.member.settings.modules)
        table = observer._new_table([name for name, _ in sites], device_of(model) or torch.device("cpu"))
        count, every = 0, observer.member.settings.every_n_steps
        with HookManager() as hooks:
            for index, (name, module) in enumerate(sites):
                hooks.register(module, OutputTo(table.add, index), label=name)
            for count, batch in enumerate(batches, 1):
                if (count - 1) % every == 0:
                    with undisturbed(model):
                        run_model(model, batch, forward)
        if not count:
            raise ValueError("calibrate needs at least one batch; got none.")
        found, silent = table.read(table.pack().cpu(), observer.dtype, observer.scheme)
        return RangeReport(0, 0, found, silent, math.ceil(count / every), count)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(modules=self.member.selection, method=self.method)
