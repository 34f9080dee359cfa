"""TensorBoard: an event file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_hooks.trackers.names import markdown_table
from lightning_hooks.trackers.tracker import Tracker

if TYPE_CHECKING:
    import numpy as np

    from lightning_hooks.trackers.picture import Picture

VALUES_PER_EVENT = 1000


class TensorBoardTracker(Tracker):
    """Writes to a ``SummaryWriter``."""

    shows_pictures = True

    @classmethod
    @override
    def suits(cls, logger: Any, experiment: Any) -> bool:
        methods = ("add_scalar", "add_histogram_raw", "add_text", "add_image", "add_custom_scalars")
        return all(callable(getattr(experiment, method, None)) for method in methods)

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if not self._writes_plainly():
            super().scalars(values, step)
            return
        # What add_scalar writes, with many values in an event: to call it for each takes ten times as long.
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [Summary.Value(tag=self.prefixed(tag), simple_value=value) for tag, value in values.items()]
        for start in range(0, len(found), VALUES_PER_EVENT):
            self._add(Summary(value=found[start : start + VALUES_PER_EVENT]), step)

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        if self._is_torchs():
            from tensorboard.compat.proto.summary_pb2 import Summary

            image = Summary.Image(height=picture.height, width=picture.width, colorspace=3, encoded_image_string=picture.png)
            self._add(Summary(value=[Summary.Value(tag=self.prefixed(tag), image=image)]), step)
        else:
            self.experiment.add_image(self.prefixed(tag), picture.array(), step, dataformats="HWC")

    @override
    def histogram(self, tag: str, edges: Sequence[float], counts: Sequence[float], step: int) -> None:
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        self.experiment.add_histogram_raw(
            self.prefixed(tag),
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(count * middle for count, middle in zip(counts, middles, strict=True)),
            sum_squares=sum(count * middle**2 for count, middle in zip(counts, middles, strict=True)),
            bucket_limits=list(edges[1:]),
            bucket_counts=list(counts),
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
    def layout(self, charts: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        self.experiment.add_custom_scalars(charts)

    def _writes_plainly(self) -> bool:
        """Whether the logger's log_metrics is Lightning's own, which calls add_scalar for each."""
        module = type(self.logger).log_metrics.__module__
        return module in ("lightning.fabric.loggers.tensorboard", "lightning_fabric.loggers.tensorboard") and self._is_torchs()

    def _is_torchs(self) -> bool:
        """Whether the writer is torch's, not tensorboardX's with messages of its own."""
        return type(self.experiment).__module__.startswith("torch.utils.tensorboard")

    def _add(self, summary: Any, step: int) -> None:
        self.experiment._get_file_writer().add_summary(summary, step)  # as Lightning does; there is no public name
