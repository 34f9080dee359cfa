"""A context manager around the code of a function, generator or coroutine."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

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
    if inspect.isasyncgenfunction(function):
        wrapped: Any = _around_async_generator(function, context)
    elif inspect.iscoroutinefunction(function):
        wrapped = _around_coroutine(function, context)
    elif inspect.isgeneratorfunction(function):
        wrapped = _around_generator(function, context)
    else:
        wrapped = _around_function(function, context)
    return cast("Callable[P, R]", wraps(function)(wrapped))


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
