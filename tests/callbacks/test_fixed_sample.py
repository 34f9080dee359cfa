"""FeatureMapVisualizer and GradCAM after each epoch: the same sample, the right numbers, pictures, and training unaltered."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn

from lightning_hooks import FeatureExtractor, FeatureMapVisualizer, GradCAM, monitors
from lightning_hooks.extraction.cam import grad_cam
from lightning_hooks.extraction.capture import extract
from tests.support.models import Classifier, ResidualCNN, TinyTransformer, hook_counts, loader, trainer
from tests.support.reference import everything, same_state

pytest.importorskip("matplotlib")

SHAPE = (1, 6, 6)


class Watched(Classifier):
    """Runs its net by calling itself; keeps its batches, and its net after each epoch."""

    def __init__(self, net: Any = ResidualCNN, **kwargs: Any) -> None:
        torch.manual_seed(0)
        super().__init__(net(), **kwargs)
        self.inputs: list[Tensor] = []
        self.validated: list[Tensor] = []
        self.after: list[nn.Module] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.inputs.append(batch[0].clone())
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(batch[0].clone())

    def on_train_epoch_end(self) -> None:
        self.after.append(copy.deepcopy(self.net))


class Reports(Callback):
    """Keeps each epoch's report of the callbacks before it."""

    def __init__(self, *watched: Any) -> None:
        self.watched, self.reports = watched, []

    def on_train_epoch_end(self, *args: Any) -> None:
        self.reports.append([callback.report for callback in self.watched])


OURS = {
    "maps": lambda **options: FeatureMapVisualizer(modules=["net.conv", "net.act"], n_samples=3, **options),
    "cam": lambda **options: GradCAM(module="net.conv", target=1, n_samples=3, **options),
}


