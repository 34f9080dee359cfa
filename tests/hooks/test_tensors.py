"""The tensors inside whatever a module returns."""

import dataclasses
from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from transformers.modeling_outputs import BaseModelOutputWithPast

from lightning_hooks.hooks import float_tensors, tensors_in
from lightning_hooks.hooks.tensors import is_freed, plain_values

A, B, C = torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([3.0], dtype=torch.bfloat16)
Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple = ()
    note: str = "text"


@dataclasses.dataclass(slots=True)
class Unset:
    logits: torch.Tensor
    later: torch.Tensor = dataclasses.field(init=False)


class Computed(Output):
    """A field of it is computed, and its containers when they are asked for their entries."""

    hidden = property(lambda output: 1 / 0, lambda output, value: None)


class Eager(UserDict):
    def __getitem__(self, key):
        raise AssertionError


class Plain:
    tensor = A


def same(found, expected):
    return len(found) == len(expected) and all(one is other for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (A, [A]),
        ((A, B), [A, B]),
        ([B, A], [B, A]),
        ({"x": A, "y": C}, [A, C]),
        (OrderedDict(y=B, x=A), [B, A]),
        (Pair(A, B), [A, B]),
        (Output(A, (B, C)), [A, B, C]),
        (Unset(B), [B]),
        (Computed(A), [A]),
        (Eager(x=A, y=[B]), [A, B]),
        (BaseModelOutputWithPast(last_hidden_state=A, hidden_states=(B, C)), [A, B, C]),
        ({"x": [A, (B, {"z": Output(C)})]}, [A, B, C]),
        ((A, (B, C)), [A, B, C]),
        (None, []),
        ("text", []),
        (3.0, []),
        (Plain(), []),
        (Output, []),
        ((), []),
        ([None, A, 1, "s", {}], [A]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tensors_in_order(output, expected):
    assert same(list(tensors_in(output)), expected)
    assert same(float_tensors(output), expected)


def test_packed_sequences_give_their_data():
    packed = pack_sequence([torch.ones(3, 2), torch.zeros(1, 2)])
    assert same(list(tensors_in((packed, A))), [packed.data, A])


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_only_real_floating_tensors(dtype):
    other = torch.ones(2, dtype=dtype)
    assert same(list(tensors_in([other, A])), [other, A])
    assert same(float_tensors([other, A]), [A])
    assert float_tensors(other) == []


def test_plain_values_of_a_dense_tensor_share_its_memory_outside_autograd():
    weight = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    values = plain_values(weight)
    assert (type(values), values.requires_grad, values.shape) == (torch.Tensor, False, (3, 2))
    assert values.data_ptr() == weight.data_ptr()
    assert torch.equal(values, weight.data)


def test_plain_values_of_sparse_tensors_are_coalesced():
    coo = torch.sparse_coo_tensor([[0, 2, 2]], [1.0, 2.0, 3.0], (4,), requires_grad=True, check_invariants=True)
    assert plain_values(coo).tolist() == [1.0, 5.0]


class Tagged(torch.Tensor):
    pass


def test_plain_values_of_a_subclass():
    tagged = torch.ones(2).as_subclass(Tagged)
    assert same(float_tensors(tagged), [tagged])
    values = plain_values(tagged)
    assert (type(values), values.tolist()) == (torch.Tensor, [1.0, 1.0])


def test_plain_values_of_a_tensor_under_way_between_processes_are_awaited():
    """Under tensor parallelism a layer's output may be such a tensor, alone or inside a distributed one."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    class Sharded(torch.Tensor):
        def to_local(self):
            return AsyncCollectiveTensor(torch.tensor([7.0]))

    for tensor, expected in ((AsyncCollectiveTensor(torch.ones(2)), [1.0, 1.0]), (torch.ones(4).as_subclass(Sharded), [7.0])):
        values = plain_values(tensor)
        assert (type(values), values.tolist()) == (torch.Tensor, expected)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: torch._efficientzerotensor((2, 1)), [[0.0], [0.0]]),
        (lambda: torch.complex(torch.zeros(2), torch.tensor([1.0, -2.0])).conj().imag, [-1.0, 2.0]),
        (lambda: freed(torch.ones(2)), []),
        (lambda: freed(torch.ones(2).requires_grad_()), []),
    ],
    ids=["zeros", "negatives", "freed", "freed parameter"],
)
def test_plain_values_are_in_memory(made, expected):
    values = plain_values(made())
    assert (type(values), values.requires_grad, values.is_neg(), values._is_zerotensor()) == (torch.Tensor, False, False, False)
    assert values.numpy().tolist() == expected


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def test_only_a_tensor_whose_storage_is_gone_counts_as_freed():
    kept = [
        torch.ones(2),
        torch.empty(0),
        torch._efficientzerotensor((2,)),
        torch.eye(2).to_sparse(),
        torch.ones(2).as_subclass(Tagged),
    ]
    assert [is_freed(tensor) for tensor in kept] == [False] * 5
    assert is_freed(freed(torch.ones(2)))
