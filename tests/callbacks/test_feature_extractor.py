"""FeatureExtractor in training: the features of the run itself, bounded, by any stage, and nothing altered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from lightning_hooks import FeatureExtractor
from lightning_hooks.extraction.extracted import ExtractedFeatures
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer


class Record(Classifier):
    """Keeps what its layers gave in each training batch, as a model that returns them would."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        hidden = self.net[0](x)
        activated = self.net[1](hidden)
        rest = self.net[2:](activated)
        self.seen.append((self.current_epoch, x, y, hidden.detach().clone(), activated.detach().clone(), rest.detach().clone()))
        return nn.functional.cross_entropy(rest, y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.valid.append((batch[0], self.net(batch[0])))

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.validation_step(batch, batch_idx)
        return self.valid[-1][1]


def model() -> Record:
    torch.manual_seed(0)
    found = Record(mlp())
    found.seen, found.valid = [], []
    return found


@pytest.mark.parametrize("every_n_steps", [1, 2])
def test_equals_what_the_layers_gave_while_training(every_n_steps: int) -> None:
    net = model()
    keep = FeatureExtractor(modules=["net.0", "net.1", "net.4"], every_n_steps=every_n_steps, fields={"label": 1, "input": 0})
    trainer([keep], max_epochs=2).fit(net, loader(shuffle=True))
    kept = [entry for entry in net.seen if entry[0] == 1][::every_n_steps]
    _, x, y, hidden, activated, rest = (
        torch.cat(parts) if isinstance(parts[0], Tensor) else parts for parts in zip(*kept, strict=True)
    )
    report = keep.report
    assert (report.epoch, report.step, report.seen, len(report)) == (1, 13, len(x), len(x))
    assert list(report.sites) == ["net.0", "net.1", "net.4"]
    assert keep.features is report.sites
    for name, expected in (("net.0", hidden), ("net.1", activated), ("net.4", rest)):
        assert torch.equal(report.sites[name], expected)
        assert not report.sites[name].requires_grad
    assert torch.equal(report.fields["label"], y)
    assert torch.equal(report.fields["input"], x)
    keep.clear()
    assert keep.features == {}
    assert keep.report is None


def test_memory_is_bounded_and_rows_stay_together() -> None:
    net = model()
    keep = FeatureExtractor(modules="net.0", max_samples=10, fields={"input": 0})
    trainer([keep]).fit(net, loader(shuffle=True))
    x = torch.cat([entry[1] for entry in net.seen])
    hidden = torch.cat([entry[3] for entry in net.seen])
    report = keep.report
    assert report.seen == 50
    assert torch.equal(report.fields["input"], x[:10])
    assert torch.equal(report.sites["net.0"], hidden[:10])


@pytest.mark.parametrize(
    ("how", "inference_mode"), [("fit", True), ("fit", False), ("validate", True), ("test", False), ("predict", True)]
)
def test_stages(how: str, inference_mode: bool) -> None:
    net = model()
    keep = FeatureExtractor(modules="net.4", stage="validate" if how == "fit" else how, fields={"input": 0})
    run = trainer([keep], max_epochs=2, inference_mode=inference_mode)
    data = loader(n=20, seed=5)
    before = hook_counts(net)
    if how == "fit":
        run.fit(net, loader(), data)
        assert len(net.valid) == 2 + 2 * 3  # sanity checking is not kept
    else:
        getattr(run, how)(net, data)
    last = net.valid[-3:]
    assert torch.equal(keep.report.fields["input"], torch.cat([x for x, _ in last]))
    assert torch.equal(keep.report.sites["net.4"], torch.cat([output for _, output in last]))
    assert keep.report.epoch == (1 if how == "fit" else 0)
    assert not keep.report.sites["net.4"].is_inference()
    assert hook_counts(net) == before


def test_pooled_on_the_way_and_calls_by_number() -> None:
    net = Classifier(ResidualCNN())
    keep = FeatureExtractor(modules=["net.conv", "net.head"], pool="mean")
    whole = FeatureExtractor(modules="net.conv")
    trainer([keep, whole]).fit(net, loader((1, 6, 6)))
    torch.testing.assert_close(keep.features["net.conv"], whole.features["net.conv"].mean((2, 3)))
    assert keep.features["net.head"].shape == (50, 3)
    assert whole.features["net.conv"].shape == (50, 4, 6, 6)

    class Twice(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.net(batch[0])
            return super().training_step((batch[0] * 2, batch[1]), batch_idx)

    keep = FeatureExtractor(modules="net.0", fields={"input": 0}, max_samples=8)
    net = Twice(mlp(), lr=0.0)
    trainer([keep]).fit(net, loader())
    assert list(keep.features) == ["net.0", "net.0#2"]
    with torch.no_grad():
        torch.testing.assert_close(keep.features["net.0#2"], net.net[0](keep.report.fields["input"] * 2))


@pytest.mark.parametrize("file_format", ["npz", "safetensors"])
def test_a_file_each_epoch(file_format: Any, tmp_path: Path) -> None:
    keep = FeatureExtractor(modules="net.0", folder=tmp_path / "kept", file_format=file_format, fields={"label": 1})
    trainer([keep], max_epochs=2).fit(model(), loader())
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == [f"epoch=0.{file_format}", f"epoch=1.{file_format}"]
    back = ExtractedFeatures.load(tmp_path / "kept" / names[1])
    assert torch.equal(back.sites["net.0"], keep.features["net.0"])
    assert torch.equal(back.fields["label"], keep.report.fields["label"])


def test_the_projector_gets_points_and_labels(tmp_path: Path) -> None:
    keep = FeatureExtractor(modules=["net.0", "net.1"], max_samples=6, fields={"label": 1}, projector=True)
    trainer([keep], logger=TensorBoardLogger(tmp_path)).fit(model(), loader())
    (config,) = tmp_path.rglob("projector_config.pbtxt")
    assert "extracted/net.0" in config.read_text()
    found = {}
    for path in tmp_path.rglob("tensors.tsv"):
        points = np.loadtxt(path, delimiter="\t", ndmin=2)
        labels = (path.parent / "metadata.tsv").read_text().split()
        assert labels == [str(label) for label in keep.report.fields["label"].tolist()]
        found[points.shape] = found.get(points.shape, 0) + any(
            np.allclose(points, values.numpy(), atol=1e-5) for values in keep.features.values()
        )
    assert found == {(6, 16): 2}


class Sometimes(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if batch_idx in (1, 3):
            self.extra[0](batch[0])
        return loss


def test_silent_modules_warn_and_missing_rows_are_nan() -> None:
    net = Sometimes(mlp())
    net.extra = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])
    keep = FeatureExtractor(modules=["net.0", "extra.*"])
    with pytest.warns(UserWarning, match=r"FeatureExtractor: there is no output of extra\.1: not called in the sampled"):
        trainer([keep], max_epochs=2).fit(net, loader(n=40))
    assert keep.report.silent == ("extra.1",)
    called = keep.features["extra.0"].isfinite().all(1)
    assert called.tolist() == [False] * 8 + [True] * 8 + [False] * 8 + [True] * 8 + [False] * 8
    assert keep.features["net.0"].isfinite().all()


def test_a_missing_field_raises_in_the_first_batch_and_warns_later() -> None:
    with pytest.raises(ValueError, match="the field 'id' is 2, which the batch does not have; it has 2 entries"):
        trainer([FeatureExtractor(fields={"id": 2})]).fit(model(), loader())

    def fails_later(batch: Any) -> Any:
        calls.append(1)
        return batch[1] if len(calls) < 3 else batch[7]

    calls: list[int] = []
    keep = FeatureExtractor(modules="net.0", fields={"label": lambda batch: fails_later(batch) if len(calls) < 2 else "no"})
    with pytest.warns(
        UserWarning, match=r"stores nothing from batch 2 on: the field 'label' must hold one entry .* Training continues\."
    ):
        trainer([keep]).fit(model(), loader())
    assert len(keep.features["net.0"]) == 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_compiled_layers() -> None:
    torch.compiler.reset()
    found = []
    for compiled in (False, True):
        net = model()
        if compiled:
            net.net[0] = torch.compile(net.net[0], backend="aot_eager")
        keep = FeatureExtractor(modules=["net.0", "net.1"], max_samples=20)
        trainer([keep]).fit(net, loader())
        assert not keep.faults.errors
        found.append(keep.features)
    torch.compiler.reset()
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        torch.testing.assert_close(found[1][name], values)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"stage": "fit"}, ValueError, "stage must be one of train, validate, test, predict; got 'fit'"),
        ({"file_format": "pt"}, ValueError, "file_format must be one of npz, safetensors; got 'pt'"),
        ({"max_samples": 0}, ValueError, "max_samples must be at least 1; got 0"),
        ({"fields": ["label"]}, TypeError, r"fields must map a name to an index, .* as \{'label': 1\}; got \['label'\]"),
        ({"pool": "avg"}, ValueError, "pool must be None, one of 'mean'.*; got 'avg'"),
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
        ({"modules": 3}, TypeError, "modules must be a glob pattern"),
    ],
)
def test_messages(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FeatureExtractor(**arguments)
