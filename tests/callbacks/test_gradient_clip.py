"""GradientClipMonitor and GradientClipper against norms taken by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_hooks import GradientClipMonitor, GradientClipper, GradientFlowMonitor
from lightning_hooks.diagnostics.clipping_events.collector import LOGGED
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import Recorder, assert_events, same_state, total_norm
from tests.support.trainings import BadBatch


class ByHand(Classifier):
    """Records the gradients before and after its own clipping, which a subclass defines."""

    def __init__(self, net: nn.Module, **kwargs: Any) -> None:
        super().__init__(net, **kwargs)
        self.pairs: list[tuple[float, float]] = []

    def norm(self) -> float:
        return total_norm({n: p.grad.double().numpy() for n, p in self.named_parameters() if p.grad is not None})

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None, **kwargs: Any) -> None:
        before = self.norm()
        self.clip(optimizer, gradient_clip_val, **kwargs)
        self.pairs.append((before, self.norm()))

    def clip(self, optimizer: Any, value: Any, gradient_clip_algorithm: Any = None) -> None:
        self.clip_gradients(optimizer, value, gradient_clip_algorithm)


class Halving(ByHand):
    def clip(self, *args: Any, **kwargs: Any) -> None:
        for p in self.parameters():
            p.grad.mul_(0.5)


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        (ByHand, {"gradient_clip_val": 0.5}),
        (ByHand, {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}),
        (ByHand, {}),
        (Halving, {}),
    ],
    ids=["norm", "value", "none", "custom"],
)
def test_events_of_whoever_clips(kind: type[ByHand], kwargs: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, monitor = kind(mlp()), GradientClipMonitor(summary=False)
    trainer([monitor], **kwargs).fit(model, loader(n=400))  # 50 steps: more than a page of the ledger
    assert_events(monitor.report.optimizers["0-SGD"], model.pairs)
    by_norm = kwargs.get("gradient_clip_algorithm", "norm") == "norm"
    assert monitor.report.optimizers["0-SGD"].limit == (kwargs.get("gradient_clip_val") if by_norm else None)


def test_top_parameters_are_the_shares_of_the_squared_norm_at_clipped_steps() -> None:
    torch.manual_seed(0)
    monitor, recorder = GradientClipMonitor(summary=False), Recorder([])
    trainer([recorder, monitor], gradient_clip_val=0.6).fit(Classifier(mlp()), loader())
    clipped = [step for step in recorder.steps if total_norm(step) > 0.6]
    assert 0 < len(clipped) < 7
    shares = {n: np.mean([(s[n] ** 2).sum() / total_norm(s) ** 2 for s in clipped]) for n in clipped[0]}
    expected = sorted(shares.items(), key=lambda item: -item[1])[:5]
    found = monitor.report.optimizers["0-SGD"].top_parameters
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [share for _, share in found] == pytest.approx([share for _, share in expected], rel=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True, foreach=True),
        lambda p, lr: torch.optim.Adagrad(p, lr=lr, lr_decay=0.1, foreach=True),
        lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.1, foreach=True, maximize=True),
        lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True),
    ],
    ids=["nesterov", "adagrad", "maximize", "fused"],
)
def test_optimizers_that_write_into_gradients_do_not_look_like_clipping(optimizer: Any) -> None:
    torch.manual_seed(0)
    model, monitor = ByHand(mlp(), optimizer=optimizer), GradientClipMonitor(summary=False)
    trainer([monitor], gradient_clip_val=0.5).fit(model, loader())
    (stats,) = monitor.report.optimizers.values()
    assert_events(stats, model.pairs)


def test_nonfinite_steps_are_counted_and_kept_out_of_the_means() -> None:
    torch.manual_seed(0)
    monitor, recorder = GradientClipMonitor(summary=False), Recorder([])
    trainer([recorder, monitor], gradient_clip_val=0.5, limit_train_batches=3).fit(BadBatch(mlp(), math.inf), loader())
    stats = monitor.report.optimizers["0-SGD"]
    assert (stats.steps, stats.nonfinite_steps, stats.skipped_steps) == (3, 1, 0)
    assert stats.norm_before == pytest.approx(np.mean([total_norm(s) for s in recorder.steps[:2]]), rel=1e-5)


# The clipper


def reference_fit(clip: Any, n: int = 400) -> Classifier:
    """The same training with clipping written by hand."""

    class Custom(Classifier):
        def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
            clip(list(self.parameters()))

    torch.manual_seed(0)
    model = Custom(mlp())
    trainer().fit(model, loader(n=n))
    return model


@pytest.mark.parametrize(
    ("policy", "threshold", "clip"),
    [
        ("norm", 0.5, lambda ps: torch.nn.utils.clip_grad_norm_(ps, 0.5)),
        ("value", 0.05, lambda ps: torch.nn.utils.clip_grad_value_(ps, 0.05)),
        ("tensor", 0.2, lambda ps: [torch.nn.utils.clip_grad_norm_([p], 0.2) for p in ps]),
    ],
    ids=["norm", "value", "tensor"],
)
def test_clipper_trains_as_clipping_by_hand_does(policy: str, threshold: float, clip: Any) -> None:
    expected = reference_fit(clip)
    torch.manual_seed(0)
    model, clipper = Classifier(mlp()), GradientClipper(policy=policy, threshold=threshold, summary=False)
    trainer([clipper]).fit(model, loader(n=400))
    for (name, p), q in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7, msg=name)
    stats = clipper.report.optimizers["0-SGD"]
    assert 0 < stats.clipped_steps <= stats.steps == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "clipper_first"),
    [
        ("norm", True),
        ("norm", False),
        ("value", True),
        ("tensor", True),
        ("tensor", False),
        ("agc", True),
        ("zclip", False),
        ("autoclip", False),
    ],
)
def test_observers_see_what_every_policy_did_wherever_it_stands(policy: str, clipper_first: bool) -> None:
    torch.manual_seed(0)
    clipper, monitor = GradientClipper(policy=policy, summary=False), GradientClipMonitor(summary=False)
    flow, recorder = GradientFlowMonitor(every_n_steps=1, summary=False), Recorder([])
    callbacks = [clipper, monitor, flow] if clipper_first else [monitor, flow, clipper]
    trainer([recorder, *callbacks]).fit(Classifier(mlp()), loader(n=400))
    stats = clipper.report.optimizers["0-SGD"]
    raw = np.array([total_norm(step) for step in recorder.steps])
    if policy == "tensor":  # clipped in backward: what comes to the optimizer is clipped already
        assert monitor.report.optimizers["0-SGD"].clipped_steps == 0
        assert stats.norm_after == pytest.approx(raw.mean(), rel=1e-5)
    else:
        assert flow.report.total_norm == pytest.approx(raw.mean(), rel=1e-6)
        assert stats.norm_before == pytest.approx(raw.mean(), rel=1e-6)
        assert monitor.report.optimizers["0-SGD"].norm_after == pytest.approx(stats.norm_after)
        assert monitor.report.optimizers["0-SGD"].clipped_steps == stats.clipped_steps


def test_agc_leaves_the_excluded_head_alone() -> None:
    torch.manual_seed(0)
    clipper = GradientClipper(policy="agc", threshold=1e-4, exclude="net.4.*", summary=False)

    class Watch(Callback):
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.norms = {n: float(p.grad.norm()) for n, p in pl_module.named_parameters() if p.grad is not None}

    watch = Watch()
    trainer([clipper, watch], limit_train_batches=2).fit(Classifier(mlp()), loader())
    assert watch.norms["net.4.weight"] > 0.1
    assert watch.norms["net.0.weight"] < 1e-3


@pytest.mark.parametrize("policy", ["zclip", "autoclip"])
def test_adaptive_state_is_in_the_checkpoint(policy: str, tmp_path: Any) -> None:
    def fit(epochs: int, path: Any = None) -> tuple[Classifier, GradientClipper, Any]:
        torch.manual_seed(0)
        model, clipper = Classifier(mlp(), lr=0.5), GradientClipper(policy=policy, summary=False)
        run = trainer([clipper], max_epochs=epochs)
        run.fit(model, loader(n=400), ckpt_path=path, weights_only=True if path else None)
        return model, clipper, run

    whole, clipper, _ = fit(2)
    _, _, first = fit(1)
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed, again, _ = fit(2, tmp_path / "half.ckpt")
    assert same_state(whole, resumed)
    assert again.report.optimizers == clipper.report.optimizers


@pytest.mark.parametrize("clipper_first", [True, False])
def test_next_to_a_monitor_each_tag_is_written_once(tmp_path: Path, clipper_first: bool) -> None:
    rows: list[dict[str, float]] = []

    class Keep(CSVLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            rows.append(metrics)

    pair = [GradientClipper(threshold=0.1, summary=False), GradientClipMonitor(summary=False)]
    trainer(pair if clipper_first else pair[::-1], logger=Keep(tmp_path)).fit(Classifier(mlp()), loader())
    tags = [tag for row in rows for tag in row if tag.startswith("gradient_clip/")]
    assert len(tags) == len(set(tags)) == len(LOGGED)  # the tag of an alert comes with the first alert
    assert [row["gradient_clip/rate"] for row in rows if "gradient_clip/rate" in row] == [1.0]


def test_gradients_that_are_clipped_twice_are_warned_of() -> None:
    clipper = GradientClipper(policy="value", threshold=0.1, summary=False)
    message = (
        r"^Gradients are clipped twice at each step: first by GradientClipper\(policy='value'\), then by "
        r"Trainer\(gradient_clip_val=0\.5\)\. Leave out one of the two\.$"
    )
    with pytest.warns(UserWarning, match=message) as reported:
        trainer([clipper], gradient_clip_val=0.5).fit(Classifier(mlp()), loader())
    assert sum("clipped twice" in str(warning.message) for warning in reported) == 1
    trainer([clipper]).fit(Classifier(mlp()), loader())  # warnings are errors here
    trainer([GradientClipMonitor(summary=False)], gradient_clip_val=0.5).fit(Classifier(mlp()), loader())


@pytest.mark.parametrize("policy", ["norm", "tensor", "value", "agc"])
def test_sparse_gradients_are_clipped_too(policy: str) -> None:
    class Words(Classifier):
        def __init__(self, sparse: bool) -> None:
            net = nn.Module()
            net.embed, net.head = nn.Embedding(20, 4, sparse=sparse), nn.Linear(4, 3)
            net.forward = lambda x: net.head(net.embed((x.abs() * 6).long().clamp(max=19)).mean(1))
            super().__init__(net, lr=0.5)

    def run(sparse: bool) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model, clipper = Words(sparse), GradientClipper(policy=policy, threshold=0.01, summary=False)
        trainer([clipper]).fit(model, loader())
        return clipper.report.optimizers["0-SGD"], model.state_dict()

    (sparse, weights), (dense, expected) = run(True), run(False)
    assert sparse.clipped_steps == dense.clipped_steps == 7
    if policy != "agc":  # its units are the stored rows there, the whole table here
        assert sparse.norm_after == pytest.approx(dense.norm_after, rel=1e-4)
        for key, value in expected.items():
            torch.testing.assert_close(weights[key], value, rtol=1e-4, atol=1e-6)
