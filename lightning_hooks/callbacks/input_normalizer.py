"""InputNormalizer: normalises the inputs of chosen modules, with given or learned statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.base import EvaluatedCallback
from lightning_hooks.declare.warn import info
from lightning_hooks.extraction.batches import to_host
from lightning_hooks.extraction.extracted import gather_by_name
from lightning_hooks.hooks import Gate, HookManager, ModuleSelector, select_modules
from lightning_hooks.hooks.checks import check_count, check_optional_integer
from lightning_hooks.hooks.selection import describe_selector
from lightning_hooks.transforms.normalization import Normalization, NormalizeInput, given_numbers, merge_moments


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """The statistics that normalise the input of one module.

    Attributes:
        mean: One per channel.
        std: One per channel, above 0.
        count: Number of finite values per channel that they were learned from; () if they were given.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    count: tuple[int, ...]


class InputNormalizer(EvaluatedCallback):
    """Normalises the input of chosen modules per channel: they receive ``(x - mean) / std`` instead of ``x``.

    **It alters training** and evaluation: its hooks run in fit, validate, test and predict. The mean and standard deviation are
    given, or learned from the first training batches and then frozen. While they are learned, inputs are normalised with the
    statistics of this rank so far; at the freeze the exact pooled statistics of all batches and ranks replace them. They are saved
    in the checkpoint, for resuming and for ``trainer.predict(ckpt_path=…)``; without Lightning use :meth:`load_state_dict` and
    :meth:`apply_to`.

    NaN and infinite values are not learned from, and stay as they are. A constant channel is only centred. Copies and pickles of
    the model made during a fit do not normalise: use :meth:`apply_to` with them.

    Args:
        modules: The modules whose input is normalised; usually the one that receives the batch, such as ``"net"`` or
            ``"encoder.conv1"``.
        mean: A number or one per channel; None to learn.
        std: A number or one per channel, above 0; None to learn.
        learn_batches: The number of training batches to learn from, at least 1; None for the first epoch.
        dim: The dimension of the channels: 1 for ``(N, C, H, W)`` and ``(N, C)``, -1 for ``(N, T, C)``; None for one mean and one
            standard deviation over all values.
        argument: Name of the parameter of ``forward`` to normalise; None for the first floating-point tensor, positional or
            keyword. Integers are normalised only if named.

    Raises:
        TypeError: If an argument is of a wrong type, or only one of mean and std is given.
        ValueError: If an argument is out of range; at the start, if a pattern matches nothing or ``forward`` has no such
            parameter; during training, if an input does not have that dimension or number of channels.

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
    ) -> None:
        super().__init__(modules=modules)
        if modules is None:
            raise TypeError("modules must name the module whose input is normalised, such as 'net'; got None.")
        check_optional_integer("dim", dim, "the dimension of the channels")
        self._given = given_numbers(mean, std)
        if self._given is not None and dim is None and self._given[0].numel() > 1:
            raise ValueError(f"dim=None takes one mean and one std over all values; got {self._given[0].numel()} of each.")
        if learn_batches is not None:
            check_count("learn_batches", learn_batches, least=1)
            if self._given is not None:
                raise ValueError(f"learn_batches={learn_batches!r} goes with learned statistics; here mean and std are given.")
        self.mean, self.std = mean, std
        self.learn_batches, self.dim, self.argument = learn_batches, dim, argument
        self._of: dict[str, Normalization] = {}  # by the module's name
        if argument is not None and not isinstance(argument, str):
            raise TypeError(f"argument must be the name of a parameter of forward, or None; got {argument!r}.")
        self.batches = 0  # learned from
        self._hooked: list[NormalizeInput] = []
        self._checked_calls = False

    @property
    def frozen(self) -> bool:
        """Whether the statistics are final."""
        return self._given is not None or (bool(self._of) and all(site.frozen for site in self._of.values()))

    @property
    def statistics(self) -> dict[str, InputStatistics]:
        """Module name to the statistics of its input; empty before the first batch."""
        return {
            name: InputStatistics(
                mean=tuple(site.mean.tolist()),
                std=tuple(site.std.tolist()),
                count=() if site.moments is None else tuple(map(int, site.moments[0].tolist())),
            )
            for name, site in self._of.items()
            if site.mean is not None and site.std is not None
        }

    def normalize(self, x: Tensor, module: str | None = None) -> Tensor:
        """Return ``(x - mean) / std``, as the module receives it.

        Args:
            x: A tensor with the channels in dimension ``dim``.
            module: The name of the module; None for the only one.

        Raises:
            ValueError: If the module is unknown, or not named and there are several.
        """
        return self._named(module).normalize(x)

    def inverse(self, x: Tensor, module: str | None = None) -> Tensor:
        """Return ``x * std + mean``, in the units of the input. Arguments and errors are those of :meth:`normalize`."""
        return self._named(module).inverse(x)

    def _named(self, module: str | None) -> Normalization:
        """The normalisation of a module that a user names; None for the only one."""
        if module is None and not self._of and self._given:
            return self._normalization("x")
        found = next(iter(self._of.values())) if module is None and len(self._of) == 1 else self._of.get(module or "")
        if found is None:
            known = ", ".join(self._of) or "none yet: fit, load a checkpoint, or apply_to() a model first"
            raise ValueError(f"module must name one whose input is normalised ({known}); got {module!r}.")
        return found

    def _normalization(self, module: str) -> Normalization:
        return Normalization(module, self.dim, *(self._given or ()))

    def apply_to(self, model: nn.Module, *, learn: bool = False) -> HookManager:
        """Normalise in plain PyTorch, until the returned manager's ``remove_all()``, or in a ``with`` block.

        Args:
            model: The model; ``modules`` are names in it.
            learn: Learn from every batch, until :meth:`freeze`.

        Example:
            >>> import torch
            >>> from lightning_hooks import InputNormalizer
            >>> net = torch.nn.Sequential(torch.nn.Identity())
            >>> with InputNormalizer(modules="0", mean=2.0, std=0.5).apply_to(net):
            ...     print(net(torch.tensor([[3.0]])))
            tensor([[2.]])
        """
        with HookManager().all_or_nothing() as hooks:
            self._hook(model, hooks, Gate(open=learn))
        return hooks

    def freeze(self) -> None:
        """Stop learning and keep the current statistics."""
        for site in self._of.values():
            site.freeze()

    # Hooks: registered before the first validation, also without training.

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._hook(pl_module, self.hooks, self.gate)
        self._of = {hook.site.site: hook.site for hook in self._hooked}  # others are of an earlier model

    def _hook(self, model: nn.Module, hooks: HookManager, gate: Gate) -> None:
        """Register the hooks, which learn while the gate is open."""
        chosen, self._hooked = select_modules(model, self.modules), []
        for name, module in chosen:
            hook = NormalizeInput(self._of.setdefault(name, self._normalization(name)), module, self.argument, gate)
            self._hooked.append(hook)
            hooks.register(module, hook, "forward_pre", label=name, with_kwargs=True)

    @override
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.attach(trainer, pl_module)
        unknown = [name for name, site in self._of.items() if site.mean is None]
        if unknown and trainer.state.fn != "fit":
            rank_zero_warn(
                f"InputNormalizer: no mean and std are known for {', '.join(unknown)}, so its inputs are not normalised. Give "
                "them, or load the checkpoint they were learned in with ckpt_path=."
            )

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.detach()
        self._checked_calls = False
        self._enter(trainer, pl_module)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if not (trainer.is_global_zero or self.frozen):
            for site in self._of.values():
                site.moments = None  # those of a checkpoint are of all ranks: one rank adds them
        how = "given" if self._given else "frozen" if self.frozen else f"learned from {self._span()}"
        info(f"InputNormalizer alters training: the input of {', '.join(self._of)} is normalised; mean and std are {how}.")

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        uncalled = [hook.site.site for hook in self._hooked if not hook.called and not self._checked_calls]
        self._checked_calls = True
        if uncalled:
            rank_zero_warn(
                f"InputNormalizer: {', '.join(uncalled)} was not called in the first training batch, so its input is not "
                "normalised. Hooks run when a module is called as module(x), not as module.forward(x), and not if it was compiled "
                "before the fit (call torch.compiler.reset() first)."
            )
        if self.frozen:
            return
        self.batches += 1
        if trainer.is_last_batch if self.learn_batches is None else self.batches >= self.learn_batches:
            self._freeze(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self.learn_batches is None:
            self._freeze(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._freeze(trainer)
        super().on_train_end(trainer, pl_module)

    # Learning, over ranks and checkpoints.

    def _span(self) -> str:
        return "the first epoch" if self.learn_batches is None else f"the first {self.learn_batches} batches"

    def _freeze(self, trainer: Trainer) -> None:
        if self.frozen or not self.batches:
            return
        for name, moments in self._merged().items():
            self._of[name].freeze(moments)
        found = self.statistics
        silent = [name for name in self._of if name not in found]
        if silent:
            rank_zero_warn(f"InputNormalizer: nothing was learned at {', '.join(silent)}: its inputs stay as they are.")
        info(f"InputNormalizer: mean and std of {', '.join(found)} are learned from {self._span()} and final.")

    def _merged(self) -> dict[str, Tensor | None]:
        """Return the moments of all ranks by module, ``(3, channels)`` each: a collective."""
        own = {name: site.moments for name, site in self._of.items() if site.moments is not None}
        ranks = gather_by_name(to_host(own))  # a module may run on some ranks only
        merged = {name: merge_moments(found) if len(found) > 1 else found[0] for name, found in ranks.items()}
        return {name: merged.get(name) for name in self._of}

    @override
    def state_dict(self) -> dict[str, Any]:
        merged = self._merged() if self.attached and not self.frozen else {}  # every rank calls this
        return {"sites": {name: site.state(merged.get(name)) for name, site in self._of.items()}, "batches": self.batches}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the statistics of a checkpoint: ``torch.load(path)["callbacks"][normalizer.state_key]``."""
        self.batches = state_dict["batches"]
        for name, state in state_dict["sites"].items():
            self._of.setdefault(name, self._normalization(name)).load(state)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(modules=describe_selector(self.modules), argument=self.argument)
