"""One optimizer step: its gradients, and their norms, read once for all collectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import fixed
from lightning_hooks.statistics.weight_sample import Shards, whole_where_partial

EarlierOptimizers = list[int | None]  # of each optimizer, which one it was before optimizers were exchanged; None for a new one


MOST_READ = 8  # gradients that are looked at where nothing but one multiplication of all of them can change them


def loss_scale(scaler: Any) -> Tensor | None:
    """The loss scale in force, 0-d on the device; None without a scaler. ``get_scale()`` would wait for the device."""
    scale = None if scaler is None else scaler._scale
    return None if scale is None else scale.clone()


@lru_cache(maxsize=32)
def _in_order(count: int) -> list[int]:
    """The places of so many parameters, where their groups have them in the order of the model."""
    return [*range(count)]


def versions(parameters: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Which gradients these parameters have, and how often each was changed in place."""
    found = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:  # torch counts what is done to it in place, for autograd's own checks; there is no public name
            found.append((id(gradient), gradient._version))
    return found


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One optimizer step under way.

    Attributes:
        optimizer: Its place in ``trainer.optimizers``.
        n_parameters: How many parameters have a place in :meth:`norms`.
        indices: The parameters that have a gradient.
        missing: The parameters of this optimizer that require a gradient and have none.
        parameters: The parameters of ``indices``.
        loss_scale: The loss scale in force, 0-d, or None without a scaler.
        carries_scale: Whether the gradients are still multiplied by it.
        skips_nonfinite: The optimizer itself skips the step if a gradient is not finite (fused, under a loss scaler).
        global_step: The trainer's, before this step.
        addresses: Where the gradients lie, as :func:`.addresses_of` says; None where that is to be asked again.
        shards: How parameters are spread over processes, if they are: then norms and zeros are those of whole gradients, and
            reading them is a collective.
        again: Not the first reading within one call of ``optimizer.step``: LBFGS asks for gradients several times, and those of the
            first are the gradients at the weights that the step starts from.
        unzeroed: The gradients had not been zeroed since the step before.
        late: Under manual optimisation with several ranks: all ranks recorded this step when backward ended, and this rank had no
            gradients for it then.
        wasted: They were changed after the step before, and then zeroed.
        before: The :meth:`norms` before clipping; None where nobody reads them.
        after: Those that the update sees; None where the step was not entered, or nobody reads them.
        known: The :meth:`norms`, if they were read since the gradients changed.
        found: The gradients, until anything may have changed them.
        discarded: How many batches since the step before gave gradients that were removed before the backward of the next one,
            without a step; under manual optimisation.
    """

    optimizer: int
    n_parameters: int
    indices: list[int]
    missing: list[int]
    parameters: list[Tensor]
    loss_scale: Tensor | None
    carries_scale: bool
    skips_nonfinite: bool
    global_step: int
    addresses: Sequence[int] | None = None
    shards: Shards | None = None
    again: bool = False
    unzeroed: bool = False
    wasted: bool = False
    late: bool = False
    discarded: int = 0
    before: Tensor | None = None
    after: Tensor | None = None
    found: Sequence[Tensor] = ()
    known: Tensor | None = None
    _zeros: Tensor | None = None
    _sizes: list[int] = field(default_factory=list)
    _marked: list[Tensor] = field(default_factory=list)
    _versions: list[tuple[int, int]] = field(default_factory=list)

    @property
    def in_order(self) -> bool:
        """Whether all parameters have a gradient, and lie in the optimizer's groups as they do in the model."""
        return self.indices == _in_order(self.n_parameters)

    def gradients(self) -> list[Tensor]:
        """The gradients as they are now, plain and dense, scaled if they are; of sharded ones the shards."""
        return [plain_values(grad) for grad in self._reduced()]

    def _found(self) -> list[Tensor]:
        found = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None:
                found.append(gradient)
        return found

    def _reduced(self) -> list[Tensor]:
        found = self._found()
        return found if self.shards is None else [whole_where_partial(grad) for grad in found]

    def mark(self, scaled: bool) -> None:
        """Remember which gradients these are, for :meth:`changed`.

        Args:
            scaled: Whether nothing but one multiplication of all of them by the same number can change them: a few are enough then.
        """
        self.found = ()
        if self.shards is None:  # what is written to a shard does not count as written to the whole
            self._marked = self.parameters[:: -(-len(self.parameters) // MOST_READ) or 1] if scaled else self.parameters
            now = []
            for parameter in self._marked:  # as versions() does, without a call
                gradient = parameter.grad
                if gradient is not None:
                    now.append((id(gradient), gradient._version))
            self._versions = now

    def changed(self, scaled: bool) -> bool:
        """Gradients may have changed since :meth:`mark`: the next :meth:`norms` reads them again.

        Returns whether they have not, as far as autograd's version counters show, which do not see what is done through ``.data``.
        """
        self.found = ()
        now = []
        for parameter in self._marked:
            gradient = parameter.grad
            if gradient is not None:
                now.append((id(gradient), gradient._version))
        if now and now == self._versions:
            return True
        once = scaled and len(now) == len(self._versions) > 0
        for (one, version), (other, known) in zip(now, self._versions, strict=False):
            once = once and one == other and version == known + 1
        self.known = self._zeros = None
        self.addresses = self.addresses if once else None  # multiplied in place
        return False

    def norms(self) -> Tensor:
        """L2 norm of each parameter's gradient, unscaled; 0 for one without. Computed once until :meth:`refresh`.

        Returns:
            Shape ``(n_parameters,)``.
        """
        if not self.indices:  # training_step returned None
            return torch.zeros(self.n_parameters, dtype=torch.float64)
        if self.known is None:
            found = self.found or self._reduced()
            norms = kernels_for(found[0].device.type).norms(found, addresses=self.addresses).norms
            scaled = self.carries_scale and self.loss_scale is not None
            self.known = self._placed(norms) if scaled or self.indices != _in_order(self.n_parameters) else norms
            if self.shards is not None:
                self.known = self.shards.norms(self.known)
        return self.known

    def zeros(self) -> Tensor:
        """How many elements of each gradient are zero: shape ``(len(indices),)``. Read together with the norms."""
        if self._zeros is None:
            found = self.found or self._reduced()
            norms, zeros, self._sizes = kernels_for(found[0].device.type).norms(found, zeros=True, addresses=self.addresses)
            assert zeros is not None
            self._zeros = zeros
            self.known = self._placed(norms)
            if self.shards is not None:
                self.known, self._zeros = self._of_whole(self.shards, self.known, self._zeros)
                self._sizes = [gradient.numel() for gradient in self._found()]
        return self._zeros

    def _of_whole(self, shards: Shards, norms: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
        indices = self.index_tensor(norms.device)
        placed = norms.new_zeros(self.n_parameters)
        placed[indices] = zeros
        squares, zeros = shards.total(torch.stack((norms.square(), placed)))
        return squares.sqrt(), zeros[indices]

    def sizes(self) -> Tensor:
        """How many elements each gradient stores; shape, dtype and device are those of :meth:`zeros`."""
        zeros = self.zeros() if self._zeros is None else self._zeros
        return fixed(tuple(self._sizes), zeros.dtype).to(zeros.device, non_blocking=True)

    def _placed(self, found: Tensor) -> Tensor:
        """Norms of the gradients that are there, unscaled, among those of all parameters."""
        if self.carries_scale and self.loss_scale is not None:
            found = found / self.loss_scale
        if self.in_order:
            return found
        norms = found.new_zeros(self.n_parameters)
        norms[self.index_tensor(found.device)] = found
        return norms

    def index_tensor(self, device: torch.device) -> Tensor:
        """``indices`` as a tensor."""
        return fixed(tuple(self.indices)).to(device, non_blocking=True)

    def refresh(self) -> None:
        """Gradients have changed: the next :meth:`norms` reads them again."""
        self.known = self._zeros = self.addresses = None
        self.found = ()


OptimizerGroups = Sequence[tuple[str, Sequence[dict[str, Any]]]]  # the name of each optimizer, with its parameter groups


def groups_of(optimizers: Iterable[Any]) -> OptimizerGroups:
    """The name of each optimizer, such as ``0-Adam``, with its parameter groups."""
    return [(f"{place}-{type(one).__name__}", getattr(one, "param_groups", ())) for place, one in enumerate(optimizers)]
