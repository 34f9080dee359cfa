"""Registration of hooks: all of them or none, and removal of all; a context manager around the code of a function."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

P = ParamSpec("P")
R = TypeVar("R")

# kind -> (what it hooks, the method that registers it, the options that method takes)
_KINDS: dict[str, tuple[type[Any], str, frozenset[str]]] = {
    "forward": (nn.Module, "register_forward_hook", frozenset({"prepend", "with_kwargs", "always_call"})),
    "forward_pre": (nn.Module, "register_forward_pre_hook", frozenset({"prepend", "with_kwargs"})),
    "full_backward": (nn.Module, "register_full_backward_hook", frozenset({"prepend"})),
    "full_backward_pre": (nn.Module, "register_full_backward_pre_hook", frozenset({"prepend"})),
    "tensor": (Tensor, "register_hook", frozenset()),
    "post_accumulate_grad": (Tensor, "register_post_accumulate_grad_hook", frozenset()),
    "optimizer_step_pre": (torch.optim.Optimizer, "register_step_pre_hook", frozenset()),
    "optimizer_step_post": (torch.optim.Optimizer, "register_step_post_hook", frozenset()),
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
        expected, method, known = _KINDS[kind]
        if not isinstance(target, expected):
            raise TypeError(
                f"A {kind!r} hook goes on a {expected.__module__.split('.')[0]} {expected.__name__}; "
                f"got {type(target).__name__}. Pass such an object, or choose another kind."
            )
        if not callable(hook):
            raise TypeError(f"hook must be callable; got {hook!r}.")
        unknown = sorted(set(options) - known)
        if unknown:
            takes = ", ".join(sorted(known)) or "no options"
            raise TypeError(f"A {kind!r} hook takes {takes}; got {', '.join(unknown)}.")
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
        return tuple((label, kind) for label, kind, handle in self._handles if _in_place(handle))

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} hooks in place)"


def remove_hooks(model: nn.Module, ours: Callable[[Any], bool]) -> None:
    """Remove every forward and forward pre-hook of a model for which ``ours`` is true, by whomever it was registered."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for number in [number for number, hook in hooks.items() if ours(hook)]:
                del hooks[number]


def _in_place(handle: RemovableHandle) -> bool:
    # RemovableHandle has no public way to ask whether its hook is still registered; its own remove() uses this weak reference to
    # the hook dictionary. A dead reference means that the module, tensor or optimizer no longer exists.
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks


def with_hooks(
    target: nn.Module | Callable[..., nn.Module],
    hook: Callable[..., Any],
    kind: str = "forward",
    **options: bool,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function or method so that a hook is registered exactly while it runs.

    The hook is removed when the function returns or raises. The hook of a coroutine is registered from its first step to its last;
    that of a generator or asynchronous generator while its own code runs, not while the caller's does.

    Args:
        target: The module to hook; or, for a method, a function of ``self`` that returns it.
        hook: The hook function, with PyTorch's signature for ``kind``.
        kind: One of ``HOOK_KINDS``.
        **options: As for :meth:`HookManager.register`.

    Returns:
        A decorator. Errors are those of :meth:`HookManager.register`, raised when the function is called.

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
        def in_place(*args: Any) -> HookManager:
            found = target if isinstance(target, nn.Module) else target(*args[:1])
            hooks = HookManager()
            hooks.register(found, hook, kind, label=type(found).__name__, **options)
            return hooks

        return around(function, in_place)

    return decorate


Context = Callable[..., AbstractContextManager[Any]]
"""Returns the context manager of one call, given its positional arguments."""


def around(function: Callable[P, R], context: Context) -> Callable[P, R]:
    """Return ``function`` with its code running inside a context.

    A generator enters a new context at each ``next()`` or ``send()`` and leaves it at the ``yield``: the caller's code runs
    outside. A coroutine stays inside one context from its first step to its last.

    Args:
        function: A function, generator function, coroutine function or asynchronous generator function.
        context: Called with the positional arguments of a call; returns the context manager to enter.
    """
    kinds: tuple[tuple[Callable[..., bool], Callable[..., Any]], ...] = (
        (inspect.isasyncgenfunction, _around_async_generator),
        (inspect.iscoroutinefunction, _around_coroutine),
        (inspect.isgeneratorfunction, _around_generator),
    )
    wrap = next((wrap for is_kind, wrap in kinds if is_kind(function)), _around_function)
    return cast("Callable[P, R]", wraps(function)(wrap(function, context)))


def _around_function(function: Callable[..., R], context: Context) -> Callable[..., R]:
    def call(*args: Any, **kwargs: Any) -> R:
        with context(*args):
            return function(*args, **kwargs)

    return call


def _around_coroutine(function: Callable[..., Any], context: Context) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with context(*args):
            return await function(*args, **kwargs)

    return call


def _around_generator(function: Callable[..., Any], context: Context) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        advance, given = generator.send, None
        try:
            while True:
                try:
                    with context(*args):
                        value = advance(given)
                except StopIteration as end:
                    return end.value
                try:
                    given, advance = (yield value), generator.send
                except Exception as error:  # noqa: BLE001  thrown in by the caller, for the generator to handle
                    given, advance = error, generator.throw
        finally:
            with context(*args):
                generator.close()

    return call


def _around_async_generator(function: Callable[..., Any], context: Context) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        advance, given = generator.asend, None
        try:
            while True:
                try:
                    with context(*args):
                        value = await advance(given)
                except StopAsyncIteration:
                    return
                try:
                    given, advance = (yield value), generator.asend
                except Exception as error:  # noqa: BLE001  thrown in by the caller, for the generator to handle
                    given, advance = error, generator.athrow
        finally:
            with context(*args):
                await generator.aclose()

    return call
