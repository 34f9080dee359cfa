"""Next to other callbacks, other people's hooks, other packages, other strategies."""

from __future__ import annotations

import gc
import weakref
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelPruning, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn

from lightning_hooks import FeatureStatsMonitor, GradientClipMonitor, GradientClipper, GradientFlowMonitor, monitors
from tests.support.logged_tags import expected_tags
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer
from tests.support.reference import everything, same_state


def fit(callbacks: Any, net: Any = mlp, shape: tuple[int, ...] = (8,), **kwargs: Any) -> Classifier:
    torch.manual_seed(0)
    model = Classifier(net())
    trainer(callbacks, **{"max_epochs": 3, **kwargs}).fit(model, loader(shape))
    return model


@pytest.mark.filterwarnings("ignore:.*Swapping scheduler.*", "ignore:.*prun.*", "ignore:.*lr_scheduler.step.*")
@pytest.mark.parametrize(
    "other",
    [
        lambda: StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1),
        lambda: WeightAveraging(),
        lambda: ModelPruning("l1_unstructured", amount=0.3, parameter_names=["weight"]),
    ],
    ids=["swa", "averaging", "pruning"],
)
@pytest.mark.parametrize("others_first", [True, False])
def test_other_callbacks_do_what_they_do_without_us(other: Any, others_first: bool) -> None:
    without = fit([other()])
    ours = monitors(every_n_steps=1, summary=False)
    with_us = fit([other(), *ours] if others_first else [*ours, other()])
    assert same_state(without, with_us)
    assert not any(callback.faults.errors for callback in ours[:3])
    assert ours[0].report.sites["net.0"].calls == 7  # a deep copy that is called in validation is silent
    assert not any(count for key, count in hook_counts(with_us).items() if key.endswith("_forward_hooks"))


def test_other_peoples_hooks_run_as_before() -> None:
    seen: list[str] = []

    class Hooked(ResidualCNN):
        def __init__(self) -> None:
            super().__init__()
            self.conv.register_forward_hook(lambda m, args, out: out * 0.5)
            self.conv.register_forward_pre_hook(lambda m, args: seen.append("pre"))
            self.head.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
            self.stem.weight.register_hook(lambda g: g * 2)

    without = fit([], Hooked, (1, 6, 6))
    alone = list(seen)
    seen.clear()
    with_us = fit(monitors(every_n_steps=1, summary=False), Hooked, (1, 6, 6))
    assert same_state(without, with_us)
    assert seen == alone


def test_pytorch_lightning_is_served_as_lightning_is(tmp_path: Any) -> None:
    twin = pytest.importorskip("pytorch_lightning")
    from pytorch_lightning.loggers import CSVLogger

    class Twin(twin.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        training_step = Classifier.training_step
        configure_optimizers = Classifier.configure_optimizers
        losses: ClassVar[list[float]] = []
        lr, optimizer = 0.1, staticmethod(torch.optim.SGD)

    torch.manual_seed(0)
    model, ours = Twin(), monitors(every_n_steps=1, summary=False)
    run = twin.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=CSVLogger(tmp_path),
        callbacks=[twin.callbacks.EarlyStopping("gradient_flow/alerts/exploding"), *ours],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
    )
    run.fit(model, loader())
    others = monitors(every_n_steps=1, summary=False)
    fit(others, max_epochs=1, gradient_clip_val=0.5)
    assert [everything(callback.report) for callback in ours] == [everything(callback.report) for callback in others[:3]]
    assert expected_tags() <= set(run.callback_metrics)
    assert "features/net.0/mean" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(GradientFlowMonitor, "FSDPStrategy"), (GradientClipMonitor, "ModelParallelStrategy"), (GradientClipper, "DeepSpeedStrategy")],
)
def test_strategies_that_shard_gradients_are_rejected_by_name(kind: Any, name: str) -> None:
    strategy = type(name, (SingleDeviceStrategy,), {})(device="cpu")
    model, callback = Classifier(mlp()), kind(summary=False)
    before = hook_counts(model)
    with pytest.raises(RuntimeError, match=rf"{kind.__name__} needs whole gradients .* under {name} .*strategy='ddp'"):
        trainer([callback], strategy=strategy).fit(model, loader())
    assert hook_counts(model) == before


def test_sharded_parameters_are_rejected_whatever_the_strategy() -> None:
    class Sharded(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 3)
            self.weight.to_local = lambda: self.weight  # what a DTensor has

    with pytest.raises(RuntimeError, match=r"under sharded .DTensor. parameters"):
        trainer([GradientFlowMonitor(summary=False)]).fit(Classifier(Sharded()), loader())


@pytest.mark.parametrize(
    "method", ["_FeatureRecorder", "GradientListener", "GradientArrival", "on_gradients", "on_update", "on_taken"]
)
def test_a_fault_in_any_hook_of_ours_is_reported_and_harms_nobody(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_hooks.diagnostics.clipping_events import collector as clipping
    from lightning_hooks.diagnostics.features import collector as features
    from lightning_hooks.diagnostics.gradients import collector as gradients
    from lightning_hooks.diagnostics.gradients import hooks as gradient_hooks

    without = fit([])

    def fail(*args: Any) -> None:
        raise ValueError("injected")

    if not method.startswith("on_"):
        module = features if method == "_FeatureRecorder" else gradient_hooks
        monkeypatch.setattr(getattr(module, method), "__call__", fail)
    else:
        monkeypatch.setattr(gradients.GradientCollector, method, fail)
        monkeypatch.setattr(clipping.ClipCollector, method, fail)
    with pytest.warns(UserWarning, match="raised ValueError: injected; it is switched off") as reported:
        with_us = fit(monitors(every_n_steps=1, summary=False))
    assert same_state(without, with_us)
    texts = [str(w.message) for w in reported if "injected" in str(w.message)]
    assert len(texts) == len(set(texts))


def test_a_model_is_free_after_the_fit_and_nothing_grows_with_steps() -> None:
    ours = monitors(every_n_steps=1, summary=False)
    model = Classifier(mlp())
    sizes: list[int] = []

    class Measure(FeatureStatsMonitor):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            pl_module.losses.clear()
            if batch_idx in (207, 591):  # at the same place of the ledger's page of 32 steps
                gc.collect()
                sizes.append(sum(issubclass(type(o), Tensor) for o in gc.get_objects()))

    run = trainer([*ours, Measure(modules="net.0", summary=False)])
    run.fit(model, loader(n=600, batch_size=1))
    assert sizes[1] <= sizes[0] + 2
    ref = weakref.ref(model)
    del run, model
    gc.collect()
    assert ref() is None
    assert all(callback.report is not None for callback in ours[:3])


def test_a_thousand_sites_take_less_than_a_megabyte() -> None:
    net = nn.Sequential(*[module for _ in range(500) for module in (nn.Linear(4, 4), nn.ReLU())], nn.Linear(4, 3))

    class Entry(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rest = nn.Linear(8, 4), net

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(self.first(x))

    ours = monitors(every_n_steps=1, summary=False)

    class Measure(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            features, flow, clip = (each.member.collector for each in ours[:3])
            table, gradients, ledger = features.table, flow.modules, clip.ledgers[0]
            held = [table.rows, *table.fired.values(), gradients.rows, flow.parameters.rows]
            held += [ledger.total, *(norms for step in ledger._open for norms in step[:2])]
            self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in held)

    measure = Measure()
    trainer([*ours, measure], limit_train_batches=2).fit(Classifier(Entry()), loader())
    assert len(ours[0].report.sites) == 1002
    assert measure.bytes < 1_000_000
