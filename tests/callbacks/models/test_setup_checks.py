"""How a model and its batches are set up, as GradientFlowMonitor reports it: each fact by a model that has it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightning_hooks import GradientFlowMonitor
from lightning_hooks.alerts import BatchCounts, GradientFlowReport, LabelCounts, ModelSetup, UnregisteredModules
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer

pytestmark = pytest.mark.filterwarnings("ignore:Found .* module.s. in eval mode at the start")  # Lightning's
IMAGES = (1, 6, 6)


def fit(model: Any, data: Any = None, every: int = 2, **kwargs: Any) -> GradientFlowReport:
    monitor = GradientFlowMonitor(every_n_steps=every, summary=False)
    trainer([monitor], **kwargs).fit(model, loader() if data is None else data)
    assert monitor.report is not None
    assert not monitor.faults.errors
    return monitor.report


def found(report: GradientFlowReport) -> list[tuple[str, str, str]]:
    kinds = {"eval_mode", "frozen_statistics", "settings", "unregistered", "labels_ignored", "batch_repeated"}
    return [(alert.kind, alert.site, alert.severity) for alert in report.alerts if alert.kind in kinds]


def test_nothing_is_unusual_in_an_ordinary_training() -> None:
    report = fit(Classifier(ResidualCNN()), loader(IMAGES))
    assert report.model_setup == ModelSetup(
        slowest_momentum=0.1, labels=LabelCounts(4, 0, 26, 0), batches=BatchCounts(compared=3, samples=42, distinct=50)
    )
    assert found(report) == []


# Modes.


class Switching(Classifier):
    """Has parts in eval mode: from the start, or within a batch only."""

    def __init__(self, *parts: str, within: bool = False) -> None:
        super().__init__(ResidualCNN())
        self.parts, self.within = parts, within
        if not within:
            self.switch(False)

    def switch(self, mode: bool) -> None:
        for part in self.parts:
            self.get_submodule(part).train(mode)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.within:
            self.switch(False)
            self.net(batch[0])
            self.switch(True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("model", "modes", "alerts"),
    [
        (Switching("net"), {"net.bn": 2, "net.drop": 2}, [("eval_mode", "net", "warning")]),
        (Switching(""), {"net.bn": 3, "net.drop": 3}, [("eval_mode", "the model", "warning")]),
        (Switching("net.bn"), {"net.bn": 1}, [("eval_mode", "net.bn", "warning")]),  # it has seen no data
        (Switching("net.drop"), {"net.drop": 1}, [("eval_mode", "net.drop", "info")]),
        (Switching("net", within=True), {}, []),
        (Switching("net.act"), {}, []),
    ],
)
def test_modules_in_eval_mode(model: Switching, modes: dict[str, int], alerts: list[Any]) -> None:
    report = fit(copy.deepcopy(model), loader(IMAGES))
    assert report.model_setup.eval_modes == modes
    assert found(report) == alerts


@pytest.mark.parametrize(("batches", "levels"), [(4, {"net.bn": 2, "net.drop": 2}), (3, {})])
def test_eval_in_the_middle_of_an_epoch(batches: int, levels: dict[str, int]) -> None:
    """The first batch of those in eval mode starts in training mode: callbacks come before the module."""

    class Forgetful(Switching):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.net.train(batch_idx < len(loader(IMAGES)) - batches)

    report = fit(Forgetful("net"), loader(IMAGES), every=1)
    assert report.model_setup.eval_modes == levels
    assert report.model_setup.eval_since == dict.fromkeys(levels, 4)
    for alert in report.alerts:
        assert alert.since_step == 4
        assert alert.message.startswith("it trains in eval mode, since step 4: net.bn, net.drop behave as in validation.")


@pytest.mark.parametrize(
    ("norm", "sites", "severity"), [("new", ("net.1",), "warning"), ("trained", (), "info"), ("in this fit", (), "info")]
)
def test_a_norm_in_eval_mode_that_has_seen_no_data(norm: str, sites: tuple[str, ...], severity: str) -> None:
    class Sees(Classifier):
        def on_train_batch_end(self, *_: Any) -> None:
            self.net[1].running_mean += 0.1 if norm == "in this fit" else 0.0

    net = nn.Sequential(nn.Linear(8, 8), trained_norm() if norm == "trained" else nn.BatchNorm1d(8), nn.Linear(8, 3))
    net[1].eval()
    report = fit(Sees(net))
    assert report.model_setup.unestimated == sites
    assert report.model_setup.slowest_momentum == 0.1
    assert found(report) == [("eval_mode", "net.1", severity)]


# Running statistics.


def trained_norm(features: int = 8) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(features)
    norm.running_mean, norm.running_var = torch.linspace(-1, 1, features), torch.linspace(0.5, 2, features)
    return norm


def test_how_far_running_statistics_have_moved() -> None:
    torch.manual_seed(0)
    norm = trained_norm()
    mean, std = norm.running_mean.double(), norm.running_var.double().sqrt()  # type: ignore[union-attr]
    body = nn.Sequential(nn.Linear(8, 8), norm).requires_grad_(False)
    report = fit(Classifier(nn.Sequential(body, nn.Linear(8, 3))))
    moved = ((norm.running_mean.double() - mean) / std) ** 2 + (norm.running_var.double().sqrt() / std - 1) ** 2  # type: ignore[union-attr]
    assert report.model_setup.updating == pytest.approx({"net.0.1": moved.mean().sqrt().item()}, rel=1e-6)
    assert found(report) == [("frozen_statistics", "net.0", "info")]  # it has not moved far


def frozen(norm: nn.Module, before: bool = True, after: bool = False) -> nn.Sequential:
    norm.requires_grad_(False)
    return nn.Sequential(nn.Linear(8, 8).requires_grad_(before), norm, nn.Linear(8, 3).requires_grad_(after))


@pytest.mark.parametrize(
    ("net", "sites"),
    [
        (frozen(trained_norm(), True, True), ["net.1"]),
        (frozen(trained_norm()).requires_grad_(True), []),
        (frozen(nn.BatchNorm1d(8)), []),  # it never was trained
        (frozen(trained_norm().eval()), []),
        (frozen(nn.BatchNorm1d(8, momentum=0.0)), []),
        (frozen(nn.Identity()), []),
    ],
)
def test_which_norms_are_frozen_and_update(net: nn.Sequential, sites: list[str]) -> None:
    assert list(fit(Classifier(copy.deepcopy(net))).model_setup.updating) == sites


# Settings.


def test_settings_that_are_unusual() -> None:
    class Unusual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.drop, self.usual = nn.Linear(8, 8), nn.Dropout(0.95), nn.Dropout(0.5)
            self.still, self.kept = nn.BatchNorm1d(8, momentum=0.0), trained_norm()
            self.kept.momentum = 0.0
            self.norm, self.head = nn.LayerNorm(8, eps=1e5), nn.Linear(8, 3)
            self.one, self.other = nn.LayerNorm(1, elementwise_affine=False), nn.LayerNorm((1, 2), elementwise_affine=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.kept(self.still(self.usual(self.drop(self.fc(x)))))))

    report = fit(Classifier(Unusual()))
    assert report.model_setup.settings == {
        "net.drop": {"p": 0.95}, "net.still": {"momentum": 0.0}, "net.norm": {"eps": 1e5}, "net.one": {"normalized": 1.0},
    }  # fmt: skip
    assert sorted(found(report)) == [("settings", f"net.{name}", "warning") for name in ("drop", "norm", "one", "still")]


# Plain lists.


class Hidden(Classifier):
    """Modules in containers of every kind."""

    def __init__(self, kind: Any, train: bool = True, used: bool = True) -> None:
        super().__init__(mlp())
        blocks = [nn.Linear(8, 8).requires_grad_(train), nn.Linear(8, 8).requires_grad_(train)]
        self.blocks = kind(blocks)
        self.first, self.used = [blocks[:1]], used  # what a container has twice is one

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        for [block] in self.first if self.used else ():
            x = block(x)
        return F.cross_entropy(self.net(x), y)


@pytest.mark.parametrize(
    "kind", [list, tuple, set, lambda blocks: {"a": blocks[0], "b": [blocks[1]]}, lambda blocks: [*blocks, *blocks]]
)
def test_modules_in_plain_containers(kind: Any) -> None:
    report = fit(Hidden(kind))
    assert report.model_setup.unregistered == {
        "blocks": UnregisteredModules(2, 144, reached=True),
        "first": UnregisteredModules(1, 72, reached=True),
    }
    assert found(report) == [("unregistered", "blocks", "warning"), ("unregistered", "first", "warning")]


@pytest.mark.parametrize(
    ("model", "unregistered"),
    [
        (Hidden(nn.ModuleList), {}),
        (Hidden(list, train=False), {}),
        (Hidden(list, used=False), {"blocks": UnregisteredModules(2, 144), "first": UnregisteredModules(1, 72)}),
        (Classifier(mlp()), {}),
    ],
)
def test_what_is_hidden_on_purpose_or_registered_elsewhere(model: Any, unregistered: dict[str, Any]) -> None:
    report = fit(copy.deepcopy(model))
    assert report.model_setup.unregistered == unregistered
    assert found(report) == []


class Codes(Classifier):
    """Adds a tensor of its own, which is no parameter, in one way or another."""

    def __init__(self, how: str) -> None:
        super().__init__(mlp())
        shift = torch.zeros(8, requires_grad=how != "no gradient")
        shift._is_flat_param = how == "of FSDP"  # type: ignore[attr-defined]
        self.how, self.shift = how, {"list": [shift], "parameters in a list": [nn.Parameter(shift)]}.get(how, shift)
        if how == "computed":
            self.shift = nn.Parameter(shift.double()).float()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        shift = self.shift[0] if isinstance(self.shift, list) else self.shift
        if self.how == "coordinates":
            return F.cross_entropy(self.net(x), y) + self.net(shift).square().sum()
        return F.cross_entropy(self.net(x if self.how == "unused" else x + shift), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), *([self.shift] if self.how == "optimized" else [])], lr=0.01)


@pytest.mark.parametrize(
    ("how", "severity"),
    [
        ("tensor", "warning"),
        ("list", "warning"),
        ("parameters in a list", "warning"),
        ("computed", "warning"),
        ("optimized", "info"),
        ("unused", None),
        ("coordinates", None),
        ("no gradient", None),
        ("of FSDP", None),
    ],
)
def test_tensors_that_are_no_parameters(how: str, severity: str | None) -> None:
    report = fit(Codes(how), loader())
    held = UnregisteredModules(0, 8, how not in ("unused", "coordinates"), optimized=how == "optimized")
    assert report.model_setup.unregistered == ({} if how in ("no gradient", "of FSDP") else {"shift": held})
    assert found(report) == ([("unregistered", "shift", severity)] if severity else [])


OUTSIDE = nn.Linear(16, 16)


class CreatedInForward(Classifier):
    """A layer between two others: made in each step, or kept outside of the model."""

    def __init__(self, how: str) -> None:
        super().__init__(mlp())
        self.how = how

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        layer = {"created": lambda: nn.Linear(16, 16), "outside": lambda: OUTSIDE, "input": nn.Identity}[self.how]()
        if self.how == "input":
            x.requires_grad_()
        x = layer(self.net[:-1](x)) if self.how != "input" else self.net[:-1](x)
        return F.cross_entropy(self.net[-1](x), y)


@pytest.mark.parametrize(("how", "found_there"), [("created", True), ("outside", False), ("input", False)])
def test_a_layer_that_is_made_in_each_step(how: str, found_there: bool) -> None:
    report = fit(CreatedInForward(how))
    head = list(CreatedInForward("created").net.named_children())[-1][0]
    expected = {f"net.{head}": UnregisteredModules(0, 272, reached=True, held=False)} if found_there else {}
    assert report.model_setup.unregistered == expected
    assert found(report) == ([("unregistered", f"net.{head}", "warning")] if found_there else [])


# Batches.


class Labels(Classifier):
    """Cross entropy by a module or a function."""

    def __init__(self, loss: Any = F.cross_entropy, key: str | None = None) -> None:
        super().__init__(mlp())
        self.loss, self.key = loss, key

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = (batch["x"], batch[self.key]) if self.key else batch
        return self.loss(self.net(x), y)


def labelled(ignored: tuple[int, ...], index: int = -100, key: str | None = None) -> Any:
    """Seven batches; all labels of some of them are ``index``, and one label of each other one."""
    batches: list[Any] = []
    for number, (x, y) in enumerate(loader()):
        y[: len(y) if number in ignored else 1] = index
        batches.append({"x": x, key: y} if key else (x, y))
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "data", "expected", "severity"),
    [
        (Labels(), labelled(()), LabelCounts(4, 0, 26, 4), None),
        (Labels(), labelled((2,)), LabelCounts(4, 1, 26, 11), "warning"),
        (Labels(key="labels"), labelled((0, 2, 4), key="labels"), LabelCounts(4, 3, 26, 25), "warning"),
        (Labels(nn.CrossEntropyLoss(reduction="sum")), labelled((2,)), LabelCounts(4, 1, 26, 11), "info"),
        (Labels(lambda out, y: F.cross_entropy(out, y["y"]), key="other"), None, None, None),
    ],
)
def test_labels_that_are_ignored(model: Labels, data: Any, expected: LabelCounts | None, severity: str | None) -> None:
    if data is None:  # labels that cannot be found
        data = DataLoader([{"x": x, "other": {"y": y}} for x, y in loader()], batch_size=None)  # type: ignore[arg-type]
    report = fit(copy.deepcopy(model), data)
    assert report.model_setup.labels == expected
    assert [alert.severity for alert in report.alerts if alert.kind == "labels_ignored"] == ([severity] if severity else [])


def batches(*numbers: int) -> Any:
    chosen = list(loader(n=56))
    return DataLoader([chosen[number] for number in numbers], batch_size=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "every", "compared", "repeated"),
    [
        ((0, 1, 2, 3, 4, 5, 6), 2, 3, 0),
        ((0, 0, 0, 0, 0, 0, 0), 2, 3, 3),
        ((0, 0, 1, 1, 2, 2, 3), 2, 3, 3),
        ((0, 1, 0, 1, 0, 1, 0), 2, 3, 0),  # an epoch that goes through few data several times
        ((0, 0, 1, 2, 2), 1, 4, 2),
        ((0,), 1, 0, 0),
    ],
)
def test_batches_that_come_again(order: tuple[int, ...], every: int, compared: int, repeated: int) -> None:
    report = fit(Classifier(mlp()), batches(*order), every, max_epochs=2)  # from epoch to epoch they come again
    assert (report.model_setup.batches.compared, report.model_setup.batches.repeated) == (compared, repeated)
    assert found(report) == ([("batch_repeated", "the data", "warning")] if repeated else [])


# What a fit is without them, and what a checkpoint and windows do to them.


class SaveAt(Callback):
    def __init__(self, path: Any, batch: int) -> None:
        self.path, self.batch = path, batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.batch:
            trainer.save_checkpoint(self.path)


def unusual() -> Any:
    torch.manual_seed(0)
    model = Hidden(list)
    model.net.insert(1, nn.Dropout(0.1).eval())
    return model


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended")
@pytest.mark.usefixtures("all_detailed")
def test_a_window_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    whole = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([SaveAt(tmp_path / "a.ckpt", 2), whole]).fit(unusual(), batches(0, 0, 1, 1, 2, 2, 3))
    resumed = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([resumed]).fit(unusual(), batches(0, 0, 1, 1, 2, 2, 3), ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    expected = whole.report.model_setup
    assert expected.batches == BatchCounts(6, 3, samples=48, seen=24, distinct=32)
    assert expected.eval_modes == {"net.1": 1}
    assert expected.unregistered["blocks"].reached
    again = resumed.report.model_setup  # the loader has started from its first batch
    assert again.batches == BatchCounts(6, 3, samples=48, seen=40, distinct=16)
    assert replace(again, batches=expected.batches) == expected
