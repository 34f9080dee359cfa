"""One forward hook per module, shared by all collectors that want its output, unless somebody else's comes between."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.declare.warn import Once
from lightning_hooks.hooks import Faults, Gate, HookManager, Listener
from lightning_hooks.hooks.manager import Suspension, remove_hooks
from lightning_hooks.hooks.modes import dispatch_modes, outside_modes
from lightning_hooks.hooks.wrappers import is_transformed, skipping


class SharedHook(Listener):
    """The forward hook of one module. It returns at once in a batch that none of the hooks' owners samples.

    A graph of ``torch.compile`` asks each recorder's own gate when it runs.
    """

    __slots__ = ("faults", "gate", "handle", "recorders")

    handle: RemovableHandle

    def __init__(self, gate: Gate, faults: Faults) -> None:
        self.gate, self.faults = gate, faults
        self.recorders: list[skipping] = []

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Hand the output to each recorder, in one call for all that their guards do."""
        if torch.compiler.is_compiling():  # asked first: a graph must not depend on the gate
            for recorder in self.recorders:
                recorder(module, args, output)
        elif self.gate.open:
            if is_transformed():
                self.faults.skipped += 1
                for recorder in self.recorders:
                    recorder.skip()
                return
            begin = perf_counter()
            with outside_modes() if dispatch_modes() else torch._C.DisableTorchFunction():
                for recorder in self.recorders:
                    if recorder.error is not None or (recorder.when is not None and not recorder.when.open):
                        continue
                    try:
                        recorder.hook(module, args, output)
                    except Exception as error:  # noqa: BLE001  training goes on
                        recorder.failed(error)
                    if recorder.meter is not None:
                        end = perf_counter()
                        recorder.meter.seconds += end - begin
                        begin = end


class ModuleHooks:
    """The forward hooks of one session.

    Attributes:
        gate: Open in batches that any owner of a recorder samples.
        faults: Counts the calls that are skipped.
        suspension: Takes the hooks out of modules that are not compiled while the model runs for other purposes.
    """

    def __init__(self) -> None:
        self.gate, self.faults = Gate(), Faults()
        self._manager = HookManager()
        self.suspension = Suspension()
        self._hooks: dict[nn.Module, list[SharedHook]] = {}
        self._owners: dict[int, list[skipping]] = {}
        self._warn_once = Once()

    def add(self, owner: object, name: str, module: nn.Module, recorder: skipping) -> None:
        """Call ``recorder`` with each output of a module, after the hooks that it has by now: those of others may change it."""
        ours = self._hooks.setdefault(module, [])
        if not ours or next(reversed(module._forward_hooks), None) != ours[-1].handle.id:
            hook = SharedHook(self.gate, self.faults)
            hook.handle = self._manager.register(module, hook, label=name)
            self.suspension.add(hook.handle)
            ours.append(hook)
        ours[-1].recorders.append(recorder)
        self._owners.setdefault(id(owner), []).append(recorder)

    def release(self, owner: object) -> None:
        """Remove the recorders of one owner, and the hooks that nobody else needs."""
        gone = {*map(id, self._owners.pop(id(owner), ()))}
        for module, ours in self._hooks.items() if gone else ():
            for hook in ours:
                hook.recorders = [other for other in hook.recorders if id(other) not in gone]
                if not hook.recorders:
                    hook.handle.remove()
            self._hooks[module] = [hook for hook in ours if hook.recorders]

    def of(self, owner: object) -> list[str]:
        """The names of the recorders of one owner."""
        return [recorder.site for recorder in self._owners.get(id(owner), ())]

    def remove_all(self, model: nn.Module | None) -> None:
        """Remove every hook, also those that others, such as ``prepare_qat``, registered again on modules of their own."""
        self.gate.stop()
        self.suspension.forget()
        self._manager.remove_all()
        self._hooks.clear()
        self._owners.clear()
        if model is not None:
            remove_hooks(model, lambda hook: isinstance(hook, SharedHook) and hook.gate is self.gate)

    def warn_of_compiled(self, name: str, sites: list[str]) -> None:
        """Warn, once, that sites run in graphs that were compiled before the hooks came."""
        self._warn_once(
            f"{name}: nothing was recorded from {', '.join(dict.fromkeys(sites))}, which run under torch.compile: "
            "they were compiled before the hooks came, and a compiled graph does not see later hooks. Call "
            "torch.compiler.reset() before trainer.fit()."
        )
