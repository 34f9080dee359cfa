"""ActivationRangeObserver in a fit, and alone."""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn
from torch.ao.quantization import HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver

from lightning_hooks import ActivationRangeObserver
from lightning_hooks.alerts import RangeReport
from tests.support.host_reads import NETS, CountSyncs
from tests.support.interruptions import Batches, Keep, SaveAt
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer
from tests.support.reference import Recorder, everything, same_state

AO = {"minmax": MinMaxObserver, "moving_average": MovingAverageMinMaxObserver, "histogram": HistogramObserver}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("method", AO)
def test_the_last_epochs_ranges_are_those_of_torch_ao(method: str, precision: str) -> None:
    torch.manual_seed(0)
    ours = ActivationRangeObserver(method=method, every_n_steps=2, summary=False)
    names = ["net.0", "net.1", "net.3"]
    recorders = [Recorder(names, every=2) for _ in range(2)]
    model = Classifier(mlp(), optimizer=torch.optim.Adam, lr=0.05)
    fit = trainer([recorders[0], ours], max_epochs=1, precision=precision)
    fit.fit(model, loader(), loader())
    second = ActivationRangeObserver(method=method, every_n_steps=2, summary=False)
    trainer([recorders[1], second], max_epochs=1, precision=precision).fit(model, loader())
    for observer, recorder in zip((ours, second), recorders, strict=True):
        assert list(observer.report.sites) == ["net.0", "net.1", "net.2", "net.3", "net.4"]
        assert (observer.report.sampled_batches, observer.report.batches, observer.report.epoch) == (4, 7, 0)
        for name in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reference = AO[method](dtype=torch.qint8, qscheme=torch.per_tensor_affine)
                for chunk in recorder.outputs[name]:
                    reference(torch.from_numpy(chunk).float())
                scale, zero_point = reference.calculate_qparams()
            found = observer.report.sites[name]
            assert (found.scale, found.zero_point) == (float(scale), int(zero_point)), name
            assert found.smallest == min(chunk.min() for chunk in recorder.outputs[name])
            if method != "histogram":
                assert (found.min, found.max) == (float(reference.min_val), float(reference.max_val))
    assert ours.report.sites["net.0"] != second.report.sites["net.0"]


def test_each_epoch_has_its_own_ranges_and_logs_them() -> None:
    observer = ActivationRangeObserver(modules="net.?", summary=True, channel_dim=1)
    keep = Keep([observer])
    fit = trainer([observer, keep], max_epochs=2)
    fit.fit(Classifier(mlp(), lr=1.0), loader())
    first, second = (reports[0] for reports in keep.reports)
    assert (first.epoch, second.epoch) == (0, 1)
    assert first.sites["net.0"] != second.sites["net.0"]
    for stat in ("min", "max", "scale", "zero_point"):
        assert fit.callback_metrics[f"ranges/net.0/{stat}"] == getattr(second.sites["net.0"], stat)
    channels = second.sites["net.0"].channels
    assert len(channels) == 16
    assert min(channel.min for channel in channels) == second.sites["net.0"].smallest
    assert max(channel.max for channel in channels) == second.sites["net.0"].largest


def test_the_summary_names_method_and_widest_modules(capsys: pytest.CaptureFixture[str]) -> None:
    class Silent(Classifier):
        def __init__(self) -> None:
            super().__init__(mlp())
            self.unused = nn.Linear(2, 2)

    observer = ActivationRangeObserver(method="percentile", dtype="uint8", scheme="symmetric", summary="full")
    trainer([observer]).fit(Silent(), loader())
    text = capsys.readouterr().out
    assert "Activation ranges (percentile, uint8, symmetric), epoch 0: 5 of 6 modules recorded, in 7 of 7 batches." in text
    assert "Silent: unused" in text
    assert "zero point" in text


@pytest.mark.parametrize("net", NETS)
def test_nothing_is_altered_and_nothing_waits(net: str) -> None:
    build, shape = NETS[net]
    found = []
    for method in (None, "histogram", "moving_average"):
        seed_everything(7, verbose=False)
        model = Classifier(build(), optimizer=torch.optim.Adam, lr=0.01)
        counter = CountSyncs()
        ours = [] if method is None else [ActivationRangeObserver(method=method, bins=64, summary=False)]
        trainer([counter, *ours]).fit(model, loader(shape, n=64, shuffle=True))
        found.append((model, counter.mode.syncs, torch.get_rng_state()))
    for model, syncs, rng in found[1:]:
        assert model.losses == found[0][0].losses
        assert same_state(model, found[0][0])
        assert torch.equal(rng, found[0][2])
        assert syncs == found[0][1]


