"""The wrappers: when a hook runs, how often, at what cost, and what happens to its errors."""

import copy
import pickle
import threading
import time

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import Gate, Listener, counted, guarded, sampled, synchronized, timed

WRAPPERS = [sampled, counted, timed, synchronized, guarded]


def double(*args, **kwargs):
    return 2 * sum(args) + kwargs.get("extra", 0)


def failing(*args, **kwargs):
    raise RuntimeError("broken hook")


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda hook: pickle.loads(pickle.dumps(hook))])
def test_wrappers_pickle_with_their_hook(wrapper, copied):
    hook = wrapper(double)
    hook(1)
    again = copied(hook)
    assert again(3) == 6
    assert getattr(again, "calls", 2) == 2


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_hook_must_be_callable(wrapper):
    with pytest.raises(TypeError, match="hook must be callable; got 'mean'"):
        wrapper("mean")


@pytest.mark.parametrize(("every", "ran"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6]), (10, [0])])
def test_sampled_every(every, ran):
    seen = []
    hook = sampled(seen.append, every=every)
    for call in range(7):
        hook(call)
    assert seen == ran


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_sampled_refuses(every):
    with pytest.raises(ValueError, match=f"every must be an integer of at least 1; got {every!r}"):
        sampled(double, every=every)


def test_counted_counts_calls_that_raise():
    hook = counted(failing)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="broken hook"):
            hook()
    assert hook.calls == 3


def test_timed_adds_the_hooks_own_time():
    hook = timed(lambda seconds: time.sleep(seconds))
    assert hook.mean_seconds == 0.0
    hook(0.02)
    hook(0.0)
    assert 0.02 <= hook.seconds < 0.5
    assert (hook.calls, hook.mean_seconds) == (2, hook.seconds / 2)


class Tally:
    """A hook with a read and a write that another thread can come between."""

    def __init__(self):
        self.calls = self.total = 0

    def __call__(self, module, args, output):
        calls, total = self.calls, self.total
        time.sleep(0.001)  # another thread's turn
        self.calls, self.total = calls + 1, total + int(output.sum())


def replicate(layer):
    """What nn.DataParallel makes of a layer for each device: a copy with the same hooks. Its own function needs CUDA."""
    replica = layer._replicate_for_data_parallel()
    assert replica is not layer
    assert replica._forward_hooks is layer._forward_hooks or list(replica._forward_hooks) == list(layer._forward_hooks)
    return replica


@pytest.mark.parametrize("safe", [True, False])
def test_synchronized_protects_a_hook_of_a_threaded_forward(safe):
    """Eight replicas run in eight threads, three times: every call counts with the lock, and some are lost without it."""
    layer, tally, gate = nn.ReLU(), Tally(), threading.Barrier(8)
    layer.register_forward_hook(synchronized(tally) if safe else tally)

    def forward(replica, value):
        for _ in range(3):
            gate.wait(timeout=60)
            replica(torch.full((2,), float(value)))

    threads = [threading.Thread(target=forward, args=(replicate(layer), value)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = (8 * 3, 3 * 2 * sum(range(8)))
    assert ((tally.calls, tally.total) == everything) is safe


def test_guarded_reports_once_and_switches_off():
    faults = []
    inner = counted(failing)
    hook = guarded(inner, site="body.0", on_fault=lambda site, error: faults.append((site, str(error))))
    assert [hook(), hook(), hook()] == [None, None, None]
    assert faults == [("body.0", "broken hook")]
    assert inner.calls == 1
    assert (type(hook.error), hook.error.__traceback__) == (RuntimeError, None)


def test_guarded_lets_interrupts_through():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupt)()


def test_wrappers_compose_outermost_first():
    inner = timed(double)
    hook = sampled(guarded(counted(inner)), every=2)
    assert [hook(1) for _ in range(5)] == [2, None, 2, None, 2]
    assert (hook.calls, hook.hook.hook.calls, inner.calls) == (5, 3, 3)


@pytest.mark.parametrize(
    ("events", "open_after"),
    [
        ([], False),
        (["start"], True),
        (["start", "pause"], False),
        (["start", "pause", "resume"], True),
        (["start", "stop"], False),
        (["start", "stop", "resume"], False),
        (["skip", "pause", "resume"], False),
    ],
)
def test_gate(events, open_after):
    gate = Gate()
    for event in events:
        if event in ("start", "skip"):
            gate.start(sampled=event == "start")
        else:
            getattr(gate, event)()
    assert (gate.open, bool(gate)) == (open_after, open_after)


class Recorder(Listener):
    def __init__(self):
        self.seen = []
        self.unpicklable = lambda: None

    def __call__(self, *args):
        self.seen.append(args)


COPIES = [copy.copy, copy.deepcopy, lambda hook: pickle.loads(pickle.dumps(hook))]


@pytest.mark.parametrize("copied", COPIES[1:])
@pytest.mark.parametrize("make", [lambda hook: hook, guarded, lambda hook: guarded(hook, when=Gate(open=True))])
def test_a_copied_model_has_a_function_of_the_standard_library_for_a_listener(copied, make):
    model, listener = nn.ReLU(), Recorder()
    model.register_forward_hook(make(listener))
    other = copied(model)
    assert [hook.__self__.__class__.__module__ for hook in other._forward_hooks.values()] == ["contextlib"]
    assert other(torch.tensor(-1.0)).item() == 0.0
    assert listener.seen == []
    model(torch.tensor(-1.0))
    assert len(listener.seen) == 1


@pytest.mark.parametrize("copied", COPIES)
def test_a_hook_with_a_gate_needs_neither_its_function_nor_us_in_a_copy(copied):
    hook = copied(guarded(lambda *_: 5, when=Gate(open=True)))
    assert hook.__self__.__class__.__module__ == "contextlib"
    assert hook(1, (2,), 3) is None
