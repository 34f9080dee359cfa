"""with_hooks: a hook in place exactly while a function runs."""

import asyncio
import inspect

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import with_hooks


def test_module_target_is_hooked_only_while_the_function_runs():
    layer, shapes = nn.Linear(2, 3), []

    @with_hooks(layer, lambda module, args, output: shapes.append(tuple(output.shape)))
    def run(rows, *, scale):
        """Docs stay."""
        return scale * layer(torch.ones(rows, 2)).shape[0]

    assert (run.__name__, run.__doc__) == ("run", "Docs stay.")
    assert run(4, scale=10) == 40
    layer(torch.ones(7, 2))
    assert shapes == [(4, 3)]
    assert not layer._forward_hooks


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Identity()

    @with_hooks(lambda self: self.body, lambda module, args, output: output * 10)
    def forward(self, x):
        if x.dim() == 0:
            raise ValueError("a scalar")
        return self.body(x) + 1


def test_method_target_is_each_objects_own_and_may_replace_the_output():
    one, two = Net(), Net()
    assert one(torch.tensor([2.0])).tolist() == two(torch.tensor([2.0])).tolist() == [21.0]
    assert not one.body._forward_hooks
    assert not two.body._forward_hooks


def test_removed_when_forward_raises():
    net = Net()
    with pytest.raises(ValueError, match="a scalar"):
        net(torch.tensor(1.0))
    assert not net.body._forward_hooks


def test_kind_and_options_reach_the_manager():
    layer, seen = nn.Linear(2, 2), []

    @with_hooks(layer, lambda module, args, kwargs: seen.append(list(kwargs)), "forward_pre", with_kwargs=True)
    def run():
        layer(input=torch.ones(1, 2))

    run()
    assert seen == [["input"]]


def test_nested_calls_each_add_a_hook():
    """A recursive function is hooked once per level, and clean afterwards."""
    layer, calls = nn.ReLU(), []

    @with_hooks(layer, lambda *_: calls.append(1))
    def run(levels):
        layer(torch.ones(1))
        if levels:
            run(levels - 1)

    run(2)
    assert len(calls) == 1 + 2 + 3
    assert not layer._forward_hooks


def test_wrong_target():
    @with_hooks(lambda: torch.ones(1), print)
    def run():
        raise AssertionError("must not be reached")

    with pytest.raises(TypeError, match="goes on a torch Module; got Tensor"):
        run()


def counting(layer):
    """A decorator that counts the calls of ``layer``, and where it counts."""
    calls = []
    return with_hooks(layer, lambda *_: calls.append(1)), calls


def test_a_generators_own_code_is_hooked_and_its_callers_is_not():
    layer = nn.Linear(2, 2)
    hooked, calls = counting(layer)

    @hooked
    def walk(steps):
        sent = []
        for _ in range(steps):
            try:
                sent.append((yield layer(torch.zeros(1, 2))))
            except KeyError as error:
                sent.append(str(error))
        layer(torch.zeros(1, 2))
        return sent

    assert inspect.isgeneratorfunction(walk)
    generator = walk(3)
    next(generator)
    assert not layer._forward_hooks
    layer(torch.zeros(1, 2))  # the caller's own
    generator.send("a")
    generator.throw(KeyError("b"))
    with pytest.raises(StopIteration) as end:
        next(generator)
    assert end.value.value == ["a", "'b'", None]
    assert len(calls) == 4
    assert not layer._forward_hooks


def test_a_generator_that_is_closed_or_raises_leaves_no_hook():
    layer = nn.Linear(2, 2)
    hooked, calls = counting(layer)

    @hooked
    def walk(fails):
        try:
            yield layer(torch.zeros(1, 2))
            if fails:
                raise ValueError("no more")
        finally:
            layer(torch.zeros(1, 2))

    closed = walk(fails=False)
    next(closed)
    closed.close()
    assert len(calls) == 2
    with pytest.raises(ValueError, match="no more"):
        list(walk(fails=True))
    assert len(calls) == 4
    assert not layer._forward_hooks


def test_coroutines_and_asynchronous_generators_are_hooked_while_their_code_runs():
    layer = nn.Linear(2, 2)
    hooked, calls = counting(layer)

    @hooked
    async def once():
        await asyncio.sleep(0)
        return layer(torch.zeros(3, 2)).shape[0]

    @hooked
    async def walk():
        try:
            for _ in range(2):
                await asyncio.sleep(0)
                yield layer(torch.zeros(1, 2))
        finally:
            layer(torch.zeros(1, 2))

    async def main():
        rows = await once()
        async for _ in walk():
            assert not layer._forward_hooks
            layer(torch.zeros(1, 2))  # the caller's own
        stopped = walk()
        await anext(stopped)
        await stopped.aclose()
        return rows

    assert inspect.iscoroutinefunction(once)
    assert inspect.isasyncgenfunction(walk)
    assert asyncio.run(main()) == 3
    assert len(calls) == 1 + 3 + 2
    assert not layer._forward_hooks
