"""What only a CUDA device can show."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lightning_hooks import FeatureExtractor, GradCAM, GradientClipper, monitors
from lightning_hooks.alerts import AlertError
from tests.support.host_reads import NoSync
from tests.support.models import Classifier, ResidualCNN, TinyLSTM, TinyTransformer, loader, trainer
from tests.support.reference import assert_same, same_state

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"),
]
NETS = {"cnn": (ResidualCNN, (1, 6, 6)), "transformer": (TinyTransformer, (5, 6))}


class Quiet(Classifier):
    """Without the read of its own loss."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def fit(net: str, accelerator: str, callbacks: Any, **kwargs: Any) -> Quiet:
    build, shape = NETS[net]
    torch.manual_seed(0)
    model = Quiet(build(), lr=0.01)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer(callbacks, accelerator=accelerator, **kwargs).fit(model, loader(shape, n=80, pin_memory=accelerator == "gpu"))
    return model


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_no_synchronisation_between_epoch_boundaries(net: str, precision: str) -> None:
    ours = monitors(every_n_steps=1, summary=False)
    fit(net, "gpu", [NoSync(), *ours], precision=precision)
    assert not any(callback.faults.errors for callback in ours[:3])
    assert ours[2].report.optimizers["0-SGD"].steps == 10


@pytest.mark.parametrize("net", NETS)
def test_the_numbers_are_those_of_the_cpu(net: str) -> None:
    reports = []
    for accelerator in ("cpu", "gpu"):
        ours = monitors(every_n_steps=1, summary=False)
        fit(net, accelerator, ours, gradient_clip_val=0.5)
        reports.append(tuple(callback.report for callback in ours[:3]))
    assert_same(reports[1], reports[0], rel=2e-3, tiny=1e-5)


def test_on_equals_off_bit_for_bit() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert same_state(fit("cnn", "gpu", []), fit("cnn", "gpu", monitors(every_n_steps=1, summary=False)))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("policy", ["norm", "value", "tensor", "agc", "zclip", "autoclip"])
def test_clippers_do_not_synchronise(policy: str) -> None:
    clipper = GradientClipper(policy=policy, summary=False)
    fit("cnn", "gpu", [NoSync(), clipper])
    assert clipper.report.optimizers["0-SGD"].steps == 10


@pytest.mark.parametrize("every", [1, 3])
def test_checks_within_the_epoch_wait_for_nothing(every: int) -> None:
    ours = monitors(every_n_steps=1, summary=False, check_every_n_steps=every)
    fit("cnn", "gpu", [NoSync(), *ours])
    assert not any(callback.faults.errors for callback in ours)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("how", ["stop", "raise"])
def test_a_nan_ends_the_fit_within_two_intervals(every: int, how: str) -> None:
    class Breaks(Quiet):
        batches = 0

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            self.batches += 1
            return super().training_step(batch, batch_idx) * (torch.nan if batch_idx == 4 else 1.0)

    seen: list[Any] = []
    ours = monitors(summary=False, check_every_n_steps=every, on_alert=how, every_n_steps=100)
    for monitor in ours:
        monitor.subscribe(seen.append)
    model = Breaks(ResidualCNN(), lr=0.01)
    run = trainer(ours, accelerator="gpu")
    if how == "raise":
        with pytest.raises(AlertError):
            run.fit(model, loader((1, 6, 6), n=320))
    else:
        run.fit(model, loader((1, 6, 6), n=320))
    assert [(alert.kind, alert.batch, alert.since_step) for alert in seen] == [("nonfinite", 4, 4)]
    assert 5 <= model.batches <= 5 + 2 * every - 1


def test_two_launches_a_tensor() -> None:
    from lightning_hooks.diagnostics.features.table import FeatureTable
    from lightning_hooks.statistics.kernels import kernels_for

    if kernels_for("cuda").name != "triton":
        pytest.skip("Triton is missing or does not run here")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Sigmoid()).cuda()
    table = FeatureTable([(str(index), module) for index, module in enumerate(net)], net, "cuda")
    values = torch.rand(64, 8, 32, 32, device="cuda")
    for index in range(3):
        table.add(index, (values,), values)  # compiled now, and the unit buffers made
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for index in range(3):
            table.add(index, (values,), values)
        torch.cuda.synchronize()
    launched = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert 0 < len(launched) <= 6, [event.name for event in launched]


def test_features_wait_for_nothing_and_come_to_the_host() -> None:
    found = []
    for accelerator in ("cpu", "gpu"):
        keep = FeatureExtractor(max_samples=30, fields={"label": 1})
        fit("cnn", accelerator, [keep] if accelerator == "cpu" else [NoSync(), keep])
        assert not keep.faults.errors
        found.append(keep.report)
    assert torch.equal(found[0].fields["label"], found[1].fields["label"])
    for name, values in found[0].sites.items():
        assert found[1].sites[name].device.type == "cpu"
        torch.testing.assert_close(found[1].sites[name], values, rtol=1e-3, atol=1e-4)


def test_a_look_aside_leaves_the_device_s_random_state() -> None:
    net, x = ResidualCNN().cuda(), torch.randn(3, 1, 6, 6)
    before = torch.cuda.get_rng_state()
    on_device = GradCAM.compute(net, x, module="conv", target=1)  # the batch is moved to the model
    features = FeatureExtractor.extract(net, x, "conv")["conv"]
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert on_device.is_cuda
    assert features.is_cuda
    torch.testing.assert_close(on_device.cpu(), GradCAM.compute(net.cpu(), x, module="conv", target=1), rtol=1e-3, atol=1e-5)
    lstm = TinyLSTM().cuda()  # cuDNN gives no gradient of an LSTM in eval mode
    assert GradCAM.compute(lstm, torch.randn(2, 5, 6), module="lstm", target=0, reshape=(1, 5)).shape == (2, 1, 5)
