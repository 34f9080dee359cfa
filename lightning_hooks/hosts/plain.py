"""A training loop in plain PyTorch, as a session sees it: what is known of it, what it logs, and how a step of it runs again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.declare.host import Console, Host, LossScaling, Metrics, Position, RunFiles, StepAgain, TrainingSetup
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks.attributes import exchange
from lightning_hooks.hooks.tensors import as_number, is_distributed
from lightning_hooks.replay.rows import LoaderRows
from lightning_hooks.statistics.reduction import TableIndex, all_ranks
from lightning_hooks.trackers import Trackers

# Wrappers whose parameters are shards that do not say how they are spread
UNREADABLE = ("FullyShardedDataParallel", "DeepSpeedEngine")

T = TypeVar("T")


class PlainHost(Host):
    """A training loop in plain PyTorch. Whoever drives the session counts epochs and steps here.

    Args:
        model: The model.
        optimizers: Its optimizers.
        setup: What is known of the loop; None for what the model and the process group say.
        loggers: Where values go: TensorBoard's ``SummaryWriter`` and the like.
        log_dir: Where ``report_dir="auto"`` writes; None for nowhere.
        scaler: The GradScaler; None if there is none.

    Attributes:
        epoch: The epoch, from 0.
        batch: The training batch of the epoch, from 0.
        accumulation: What the loop divides the loss by before backward.
        global_step: The number of optimizer steps so far.
        epoch_ends: Whether the training batch that ends now is the epoch's last.
        should_stop: Whether an alert asks the loop to end.
        runs_again: Whether a step is being run again, and nothing that the model does is the loop's.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Any],
        *,
        setup: TrainingSetup | None = None,
        loggers: Sequence[Any] = (),
        log_dir: Path | None = None,
        scaler: Any = None,
    ) -> None:
        self.wrapped, self._model = model, unwrapped(model)
        self.position: Position = self
        self._optimizers, self._scaler = list(optimizers), scaler
        self.setup = setup_of(model) if setup is None else setup
        self.metrics: LoopMetrics = LoopMetrics(self, Trackers(loggers if self.setup.is_global_zero else (), warn_of_logger))
        self.console, self.files = Console(), RunFiles(log_dir)
        self.epoch = self.batch = self.global_step = 0
        self.accumulation = 1
        self.epoch_ends = self.should_stop = self.runs_again = False

    @property
    def progress(self) -> dict[str, int]:
        """How far training is, for a checkpoint; to set it goes on from there."""
        return {"epoch": self.epoch, "batch": self.batch, "global_step": self.global_step}

    @progress.setter
    def progress(self, progress: Mapping[str, int]) -> None:
        self.epoch, self.batch, self.global_step = (progress[name] for name in ("epoch", "batch", "global_step"))

    @property
    @override
    def model(self) -> nn.Module:
        return self._model

    @property
    @override
    def optimizers(self) -> Sequence[Any]:
        return self._optimizers

    @property
    @override
    def loss_scaling(self) -> LossScaling:
        return LossScaling(self.accumulation, self._scaler, unscales_in_step=self._scaler is not None)

    @override
    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        return replicated(self.wrapped) if self.setup.world_size > 1 else ()

    @property
    def uneven(self) -> bool:
        """Whether another rank may have had its last batch."""
        return bool(getattr(getattr(self.wrapped, "_join_config", None), "enable", False))  # within ``join()``; no public name

    @override
    def stop(self) -> None:
        self.should_stop = True


