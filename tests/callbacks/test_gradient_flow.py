"""GradientFlowMonitor against gradients kept and computed in float64."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradientFlowMonitor
from lightning_hooks.statistics.kernels import kernels_for
from tests.support.models import NETS, Classifier, TinyTransformer, loader, mlp, trainer
from tests.support.reference import Recorder, assert_stats, reference_stats, total_norm

ALL_NETS = {
    **NETS,
    "transformer": (TinyTransformer, (5, 6), ["net.embed", "net.encoder.layers.1.linear2", "net.head"]),
}


@pytest.mark.parametrize("net", ALL_NETS)
@pytest.mark.parametrize("every", [1, 3])
def test_module_gradients(net: str, every: int) -> None:
    build, shape, names = ALL_NETS[net]
    torch.manual_seed(0)
    monitor, recorder = GradientFlowMonitor(every_n_steps=every, summary=False), Recorder(names, every)
    trainer([recorder, monitor]).fit(Classifier(build()), loader(shape))
    for name in names:
        kept = recorder.gradients[name]
        stats = monitor.report.modules[name]
        assert_stats(stats, reference_stats(kept), context=name)
        norms = [math.sqrt((g**2).sum()) for g in kept]
        assert stats.norm == pytest.approx(np.mean(norms), rel=1e-6)
        assert stats.norm_max == pytest.approx(np.max(norms), rel=1e-6)


@pytest.mark.parametrize("net", ALL_NETS)
@pytest.mark.parametrize("every", [1, 3])
def test_parameter_gradients_and_update_ratios(net: str, every: int) -> None:
    build, shape, _ = ALL_NETS[net]
    torch.manual_seed(0)
    model = Classifier(build(), lr=0.1)
    monitor, recorder = GradientFlowMonitor(every_n_steps=every, summary=False), Recorder([])
    trainer([recorder, monitor]).fit(model, loader(shape))
    final = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    weights = [*recorder.weights, final]
    sampled = range(0, len(recorder.steps), every)
    assert sorted(monitor.report.parameters) == sorted(final)  # in the order of first call
    for name, stats in monitor.report.parameters.items():
        gradients = [recorder.steps[step][name] for step in sampled]
        norms = [math.sqrt((g**2).sum()) for g in gradients]
        assert stats.steps == len(sampled)
        assert stats.norm == pytest.approx(np.mean(norms), rel=1e-6)
        assert stats.norm_max == pytest.approx(np.max(norms), rel=1e-6)
        assert stats.rms == pytest.approx(math.sqrt(np.mean([(g**2).mean() for g in gradients])), rel=1e-6)
        assert stats.zero_fraction == pytest.approx(np.mean([(g == 0).mean() for g in gradients]), abs=1e-12)
        before, after = [weights[s][name] for s in sampled], [weights[s + 1][name] for s in sampled]
        ratios = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(after, before, strict=True) if np.any(b)]
        if ratios:
            assert stats.update_ratio == pytest.approx(np.mean(ratios), rel=1e-3)
        else:
            assert stats.update_ratio is None
    expected = np.mean([total_norm(recorder.steps[s]) for s in sampled])
    assert monitor.report.total_norm == pytest.approx(expected, rel=1e-6)


class Grouped(Classifier):
    """Biases come first, without weight decay, and weights in reverse order."""

    def configure_optimizers(self) -> Any:
        weights = [parameter for parameter in self.parameters() if parameter.dim() > 1]
        biases = [parameter for parameter in self.parameters() if parameter.dim() < 2]
        return torch.optim.AdamW([{"params": biases, "weight_decay": 0.0}, {"params": weights[::-1]}], lr=0.01)


@pytest.mark.parametrize("native", ["1", "0"])
def test_groups_in_another_order_than_the_model(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS_NATIVE", native)
    kernels_for.cache_clear()
    torch.manual_seed(0)
    model, monitor, recorder = Grouped(mlp()), GradientFlowMonitor(every_n_steps=1, summary=False), Recorder([])
    trainer([recorder, monitor]).fit(model, loader())
    kernels_for.cache_clear()
    weights = [*recorder.weights, {name: p.detach().double().numpy() for name, p in model.named_parameters()}]
    assert len({parameter.shape for parameter in model.parameters()}) > 2
    for name, stats in monitor.report.parameters.items():
        norms = [math.sqrt((step[name] ** 2).sum()) for step in recorder.steps]
        assert (stats.norm, stats.norm_max) == pytest.approx((np.mean(norms), np.max(norms)), rel=1e-6), name
        assert stats.rms == pytest.approx(math.sqrt(np.mean([(step[name] ** 2).mean() for step in recorder.steps])), rel=1e-6)
        moved = [np.linalg.norm(b[name] - a[name]) / np.linalg.norm(a[name]) for a, b in pairwise(weights)]
        assert stats.update_ratio == pytest.approx(np.mean(moved), rel=1e-3)


class Branches(nn.Module):
    """One layer in use, one cut off by detach, one multiplied by zero, one frozen, one never called."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.cut, self.zeroed = nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3)
        self.frozen, self.unused = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(x)
        return self.used(x) + self.cut(x).detach() + self.zeroed(x) * 0.0