@pytest.mark.parametrize("method", ["minmax", "moving_average", "histogram"])
def test_a_mid_epoch_resume_equals_the_uninterrupted_run(method: str, tmp_path: Path) -> None:
    def fit(callbacks: Any, **kwargs: Any) -> ActivationRangeObserver:
        torch.manual_seed(0)
        observer = ActivationRangeObserver(method=method, summary=False, channel_dim=1 if method == "minmax" else None)
        with contextlib.suppress(SystemExit):
            trainer([observer, *callbacks], max_epochs=2).fit(Classifier(mlp()), Batches((8,)), **kwargs)
        return observer

    whole = fit([])
    path = tmp_path / "at.ckpt"
    fit([SaveAt(path, 1, 3)])
    resumed = fit([], ckpt_path=path, weights_only=True)
    assert everything(resumed.report) == everything(whole.report)


def test_calibrate_is_a_one_liner_and_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    net = ResidualCNN()
    net.bn.eval()
    before, state = hook_counts(net), {key: value.clone() for key, value in net.state_dict().items()}
    batches = [(torch.randn(4, 1, 6, 6), torch.zeros(4)) for _ in range(3)]
    report = ActivationRangeObserver.calibrate(net, batches, modules=["conv", "head"], dtype="uint8", channel_dim=1)
    assert hook_counts(net) == before
    assert net.training
    assert not net.bn.training
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    net.eval()
    with torch.no_grad():
        outputs = torch.cat([net(x) for x, _ in batches])
    found = report.sites["head"]
    assert (found.min, found.max, found.calls) == (outputs.min(), outputs.max(), 3)
    assert found.scale == pytest.approx((outputs.max() - outputs.min().clamp(max=0)).item() / 255, rel=1e-6)
    assert list(report.sites) == ["conv", "head"]
    assert (report.batches, report.sampled_batches, report.silent) == (3, 3, ())
    assert pickle.loads(pickle.dumps(report)) == report
    assert RangeReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert "conv" in ActivationRangeObserver.calibrate(net, [{"x": batches[0][0]}], modules="conv").sites
    other = ActivationRangeObserver.calibrate(net, batches, forward=lambda model, batch: model.head(torch.ones(1, 4)))
    assert "conv" in other.silent


def test_calibrate_refuses_nothing_and_cleans_up_after_a_failure() -> None:
    net = mlp()
    with pytest.raises(ValueError, match="calibrate needs at least one batch; got none"):
        ActivationRangeObserver.calibrate(net, [])
    with pytest.raises(TypeError, match=r"batches must be several.*; got one Tensor: write \[batch\]"):
        ActivationRangeObserver.calibrate(net, torch.zeros(2, 8))
    with pytest.raises(TypeError, match="forward must be the name of a submodule or method"):
        ActivationRangeObserver.calibrate(net, [torch.zeros(2, 8)], forward=3)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ActivationRangeObserver.calibrate(net, [torch.zeros(2, 3)])
    assert not any(hook_counts(net).values())
    assert net.training


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_calibrate_hears_a_model_that_was_compiled_before() -> None:
    torch.compiler.reset()
    net, x = mlp().eval(), torch.randn(4, 8)
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad():
        compiled(x)
    found = ActivationRangeObserver.calibrate(compiled, [(x, None), (x, None)])
    torch.compiler.reset()
    assert found.silent == ()
    assert found.sites == ActivationRangeObserver.calibrate(net, [x, x]).sites


BAD = [
    ({"method": "max"}, ValueError, "method must be one of minmax, moving_average, histogram, percentile; got 'max'"),
    ({"dtype": "int4"}, ValueError, "dtype must be one of int8, uint8; got 'int4'"),
    ({"scheme": "odd"}, ValueError, "scheme must be one of affine, symmetric; got 'odd'"),
    ({"averaging_constant": 0}, ValueError, "averaging_constant must be above 0 and at most 1.*got 0"),
    ({"averaging_constant": "x"}, TypeError, "averaging_constant must be a number; got 'x'"),
    ({"percentile": 101}, ValueError, "percentile must be above 0 and at most 100.*got 101"),
    ({"percentile": True}, TypeError, "percentile must be a number; got True"),
    ({"bins": 1}, ValueError, "bins must be at least 2; got 1"),
    ({"bins": 2.0}, TypeError, "bins must be an integer of at least 2; got 2.0"),
    ({"channel_dim": "1"}, TypeError, "channel_dim must be an integer.*got '1'"),
    ({"channel_dim": 1, "method": "histogram"}, ValueError, "channel_dim goes with method='minmax' only.*'histogram'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ActivationRangeObserver(**arguments)


def test_the_share_of_nan_is_reported() -> None:
    class Sick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(8, 4)
            self.log = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.log(self.body(x).detach().log())
            return self.body(x)[:, :3] + 0 * y.nan_to_num()[:, :3].clamp(-1, 1)

    observer = ActivationRangeObserver(modules=["net.*"], summary=False)
    trainer([observer]).fit(Classifier(Sick()), loader())
    assert 0.2 < observer.report.sites["net.log"].nonfinite_fraction < 0.8
    assert math.isfinite(observer.report.sites["net.log"].max)
