"""watch(): the monitors in a loop in plain PyTorch."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import watch
from tests.support.capture import captured
from tests.support.models import hook_counts
from tests.support.reference import assert_stats, reference_stats


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def batches(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 4, generator=generator), torch.randint(0, 3, (16,), generator=generator)) for _ in range(count)]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def train(net: nn.Module, optimizer: Any, monitor: Any = None, clip: float = 0.05, count: int = 5) -> list[float]:
    losses = []
    for x, y in batches(count):
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if monitor is not None:
            monitor.step(loss)
    return losses


def observed(net: nn.Module, optimizer: Any, **arguments: Any) -> Any:
    return watch(net, optimizer, **{"every_n_steps": 1, "summary": False, **arguments})


def is_clean(net: nn.Module, *optimizers: Any) -> bool:
    hooked = [hooks for each in optimizers for hooks in (each._optimizer_step_pre_hooks, each._optimizer_step_post_hooks)]
    return not any(hooked) and torch._C._len_torch_function_stack() == 0 and not any(hook_counts(net).values())


def test_training_is_not_altered() -> None:
    found = []
    for on in (False, True):
        net = mlp()
        optimizer = sgd(net)
        if on:
            with observed(net, optimizer, histograms=True) as monitor:
                losses = train(net, optimizer, monitor)
        else:
            losses = train(net, optimizer)
        found.append((losses, [*net.parameters()], torch.get_rng_state()))
    (losses, weights, random), (others, same_weights, same_random) = found
    assert losses == others
    assert all(map(torch.equal, weights, same_weights))
    assert torch.equal(random, same_random)


def test_the_numbers_are_those_of_a_slow_reference() -> None:
    net = mlp().eval()  # no dropout
    optimizer = sgd(net)
    with observed(net, optimizer) as monitor:
        losses = train(net, optimizer, monitor)
        reports = monitor.end_window()
    model, outputs, norms = mlp().eval(), [], []
    optimizer = sgd(model)
    for x, y in batches():
        outputs.append(model[0](x).detach().double().numpy())
        nn.functional.cross_entropy(model(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
        optimizer.zero_grad()
    assert list(reports) == ["features", "gradients", "clipping"]
    assert_stats(reports["features"].sites["0"], reference_stats(outputs), rel=1e-5)
    clips = reports["clipping"].optimizers["0-SGD"]
    assert (clips.steps, clips.clipped_steps) == (5, 5)
    assert clips.norm_before == pytest.approx(sum(norms) / 5, rel=1e-5)
    assert clips.norm_after == pytest.approx(0.05, rel=1e-4)
    assert reports["gradients"].loss.mean == pytest.approx(sum(losses) / 5, rel=1e-6)
    assert reports["gradients"] is monitor.gradients


def test_a_step_that_a_cuda_graph_captures_is_no_step_and_holds_nothing_of_ours() -> None:
    weights = []
    for on in (False, True):
        net = mlp()
        optimizer = sgd(net)
        with observed(net, optimizer) if on else nullcontext() as monitor:
            train(net, optimizer, monitor, count=2)
            with captured():
                train(net, optimizer, count=1)
            train(net, optimizer, monitor, count=3)
            reports = monitor.end_window() if on else None
        weights.append([*net.parameters()])
    assert all(map(torch.equal, *weights))
    assert {stats.calls for stats in reports["features"].sites.values()} == {5}
    assert (reports["features"].batches, reports["clipping"].optimizers["0-SGD"].steps) == (5, 5)


def test_every_exit_is_clean() -> None:
    for error in (None, ValueError("mine"), KeyboardInterrupt()):
        net = mlp()
        optimizer = sgd(net)
        monitor = observed(net, optimizer)
        try:
            with monitor:
                train(net, optimizer, monitor, count=2)
                net(batches()[0][0])  # a batch is under way
                assert not is_clean(net, optimizer)
                if error is not None:
                    raise error
        except (ValueError, KeyboardInterrupt) as passed:
            assert passed is error  # noqa: PT017  it comes through as it is
        assert is_clean(net, optimizer)
        assert not monitor.running
        assert (error is None) == (monitor.members[0].end["how"] == "finished")


def test_only_forwards_of_training_are_recorded() -> None:
    net = mlp()
    optimizer = sgd(net)
    with observed(net, optimizer) as monitor:
        for x, y in batches(3):
            loss = nn.functional.cross_entropy(net(x), y)
            with torch.no_grad():
                net(x)  # the batch is under way
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                net(x)  # and still is, before step()
            net.eval()
            net(x)
            net.train()
            monitor.step(loss)
            net.eval()
            nn.functional.cross_entropy(net(x), y)
            net.train()
        reports = monitor.end_window()
    assert {site: stats.calls for site, stats in reports["features"].sites.items()} == dict.fromkeys(reports["features"].sites, 3)


def test_several_optimizers_have_their_own_steps() -> None:
    torch.manual_seed(0)
    nets = nn.ModuleDict({"generator": nn.Sequential(nn.Linear(3, 4), nn.Tanh()), "critic": nn.Linear(4, 1)})
    optimizers = [torch.optim.SGD(nets["generator"].parameters(), lr=0.1), torch.optim.Adam(nets["critic"].parameters())]
    with observed(nets, optimizers) as monitor:
        for _ in range(4):
            for _ in range(2):
                loss = (
                    nets["critic"](nets["generator"](torch.randn(8, 3)).detach()).mean() - nets["critic"](torch.randn(8, 4)).mean()
                )
                loss.backward()
                optimizers[1].step()
                optimizers[1].zero_grad()
            (-nets["critic"](nets["generator"](torch.randn(8, 3))).mean()).backward()
            nn.utils.clip_grad_norm_(nets["generator"].parameters(), 1e-3)
            optimizers[0].step()
            nets.zero_grad()
            monitor.step()
        reports = monitor.end_window()
    clips = reports["clipping"].optimizers
    assert {name: (stats.steps, stats.clipped_steps) for name, stats in clips.items()} == {"0-SGD": (4, 4), "1-Adam": (8, 0)}
    assert reports["features"].sites["critic"].calls == 4 * 5
    assert is_clean(nets, *optimizers)


def test_a_resumed_training_reports_as_one_that_went_on() -> None:
    def run(stop_after: int | None) -> Any:
        net = mlp()
        optimizer = sgd(net)
        state: Any = None
        for part in [slice(None)] if stop_after is None else [slice(stop_after), slice(stop_after, None)]:
            monitor = observed(net, optimizer, report_every_n_steps=None)
            if state is not None:
                monitor.load_state_dict(state)
            with monitor:
                for x, y in batches(6)[part]:
                    loss = nn.functional.cross_entropy(net(x), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    monitor.step(loss)
                state = monitor.state_dict()
                reports = monitor.end_window() if part.stop is None else {}
                if part.stop is not None:
                    monitor.close("stopped")
        return reports

    whole, resumed = run(None), run(3)
    assert resumed["clipping"].optimizers["0-SGD"].steps == 6
    assert resumed["features"].sites == whole["features"].sites
    assert resumed["features"].step == whole["features"].step == 6
    assert resumed["gradients"].loss.count == 6


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"model": 3}, TypeError, "watch takes a torch.nn.Module first, the model; got 3."),
        ({"model": [mlp()]}, TypeError, "watch takes a torch.nn.Module first, the model; got [Sequential( (0"),
        ({"optimizer": None}, TypeError, "optimizer must be the torch.optim.Optimizer that trains the model, or several in a list; "
         "got None. Pass what the loop calls step() of: watch(model, optimizer)."),
        ({"optimizer": "adam"}, TypeError, "or several in a list; got 'adam'."),
        ({"optimizer": torch.optim.SGD}, TypeError, "or several in a list; got <class 'torch.optim.sgd.SGD'>."),
        ({"optimizer": mlp()}, TypeError, "or several in a list; got Sequential( (0): Linear("),
        ({"optimizer": mlp().parameters()}, TypeError, "or several in a list; got <generator object Module.parameters"),
        ({"optimizer": [sgd(mlp()), None]}, TypeError, "or several in a list; got [SGD ("),
        ({"optimizer": {"a": sgd(mlp())}}, TypeError, "or several in a list; got {'a': SGD ("),
        ({"optimizer": []}, TypeError, "or several in a list; got []."),
        ({"scaler": 2.0}, TypeError, "scaler must be a GradScaler, or None where losses are not scaled; got 2.0."),
        ({"loggers": "runs"}, TypeError, "or several of these; got 'runs'."),
        ({"batches_per_epoch": 0}, ValueError, "batches_per_epoch must be at least 1; got 0."),
        ({"batches_per_epoch": "9"}, TypeError, "batches_per_epoch must be an integer of at least 1; got '9'."),
        ({"loss_function": 3}, TypeError, "loss_function must be a function of a batch that returns its loss; got 3."),
        ({"model": nn.Sequential(nn.LazyLinear(3))}, ValueError, "The model has parameters that its first forward makes: 0.weight, "
         "0.bias. Run one batch through it, model(batch), before its optimizer is made and watch is called."),
    ],
)  # fmt: skip
def test_each_wrong_argument_is_named(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    """With what came, in one line of a bounded length."""
    net = mlp()
    given: dict[str, Any] = {"model": net, "optimizer": sgd(net), **wrong}
    with pytest.raises(error) as raised:
        watch(given.pop("model"), given.pop("optimizer"), **given)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 350
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_observed(in_place: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    net = Net()
    compiled: Any = net if in_place else torch.compile(net, backend="eager")
    if in_place:
        net.compile(backend="eager")
    before = net._compiled_call_impl
    optimizer = sgd(net)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with observed(compiled, optimizer) as monitor:
            train(compiled, optimizer, monitor)
    torch.compiler.reset()
    assert net._compiled_call_impl is before
    assert monitor.clipping.optimizers["0-SGD"].clipped_steps == 5
    assert {stats.calls for stats in monitor.features.sites.values()} == {5}
    assert monitor.alerts == []
