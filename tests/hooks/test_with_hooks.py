"""with_hooks: a hook in place exactly while a function runs."""

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


def test_wrong_target():
    @with_hooks(lambda: torch.ones(1), print)
    def run():
        raise AssertionError("must not be reached")

    with pytest.raises(TypeError, match="goes on a torch Module; got Tensor"):
        run()


async def coroutine() -> None:
    """Its code runs when it is awaited."""


def generator():
    yield


async def asynchronous():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous])
def test_a_function_whose_code_runs_after_it_returned_is_refused(function):
    with pytest.raises(TypeError, match=f"{function.__name__} returns before its code runs. Register the hook in it"):
        with_hooks(nn.Linear(2, 2), lambda *_: None)(function)