class LoopMetrics(Metrics):
    """What is logged in a loop.

    Attributes:
        values: The latest value of each tag of the monitors.
        reported: The user's metrics, as far as the loop has any.
    """

    def __init__(self, host: PlainHost, trackers: Trackers) -> None:
        self._host, self.trackers = host, trackers
        self.values: dict[str, float] = {}
        self.reported: dict[str, Tensor] = {}

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Take metrics of the user's, numbers or tensors by name; what is neither is left out."""
        if not isinstance(metrics, Mapping):
            raise TypeError(f"metrics must be numbers or tensors of one by name, such as {{'accuracy': 0.9}}; got {metrics!r}.")
        for name, value in metrics.items():
            known = value.detach() if isinstance(value, Tensor) else as_number(value)
            if known is not None:
                self.reported[str(name)] = torch.as_tensor(known)

    @property
    @override
    def step(self) -> int:
        return max(self._host.global_step - 1, 0)  # of the last step, from 0

    @property
    @override
    def available(self) -> Mapping[str, Any]:
        return self.reported

    @override
    def write(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        self.values.update(scalars)
        self.trackers.scalars(dict(logged), self.step)
        self.trackers.save()


class LoopStepAgain(StepAgain):
    """Runs the function again that gives a batch's loss."""

    def __init__(self, host: PlainHost, loss_function: Callable[..., Any]) -> None:
        self._host, self.loss_function = host, loss_function
        self._loader: Any = None
        self._rows = LoaderRows()

    def record(self, loader: Any) -> None:
        """Record which samples a loader draws from now on, and from no other."""
        if loader is not self._loader:
            self._rows.release()
            self._loader = loader
            for name in ("_dataloader", "base_dataloader"):  # in which the wrappers of Fabric and Accelerate hold torch's
                loader = vars(loader).get(name, loader) if hasattr(loader, "__dict__") else loader
            self._rows.record(loader)

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
        return self.loss_function(*args, **kwargs)

    @override
    @contextmanager
    def muted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self._host.wrapped.modules():
                if isinstance(module, DistributedDataParallel):  # whose own forward exchanges buffers with other ranks
                    stack.callback(exchange(module, forward=module.module))
            stack.callback(exchange(self._host, runs_again=True))
            yield

    @override
    def why_not(self) -> str:
        host, setup = self._host, self._host.setup
        if not setup.automatic_optimization:
            return "with several optimizers a step is not that of one loss"
        if setup.unreadable_shards or any(map(is_distributed, host.model.parameters())):
            return "ranks hold shards of the model, and wait for each other"
        return self.why_not_in(host)


def setup_of(model: nn.Module, **known: Any) -> TrainingSetup:
    """What a model and the process group say, and what is known otherwise."""
    rank = all_ranks() or TableIndex(0, 1)
    found: dict[str, Any] = {
        "device": next((parameter.device for parameter in model.parameters()), torch.device("cpu")),
        "world_size": rank.count,
        "data_parallel_size": rank.count,
        "is_global_zero": rank.number == 0,
        "unreadable_shards": next((kind for module in model.modules() if (kind := type(module).__name__) in UNREADABLE), ""),
    }
    return TrainingSetup(**{**found, **known})


def unwrapped(model: nn.Module) -> nn.Module:
    """The model in the wrappers that train it: Fabric's, and those for several ranks or devices."""
    inner = model.module if isinstance(model, DistributedDataParallel | DataParallel) else model._modules.get("_forward_module")
    return model if inner is None else unwrapped(inner)


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer in the wrapper of Accelerate's or Fabric's, which has no step hooks of its own."""
    wrapped = {"AcceleratedOptimizer", "_FabricOptimizer"} & {kind.__name__ for kind in type(optimizer).__mro__}
    return inner_optimizer(optimizer.optimizer) if wrapped else optimizer


def replicated(wrapped: nn.Module | None) -> list[nn.Parameter]:
    """Return the parameters that DDP keeps the same: none where a communication hook may not, or without DDP."""
    if not isinstance(wrapped, DistributedDataParallel) or getattr(wrapped, "_comm_hooks", None):
        return []
    ignored: Any = getattr(wrapped, "parameters_to_ignore", ())  # of torch; neither of these has a public name
    return [parameter for name, parameter in wrapped.module.named_parameters() if name not in ignored]


def instances(kind: type[T]) -> Iterator[T]:
    """Yield all objects of a class: some loops hand theirs to no callback. No attribute is read: an object may be a proxy."""
    return (each for each in gc.get_objects() if issubclass(type(each), kind))


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Return the optimizers that hold parameters of a model, in the order of these."""
    places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    found = [
        (min([places[id(p)] for group in each.param_groups for p in group["params"] if id(p) in places], default=-1), each)
        for each in instances(Optimizer)
        if "_optimizer" not in vars(each) and "param_groups" in vars(each)  # no wrapper of Fabric's
    ]
    return [optimizer for first, optimizer in sorted(found, key=lambda entry: entry[0]) if first >= 0]


def warn_of_logger(tracker: str, error: Exception) -> None:
    """Warn that a logger has raised; training goes on."""
    warn(
        f"{tracker} raised {type(error).__name__}: {error}. What lightning_hooks writes may be missing there; training goes "
        "on, and this warning is shown once."
    )
