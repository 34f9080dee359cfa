"""A model that ran aside from its training is, to the last bit, one that did not."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.extraction.batches import undisturbed
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
