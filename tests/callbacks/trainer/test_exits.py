"""Every way out of a fit leaves every module, parameter and optimizer as it was."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import (
    ActivationPruner,
    ActivationRangeObserver,
    FeatureExtractor,
    FeatureMapVisualizer,
    FeatureStatsMonitor,
    GradCAM,
    GradientClipMonitor,
    GradientClipper,
    GradientFlowMonitor,
    GradientTransform,
    HookDebugger,
    HookedCallback,
    InputNormalizer,
    LayerProfiler,
)
from lightning_hooks.alerts import Alert, AlertError, FeatureReport
from lightning_hooks.hosts.lightning_adapter import Adapter, _First
from tests.support.models import Classifier, ResidualCNN, hook_counts, is_attached, loader, trainer

ALL = {
    "features": lambda: FeatureStatsMonitor(every_n_steps=1, summary=False, check_every_n_steps=2),
    "flow": lambda: GradientFlowMonitor(every_n_steps=1, summary=False, check_every_n_steps=1),
    "clip": lambda: GradientClipMonitor(summary=False),
    "clipper": lambda: GradientClipper(summary=False),
    "pruner": lambda: ActivationPruner(modules="net.stem", summary=False),
    "profiler": lambda: LayerProfiler(every_n_steps=1, warmup_steps=0, summary=False),
    "tensor-clipper": lambda: GradientClipper(policy="tensor", summary=False),
    "transform": lambda: GradientTransform(transform="clamp", factor=0.1, parameters="*", modules="net.conv"),
    "debugger": lambda: HookDebugger(steps=[0, 1], break_when=lambda call: False, show=False),
    "normalizer": lambda: InputNormalizer(modules="net.stem"),
    "ranges": lambda: ActivationRangeObserver(summary=False),
    "extractor": lambda: FeatureExtractor(fields={"label": 1}),
    "maps": lambda: FeatureMapVisualizer(forward="net"),
    "cam": lambda: GradCAM(forward="net"),
}


class Boom(Exception):
    pass


class Failing(Callback):
    """Raises in one of Lightning's hooks."""

    def __init__(self, where: str, error: type[BaseException] = Boom) -> None:
        def fail(*args: Any, **kwargs: Any) -> None:
            raise error("boom")

        setattr(self, where, fail)


class FailsTwice(Callback):
    """Raises, and once more when it is asked about that."""

    def on_train_batch_end(self, *_: Any) -> None:
        raise Boom

    def on_exception(self, *_: Any) -> None:
        raise OSError("disk full")


class Skipping(Classifier):
    """Skips the rest of each epoch at its second batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 1 else None


class FailingStep(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 1:
            raise Boom
        return loss


class FailingBackward(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)

        def fail(gradient: Tensor) -> None:
            raise Boom

        loss.register_hook(fail)
        return loss


class FailingValidation(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        raise Boom


class Dying(Classifier):
    """One of ours ends it: its gradients are not finite from the second batch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.nan if batch_idx == 1 else loss


class EndsInTheLoader(TensorDataset):
    """Raises where the second batch is read."""

    def __getitem__(self, index: Any) -> Any:
        if index >= 8:
            raise Boom
        return super().__getitem__(index)