@pytest.mark.parametrize("net", ["cnn", "transformer"])
def test_on_equals_off_bit_for_bit(net: str, tmp_path: Path) -> None:
    """Weights, losses, running statistics, gradients, every random state, and modes, between and after epochs."""
    build, shape = (ResidualCNN, SHAPE) if net == "cnn" else (TinyTransformer, (5, 6))

    class Look(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.found.append(
                {
                    "grads": [None if parameter.grad is None else parameter.grad.clone() for parameter in pl_module.parameters()],
                    "modes": [module.training for module in pl_module.modules()],
                    "random": [torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()],  # noqa: NPY002
                    "state": copy.deepcopy(pl_module.state_dict()),
                }
            )

    def fit(callbacks: list[Callback]) -> tuple[Classifier, list[Any]]:
        seed_everything(7, verbose=False)
        model = Watched(build, optimizer=torch.optim.Adam, lr=0.01)
        look = Look()
        look.found = []
        trainer([*callbacks, look], max_epochs=2).fit(model, loader(shape, shuffle=True), loader(shape))
        return model, look.found

    module = {"cnn": {"module": "net.conv"}, "transformer": {"module": "net.encoder.layers.1.norm1", "reshape": (1, 5)}}[net]
    without, plain = fit([])
    drawn = FeatureMapVisualizer(modules=module["module"], folder=tmp_path)
    ours = [FeatureMapVisualizer(), drawn, GradCAM(folder=tmp_path, **module), GradCAM(stage="validate", **module)]
    watched, seen = fit(ours)
    assert all(callback.report.epoch == 1 for callback in ours)
    assert watched.losses == without.losses
    assert same_state(watched, without)
    for found, expected in zip(seen, plain, strict=True):
        assert found["modes"] == expected["modes"]
        assert found["random"] == expected["random"]
        assert all(torch.equal(found["state"][key], expected["state"][key]) for key in expected["state"])
        for one, other in zip(found["grads"], expected["grads"], strict=True):
            assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("stage", ["train", "validate", "given"])
def test_the_same_sample_each_epoch_with_that_epochs_weights(stage: Any) -> None:
    given = torch.randn(3, *SHAPE)
    options = {"sample": given} if stage == "given" else {"stage": stage}
    ours = [OURS["maps"](**options), OURS["cam"](**options)]
    look = Reports(*ours)
    model = Watched()
    trainer([*ours, look], max_epochs=3).fit(model, loader(SHAPE, shuffle=True), loader(SHAPE, seed=3))
    sample = {"train": model.inputs[0], "validate": model.validated[0], "given": given}[stage][:3]
    assert len(look.reports) == 3
    for epoch, ((maps, cam), net) in enumerate(zip(look.reports, model.after, strict=True)):
        assert (maps.epoch, cam.epoch, maps.step, cam.module) == (epoch, epoch, 7 * (epoch + 1) - 1, "net.conv")
        expected = extract(net, sample, ["conv", "act"])
        assert maps.sites.keys() == {"net.conv", "net.act"}
        for name, values in expected.items():
            torch.testing.assert_close(maps.sites[f"net.{name}"], values)
        slow_maps, slow_scores, _ = grad_cam(net, sample, "conv", 1)
        torch.testing.assert_close(cam.maps, slow_maps)
        torch.testing.assert_close(cam.scores, slow_scores)
        assert cam.classes.tolist() == [1, 1, 1]
    assert not torch.equal(look.reports[0][1].maps, look.reports[2][1].maps)


def test_pictures_go_to_trackers_and_files(tmp_path: Path) -> None:
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ours = [OURS[kind](folder=tmp_path / "png", every_n_epochs=2) for kind in OURS]
    loggers = [TensorBoardLogger(tmp_path / "tb"), CSVLogger(tmp_path / "csv")]
    trainer(ours, max_epochs=3, logger=loggers).fit(Watched(), loader(SHAPE))
    events = EventAccumulator(loggers[0].log_dir)
    events.Reload()
    assert set(events.Tags()["images"]) == {"feature_maps/net.act", "feature_maps/net.conv", "grad_cam/net.conv.class=1"}
    for tag in events.Tags()["images"]:
        assert [event.step for event in events.Images(tag)] == [6, 20]
    written = sorted(str(path.relative_to(tmp_path / "png")) for path in (tmp_path / "png").rglob("*.png"))
    assert written == [
        f"{prefix}/epoch={epoch}/{name}.png"
        for prefix, names in (("feature_maps", ["net.act", "net.conv"]), ("grad_cam", ["net.conv.class=1"]))
        for epoch in (0, 2)
        for name in names
    ]
    for path in (tmp_path / "png").rglob("*.png"):
        picture = np.asarray(Image.open(path).convert("RGB"))
        assert picture.shape[0] > 100
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    assert len(list((tmp_path / "csv").rglob("*.png"))) == 6


@pytest.mark.parametrize("kind", OURS)
def test_a_later_fault_warns_once_and_training_continues(kind: str, tmp_path: Path) -> None:
    class Breaks(Watched):
        def forward(self, x: Tensor) -> Tensor:
            if self.current_epoch == 1 and not self.training:
                raise ArithmeticError("not today.")
            return super().forward(x)

    ours = OURS[kind]()
    model = Breaks()
    with pytest.warns(UserWarning, match=rf"{type(ours).__name__} raised ArithmeticError: not today\. It is disabled") as warned:
        trainer([ours], max_epochs=4).fit(model, loader(SHAPE))
    assert sum("not today" in str(entry.message) for entry in warned) == 1
    assert ours.report.epoch == 0
    assert len(model.losses) == 28
    assert all(module.training for module in model.net.modules())


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: FeatureMapVisualizer(n_samples=0), ValueError, "n_samples must be at least 1; got 0"),
        (lambda: FeatureMapVisualizer(max_maps=0), ValueError, "max_maps must be at least 1; got 0"),
        (lambda: GradCAM(every_n_epochs=1.5), TypeError, "every_n_epochs must be an integer of at least 1; got 1.5"),
        (lambda: GradCAM(stage="test"), ValueError, "stage must be one of train, validate; got 'test'"),
        (lambda: GradCAM(module=nn.Linear), TypeError, "module must be the name of a layer, or None for the last convolution"),
        (lambda: GradCAM(target="cat"), TypeError, "target must be the number of a class.*; got 'cat'"),
        (lambda: GradCAM(reshape=3), TypeError, r"reshape must be \(height, width\)"),
        (lambda: GradCAM(forward=3), TypeError, "forward must be the name of a submodule or method"),
        (
            lambda: GradCAM(module="net.cnv"),
            ValueError,
            "modules='net.cnv' matches no module of Watched. Closest names: 'net.conv'",
        ),
        (lambda: FeatureMapVisualizer(modules="nat.*"), ValueError, r"modules='nat\.\*' matches no module of Watched"),
        (lambda: GradCAM(target=7), ValueError, "target must be between 0 and 2, the model's classes; got 7"),
        (lambda: GradCAM(module="net.head"), ValueError, "without spatial dimensions"),
        (lambda: FeatureMapVisualizer(forward="encode"), AttributeError, "forward='encode': Watched has no 'encode'"),
    ],
)
def test_wrong_arguments_raise_at_once(build: Any, error: type[Exception], message: str) -> None:
    """At construction, at train start, or in the first batch; never after an epoch."""
    model = Watched()
    before = hook_counts(model)
    with pytest.raises(error, match=message):
        trainer([build()]).fit(model, loader(SHAPE))
    assert len(model.losses) == 0
    assert hook_counts(model) == before
    assert all(module.training for module in model.net.modules())


@pytest.mark.parametrize("look", [lambda: GradCAM(module="net.conv"), lambda: FeatureMapVisualizer()])
def test_a_model_without_a_forward_says_what_to_do(look: Any) -> None:
    class Without(Watched):
        forward = LightningModule.forward

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    with pytest.raises(TypeError, match=r"Without has no forward\. Pass forward=: the name of a submodule"):
        trainer([look()]).fit(Without(), loader(SHAPE))


def test_other_monitors_hear_nothing_of_it() -> None:
    """Whichever stands first in the list: the sample also runs in the middle of the first batch."""

    def reports(before: list[Callback], after: list[Callback]) -> list[Any]:
        ours = monitors(every_n_steps=1, summary=False)
        model = Watched()
        trainer([*before, *ours, *after]).fit(model, loader(SHAPE))
        return [callback.report for callback in ours[:3]]

    without = reports([], [])
    assert everything(reports([OURS["maps"]()], [OURS["cam"]()])) == everything(without)

    class Looks(Watched):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.net(batch[0])
            GradCAM.compute(self, batch[0], module="net.conv")
            return super().training_step(batch, batch_idx)

    keep = FeatureExtractor(modules="net.conv", max_samples=8)
    trainer([keep]).fit(Looks(), loader(SHAPE))
    assert list(keep.features) == ["net.conv", "net.conv#2"]
