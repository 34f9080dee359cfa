"""The events of a training, as a collector gets them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_hooks.declare.step import Kept, Step


class BatchEvents:
    """The events of batches and windows; each does nothing unless it is overridden."""

    def batch_start(self, batch: Any) -> None:
        """A training batch starts."""

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts."""

    def after_backward(self) -> None:
        """Backward is done."""

    def batch_end(self, outputs: Any = None) -> None:
        """A training batch ends; with what ``training_step`` returned."""

    def validation_batch(self, batch: Any, index: int) -> None:
        """A validation batch starts."""

    def validation_end(self) -> None:
        """A validation ends, and its metrics are known."""

    def calls_numbered(self, changed: bool) -> None:
        """Ranks have numbered the sites of functional calls alike: make room for those that other ranks called.

        Args:
            changed: Whether earlier sites have other numbers now, and what was recorded of them does not count.
        """

    def window_end(self) -> None:
        """The window ends: note what only this rank knows."""

    def detach(self) -> None:
        """Hooks are removed. May be called twice."""


class OptimizerEvents:
    """The events of optimizer steps; each does nothing unless it is overridden."""

    def on_gradients(self, step: Step) -> None:
        """Gradients are ready and not clipped."""

    def on_clipped(self, step: Step) -> None:
        """Gradients are as the update will see them."""

    def on_taken(self, step: Step) -> None:
        """The optimizer has stepped."""

    def on_skipped(self, step: Step) -> None:
        """A loss scaler did not let the optimizer step."""

    def on_changed(self, kept: Kept) -> None:
        """There are new parameters, at the end of the names, or other optimizers than before."""
