"""How a model and its data are set up: what is out of the ordinary, collected in the sampled batches of a window for the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import EarlierOptimizers, OptimizerGroups, groups_of
from lightning_hooks.diagnostics.batches.hashes import BatchCounts, BatchHashes
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.loss_inputs.targets import LabelCounts, LabelTable
from lightning_hooks.diagnostics.setup.initial import NonfiniteWeight, first_weights, nonfinite_weights, still_alike
from lightning_hooks.diagnostics.setup.module_modes import AS_MADE, ModuleModes, unusual_settings, values_per_channel
from lightning_hooks.diagnostics.setup.outside import CopyStats, WeightsSet, WeightsWatch
from lightning_hooks.diagnostics.setup.parameters import SetupWatch, Unloaded, copies_in, held_by, unloaded
from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.parameters import own_parameters, unregistered_modules, unregistered_tensors
from lightning_hooks.hooks.selection import clean_name, outwards
from lightning_hooks.hooks.tensors import as_number
from lightning_hooks.statistics.reduction import largest
from lightning_hooks.statistics.tables import HostNumbers, Tables

MOST_UNREGISTERED = 8  # attributes with modules or tensors that are registered nowhere, at most


@dataclass(frozen=True, slots=True)
class UnregisteredModules:
    """Modules or tensors in a plain list or dictionary, or parameters created in ``forward``, which the model does not know.

    Attributes:
        modules: How many modules; 0 where it holds tensors that require a gradient.
        elements: Numbers in those parameters and tensors that require a gradient.
        reached: Whether a gradient arrived at any of these, on any rank.
        training: Whether any of the modules is in training mode.
        optimized: Whether an optimizer holds any of the parameters.
        held: Whether an attribute of the model holds them; if not, they were created for the first loss, and gone after it.
    """

    modules: int
    elements: int
    reached: bool = False
    training: bool = True
    optimized: bool = False
    held: bool = True


@dataclass(frozen=True, slots=True)
class VectorDecay:
    """Weight decay on parameters of one dimension or less: biases, and the scales of normalisation layers.

    Attributes:
        weight_decay: The largest that is set for any of them.
        parameters: How many have it.
    """

    weight_decay: float
    parameters: int


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """What is out of the ordinary in the modules' modes and settings and in the batches of a window.

    Attributes:
        eval_modes: Each dropout and batch norm that was in eval mode in every sampled batch, to the number of modules in eval mode
            from it outwards: 1 where the module around it is in training mode.
        eval_since: Those of them that were in training mode in an earlier sampled batch, to the step at which they first were not.
        unestimated: Those of them that are batch norms whose running statistics are as they were made, 0 and 1: no data have been
            seen.
        slowest_momentum: The smallest momentum of the batch norms with running statistics; 1 for none.
        constant_weights: Linear or convolution layer with two outputs or more to the one number that all its weights were when
            training started, and whose rows or columns are similar still; 0 only where most layers held it. So are matrices of
            recurrent layers, by their own names (``….weight_hh_l0``).
        one_sign_weights: Linear or convolution layer to the mean of its weights when training started, where all of them were above
            0, or all below.
        made: Layer that no optimizer trains to how it was initialised, where its weights showed that when training started
            (:class:`~lightning_hooks.diagnostics.setup.initial.FirstWeights`).
        unloaded: A frozen or slowly trained body that is as it was initialised; None for none.
        copies: Module that no optimizer holds, to how it follows the one that had the same weights when training started.
        weights_set: What something other than an optimizer set between steps, the last time in the window; None for nothing.
        weights_returned: Sampled steps, so far, at which a few parameters were to the bit what they were at an earlier one, with
            others in between.
        weights_still: These parameters, if they were the same at all sampled steps of the window.
        weights_away: Each of them to the root mean square of its change since training began or was resumed, after many steps.
        updating: Each frozen batch norm in training mode, to how far its running statistics have moved since training started, in
            the standard deviations that they had then (2-Wasserstein distance, root mean square over the channels). One without
            parameters is frozen if all parameters of the part around it are. Not where they were never trained.
        values_per_channel: Values from which a batch norm in training mode computed each mean, where those are fewer than 16.
        settings: Module to its settings that are unusual: ``p`` of a dropout or a stochastic depth above 0.5, ``eps`` of a norm
            above 0.01, ``momentum`` below 0.005 of a batch norm that has not been trained, ``normalized`` of a layer norm over one
            number.
        unregistered: Attribute (``net.blocks``) to the modules or tensors it holds that are registered nowhere; module to the
            parameters behind its output that each step creates again.
        vector_decay: Optimizer to its weight decay on biases and norms; only optimizers that hold weights too.
        nonfinite_weights: Parameters that held NaN or infinite values when training started, to what is known of them.
        foreign: What optimizers hold that requires a gradient and is no parameter of the model, by its name
            (``0-Adam.group0.4``), to its shape.
        labels: Targets in the batches that a cross entropy ignores; None where no integer targets were found.
        batches: How often batches were the same.
    """

    eval_modes: dict[str, int] = field(default_factory=dict)
    eval_since: dict[str, int] = field(default_factory=dict)
    unestimated: tuple[str, ...] = ()
    slowest_momentum: float = 1.0
    constant_weights: dict[str, float] = field(default_factory=dict)
    one_sign_weights: dict[str, float] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    unloaded: Unloaded | None = None
    copies: dict[str, CopyStats] = field(default_factory=dict)
    weights_set: WeightsSet | None = None
    weights_returned: int = 0
    weights_still: tuple[str, ...] = ()
    weights_away: dict[str, float] = field(default_factory=dict)
    updating: dict[str, float] = field(default_factory=dict)
    values_per_channel: dict[str, float] = field(default_factory=dict)
    settings: dict[str, dict[str, float]] = field(default_factory=dict)
    unregistered: dict[str, UnregisteredModules] = field(default_factory=dict)
    vector_decay: dict[str, VectorDecay] = field(default_factory=dict)
    nonfinite_weights: dict[str, NonfiniteWeight] = field(default_factory=dict)
    foreign: dict[str, tuple[int, ...]] = field(default_factory=dict)
    labels: LabelCounts | None = None
    batches: BatchCounts = field(default_factory=BatchCounts)


class SetupChecks(Tables):
    """Collects what :class:`ModelSetup` holds.

    Attributes:
        parameters: How the parameters are set up.
        modes: The modes of modules.
    """

    def __init__(self, context: Context) -> None:
        host, model, device = context.host, context.host.model, context.host.setup.device
        self.parameters = SetupWatch(context.steps.names, model, host.optimizers, resumed=host.position.global_step > 0)
        self.modes = ModuleModes(model, device, host.position)
        self._host, self._settings, self._first = host, unusual_settings(model), first_weights(model)
        self._nonfinite, self.weights = nonfinite_weights(model), WeightsWatch(context, copies_in(model, host.optimizers))
        self._unloaded = unloaded(model, host.optimizers, self._first.made)
        tensors = unregistered_tensors(model) if context.steps.shards is None else {}  # shards are kept so by FSDP
        modules = unregistered_modules(model)
        hidden: dict[str, list[nn.Module]] = {**modules, **{name: [] for name in tensors if name not in modules}}
        self._hidden = dict(list(hidden.items())[:MOST_UNREGISTERED])
        self._hidden_parameters: dict[str, list[Tensor]] = {
            name: [parameter for module in modules for parameter in own_parameters(module, model)] or tensors[name]
            for name, modules in self._hidden.items()
        }
        self._reached, self._optimized = set[str](), set[str]()
        self._decay, self._foreign = dict[str, VectorDecay](), dict[str, tuple[int, ...]]()
        self._hashes, self._labels = BatchHashes(device), LabelTable(1, device)
        super().__init__(
            device,
            labels=self._labels,
            hashes=self._hashes,
            reached=HostNumbers(
                lambda: [float(name in self._reached) for name, _ in zip_longest(self._hidden, range(MOST_UNREGISTERED))],
                largest,
                load=lambda flags: self._reached.update(compress(self._hidden, flags)),
            ),
            modes=self.modes,
        )
        self._take_batch = context.guard(self._hashes.add, "the batch (whether it is repeated)")
        self._take_labels = context.guard(self._labels.add, "the batch's labels")

    def state(self) -> dict[str, Any]:
        """Return what a resumed window needs next to the table."""
        return {"before": self._hashes.before, "samples": self._hashes.samples}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""
        for name in ("before", "samples"):
            setattr(self._hashes, name, None if (kept := state.get(name)) is None else kept.to(self._device))

    # Events.

    def batch_start(self, batch: BatchTensors, optimizers: OptimizerGroups, detailed: bool) -> None:
        """A sampled training batch starts."""
        self.parameters.batch_start(optimizers, self._host.model)
        if detailed or self._hashes.before is not None:
            self._take_batch(batch, detailed)
        self.modes.batch_start()
        self.weights.glance()
        if detailed:
            self._take_labels(batch)

    def next_batch(self, batch: BatchTensors) -> None:
        """A training batch starts that is not sampled, and the one before was."""
        self.weights.glance()
        if self._hashes.before is not None:
            self._take_batch(batch, sampled=False)

    def after_backward(self, inputs: Set[int]) -> None:
        """Gradients are there now; those of tensors that are inputs of a module, by their identities, do not count."""
        self.parameters.after_backward()
        for name, parameters in self._hidden_parameters.items():
            if name not in self._reached and any(p.grad is not None and id(p) not in inputs for p in parameters):
                self._reached.add(name)

    def follow(self, kept: EarlierOptimizers) -> None:
        """There are new parameters, or other optimizers than before."""
        self.parameters.follow(kept)
        self.weights.follow()

    def window_end(self, optimizers: Sequence[Any]) -> None:
        """The window ends: note what the optimizers hold, and what was set from outside."""
        parameters = [*self._host.model.named_parameters()]
        self.parameters.window_end(optimizers, parameters)
        self.weights.window_end(self.parameters.setups)
        named = groups_of(optimizers)
        held = held_by(named)
        self._optimized = {name for name, parameters in self._hidden_parameters.items() if any(id(p) in held for p in parameters)}
        self._decay = {name: found for name, groups in named for found in _vector_decay(groups)}
        own = {id(parameter) for _, parameter in parameters}
        self._foreign = {
            f"{name}.group{number}.{index}": tuple(parameter.shape)
            for name, groups in named
            for number, group in enumerate(groups)
            for index, parameter in enumerate(group["params"])
            if parameter.requires_grad and id(parameter) not in own and not nn.parameter.is_lazy(parameter)
        }

    def follows_backward(self) -> bool:
        """Whether it is noted which parameters get a gradient, since no optimizer holds them, or the model does not know them."""
        return self.parameters.follows_backward or bool(self.hidden())

    def hidden(self) -> set[int]:
        """The identities of the parameters and tensors that the model holds without knowing them."""
        return {id(parameter) for parameters in self._hidden_parameters.values() for parameter in parameters}

    def read(self, packed: Tensor, model: nn.Module, modules: Mapping[str, Any], temporary: Mapping[str, int]) -> ModelSetup:
        """Name what is out of the ordinary in a table of all ranks on the host.

        ``modules``: site to the statistics of the gradient at its output. ``temporary``: module to how many numbers have the
        parameters that it uses and that were gone after the first step.
        """
        parts = self.split(packed)
        levels, moved = self.modes.read(parts["modes"])
        updating = [name for name in moved if levels.get(name) == 0 and moved[name] > 0]
        reached = dict(zip(self._hidden, map(bool, parts["reached"].tolist()), strict=False))
        trained = {name.rpartition(".")[0] for name, setup in self.parameters.setups.items() if setup.trains and setup.optimizers}
        return ModelSetup(
            eval_modes={name: level for name, level in levels.items() if level},
            eval_since={name: step for name, step in self.modes.since.items() if levels.get(name)},
            unestimated=tuple(name for name in moved if levels.get(name) and moved[name] == AS_MADE),
            slowest_momentum=self.modes.slowest_momentum(),
            constant_weights=still_alike(model, self._first.constant),
            one_sign_weights=dict(self._first.one_sign),
            made={name: how for name, how in self._first.made.items() if how and name not in trained},
            unloaded=self._unloaded,
            copies=self.weights.copies,
            weights_set=self.weights.set,
            weights_returned=self.weights.returned,
            weights_still=self.weights.still,
            weights_away=self.weights.away,
            updating={name: moved[name] for name in _in_frozen_parts(updating, model)},
            values_per_channel=values_per_channel(self.modes, levels, modules),
            settings=dict(self._settings),
            unregistered={
                **{name: self._unregistered(name, reached[name]) for name in self._hidden},
                **{name: UnregisteredModules(0, size, reached=True, held=False) for name, size in temporary.items() if size},
            },
            vector_decay=self._decay,
            nonfinite_weights=self._nonfinite,
            foreign=self._foreign,
            labels=self._labels.read(parts["labels"]),
            batches=self._hashes.read(parts["hashes"], self._host.setup.data_parallel_size),
        )

    def _unregistered(self, name: str, reached: bool) -> UnregisteredModules:
        modules = self._hidden[name]
        elements = sum(0 if nn.parameter.is_lazy(p) else p.numel() for p in self._hidden_parameters[name])
        training = not modules or any(in_training_mode(module) for module in modules)
        return UnregisteredModules(len(modules), elements, reached, training, name in self._optimized)

    @override
    def reset(self) -> None:
        super().reset()
        self._reached = set()


def _vector_decay(groups: Sequence[Mapping[str, Any]]) -> list[VectorDecay]:
    known = [(as_number(group.get("weight_decay")) or 0.0, p) for group in groups for p in group["params"]]
    vectors = [(decay, parameter) for decay, parameter in known if not nn.parameter.is_lazy(parameter) and parameter.dim() < 2]
    decays = [decay for decay, _ in vectors if decay > 0]
    return [VectorDecay(max(decays), len(decays))] if decays and len(vectors) < len(known) else []


def _in_frozen_parts(names: Sequence[str], model: nn.Module) -> list[str]:
    """The modules none of whose parameters requires a gradient. One without any is as the innermost part that has some."""
    holds, trains = set[str](), set[str]()
    for raw, parameter in model.named_parameters() if names else ():
        around = outwards(clean_name(raw).rpartition(".")[0])
        holds.update(around)
        trains.update(around if parameter.requires_grad else ())
    return [name for name in names if next((outer for outer in outwards(name) if outer in holds), name) not in trains]
