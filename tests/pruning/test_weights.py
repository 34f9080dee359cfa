"""A model with zeroed weights gives, bit for bit, what it gave with masks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.pruning import zero_units


def mask_output(module: nn.Module, kept: Tensor, dim: int) -> None:
    shape = [1] * 4
    shape[dim] = -1

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        where = [1] * output.dim()
        where[dim] = -1
        return output.masked_fill(~kept.view(where), 0.0)

    module.register_forward_hook(hook)


TRANSPOSED = nn.ConvTranspose2d(4, 6, 3, groups=2)
CASES: dict[str, tuple[nn.Sequential, str, int, int, tuple[int, ...], list[str]]] = {
    # model, masked module, units, axis, input, what is changed
    "linear": (nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), "0", 5, 1, (4, 3), ["0"]),
    "relu behind linear": (nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.ReLU()), "2", 5, 1, (4, 3), ["0"]),
    "conv": (nn.Sequential(nn.Conv2d(2, 5, 3, padding=1), nn.Tanh()), "0", 5, 1, (4, 2, 6, 6), ["0"]),
    "grouped": (nn.Sequential(nn.Conv2d(2, 6, 3, groups=2)), "0", 6, 1, (4, 2, 6, 6), ["0"]),
    "transposed": (nn.Sequential(TRANSPOSED), "0", 6, 1, (2, 4, 5, 5), ["0"]),
    "norm behind conv": (
        nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2)), "3", 5, 1, (4, 2, 6, 6), ["1"]
    ),
    "layer norm": (nn.Sequential(nn.LayerNorm((3, 5))), "0", 5, 2, (4, 3, 5), ["0"]),
    "group norm": (nn.Sequential(nn.GroupNorm(1, 5)), "0", 5, 1, (4, 5, 3), ["0"]),
    "relu6": (nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU6()), "1", 5, 1, (4, 3), ["0"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_zeroed_weights_take_the_place_of_the_mask(case: str) -> None:
    net, name, units, axis, shape, changed = CASES[case]
    net = copy.deepcopy(net).eval()
    torch.manual_seed(1)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    kept = torch.arange(units) % 3 != 0
    masked = copy.deepcopy(net)
    mask_output(masked.get_submodule(name), kept, axis)
    x = torch.randn(shape)
    assert not torch.equal(net(x), masked(x))
    assert zero_units(net, {name: kept}) == changed
    torch.testing.assert_close(net(x), masked(x), rtol=0, atol=0)


def test_an_embedding() -> None:
    net, kept = nn.Sequential(nn.Embedding(7, 4)), torch.tensor([True, False, True, False])
    expected = net(torch.arange(7)).detach() * kept
    zero_units(net, {"0": kept})
    assert torch.equal(net(torch.arange(7)), expected)


def rejected(net: nn.Module, masks: dict[str, Tensor], text: str) -> None:
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=text):
        zero_units(net, masks)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


HALF = torch.tensor([True, False])


def test_what_cannot_be_done_is_said_and_nothing_is_changed() -> None:
    good = nn.Linear(2, 2)
    rejected(nn.Sequential(good, nn.Sigmoid()), {"0": HALF, "1": HALF}, r"units of '1' \(Sigmoid\) have no weights")
    rejected(nn.Sequential(good, nn.Hardtanh(1, 2)), {"1": HALF}, r"'1' \(Hardtanh\)")
    rejected(nn.Sequential(nn.ReLU()), {"0": HALF}, "Mask the linear layer or convolution before it instead")
    rejected(nn.ModuleDict({"fc": good, "act": nn.ReLU()}), {"act": HALF}, r"'act' \(ReLU\) have no weights")
    rejected(nn.Sequential(nn.BatchNorm1d(2, affine=False)), {"0": HALF}, r"'0' \(BatchNorm1d\)")
    rejected(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), {"0": HALF}, "have no weights, neither its own")
    rejected(nn.Sequential(good), {"fc": HALF}, "There is a mask for 'fc', and Sequential has no such module")
    rejected(nn.Sequential(nn.Linear(2, 3)), {"0": HALF}, "The mask of '0' has 2 units, and '0' has 3")
    tied = nn.Sequential(nn.Embedding(2, 2), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    rejected(tied, {"1": HALF}, "'1' shares its weights with another module")
    rejected(nn.Sequential(good, nn.ReLU(), good), {"1": HALF}, "'0' shares its weights with another module")


def test_a_whole_mask_changes_nothing_wherever_it_is() -> None:
    assert zero_units(nn.Sequential(nn.Sigmoid()), {"0": torch.ones(2, dtype=torch.bool)}) == []
