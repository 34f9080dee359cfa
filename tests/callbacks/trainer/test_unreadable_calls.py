"""Calls within a training step whose tensors stand for others: they are skipped, and all other calls are recorded."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap

from lightning_hooks import FeatureStatsMonitor, TrainingMonitor
from tests.support.capture import captured
from tests.support.models import Classifier, loader, trainer
from tests.support.reference import same_state

PLACES = ("net.a", "net.act", "net.b", "net/softmax", "net/relu")


class Own(nn.Module):
    """Layers, and functions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.softmax(self.act(self.a(x)), -1) + torch.relu(x[..., :6]))  # type: ignore[no-any-return]


class Transforming(Classifier):
    """Calls its model under a transform at the first batch."""

    def __init__(self, transform: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__(Own())
        self.transform, self.results = transform, []  # type: ignore[var-annotated]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 0:
            self.results.append(self.transform(self.net, batch[0]))
        return super().training_step(batch, batch_idx)


def _weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in net.named_parameters()}


def _fake(net: nn.Module, x: Tensor) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        net(torch.empty(4, 8))


def _capture(net: nn.Module, x: Tensor) -> Any:
    with captured():
        return torch.autograd.grad(net(x).sum(), [*net.parameters()])


def _ensemble(net: nn.Module, x: Tensor) -> Any:
    stacked, buffers = stack_module_state([net, net])  # type: ignore[arg-type]
    stacked = {name: values.detach() for name, values in stacked.items()}
    return vmap(lambda weights, kept: functional_call(net, (weights, kept), (x,)))(stacked, buffers)


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "vmap": lambda net, x: vmap(net)(x),
    "grad": lambda net, x: grad(lambda w: functional_call(net, w, (x,)).sum())(_weights(net)),
    "per sample": lambda net, x: vmap(grad(lambda w, one: functional_call(net, w, (one,)).sum()), (None, 0))(_weights(net), x),
    "jvp": lambda net, x: jvp(net, (x,), (x,)),
    "jacrev": lambda net, x: jacrev(net)(x[0]),
    "hessian": lambda net, x: hessian(lambda one: net(one).sum())(x[0]),
    "ensemble": _ensemble,
    "trace": lambda net, x: str(torch.jit.trace(net, x, check_trace=False).graph).count("\n"),
    "fake": _fake,
    "CUDA graph": _capture,
}


@pytest.mark.filterwarnings("ignore:.*jit.trace.* is (deprecated|not supported):DeprecationWarning")
@pytest.mark.parametrize("histograms", [False, True])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_calls_under_a_transform_are_skipped_and_all_others_are_recorded(
    transform: str, histograms: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    models = []
    monitor = TrainingMonitor(every_n_steps=1, histograms=histograms, summary=False)
    for callbacks in ([], [monitor]):
        seed_everything(0, verbose=False)
        models.append(Transforming(TRANSFORMS[transform]))
        trainer(callbacks).fit(models[-1], loader())
    assert same_state(*models)
    assert models[0].losses == models[1].losses
    assert str(models[0].results) == str(models[1].results)  # also the graph that was traced
    report = monitor.features
    assert {name: stats.calls for name, stats in report.sites.items()} == dict.fromkeys(sorted(report.sites), 7)
    assert set(PLACES) == set(report.sites)
    assert report.silent == ()
    said = [record.message for record in caplog.records if "calls so far are not recorded" in record.message]
    assert len(said) == 1
    assert said[0].endswith(
        "calls so far are not recorded: they run under torch.func (vmap, grad, jvp, …) or torch.jit.trace, in the capture of a "
        "CUDA graph, or with fake or meta tensors: these have no values to read. All other calls are recorded."
    )


FAKE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from lightning_hooks import TrainingMonitor
from tests.support.models import Classifier, loader, mlp, trainer

class Estimating(Classifier):
    def training_step(self, batch, batch_idx):
        with FakeTensorMode(allow_non_fake_inputs=True):
            self.net(torch.empty(4, 8))
        return super().training_step(batch, batch_idx)

trainer([TrainingMonitor(every_n_steps=1, summary=False)]).fit(Estimating(mlp()), loader())
print("trained")
"""


def test_fake_tensors_do_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FAKE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, "trained" in done.stdout) == (0, True), done.stderr[-500:]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_between_blocks_are_read() -> None:
    """A frozen encoder in eval mode with a padding mask: its blocks hand on the tokens that are no padding."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
            self.encoder = nn.TransformerEncoder(layer, 3).requires_grad_(False)
            self.head = nn.Linear(8, 3)
            self.seen: list[Tensor] = []
            self.encoder.layers[1].register_forward_hook(self._keep)

        def _keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
            assert output.is_nested
            self.seen.append(output.values().double().flatten())

        def forward(self, x: Tensor) -> Tensor:
            self.encoder.eval()
            padding = torch.zeros(x.shape[:2], dtype=torch.bool)
            padding[1:, 3:] = True
            with torch.no_grad():
                states = self.encoder(x, src_key_padding_mask=padding)
            return self.head(states.mean(1))  # type: ignore[no-any-return]

    net, monitor = Net(), FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(net), loader((5, 8)))
    stream, seen = monitor.report.residual["net.encoder.layers.1"], torch.cat(net.seen).view(-1, 8)
    assert (stream.calls, stream.rms) == (7, pytest.approx(seen.square().mean().sqrt().item(), rel=1e-5))
    assert stream.channel_rms**2 == pytest.approx(sum(c.view(-1, 8).square().mean(0).max().item() for c in net.seen) / 7, rel=1e-5)
    assert not monitor.faults.errors
