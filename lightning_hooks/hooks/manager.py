"""Registration of hooks: all or none, around the code of a function, and out of their modules for a time."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.selection import inside_compiled

P = ParamSpec("P")
R = TypeVar("R")

# kind -> (what it hooks, the method that registers it)
_KINDS: dict[str, tuple[type[Any], str]] = {
    "forward": (nn.Module, "register_forward_hook"),
    "forward_pre": (nn.Module, "register_forward_pre_hook"),
    "full_backward": (nn.Module, "register_full_backward_hook"),
    "full_backward_pre": (nn.Module, "register_full_backward_pre_hook"),
    "tensor": (Tensor, "register_hook"),
    "post_accumulate_grad": (Tensor, "register_post_accumulate_grad_hook"),
    "optimizer_step_pre": (torch.optim.Optimizer, "register_step_pre_hook"),
    "optimizer_step_post": (torch.optim.Optimizer, "register_step_post_hook"),
}

HOOK_KINDS: tuple[str, ...] = tuple(_KINDS)
"""The kinds of hook that :meth:`HookManager.register` accepts."""


class HookManager:
    """Registers hooks of every kind PyTorch has, remembers their handles, and removes them.

    The manager holds handles and labels, never a module or a tensor, so it keeps no model in memory. It removes only the hooks that
    it registered, in reverse order; :meth:`remove_all` is idempotent. As a context manager it removes them on exit, also when the
    block raises. A copy or a pickle of a manager is empty: the hooks stay with the original.

    Example:
        >>> import torch
        >>> from lightning_hooks import HookManager
        >>> shapes = []
        >>> layer = torch.nn.Linear(2, 3)
        >>> with HookManager() as hooks:
        ...     _ = hooks.register(layer, lambda module, args, output: shapes.append(tuple(output.shape)), "forward")
        ...     _ = layer(torch.zeros(5, 2))
        >>> shapes, len(hooks)
        ([(5, 3)], 0)
    """

    def __init__(self) -> None:
        self._handles: list[tuple[str, str, RemovableHandle]] = []  # label, kind, handle

    def register(
        self,
        target: nn.Module | Tensor | torch.optim.Optimizer,
        hook: Callable[..., Any],
        kind: str = "forward",
        *,
        label: str = "",
        **options: bool,
    ) -> RemovableHandle:
        """Register one hook.

        Args:
            target: The module, tensor or optimizer to hook.
            hook: The function, with PyTorch's signature for that kind.
            kind: One of ``HOOK_KINDS``.
            label: A name for messages and :attr:`alive`, for instance the module's.
            **options: ``prepend``, ``with_kwargs`` or ``always_call``, where PyTorch has them for that kind.

        Returns:
            PyTorch's handle, which also removes the hook.

        Raises:
            ValueError: If ``kind`` is unknown.
            TypeError: If the kind does not take this target, hook or option.
            RuntimeError: If the target is a tensor that does not require gradients.
        """
        if kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(HOOK_KINDS)}; got {kind!r}.")
        expected, method = _KINDS[kind]
        if not isinstance(target, expected):
            raise TypeError(
                f"A {kind!r} hook goes on a {expected.__module__.split('.')[0]} {expected.__name__}; "
                f"got {type(target).__name__}. Pass such an object, or choose another kind."
            )
        if not callable(hook):
            raise TypeError(f"hook must be callable; got {hook!r}.")
        handle: RemovableHandle = getattr(target, method)(hook, **options)
        self._handles.append((label, kind, handle))
        return handle

    @contextmanager
    def all_or_nothing(self) -> Iterator[HookManager]:
        """Remove every hook that the block registered if the block raises; the exception propagates."""
        before = len(self._handles)
        try:
            yield self
        except BaseException:
            self._remove(before)
            raise

    def remove_all(self) -> None:
        """Remove every remaining hook of this manager, last first."""
        self._remove(0)

    def _remove(self, keep: int) -> None:
        while len(self._handles) > keep:
            self._handles.pop()[2].remove()

    @property
    def alive(self) -> tuple[tuple[str, str], ...]:
        """The (label, kind) of each registered hook, in the order of registration."""
        # RemovableHandle has no public way to ask whether its hook is still registered; its own remove() uses this weak reference
        # to the hook dictionary. A dead reference means that the module, tensor or optimizer no longer exists.
        return tuple((label, kind) for label, kind, handle in self._handles if handle.id in (handle.hooks_dict_ref() or ()))

    def __len__(self) -> int:
        """The number of registered hooks."""
        return len(self.alive)

    def __bool__(self) -> bool:
        return True  # an empty manager is still a manager

    def __enter__(self) -> HookManager:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.remove_all()

    def __reduce__(self) -> tuple[type[HookManager], tuple[()]]:
        return (type(self), ())


def remove_hooks(model: nn.Module, ours: Callable[[Any], bool]) -> None:
    """Remove every forward and forward pre-hook of a model for which ``ours`` is true, by whomever it was registered."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for number in [number for number, hook in hooks.items() if ours(hook)]:
                del hooks[number]


