"""Hooks that leave their modules for a while and come back to where they were."""

import itertools
import random

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import HookManager
from lightning_hooks.hooks.manager import Suspension

ORDER = []


def note(name):
    return lambda *_: ORDER.append(name)


def called(layer):
    """In which order the hooks of a layer run."""
    ORDER.clear()
    layer(torch.ones(1, 2))
    return ORDER.copy()


def suspended(layer, *names, **options):
    """Ours on a layer."""
    hooks, suspension = HookManager(), Suspension()
    for name in names:
        suspension.add(hooks.register(layer, note(name), **options))
    return hooks, suspension


def test_a_module_has_no_hooks_and_then_the_same_under_the_same_number():
    layer = nn.Linear(2, 2)
    layer.register_forward_pre_hook(note("stays"))
    hooks, suspension = suspended(layer, "ours")
    before = dict(layer._forward_hooks)
    for _ in range(2):
        suspension.suspend(layer)
        suspension.suspend(layer)
        assert not layer._forward_hooks
        assert called(layer) == ["stays"]
        suspension.restore()
        suspension.restore()
        assert dict(layer._forward_hooks) == before
        assert called(layer) == ["stays", "ours"]
    assert hooks.alive == (("", "forward"),)


@pytest.mark.parametrize("coming", list(itertools.permutations("ACE")))
def test_each_comes_back_to_where_it_was(coming):
    layer, ours = nn.Linear(2, 2), {}
    for name in "ABCDE":
        if name in "ACE":
            ours[name] = suspended(layer, name)[1]
        else:
            layer.register_forward_hook(note(name))
    layer.register_forward_hook(note("first"), prepend=True)
    for suspension in ours.values():
        suspension.suspend(layer)
    assert called(layer) == ["first", "B", "D"]
    layer.register_forward_hook(note("last"))
    for name in coming:
        ours[name].restore()
    found = called(layer)
    assert found == ["first", "A", "B", "C", "D", "E", "last"]


@pytest.mark.parametrize("seed", range(20))
def test_others_keep_their_order_whoever_comes_and_goes(seed):
    """Separate from a layer where ours never were."""
    random_, layers, handles = random.Random(seed), [nn.Linear(2, 2), nn.Linear(2, 2)], {}

    def add(name, prepend=False):
        handles[name] = [layer.register_forward_hook(note(name), prepend=prepend) for layer in layers]

    ours = []
    for number in range(2):
        add(f"before {number}")
        ours.append(suspended(layers[0], f"ours {number}")[1])
    for step in range(20):
        for suspension in random_.sample(ours, 2):
            suspension.suspend(layers[0]) if step % 2 else suspension.restore()
        if random_.random() < 0.6:
            add(f"new {step}", prepend=random_.random() < 0.5)
        if random_.random() < 0.3:
            for handle in handles.pop(random_.choice(list(handles)), []):
                handle.remove()
            add(f"instead {step}")
        expected = called(layers[1])
        assert [name for name in called(layers[0]) if not name.startswith("ours")] == expected


def test_what_was_removed_or_forgotten_does_not_come_back():
    layer = nn.Linear(2, 2)
    hooks, suspension = suspended(layer, "one", "two")
    next(iter(hooks._handles))[2].remove()
    suspension.suspend(layer)
    suspension.restore()
    assert called(layer) == ["two"]
    suspension.suspend(layer)
    suspension.forget()
    hooks.remove_all()
    suspension.restore()
    assert called(layer) == []
