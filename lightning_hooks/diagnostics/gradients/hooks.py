"""What is recorded of gradients at outputs of modules, by hooks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional_calls import FunctionalCall
from lightning_hooks.declare.parameter_places import ParameterPlaces
from lightning_hooks.diagnostics.gradients.tables import GradientArrival, GradientTable
from lightning_hooks.hooks import OutputRecorder, float_tensors
from lightning_hooks.hooks.functions import DIVERGENCE, REGRESSION
from lightning_hooks.hooks.graph import (
    aligns,
    distance_sign,
    linear_layers,
    nearest_known,
    parameters_behind,
    squashed_twice,
    viewed,
    weights_of_targets,
)
from lightning_hooks.hooks.selection import cleaned
from lightning_hooks.hooks.tensors import in_memory
from lightning_hooks.hooks.wrappers import skipping

NO_MODULE = "the loss"  # where a loss squashes twice what no module squashed


class FirstLossGraph(NamedTuple):
    """What :class:`OutputNodes` saw in the graph of the first loss, on any rank.

    Attributes:
        squashed_twice: The module whose squashed output the loss squashes again, as softmax before cross-entropy; empty for none.
        loss_aligns: Whether the loss sums over alignments of labels with outputs (CTC).
        loss_sign: 1 if the loss is a distance of outputs from targets, -1 if it is minus one, else 0.
        user: A module that uses parameters which were gone after the first step; empty for none.
        elements: How many numbers these have.
        first_linear: The first layer of a network that is linear as a whole; empty for none.
        last_linear: The last.
        n_linear: How many layers it has.
        target_layer: The first layer that learns as the target of a loss alone; empty for none.
        viewed: The module before a view that mixes up dimensions; empty for none.
    """

    squashed_twice: str = ""
    loss_aligns: bool = False
    loss_sign: int = 0
    user: str = ""
    elements: int = 0
    first_linear: str = ""
    last_linear: str = ""
    n_linear: int = 0
    target_layer: str = ""
    viewed: str = ""

    @classmethod
    def read(cls, numbers: Sequence[int], modules: Sequence[str]) -> FirstLossGraph:
        """Name what :meth:`OutputNodes.numbers` gave."""
        names = ["", *modules, NO_MODULE]
        pairs = zip(cls(), numbers, strict=True)
        found = cls._make(names[number] if isinstance(nothing, str) else number for nothing, number in pairs)
        return found._replace(loss_aligns=bool(found.loss_aligns), loss_sign=(0, 1, -1)[found.loss_sign])


class OutputNodes:
    """Which node of the autograd graph is which module's output: noted in the fit's first sampled batch, until backward.

    Args:
        context: Where calls are seen, to note the targets of losses; None for a compiled model, of which nothing is noted.

    Attributes:
        given: The identities of leaves with ``requires_grad`` that a module was called with: inputs, not weights.
        compared: Of losses whose target has a gradient, as their input has, the nodes of output, input and target.
    """

    def __init__(self, context: Context | None) -> None:
        self.open = context is not None
        self.of: dict[Any, str] = {}
        self.given: set[int] = set()
        self.compared: list[tuple[Any, Any, Any]] = []
        self._seen = FirstLossGraph()
        self._unheld: dict[ref[nn.Parameter], tuple[int, str]] = {}  # to its numbers, and to the module that uses it
        if context is not None:
            self.look_at = context.guard(self._look_at, "the loss's graph")
        if context is not None and context.functional is not None and context.functional.used:
            context.on_call((DIVERGENCE, *REGRESSION), self._take_target)

    def clear(self) -> None:
        """Let the graph go."""
        self.of.clear()
        self.compared.clear()

    def _take_target(self, call: FunctionalCall) -> None:
        given, target = call.arguments.get("input"), call.arguments.get("target")
        if self.open and in_memory(given) and in_memory(target) and given.requires_grad and target.grad_fn is not None:
            self.compared.append((call.output.grad_fn, given.grad_fn, target.grad_fn))

    def _look_at(self, loss: Tensor, model: nn.Module, steps: ParameterPlaces, hidden: Collection[int]) -> None:
        """Look for what is wrong with a loss: squashed twice, a wrong sign, a target that learns, parameters that nobody holds."""
        weights, holders = linear_layers(loss), steps.holders()
        softmax, view, seen = squashed_twice(loss), viewed(loss), self._seen
        twice = seen.squashed_twice if softmax is None else nearest_known(softmax, self.of) or NO_MODULE
        before = seen.viewed if view is None else nearest_known(view, self.of) or NO_MODULE
        self._seen = seen._replace(loss_aligns=aligns(loss), loss_sign=distance_sign(loss), squashed_twice=twice, viewed=before)
        targets = [weight for weight in weights_of_targets(loss, self.compared) if id(weight) in holders]
        if targets or weights:
            modules = {id(parameter): name.rpartition(".")[0] for name, parameter in cleaned(model.named_parameters())}
        if targets:
            self._seen = self._seen._replace(target_layer=self._seen.target_layer or modules.get(id(targets[-1]), ""))
        if weights:
            first, last = (modules.get(id(weight), "") for weight in (weights[-1], weights[0]))
            self._seen = self._seen._replace(first_linear=first, last_linear=last, n_linear=len(weights))
        if steps.shards is None:  # else the graph has other parameters, of whole shards
            held = {*map(id, model.parameters()), *holders, *hidden}
            behind = [(parameter, user) for parameter, user in parameters_behind(loss, self.of) if id(parameter) not in held]
            self._unheld |= {ref(parameter): (parameter.numel(), user or NO_MODULE) for parameter, user in behind}

    def numbers(self, modules: Sequence[str]) -> list[float]:
        """What was seen, as :class:`FirstLossGraph` reads it: of names the places among those of the modules, from 1."""
        places = {name: float(place) for place, name in enumerate((*modules, NO_MODULE), start=1)}
        # Of the parameters that the first loss had gradients for those that are gone since.
        gone = [entry for parameter, entry in self._unheld.items() if parameter() is None]
        seen = self._seen._replace(
            user=gone[0][1] if gone else "",
            elements=sum(size for size, _ in gone),
            loss_sign=self._seen.loss_sign % 3,  # of ranks the largest is taken: 0 is nothing, 2 a minus
        )
        return [places.get(value, 0.0) if isinstance(value, str) else float(value) for value in seen]

    def batch_end(self) -> None:
        """A batch is over: the first one that was sampled is the last that is looked at."""
        self.open = self.open and not self.of
        self.clear()


def owners(sites: Sequence[tuple[str, nn.Module]], steps: ParameterPlaces) -> list[frozenset[int]] | None:
    """Of each site, the optimizers that hold parameters of it; None where there is but one optimizer."""
    if len(steps.optimizer_names) < 2:
        return None
    holders = steps.holders()
    return [frozenset(held for p in module.parameters() for held in holders.get(id(p), ())) for _, module in sites]


class GradientListener(OutputRecorder):
    """Forward hook of one site: notes the call, and asks each output tensor for its gradient."""

    def __init__(self, context: Context, table: GradientTable, name: str, index: int, outputs: OutputNodes) -> None:
        self.name, self.index = name, index
        self.calls, self.recording, self.outputs = table.calls, table.recording, outputs
        self.hook = skipping(GradientArrival(table, index), name, context.faults, when=context.gate, meter=context.meter)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Note the call, and ask for the gradients."""
        self.calls.called.append(self.index)
        for tensor in (output,) if type(output) is Tensor and output.is_floating_point() else float_tensors(output):
            if tensor.requires_grad and not tensor.is_leaf:  # a leaf is a parameter, with a site of its own
                tensor.register_hook(self.hook)  # type: ignore[no-untyped-call]
                self.recording.add(self.index)
                if self.outputs.open:
                    self.outputs.of[tensor.grad_fn] = self.name
        for given in args if self.outputs.open else ():
            for tensor in (given,) if type(given) is Tensor else float_tensors(given):
                if tensor.is_leaf and tensor.requires_grad:
                    self.outputs.given.add(id(tensor))

    @override
    def trace(self, number: Tensor, *args: Any) -> None:
        module, inputs, output = args
        for tensor in float_tensors(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self.hook)  # type: ignore[no-untyped-call]
        super().trace(number, module, inputs, ())  # the call
