"""InputNormalizer: normalises what chosen modules are given, with given or learned numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.evaluation import EvaluatedCallback
from lightning_hooks.callbacks.trainer import epoch_step
from lightning_hooks.hooks import Gate, HookManager, Listener, ModuleSelector, select_modules
from lightning_hooks.hooks.selection import describe_selector
from lightning_hooks.metrics import PackedTable
from lightning_hooks.statistics.channels import mean_and_std, merge_moments
from lightning_hooks.statistics.rows import row_dtype
from lightning_hooks.transforms import Argument, Normalization
from lightning_hooks.transforms.normalization import given_numbers


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """What one module's input is normalised with.

    Attributes:
        mean: One per channel.
        std: One per channel, above 0.
        count: Finite values per channel that they were learned from; () if they were given.
        frozen: Whether they still change.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    count: tuple[int, ...]
    frozen: bool


class InputNormalizer(EvaluatedCallback):
    """Gives chosen modules ``(x - mean) / std`` in place of their input ``x``, per channel.

    Unlike an observer **it alters training**, and evaluation with it: its hooks are there in fit, validate, test and predict
    alike. The mean and standard deviation are given, or learned from the first training batches and then frozen. While they are
    learned, inputs are normalised with what has been seen so far on this rank; when they freeze, the exact pooled numbers of all
    batches and ranks take over. They are in the checkpoint, for resuming and for ``trainer.predict(ckpt_path=…)``; without
    Lightning there are :meth:`from_checkpoint` and :meth:`apply_to`.

    NaN and infinite inputs are not learned from, and are handed on as they are. A channel that does not vary is only centred.
    Copies and pickles of the model made during a fit do not normalise: use :meth:`apply_to` with them.

    Args:
        modules: Whose input; usually the one that gets the batch, such as ``"net"`` or ``"encoder.conv1"``.
        mean: A number or one per channel; None to learn.
        std: A number or one per channel, above 0; None to learn.
        learn_batches: How many training batches to learn from; None for the whole first epoch.
        dim: The dimension of the channels: 1 for ``(N, C, H, W)`` and ``(N, C)``, -1 for ``(N, T, C)``; None for one mean and one
            standard deviation over everything.
        argument: Name of the ``forward``'s parameter; None for the first floating-point tensor it is given, by position or keyword.
            Integers are normalised only if named.
        inverse_modules: Modules whose output is mapped back to the input's units, ``y * std + mean``: a decoder, a forecaster's
            head.

    Raises:
        TypeError: If an argument is of a wrong type, or mean and std are not given together.
        ValueError: If an argument is out of range; at the start, if a pattern matches nothing or ``forward`` has no such
            parameter; during training, if an input has not the dimension or the channels.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import InputNormalizer
        >>> trainer = Trainer(callbacks=[InputNormalizer(modules="net", learn_batches=100)], logger=False)
    """

    fit_only: ClassVar[tuple[str, ...]] = ("_hooked",)

    def __init__(
        self,
        *,
        modules: ModuleSelector,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        learn_batches: int | None = None,
        dim: int | None = 1,
        argument: str | None = None,
        inverse_modules: ModuleSelector | None = None,
    ) -> None:
        super().__init__(modules=modules)
        if modules is None:
            raise TypeError("modules must name the module whose input is normalised, such as 'net'; got None.")
        given = given_numbers(mean, std)
        if learn_batches is not None and (isinstance(learn_batches, bool) or not isinstance(learn_batches, int)):
            raise TypeError(f"learn_batches must be an integer of at least 1, or None for the first epoch; got {learn_batches!r}.")
        if learn_batches is not None and learn_batches < 1:
            raise ValueError(f"learn_batches must be at least 1, or None for the first epoch; got {learn_batches!r}.")
        if learn_batches is not None and given is not None:
            raise ValueError(f"learn_batches={learn_batches!r} goes with learned numbers; here mean and std are given.")
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
            raise TypeError(f"dim must be an integer (the dimension of the channels) or None; got {dim!r}.")
        if given is not None and dim is None and given[0].numel() > 1:
            raise ValueError(f"dim=None takes one mean and one std over everything; got {given[0].numel()} of each.")
        if argument is not None and not isinstance(argument, str):
            raise TypeError(f"argument must be the name of a parameter of forward, or None; got {argument!r}.")
        self.mean, self.std = mean, std
        self.learn_batches, self.dim, self.argument, self.inverse_modules = learn_batches, dim, argument, inverse_modules
        self.batches = 0  # learned from
        self._given = given
        self._sites: dict[str, Normalization] = {}
        self._hooked: list[_NormalizeInput] = []
        self._told = False
        self._rank_zero, self._world_size, self._device = True, 1, torch.device("cpu")

    # What users ask.

    @property
    def frozen(self) -> bool:
        """Whether the numbers are final."""
        return self._given is not None or (bool(self._sites) and all(site.frozen for site in self._sites.values()))

    @property
    def statistics(self) -> dict[str, InputStatistics]:
        """Module name to what its input is normalised with; empty before anything is known."""
        found = {}
        for name, site in self._sites.items():
            if site.mean is None or site.std is None:
                continue
            moments = site.everything()
            count = () if moments is None else tuple(int(n) for n in moments[0].tolist())
            found[name] = InputStatistics(tuple(site.mean.tolist()), tuple(site.std.tolist()), count, site.frozen)
        return found

    def normalize(self, x: Tensor, module: str | None = None) -> Tensor:
        """Return ``(x - mean) / std`` as the module is given it.

        Raises:
            ValueError: If the module is not named and there are several, or it is not known.
        """
        return self._site(module).normalize(x)

    def inverse(self, x: Tensor, module: str | None = None) -> Tensor:
        """Return ``x * std + mean``: from what a module is given back to the input's units."""
        return self._site(module).inverse(x)

    def apply_to(self, model: nn.Module, *, learn: bool = False) -> HookManager:
        """Normalise in plain PyTorch: hooks the model until the returned manager's ``remove_all()``, or for a ``with`` block.

        Args:
            model: The model; ``modules`` are names in it.
            learn: Learn from everything that passes, until :meth:`freeze`.

        Example:
            >>> import torch
            >>> from lightning_hooks import InputNormalizer
            >>> net = torch.nn.Sequential(torch.nn.Identity())
            >>> with InputNormalizer(modules="0", mean=2.0, std=0.5).apply_to(net):
            ...     print(net(torch.tensor([[3.0]])))
            tensor([[2.]])
        """
        hooks = HookManager()
        with hooks.all_or_nothing():
            self._hook(model, hooks, Gate(open=learn))
        return hooks

    def freeze(self) -> None:
        """Learn no more: keep the numbers as they are."""
        for site in self._sites.values():
            site.freeze()

    def reset(self) -> None:
        """Forget what was learned, to learn anew in the next fit."""
        self._sites, self.batches = {}, 0

    @classmethod
    def from_checkpoint(cls, path: str | PathLike[str], **arguments: Any) -> InputNormalizer:
        """Make one with the numbers that a checkpoint holds, for use without a trainer.

        Args:
            path: A checkpoint written by a trainer with an InputNormalizer.
            **arguments: As that one's.

        Raises:
            ValueError: If the checkpoint has no state of such an InputNormalizer.
        """
        normalizer = cls(**arguments)
        states = torch.load(path, map_location="cpu", weights_only=True).get("callbacks", {})
        if normalizer.state_key not in states:
            ours = [key for key in states if key.startswith(cls.__qualname__)]
            raise ValueError(f"{path} holds no state of {normalizer.state_key}; of this kind it has: {', '.join(ours) or 'none'}.")
        normalizer.load_state_dict(states[normalizer.state_key])
        return normalizer

    # The life of the hooks: in before the first validation, also where there is no training.

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._rank_zero, self._world_size, self._device = trainer.is_global_zero, trainer.world_size, pl_module.device
        self._hook(pl_module, self.hooks, self.gate)
        for name in set(self._sites) - {hook.site.site for hook in self._hooked}:
            del self._sites[name]  # an earlier model's

    def _hook(self, model: nn.Module, hooks: HookManager, gate: Gate) -> None:
        chosen = select_modules(model, self.modules)
        self._hooked = []
        for name, module in chosen:
            if name not in self._sites:
                mean, std = self._given or (None, None)
                self._sites[name] = Normalization(name, self.dim, mean, std)
            hook = _NormalizeInput(self._sites[name], Argument(module, name, self.argument), gate)
            self._hooked.append(hook)
            hooks.register(module, hook, "forward_pre", label=name, with_kwargs=True)
        if self.inverse_modules is None:
            return
        if len(chosen) > 1:
            raise ValueError(
                f"inverse_modules needs one module whose input is normalised; modules={self.modules!r} chose {len(chosen)}."
            )
        for name, module in select_modules(model, self.inverse_modules):
            hooks.register(module, _InvertOutput(self._sites[chosen[0][0]], name), "forward", label=name)

    @override
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.attach(trainer, pl_module)
        unknown = [name for name, site in self._sites.items() if site.mean is None]
        if unknown and trainer.state.fn != "fit":
            rank_zero_warn(
                f"InputNormalizer: no mean and std are known for {', '.join(unknown)}, so its inputs are not normalised. Give "
                "them, or load the checkpoint they were learned in with ckpt_path=."
            )

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.detach()
        self._told = False
        self._enter(trainer, pl_module)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        how = "given" if self._given else "frozen" if self.frozen else f"learned from {self._span()}"
        rank_zero_info(
            f"InputNormalizer alters training: the input of {', '.join(self._sites)} is normalised; mean and std are {how}."
        )

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if not self._told:
            self._told = True
            self._tell_unheard()
        if self.frozen:
            return
        self.batches += 1
        last = trainer.is_last_batch if self.learn_batches is None else self.batches >= self.learn_batches
        if last:
            self._freeze(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self.learn_batches is None and not self.frozen and self.batches:
            self._freeze(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.frozen and self.batches:
            self._freeze(trainer)
        super().on_train_end(trainer, pl_module)

    def _tell_unheard(self) -> None:
        unheard = [hook.site.site for hook in self._hooked if not hook.called]
        if unheard:
            rank_zero_warn(
                f"InputNormalizer: {', '.join(unheard)} was not called in the first training batch, so nothing is normalised "
                "there. A module is heard when it is called as module(x): not through .forward(x), nor if it was compiled "
                "before the fit (call torch.compiler.reset() first)."
            )

    # Learning, over ranks and checkpoints.

    def _span(self) -> str:
        return "the first epoch" if self.learn_batches is None else f"the first {self.learn_batches} batches"

    def _freeze(self, trainer: Trainer) -> None:
        for name, moments in self._merged().items():
            self._sites[name].freeze(moments)
        found = self.statistics
        silent = [name for name in self._sites if name not in found]
        if silent:
            rank_zero_warn(f"InputNormalizer: nothing was learned at {', '.join(silent)}: its inputs stay as they are.")
        rank_zero_info(f"InputNormalizer: mean and std of {', '.join(found)} are learned from {self._span()} and final.")
        trackers = self.trackers(trainer)
        for name, numbers in found.items():
            rows = [[channel, *pair] for channel, pair in enumerate(zip(numbers.mean, numbers.std, strict=True))]
            trackers.table(f"input_normalizer/{name}", ["channel", "mean", "std"], rows, epoch_step(trainer))

    def _merged(self) -> dict[str, Tensor | None]:
        """What all ranks have learned together, by module. Every rank is to ask."""
        # What came from a checkpoint is that of all ranks: one of them counts it.
        own = {name: site.everything() if self._rank_zero else site.moments for name, site in self._sites.items()}
        if self._world_size == 1:
            return own
        channels = torch.tensor([0 if known is None else known.shape[1] for known in own.values()], device=self._device)
        # A module may run on some ranks only. (reshape: torchmetrics makes a number of a single entry.)
        widths = _over_ranks(channels, lambda stacked: stacked.amax(0)).reshape(-1).tolist()
        table = torch.zeros((3, sum(widths)), dtype=row_dtype(self._device), device=self._device)
        for known, part in zip(own.values(), torch.split(table, widths, 1), strict=True):
            if known is not None:
                part.copy_(known)
        parts = torch.split(_over_ranks(table, merge_moments), widths, 1)
        return {name: part if part.shape[1] else None for name, part in zip(own, parts, strict=True)}

    @override
    def state_dict(self) -> dict[str, Any]:
        sites = {name: site.state() for name, site in self._sites.items()}
        if self.attached and not self.frozen:  # every rank is asked, so ranks may be merged
            for name, moments in self._merged().items():
                if moments is not None:
                    pooled = moments.to("cpu", copy=True)
                    sites[name].update(zip(("moments", "mean", "std"), (pooled, *mean_and_std(pooled)), strict=True))
        return {"sites": sites, "batches": self.batches}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]
        for name, state in state_dict["sites"].items():
            mean, std = self._given or (None, None)
            site = self._sites.get(name) or Normalization(name, self.dim, mean, std)
            site.load(state)
            self._sites[name] = site

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(modules=describe_selector(self.modules), argument=self.argument)

    def _site(self, module: str | None) -> Normalization:
        if module is None and len(self._sites) == 1:
            return next(iter(self._sites.values()))
        if module is None and not self._sites and self._given:
            return Normalization("x", self.dim, *self._given)
        if module not in self._sites:
            known = ", ".join(self._sites) or "none yet: fit, load a checkpoint, or apply_to() a model first"
            raise ValueError(f"module must name one whose input is normalised ({known}); got {module!r}.")
        return self._sites[module]


class _NormalizeInput(Listener):
    """Forward pre-hook of one site."""

    def __init__(self, site: Normalization, argument: Argument, gate: Gate) -> None:
        self.site, self.argument, self.gate, self.called = site, argument, gate, False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.called = True
        return self.argument.replace(args, kwargs, self._change)

    def _change(self, x: Tensor) -> Tensor:
        if self.gate.open and not self.site.frozen:
            self.site.learn(x)
        return self.site.normalize(x)


class _InvertOutput(Listener):
    """Forward hook of a module whose output goes back to the input's units."""

    def __init__(self, site: Normalization, name: str) -> None:
        self.site, self.name = site, name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise TypeError(f"inverse_modules: the output of {self.name!r} must be a tensor; got {type(output).__name__}.")
        return self.site.inverse(output)


def _over_ranks(tensor: Tensor, merge: Any) -> Tensor:
    table = PackedTable(merge)
    table.update(tensor)
    return table.compute()
