"""TensorBoard: an event file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Any
from weakref import WeakSet

import numpy as np
from typing_extensions import override

from lightning_hooks.trackers.layout import Band, Chart, Layout
from lightning_hooks.trackers.names import markdown_table
from lightning_hooks.trackers.picture import Picture
from lightning_hooks.trackers.tracker import Histogram, Tracker, coarsened

VALUES_PER_EVENT = 1000

_ARRANGED: WeakSet[Any] = WeakSet()
"""The writers whose run has a layout: TensorBoard reads the first alone, and a trainer may fit more than once."""


class TensorBoardTracker(Tracker):
    """Writes to a ``SummaryWriter``."""

    shows_pictures = True
    needs = ("add_scalar", "add_histogram_raw", "add_text", "add_image", "add_custom_scalars")

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if not self._writes_plainly():
            super().scalars(values, step)
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        items = iter(values.items())
        while batch := list(islice(items, VALUES_PER_EVENT)):
            summary = Summary()
            for tag, value in batch:
                text = self.prefixed(tag).encode("utf-8", "replace").decode()  # a lone surrogate would raise
                summary.value.add(tag=text, simple_value=value)
            self._add(summary, step)

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        if self._is_torchs():
            from tensorboard.compat.proto.summary_pb2 import Summary

            image = Summary.Image(height=picture.height, width=picture.width, colorspace=3, encoded_image_string=picture.png)
            self._add(Summary(value=[Summary.Value(tag=self.prefixed(tag), image=image)]), step)
        else:
            self.experiment.add_image(self.prefixed(tag), picture.array(), step, dataformats="HWC")

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        for tag, histogram in histograms.items():
            edges, counts = coarsened(*histogram)
            middles = [(low + high) / 2 for low, high in pairwise(edges)]
            self.experiment.add_histogram_raw(
                self.prefixed(tag),
                min=edges[0],
                max=edges[-1],
                num=sum(counts),
                sum=sum(count * middle for count, middle in zip(counts, middles, strict=True)),
                sum_squares=sum(count * middle**2 for count, middle in zip(counts, middles, strict=True)),
                bucket_limits=edges[1:],
                bucket_counts=counts,
                global_step=step,
            )

    @override
    def text(self, tag: str, markdown: str, step: int) -> None:
        self.experiment.add_text(self.prefixed(tag), markdown, step)

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        self.text(tag, markdown_table(columns, rows), step)

    @override
    def embedding(self, tag: str, features: np.ndarray, labels: Sequence[str] | None, step: int) -> None:
        self.experiment.add_embedding(features, metadata=None if labels is None else list(labels), global_step=step, tag=tag)

    @override
    def layout(self, layout: Layout) -> None:
        if self.experiment in _ARRANGED:
            return
        _ARRANGED.add(self.experiment)
        self.experiment.add_custom_scalars(
            {category: {title: self._content(chart) for title, chart in charts.items()} for category, charts in layout.items()}
        )

    def _content(self, chart: Chart) -> list[Any]:
        if isinstance(chart, Band):
            return ["Margin", [self.prefixed(tag) for tag in (chart.value, chart.lower, chart.upper)]]
        prefix = re.escape(self.prefixed(""))
        return ["Multiline", [f"{prefix}{pattern}" for pattern in chart.patterns]]

    def _writes_plainly(self) -> bool:
        """Whether the logger's log_metrics is Lightning's own, which calls add_scalar for each."""
        module = type(self.logger).log_metrics.__module__
        return module in ("lightning.fabric.loggers.tensorboard", "lightning_fabric.loggers.tensorboard") and self._is_torchs()

    def _is_torchs(self) -> bool:
        """Whether the writer is torch's, not tensorboardX's with messages of its own."""
        return type(self.experiment).__module__.startswith("torch.utils.tensorboard")

    def _add(self, summary: Any, step: int) -> None:
        self.experiment._get_file_writer().add_summary(summary, step)  # as Lightning does; there is no public name
