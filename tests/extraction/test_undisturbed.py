"""A model that ran aside from its training is, to the last bit, one that did not."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.extraction import undisturbed
from lightning_hooks.hooks import Gate, sampled
from tests.support.models import ResidualCNN
from tests.support.reference import same_state


class Restless(nn.Module):
    """Draws from every generator, counts its calls in a buffer, replaces another, in whatever mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2, 4))
        self.register_buffer("quiet", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x + random.random() + np.random.rand() + torch.rand(())  # noqa: NPY002
        return self.layer(self.last) * self.quiet.sum()


def states() -> tuple[object, object, Tensor]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002


def same(one: tuple[object, object, Tensor], other: tuple[object, object, Tensor]) -> bool:
    return one[0] == other[0] and one[1] == other[1] and torch.equal(one[2], other[2])


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_buffers_modes_and_random_states_are_restored(grad: bool, fails: bool) -> None:
    net = nn.Sequential(Restless(), ResidualCNN())
    net[1].bn.eval()  # a frozen batch norm stays frozen
    before = copy.deepcopy(net)
    modes = [module.training for module in net.modules()]
    kept, random_states = net[0].last, states()
    try:
        with undisturbed(net, grad=grad):
            assert torch.is_grad_enabled() is grad
            assert not any(module.training for module in net.modules())
            net[0](torch.ones(2, 4))
            net[1](torch.randn(3, 1, 6, 6))
            assert net[0].calls == 1
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert same_state(net, before)
    assert net[0].last is kept
    assert [module.training for module in net.modules()] == modes
    assert same(states(), random_states)
    assert torch.is_grad_enabled()


def test_what_is_drawn_inside_is_the_same_each_time() -> None:
    net = Restless()
    found = []
    for _ in range(2):
        with undisturbed(net):
            found.append(net(torch.ones(2, 4)))
        net(torch.ones(2, 4))
    assert torch.equal(*found)


def test_a_buffer_nobody_wrote_to_stays_usable_by_a_graph_under_way() -> None:
    """A write, even of the same numbers, would fail the backward of a graph that saved the buffer."""
    net = Restless()
    loss = (net.layer(torch.ones(2, 4)) * net.quiet[:1]).sum()
    with undisturbed(net):
        net(torch.ones(2, 4))
    loss.backward()
    with undisturbed(net), torch.no_grad():
        net.quiet.mul_(2)
    assert torch.equal(net.quiet, torch.ones(3))


def test_train_and_eval_methods_are_not_called() -> None:
    class Merging(nn.Linear):
        """As some adapters do: merges weights when the mode changes."""

        def train(self, mode: bool = True) -> Merging:
            raise AssertionError

    net = Merging(2, 2)
    with undisturbed(net):
        assert not net.training
    assert net.training


def test_gradients_work_inside_inference_mode() -> None:
    net = nn.Linear(2, 2)
    with torch.inference_mode(), undisturbed(net, grad=True):
        (gradient,) = torch.autograd.grad(net(torch.ones(1, 2)).sum(), net.bias)
    assert torch.equal(gradient, torch.ones(2))
    assert net.bias.grad is None


def test_every_module_of_a_fused_encoder_is_called_and_the_switch_is_put_back() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)
    called = []
    for name, module in encoder.named_modules():
        module.register_forward_hook(lambda *args, name=name: called.append(name))
    with undisturbed(encoder):
        assert not torch.backends.mha.get_fastpath_enabled()
        encoder(torch.randn(2, 3, 8))
    assert {"layers.0.self_attn", "layers.0.linear1", "layers.0.norm2"} <= set(called)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_late_hooks_of_a_compiled_module_run() -> None:
    torch.compiler.reset()
    net = nn.Sequential(nn.Linear(2, 2))
    compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(1, 2))
    called = []
    net[0].register_forward_hook(lambda *args: called.append(1))
    compiled(torch.ones(1, 2))
    with undisturbed(net):
        compiled(torch.ones(1, 2))
    torch.compiler.reset()
    assert called == [1]


def test_an_autocast_cache_keeps_no_weight_that_was_cast_without_gradients() -> None:
    net = nn.Linear(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        with undisturbed(net):
            net(torch.ones(1, 2))
        net(torch.ones(1, 2)).sum().backward()
    assert net.weight.grad is not None


def test_our_callbacks_do_not_listen() -> None:
    """A user may look with GradCAM.compute in the middle of a step; statistics are those of training all the same."""
    recorded = []
    gate, shut = Gate(), Gate()
    gate.start(True)
    shut.start(False)
    net = nn.Linear(2, 2)
    for each in (gate, shut):
        net.register_forward_hook(sampled(lambda *args: recorded.append(1), when=each))
    net(torch.ones(1, 2))
    with pytest.raises(RuntimeError), undisturbed(net):
        net(torch.ones(1, 2))
        raise RuntimeError
    assert len(recorded) == 1
    net(torch.ones(1, 2))
    assert len(recorded) == 2
    gate.pause()
    with undisturbed(net):
        pass
    net(torch.ones(1, 2))  # recomputed in backward: still paused
    gate.resume()
    with undisturbed(net):
        gate.stop()  # the batch ended meanwhile
    net(torch.ones(1, 2))
    assert len(recorded) == 2
