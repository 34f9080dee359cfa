"""What running a step again asks of a loop other than Lightning's: the function that gives a batch's loss, and the loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from lightning_hooks.hosts.host import StepAgain
from lightning_hooks.hosts.plain import PlainHost
from lightning_hooks.replay.rows import LoaderRows
from lightning_hooks.statistics.weight_sample import is_distributed


class LoopStepAgain(StepAgain):
    """Runs the function that gives a batch's loss.

    Args:
        host: The loop.
        loss_function: The function.
        model: A copy of the model, whose contents the model has while the function runs; None for its own.

    Attributes:
        loss_function: The function.
    """

    def __init__(self, host: PlainHost, loss_function: Callable[..., Any], model: nn.Module | None = None) -> None:
        self._host, self._copy = host, model
        self.loss_function = loss_function
        self._loader: Any = None
        self._rows = LoaderRows()

    def record(self, loader: Any) -> None:
        """Record which samples a loader draws from now on, and from no other."""
        if loader is not self._loader:
            self._rows.release()
            self._loader = loader
            self._rows.record(inner_loader(loader))

    @override
    def release(self) -> None:
        self._rows.release()
        self._loader = None

    def _fetched(self, iterator: Any) -> int:
        """How many batches the loader has fetched after the one under way: Accelerate's is one ahead."""
        return int(not getattr(self._loader, "end_of_dataloader", True))

    @override
    def loader_iterators(self) -> tuple[Sequence[tuple[str, Any]], int]:
        iterator = self._rows.latest()
        return ((), 0) if iterator is None else ([("", iterator)], self._fetched(iterator))

    @override
    def run(self, *args: Any, **kwargs: Any) -> Any:
        exchanged = [] if self._copy is None else list(zip(self._host.model.modules(), self._copy.modules(), strict=True))
        own = [vars(module) for module, _ in exchanged]
        try:
            for module, copy in exchanged:
                object.__setattr__(module, "__dict__", vars(copy))
            return self.loss_function(*args, **kwargs)
        finally:
            for (module, _), contents in zip(exchanged, own, strict=True):
                object.__setattr__(module, "__dict__", contents)

    @override
    @contextmanager
    def muted(self) -> Iterator[None]:
        wrappers = [vars(module) for module in self._host.wrapped.modules() if isinstance(module, DistributedDataParallel)]
        before = [own.get("forward") for own in wrappers]
        try:
            self._host.runs_again = True
            for own in wrappers:  # a forward of the wrapper itself exchanges buffers with other ranks
                own["forward"] = own["_modules"]["module"]
            yield
        finally:
            self._host.runs_again = False
            for own, forward in zip(wrappers, before, strict=True):
                own.pop("forward") if forward is None else own.update(forward=forward)

    @override
    def on(self, model: nn.Module) -> StepAgain:
        return LoopStepAgain(self._host, self.loss_function, model)

    @override
    def why_not(self) -> str:
        host, setup = self._host, self._host.setup
        if not setup.automatic_optimization:
            return "with several optimizers a step is not that of one loss"
        if setup.unreadable_shards or any(map(is_distributed, host.model.parameters())):
            return "ranks hold shards of the model, and wait for each other"
        return self.why_not_on(host.model, setup.device, lambda: setup.world_size > 1 and not host.replicated_parameters())


def inner_loader(loader: Any) -> Any:
    """The loader of torch in the wrappers of Fabric's and Accelerate's."""
    for name in ("_dataloader", "base_dataloader"):
        loader = vars(loader).get(name, loader) if hasattr(loader, "__dict__") else loader
    return loader
