"""Hooks at rest: out of their modules, and back where they were; never blind to what is compiled."""

import itertools
import random

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks import Gate, HookManager, precompile


@pytest.fixture(autouse=True)
def dynamo() -> None:
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)  # loads what tells of compiling, as in every training


def heard(layer: nn.Module) -> list[str]:
    """In which order the hooks of a layer run."""
    ORDER.clear()
    layer(torch.ones(1, 2))
    return ORDER.copy()


ORDER: list[str] = []


def note(name: str):
    return lambda *_: ORDER.append(name)


def test_at_rest_a_module_has_no_hooks_and_awake_it_has_them_again() -> None:
    layer, hooks = nn.Linear(2, 2), HookManager()
    hooks.register(layer, note("ours"), rests=True, label="layer")
    hooks.register(layer, note("stays"), "forward_pre")
    hooks.rest()
    hooks.rest()
    assert not layer._forward_hooks
    assert heard(layer) == ["stays"]
    assert hooks.alive == (("layer", "forward"), ("", "forward_pre"))
    hooks.wake()
    hooks.wake()
    assert heard(layer) == ["stays", "ours"]
    hooks.rest()
    hooks.remove_all()
    assert heard(layer) == []
    assert not hooks.alive
    hooks.wake()
    assert heard(layer) == []


@pytest.mark.parametrize("waking", list(itertools.permutations("ACE")))
def test_each_wakes_where_it_was_whoever_came_between(waking: tuple[str, ...]) -> None:
    layer, ours = nn.Linear(2, 2), {name: HookManager() for name in "ACE"}
    for name in "ABCDE":
        if name in ours:
            ours[name].register(layer, note(name), rests=True)
        else:
            layer.register_forward_hook(note(name))
    layer.register_forward_hook(note("first"), prepend=True)
    for manager in ours.values():
        manager.rest()
    assert heard(layer) == ["first", "B", "D"]
    layer.register_forward_hook(note("last"))
    for name in waking:
        ours[name].wake()
    assert heard(layer) == ["first", "A", "B", "C", "D", "E", "last"]


@pytest.mark.parametrize("at_rest", [False, True])
def test_one_that_others_removed_does_not_come_back(at_rest: bool) -> None:
    layer, hooks = nn.Linear(2, 2), HookManager()
    handle = hooks.register(layer, note("ours"), rests=True)
    if at_rest:
        hooks.rest()
    handle.remove()
    assert not hooks.alive
    hooks.rest()
    hooks.wake()
    assert heard(layer) == []


@pytest.mark.parametrize("seed", range(60))
def test_the_order_of_others_is_theirs_and_ours_is_as_if_it_had_never_gone(seed: int) -> None:
    """Hooks come, first or last, and go, while ours rest and wake; beside a layer where they never rest."""
    random_, layers = random.Random(seed), [nn.Linear(2, 2), nn.Linear(2, 2)]
    managers = [HookManager() for _ in range(2)]
    handles: dict[str, list[RemovableHandle]] = {}

    def add(name: str, prepend: bool = False) -> None:
        handles[name] = [layer.register_forward_hook(note(name), prepend=prepend) for layer in layers]

    add("a")
    for number, manager in enumerate(managers):
        manager.register(layers[0], note(f"ours {number}"), rests=True)
        layers[1].register_forward_hook(note(f"ours {number}"))
        add(f"b{number}")
    for step in range(12):
        awake = step % 3 == 0
        for manager in random_.sample(managers, 2):
            (manager.wake if awake else manager.rest)()
        if random_.random() < 0.6:
            add(f"c{step}", prepend=random_.random() < 0.5)
        if random_.random() < 0.3:
            for handle in handles.pop(random_.choice(list(handles)), []):
                handle.remove()
            add(f"d{step}")
        found, expected = heard(layers[0]), heard(layers[1])
        assert found == [name for name in expected if awake or not name.startswith("ours")]


def test_a_gate_lays_them_to_rest_for_batches_that_are_not_sampled() -> None:
    layer, hooks = nn.Linear(2, 2), HookManager()
    hooks.register(layer, note("ours"), rests=True)
    gate = Gate(hooks=hooks)
    for sampled, expected in ((True, ["ours"]), (False, []), (False, []), (True, ["ours"])):
        gate.start(sampled)
        assert heard(layer) == expected
        gate.stop()


@pytest.mark.parametrize("reset", [False, True])
def test_what_is_compiled_while_they_rest_hears_them_ever_after(reset: bool) -> None:
    layer, hooks, count = nn.Linear(2, 2), HookManager(), torch.zeros(())
    hooks.register(layer, lambda *_: count.add_(1) and None, rests=True)
    hooks.rest()
    if reset:
        torch._dynamo.reset()  # forgets whom to tell
        hooks.rest()
    compiled = torch.compile(lambda x: layer(x), backend="eager")
    for calls in (1, 2):
        compiled(torch.ones(1, 2))
        assert count == calls
    hooks.rest()  # not any more: the graph has them
    compiled(torch.ones(1, 2))
    assert count == 3


def test_what_was_compiled_before_they_rest_hears_them_ever_after() -> None:
    layer, hooks, count = nn.Linear(2, 2), HookManager(), torch.zeros(())
    hooks.register(layer, lambda *_: count.add_(1) and None, rests=True)
    compiled = torch.compile(lambda x: layer(x), backend="eager")
    for calls in range(1, 5):
        compiled(torch.ones(1, 2))
        hooks.rest()
        assert count == calls


def test_where_torch_does_not_tell_of_compiling_they_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(precompile.sys.modules, "torch._dynamo.callback", None)
    layer, hooks = nn.Linear(2, 2), HookManager()
    hooks.register(layer, note("ours"), rests=True)
    hooks.rest()
    assert heard(layer) == ["ours"]
