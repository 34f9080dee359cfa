"""ActivationRangeObserver in a fit, and alone."""

from __future__ import annotations

import contextlib
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.ao.quantization import MinMaxObserver, MovingAverageMinMaxObserver

from lightning_hooks import ActivationRangeObserver
from lightning_hooks.alerts import RangeReport
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer
from tests.support.reference import Recorder, everything

AO = {"minmax": MinMaxObserver, "moving_average": MovingAverageMinMaxObserver}


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
            assert (found.min, found.max) == (float(reference.min_val), float(reference.max_val))
    assert ours.report.sites["net.0"] != second.report.sites["net.0"]


@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile"])
def test_a_mid_epoch_resume_equals_the_uninterrupted_run(method: str, tmp_path: Path) -> None:
    def fit(callbacks: Any, **kwargs: Any) -> ActivationRangeObserver:
        torch.manual_seed(0)
        observer = ActivationRangeObserver(method=method, summary=False)
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
    report = ActivationRangeObserver.calibrate(net, batches, modules=["conv", "head"], dtype="uint8")
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


BAD = [
    ({"method": "max"}, ValueError, "method must be one of minmax, moving_average, percentile; got 'max'"),
    ({"dtype": "int4"}, ValueError, "dtype must be one of int8, uint8; got 'int4'"),
    ({"scheme": "odd"}, ValueError, "scheme must be one of affine, symmetric; got 'odd'"),
    ({"percentile": 101}, ValueError, "percentile must be above 0 and at most 100.*got 101"),
    ({"percentile": True}, TypeError, "percentile must be a number; got True"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ActivationRangeObserver(**arguments)
