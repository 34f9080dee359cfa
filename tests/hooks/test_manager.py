"""HookManager: what goes in, what comes out, and what it refuses."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import HOOK_KINDS, HookManager

MODULE_KINDS = {
    "forward": "_forward_hooks",
    "forward_pre": "_forward_pre_hooks",
    "full_backward": "_backward_hooks",
    "full_backward_pre": "_backward_pre_hooks",
}


def nothing(*args, **kwargs):
    return None


def target_for(kind):
    if kind in MODULE_KINDS:
        return nn.Linear(2, 2)
    if kind.startswith("optimizer"):
        return torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    return torch.ones(2, requires_grad=True)


def hook_dicts(module):
    """How many hooks are in each of a module's dictionaries."""
    return {name: len(value) for name, value in vars(module).items() if "hooks" in name and hasattr(value, "__len__")}


def test_every_kind_fires_with_its_arguments():
    fired = []
    layer, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    targets = dict.fromkeys(MODULE_KINDS, layer) | {"tensor": x, "post_accumulate_grad": layer.weight}
    with HookManager() as hooks:
        for kind in HOOK_KINDS:
            hooks.register(targets.get(kind, optimizer), lambda first, *rest, k=kind: fired.append((k, type(first))), kind)
        assert len(hooks) == len(HOOK_KINDS) == 8
        layer(x).sum().backward()
        optimizer.step()
    given = dict.fromkeys(MODULE_KINDS, nn.Linear) | {"tensor": torch.Tensor, "post_accumulate_grad": nn.Parameter}
    assert len(fired) == 8
    assert dict(fired) == {kind: given.get(kind, torch.optim.SGD) for kind in HOOK_KINDS}
    fired.clear()
    layer(x).sum().backward()
    optimizer.step()
    assert fired == []


@pytest.mark.parametrize(
    ("target", "hook", "kind", "options", "error", "message"),
    [
        (nn.ReLU(), nothing, "forwards", {}, ValueError, r"kind must be one of forward, forward_pre, .*; got 'forwards'\."),
        (torch.ones(1), nothing, "forward", {}, TypeError, "'forward' hook goes on a torch Module; got Tensor. Pass such"),
        (nn.ReLU(), nothing, "tensor", {}, TypeError, "'tensor' hook goes on a torch Tensor; got ReLU"),
        (nn.ReLU(), nothing, "optimizer_step_pre", {}, TypeError, "goes on a torch Optimizer; got ReLU"),
        (nn.ReLU(), 3, "forward", {}, TypeError, "hook must be callable; got 3"),
        (nn.ReLU(), nothing, "forward", {"first": True}, TypeError, "unexpected keyword argument 'first'"),
        (nn.ReLU(), nothing, "forward_pre", {"always_call": True}, TypeError, "unexpected keyword argument 'always_call'"),
        (torch.ones(1), nothing, "tensor", {"prepend": True}, TypeError, "unexpected keyword argument 'prepend'"),
        (torch.ones(1), nothing, "tensor", {}, RuntimeError, "require gradient"),
    ],
)
def test_refusals(target, hook, kind, options, error, message):
    hooks = HookManager()
    with pytest.raises(error, match=message):
        hooks.register(target, hook, kind, **options)
    assert len(hooks) == 0


def test_all_or_nothing_removes_only_what_the_block_registered():
    early, late = nn.ReLU(), nn.ReLU()
    hooks = HookManager()
    hooks.register(early, nothing, label="early")

    def attach():
        with hooks.all_or_nothing() as same:
            assert same is hooks
            hooks.register(late, nothing, label="late")
            hooks.register(torch.ones(1), nothing)

    with pytest.raises(TypeError, match="got Tensor"):
        attach()
    assert hooks.alive == (("early", "forward"),)
    assert not late._forward_hooks


def test_removal_is_in_reverse_and_idempotent(monkeypatch):
    removed = []
    hooks, layer = HookManager(), nn.ReLU()
    handles = [hooks.register(layer, nothing, label=str(i)) for i in range(3)]
    original = type(handles[0]).remove
    monkeypatch.setattr(type(handles[0]), "remove", lambda handle: (removed.append(handle.id), original(handle))[1])
    hooks.remove_all()
    hooks.remove_all()
    assert removed == [handle.id for handle in reversed(handles)]
    assert not layer._forward_hooks


@pytest.mark.parametrize("kind", HOOK_KINDS)
def test_context_manager_cleans_up_on_an_exception(kind):
    target, hooks = target_for(kind), HookManager()

    def leave():
        with hooks:
            hooks.register(target, nothing, kind)
            assert len(hooks) == 1
            raise KeyError("out")

    with pytest.raises(KeyError, match="out"):
        leave()
    assert len(hooks) == 0
    if kind in MODULE_KINDS:
        assert hook_dicts(target) == hook_dicts(nn.Linear(2, 2))


def test_foreign_hooks_are_untouched():
    layer = nn.ReLU()
    layer.register_forward_hook(nothing)
    with HookManager() as hooks:
        hooks.register(layer, nothing)
        layer.register_forward_pre_hook(nothing)
        assert len(layer._forward_hooks) == 2
    assert (len(layer._forward_hooks), len(layer._forward_pre_hooks)) == (1, 1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda manager: pickle.loads(pickle.dumps(manager))])
def test_a_copy_is_an_empty_manager(copied):
    hooks, layer = HookManager(), nn.ReLU()
    hooks.register(layer, lambda *_: None)  # a closure would not pickle
    other = copied(hooks)
    assert (type(other), len(other), len(hooks)) == (HookManager, 0, 1)
    other.remove_all()
    assert len(layer._forward_hooks) == 1