def with_hooks(
    target: nn.Module | Callable[..., nn.Module], hook: Callable[..., Any], kind: str = "forward", **options: bool
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function or method so that a hook is registered exactly while it runs.

    The hook is removed when the function returns or raises.

    Args:
        target: The module to hook; or, for a method, a function of ``self`` that returns it.
        hook: The hook function, with PyTorch's signature for ``kind``.
        kind: One of ``HOOK_KINDS``.
        **options: As for :meth:`HookManager.register`.

    Returns:
        A decorator, which raises TypeError for coroutines and generators. Errors of :meth:`HookManager.register` are raised when
        the function is called.

    Example:
        >>> import torch
        >>> from lightning_hooks import with_hooks
        >>> seen = []
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.body = torch.nn.Linear(2, 3)
        ...     @with_hooks(lambda self: self.body, lambda module, args, output: seen.append(tuple(output.shape)))
        ...     def forward(self, x):
        ...         return self.body(x)
        >>> _ = Net()(torch.zeros(4, 2))
        >>> seen
        [(4, 3)]
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"with_hooks hooks a function until it returns, and {function.__qualname__} returns before its code runs. "
                "Register the hook in it: with HookManager() as hooks."
            )

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            found = target if isinstance(target, nn.Module) else target(*args[:1])
            with HookManager() as hooks:
                hooks.register(found, hook, kind, label=type(found).__name__, **options)
                return function(*args, **kwargs)

        return call

    return decorate


class Suspension:
    """Removes hooks from their modules, and registers them again.

    TorchScript, quantisation and export, which read a module's hooks, find none in between. A hook returns as the same object with
    the same number, so that a graph of ``torch.compile`` that was traced with it stays valid, and before the hooks that it preceded
    and those registered since. Other hooks keep their order. Hooks inside compiled modules stay: without them the next call would
    compile again. A copy or a pickle is empty.

    Attributes:
        suspended: Whether the hooks are removed now.
    """

    def __init__(self) -> None:
        self.suspended = self._resting = self._compiles = False
        self._handler: Any = None  # of torch.compile's callbacks, once it is asked for them
        self._hooks: list[RemovableHandle] = []
        # Of each removed hook: its handle, itself, PyTorch's dictionaries of options that contained it, the numbers of the hooks
        # before it, and those after it.
        self._out: list[tuple[RemovableHandle, Any, Sequence[Any], Collection[int], Collection[int]]] = []
        self._compiled: Collection[int] = ()

    def add(self, handle: RemovableHandle) -> None:
        """Add a hook of a module to those that :meth:`suspend` removes."""
        self._hooks.append(handle)

    def suspend(self, root: nn.Module | None = None) -> None:
        """Remove the hooks, except those inside compiled modules. Idempotent.

        Args:
            root: The model, in which is looked which modules are compiled; None where that was done before.
        """
        self._resting = False
        if self.suspended:
            return
        self.suspended = True
        if root is not None:
            self._compiled = {id(held) for module in inside_compiled(root) for held in vars(module).values()}
        for handle in self._hooks:
            hooks = handle.hooks_dict_ref()
            if hooks is None or id(hooks) in self._compiled or handle.id not in hooks:  # or removed by others
                continue
            flags = []
            for reference in handle.extra_dict_ref:
                options = reference()
                if options and options.pop(handle.id, False):
                    flags.append(options)
            order = [*hooks]
            place = order.index(handle.id)
            self._out.append((handle, hooks.pop(handle.id), flags, order[:place], order[place + 1 :]))

    def rest(self) -> None:
        """Remove the hooks in a batch in which none records, as long as nothing is compiled: what is has to find them in place."""
        if self._handler is None:
            # Whoever compiles, or steps an optimizer of torch's, has imported it; its callbacks have no public name.
            self._handler = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
            if self._handler is None:
                return
            self._handler.register_start_callback(self._compile_starts)
        if not self._compiles and not self.suspended:
            self.suspend()
            self._resting = True

    def _compile_starts(self, *_: Any) -> None:
        self._compiles = True
        if self._resting:
            self.restore()

    def restore(self) -> None:
        """Register the hooks again. Idempotent."""
        self._resting = False
        out, self._out, self.suspended = self._out, [], False
        for handle, hook, options, ahead, behind in out:
            hooks = handle.hooks_dict_ref()
            if hooks is None:
                continue
            later: list[int] = []
            for other in hooks:  # those registered since come after it
                comes_before = other in ahead or (other < handle.id and other not in behind)
                later = [] if comes_before else [*later, other]
            hooks[handle.id] = hook
            for other in later:
                hooks.move_to_end(other)
            for flags in options:
                flags[handle.id] = True

    def forget(self) -> None:
        """Forget the hooks: none is registered again."""
        self._hooks, self._out, self.suspended = [], [], False
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.remove_start_callback(self._compile_starts)

    def __reduce__(self) -> tuple[type[Suspension], tuple[()]]:
        return (Suspension, ())