def test_missing_zero_and_frozen_are_distinguished() -> None:
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(Branches()), loader())
    report = monitor.report
    alerts = {(alert.kind, alert.site) for alert in report.alerts}
    assert alerts == {
        *(("missing", f"net.{layer}.{p}") for layer in ("cut", "unused") for p in ("weight", "bias")),
        *(("zero", f"net.zeroed.{p}") for p in ("weight", "bias")),
    }
    assert report.parameters["net.cut.weight"].missing_steps == 7
    assert report.parameters["net.cut.weight"].steps == 0
    assert "net.frozen.weight" not in report.parameters
    assert set(report.silent) == {"net.frozen", "net.cut", "net.unused"}


def test_vanishing_in_a_deep_sigmoid_stack_names_the_early_layers() -> None:
    torch.manual_seed(0)
    layers = [module for _ in range(8) for module in (nn.Linear(8, 8), nn.Sigmoid())]
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(nn.Sequential(*layers, nn.Linear(8, 3)), lr=0.01), loader())
    found = [alert.site for alert in monitor.report.alerts if alert.kind == "vanishing"]
    root, *rest = (alert for alert in monitor.report.alerts if alert.kind == "vanishing")
    assert root.site not in ("net.0", "net.16")  # where it is lost, not where it is least
    assert "gradually" in root.text
    assert "net.0" in found
    assert "net.16" not in found
    assert all((alert.severity, alert.cause) == ("info", root.name) for alert in rest)
    assert "Replace nn.Sigmoid by nn.ReLU" in monitor.report.alerts[0].text


def test_exploding_names_the_layers_before_the_cause() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(6)], nn.Linear(8, 3))
    with torch.no_grad():
        for layer in list(net)[1:6]:
            layer.weight *= 60
        net[0].weight *= 1e-8
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(net, lr=0.0), loader())
    found = [(alert.site, alert.severity) for alert in monitor.report.alerts if alert.kind == "exploding"]
    assert found[0][0] == "net.1"
    assert ("net.0", "info") in found[1:]
    assert "net.5" not in dict(found)


def test_nan_in_backward_only() -> None:
    """sqrt at zero is fine forward and infinite backward."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.sqrt(self.inner(x) * 0.0))

    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([monitor], limit_train_batches=1).fit(Classifier(Root()), loader())
    assert monitor.report.modules["net.inner"].nonfinite_fraction == 1.0
    assert monitor.report.parameters["net.inner.weight"].nonfinite_steps == 1
    assert math.isnan(monitor.report.parameters["net.inner.weight"].norm)
    nonfinite = [alert.site for alert in monitor.report.alerts if alert.kind == "nonfinite"]
    assert nonfinite == ["net", "net.inner", "net.inner.weight", "net.inner.bias"]
    assert monitor.report.alerts[0].title == "Gradient of sqrt at 0"


def test_gradients_computed_inside_the_training_step_are_not_the_losss() -> None:
    class Adversarial(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x = batch[0].clone().requires_grad_()
            (g,) = torch.autograd.grad(nn.functional.cross_entropy(self.net(x), batch[1], reduction="sum") * 50, x)
            out = self.net(batch[0] + 0.1 * g.sign())
            out.register_hook(lambda gradient: self.kept.append(gradient.clone()))
            return nn.functional.cross_entropy(out, batch[1])

        kept: Any

    model, flow = Adversarial(mlp()), GradientFlowMonitor(every_n_steps=1, summary=False)
    model.kept = []
    trainer([flow]).fit(model, loader())
    expected = torch.cat([gradient.flatten() for gradient in model.kept]).double()
    assert flow.report.modules["net.4"].calls == 7
    assert flow.report.modules["net.4"].rms == pytest.approx(float((expected**2).mean().sqrt()), rel=1e-6)