class FailingOptimizer(Classifier):
    def configure_optimizers(self) -> Any:
        class Broken(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:
                closure()
                raise Boom

        return Broken(self.parameters(), lr=0.1)


def always(report: FeatureReport) -> list[Alert]:
    return [Alert("own", "net.stem", 1.0, 0.0, report.epoch, report.step, "critical", "a rule of the user's own")]


def raising(kind: type[Any], **kwargs: Any) -> Callback:
    return kind(modules="net.*", every_n_steps=1, summary=False, on_alert="raise", **kwargs)


def exits() -> dict[str, tuple[type[Classifier], list[Callback], dict[str, Any], type[BaseException] | None]]:
    return {
        "normal": (Classifier, [], {}, None),
        "max_epochs=0": (Classifier, [], {"max_epochs": 0}, None),
        "training_step": (FailingStep, [], {}, Boom),
        "backward": (FailingBackward, [], {}, Boom),
        "optimizer": (FailingOptimizer, [], {}, Boom),
        "another's on_train_start": (Classifier, [Failing("on_train_start")], {}, Boom),
        "another's on_train_batch_end": (Classifier, [Failing("on_train_batch_end")], {}, Boom),
        "another's on_train_epoch_end": (Classifier, [Failing("on_train_epoch_end")], {}, Boom),
        "another's on_train_end": (Classifier, [Failing("on_train_end")], {}, Boom),
        "ctrl-c": (Classifier, [Failing("on_train_batch_start", KeyboardInterrupt)], {}, SystemExit),
        "another's on_exception": (FailingStep, [Failing("on_exception", OSError)], {}, OSError),
        "another's on_exception after its own": (Classifier, [FailsTwice()], {}, OSError),
        "our own alert": (Classifier, [raising(FeatureStatsMonitor, rules=[always])], {}, AlertError),
        "our own alert within an epoch": (Dying, [raising(GradientFlowMonitor, check_every_n_steps=1)], {}, AlertError),
        "validation": (FailingValidation, [], {}, Boom),
        "sanity check": (FailingValidation, [], {"num_sanity_val_steps": 1}, Boom),
        "validation within an epoch": (FailingValidation, [], {"val_check_interval": 2}, Boom),
        "loader": (Classifier, [], {}, Boom),
        "skipped rest": (Skipping, [], {"max_epochs": 2}, None),
        "max_steps": (Classifier, [], {"max_steps": 2}, None),
        "fast_dev_run": (Classifier, [], {"fast_dev_run": True}, None),
    }


class Functions(TorchFunctionMode):
    """A mode of the user's own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Another one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def in_force() -> tuple[Any, ...]:
    """The modes on the stacks, and what we exchange while a module runs."""
    functions = torch.overrides._get_current_function_mode_stack()
    return functions, _get_current_dispatch_mode_stack(), nn.functional.scaled_dot_product_attention, nn.functional.softmax


@pytest.mark.parametrize("way_out", exits())
@pytest.mark.parametrize(("others_first", "modes"), [(False, False), (True, True)])
def test_hooks_are_gone_and_foreign_hooks_stay(way_out: str, others_first: bool, modes: bool) -> None:
    with ExitStack() as stack:
        if modes:
            stack.enter_context(Functions())
            stack.enter_context(Operators())
        before = in_force()
        leave_by(way_out, others_first)
        assert in_force() == before


def leave_by(way_out: str, others_first: bool) -> None:
    """A fit with all callbacks that ends in a way."""
    kind, others, kwargs, error = exits()[way_out]
    model = kind(ResidualCNN())
    seen: list[str] = []
    model.net.conv.register_forward_hook(lambda *args: seen.append("forward"))
    model.net.head.weight.register_hook(lambda gradient: seen.append("gradient"))
    before = hook_counts(model)
    ours = [build() for build in ALL.values()]
    run = trainer([*others, *ours] if others_first else [*ours, *others], **{"num_sanity_val_steps": 0, **kwargs})
    data = loader((1, 6, 6), n=24)
    if way_out == "loader":
        data = DataLoader(EndsInTheLoader(*data.dataset.tensors), batch_size=8)
    validation = loader((1, 6, 6), n=8) if kind is FailingValidation else None
    if error is None:
        run.fit(model, data, validation)
    else:
        with pytest.raises(error):
            run.fit(model, data, validation)
    assert_left(run, model, before, ours)


def assert_left(run: Any, model: Any, before: dict[str, int], ours: list[Any]) -> None:
    """Nothing of ours is left on a model, its optimizers, or the trainer."""
    assert hook_counts(model) == before
    assert not any(is_attached(callback) for callback in ours)
    assert not any(isinstance(callback, Adapter) for callback in run.callbacks)
    assert not {"training_step", "validation_step"} & vars(run.strategy).keys()
    for optimizer in run.optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks


WRITERS = {"reports": "run_record.append", "health report": "run_record.RunRecord._conclude", "alerts": "run_record.json.dumps"}


@pytest.mark.parametrize("where", WRITERS)
def test_a_file_that_cannot_be_written_on_the_way_out(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception that ended training is the one that the user gets."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    class FillsTheDisk(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            monkeypatch.setattr(f"lightning_hooks.session.{WRITERS[where]}", fail)

    model = FailingStep(ResidualCNN())
    before = hook_counts(model)
    ours = [build() for build in ALL.values()]
    run = trainer([*ours, FillsTheDisk()], logger=CSVLogger(tmp_path))
    reported = pytest.warns(UserWarning, match="disk full") if where != "alerts" else nullcontext()
    with reported, pytest.raises(Boom):
        run.fit(model, loader((1, 6, 6), n=24))
    assert_left(run, model, before, ours)


def test_hooks_are_there_while_training() -> None:
    """The matrix above would pass if nothing were ever registered."""
    counts: list[dict[str, int]] = []

    class Look(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            counts.append(hook_counts(pl_module))

    model = Classifier(ResidualCNN())
    trainer([*(build() for build in ALL.values()), Look()]).fit(model, loader((1, 6, 6), n=24))
    assert counts[0]["net.conv._forward_hooks"] >= 4
    assert counts[0]["net.conv.weight:tensor"] == 2
    # The profiler times it, the debugger traces it and asks at it, and it calls a function in a sampled batch.
    assert counts[0]["net.drop._forward_hooks"] == 4


def test_a_second_fit_starts_clean_even_after_a_lost_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody was asked on the way out, the next train start cleans up."""
    model = FailingStep(ResidualCNN())
    before = hook_counts(model)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(_First, "on_exception", lambda *_: None)
        patch.setattr(Adapter, "teardown", lambda *_: None)
        trainer([monitor]).fit(model, loader((1, 6, 6)))
    assert is_attached(monitor)
    again = Classifier(model.net)
    trainer([monitor]).fit(again, loader((1, 6, 6)))
    assert hook_counts(model) == before
    assert monitor.report.sites["net.conv"].calls == 7


def test_others_are_asked_after_ours_and_the_list_of_callbacks_is_as_it_was() -> None:
    asked: list[Any] = []

    class Asked(Callback):
        def on_exception(self, *_: Any) -> None:
            asked.append([is_attached(callback) for callback in ours])

    ours = [ALL["features"](), ALL["flow"]()]
    run = trainer([Asked(), *ours, Failing("on_train_batch_end")])
    callbacks = list(run.callbacks)
    with pytest.raises(Boom):
        run.fit(FailingStep(ResidualCNN()), loader((1, 6, 6)))
    assert asked == [[False, False]]
    assert run.callbacks == callbacks


def test_the_same_callbacks_serve_two_fits_with_the_same_numbers() -> None:
    ours = [ALL["features"](), ALL["flow"](), ALL["clip"]()]
    reports = []
    for _ in range(2):
        torch.manual_seed(0)
        trainer(ours).fit(Classifier(ResidualCNN()), loader((1, 6, 6)))
        reports.append([replace(callback.report, overhead=None) for callback in ours])
    assert repr(reports[0]) == repr(reports[1])


class Partial(HookedCallback):
    """Fails after it has registered half its hooks."""

    def attach(self, trainer: Any, pl_module: Any) -> None:
        for name, module in self.select(pl_module):
            self.listen(name, module, lambda *args: None)
            if name == "net.act":
                raise Boom


def test_a_failed_attach_leaves_no_hook() -> None:
    model = Classifier(ResidualCNN())
    before = hook_counts(model)
    callback = Partial()
    with pytest.raises(Boom):
        trainer([callback]).fit(model, loader((1, 6, 6)))
    assert hook_counts(model) == before
    assert not callback.hooks.alive


def test_tensor_hooks_of_a_graph_that_outlives_the_fit_are_deaf() -> None:
    class Keeps(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            self.kept = self.net(batch[0]).sum()
            return loss

    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    model = Keeps(nn.Sequential(nn.Linear(8, 3)))
    trainer([monitor]).fit(model, loader())
    rows = monitor.member.collector.modules.rows.clone()
    model.kept.backward()
    assert torch.equal(monitor.member.collector.modules.rows, rows)
    assert not monitor.faults.errors


class Refusing(Classifier):
    """What a layer makes infinite in the second batch, a check refuses, as those of torch.distributions do."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 1:
            nn.init.constant_(self.net.conv.weight, torch.inf)
        logits = self.net(batch[0])
        if not torch.isfinite(logits).all():
            raise Boom
        return logits.square().mean()


@pytest.mark.parametrize("on_alert", ["log", "raise"])
def test_what_is_not_finite_when_an_exception_ends_the_window_is_said(on_alert: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    features = FeatureStatsMonitor(every_n_steps=1, summary=False, on_alert=on_alert)
    ours = [features, GradientFlowMonitor(every_n_steps=1, summary=False, on_alert=on_alert)]
    for monitor in ours:
        monitor.subscribe(seen.append)
    run = trainer(ours, logger=CSVLogger(tmp_path))
    with pytest.raises(Boom):
        run.fit(Refusing(ResidualCNN()), loader((1, 6, 6), n=24))
    assert [(alert.kind, alert.severity) for alert in seen] == [("nonfinite", "critical")]
    assert seen[0].site in ("net.conv", "net.stem")
    assert features.report.alerts
    (written,) = tmp_path.rglob("alerts.jsonl")
    assert "nonfinite" in written.read_text()
