"""A training step, run again: the one way in which the loop's own code runs a second time.

Whoever wants to know what a batch's loss is now, under given states of the generators, with or without its gradients, asks
:class:`StepRerun`. Everything is as before when its block is left, which is checked for all that the model holds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks.attributes import exchange
from lightning_hooks.hooks.generators import Generators, set_generators
from lightning_hooks.hooks.listener import all_closed
from lightning_hooks.hooks.modes import uncompiled
from lightning_hooks.replay.state import ModelSnapshot, require, set_values


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step that was run again gave.

    Gradients are those of each parameter that requires one, in the order of ``named_parameters()``, where they were asked for; None
    for one that the loss does not reach.
    """

    loss: Tensor | None  # as training_step returned it, detached, 0-d; None if it returned none, or raised
    gradients: Mapping[str, Tensor | None] | None = None
    error: Exception | None = None  # what it raised

    @property
    def finite(self) -> bool:
        """Whether the loss, and the gradients if there are any, are finite, and nothing was raised."""
        tensors = [self.loss, *(self.gradients or {}).values()]
        return self.error is None and all(bool(torch.isfinite(tensor).all()) for tensor in tensors if tensor is not None)


class StepRerun:
    """Runs training steps again; a context manager, within which the model may change, and after which it is as before.

    Args:
        model: The model, without the wrapper of a strategy.
        step: Runs ``training_step`` on a batch, and returns what it returned.
        device: Where the model is.
        muted: A context in which logging does nothing.

    Raises:
        NotRestoredError: On entering, where the model holds what cannot be put back; on leaving, where something is not as before,
            with its names.

    Example:
        >>> import torch
        >>> from lightning_hooks.replay.rerun import StepRerun
        >>> model = torch.nn.Linear(2, 1)
        >>> with StepRerun(model, lambda batch: model(batch).sum(), torch.device("cpu")) as again:
        ...     again.run(torch.zeros(3, 2), backward=True).gradients["weight"].tolist()
        [[0.0, 0.0]]
    """

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[Any], Any],
        device: torch.device,
        muted: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._model, self._step, self._device, self._muted = model, step, device, muted
        self._snapshot: ModelSnapshot | None = None

    def __enter__(self) -> StepRerun:
        self._snapshot = ModelSnapshot(self._model, self._device)
        return self

    def __exit__(self, *_: object) -> None:
        snapshot, self._snapshot = self._snapshot, None
        assert snapshot is not None
        snapshot.restore()
        changed = snapshot.changed()
        require(not changed, f"running the step again changed {', '.join(changed[:5])}")

    def run(
        self,
        batch: Any,
        generators: Generators | None = None,
        *,
        backward: bool = False,
        scale: float = 1.0,
        buffers: Iterable[tuple[Tensor, Tensor]] = (),
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Outcome:
        """Run the step on a batch, from the state on entering the block.

        Args:
            batch: The batch. A step that changes its tensors in place changes them.
            generators: The states to start from; None for those on entering.
            backward: Whether to compute the gradients too; ``.grad`` is not touched, and no hook of an accumulation runs.
            scale: What the loss is multiplied by before backward.
            buffers: Tensors of the model with the values that they are to have.
            within: A context around forward and backward.
        """
        assert self._snapshot is not None, "use it in a with block"
        for tensor, value in buffers:
            set_values(tensor, value)
        set_generators(self._snapshot.generators if generators is None else generators, self._device)
        try:
            with self._alone(), within():
                return self._outcome(batch, backward, scale)
        finally:
            self._snapshot.restore()

    def _outcome(self, batch: Any, backward: bool, scale: float) -> Outcome:
        try:
            returned = self._step(batch)
            loss = returned.get("loss") if isinstance(returned, Mapping) else returned
            if not isinstance(loss, Tensor):
                return Outcome(None)
            named = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad] if backward else []
            if not named or not loss.requires_grad:
                return Outcome(loss.detach())
            found = torch.autograd.grad(loss * scale if scale != 1.0 else loss, [p for _, p in named], allow_unused=True)
            gradients = {name: gradient for (name, _), gradient in zip(named, found, strict=True)}
        except Exception as error:  # noqa: BLE001  the user's, which is what is asked for
            return Outcome(None, None, error)
        return Outcome(loss.detach(), gradients)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else takes part: no monitor records, nothing is logged, no warning is shown, nothing compiled runs."""
        with ExitStack() as stack:
            stack.enter_context(all_closed())
            stack.enter_context(self._muted())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(uncompiled())
            stack.enter_context(torch.enable_grad())
            yield


@contextmanager
def without_logging(model: nn.Module, **attributes: Any) -> Iterator[None]:
    """A context in which a LightningModule, and those in it, log nothing, and hold these attributes."""
    with ExitStack() as stack:
        for module in model.modules():
            if hasattr(type(module), "log_dict"):
                stack.callback(exchange(module, log=_nothing, log_dict=_nothing, **attributes))
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Log nothing."""


def shallow(batch: Any) -> Any:
    """A copy of a batch's outer container, which a step may take entries from."""
    return type(batch)(batch) if type(batch) in (dict, list) else batch
