"""ActivationPruner in fits, in evaluation, in checkpoints, and without Lightning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import ActivationPruner
from lightning_hooks.pruning import PruningReport, target_at
from tests.support.interruptions import Batches
from tests.support.models import Classifier, ResidualCNN, TinyLSTM, hook_counts, loader, mlp, trainer
from tests.support.reference import same_state


class Reference(Callback):
    """Keeps what modules put out, whole, in training batches; and decides at each epoch's end, in float64 and by hand."""

    def __init__(self, axes: dict[str, int], amount: float, start: int, end: int, every: int = 1) -> None:
        self.axes, self.amount, self.start, self.end, self.every = axes, amount, start, end, every
        self.kept: dict[str, list[np.ndarray]] = {name: [] for name in axes}
        self.masks: dict[str, np.ndarray] = {}
        self.history: list[dict[str, np.ndarray]] = []
        self.on = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        modules = dict(pl_module.named_modules())
        for name in self.axes:  # before the pruner's, so they see the whole output

            def keep(module: Any, args: Any, output: Tensor, name: str = name) -> None:
                if self.on:
                    self.kept[name].append(np.moveaxis(output.detach().double().numpy(), self.axes[name], 0).copy())

            modules[name].register_forward_hook(keep)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.on = batch_idx % self.every == 0

    def on_train_batch_end(self, *args: Any) -> None:
        self.on = False

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        target = target_at(trainer.current_epoch, self.amount, self.start, self.end)
        for name, chunks in self.kept.items():
            means = np.concatenate([np.abs(chunk).reshape(len(chunk), -1) for chunk in chunks], axis=1).mean(1)
            mask = self.masks.get(name, np.ones(len(means), dtype=bool))
            ranked = np.argsort(np.where(mask, means, -1), kind="stable")
            mask = mask.copy()
            mask[ranked[: round(target * len(means))]] = False
            self.masks[name] = mask
            chunks.clear()
        self.history.append({name: mask.copy() for name, mask in self.masks.items()})


class Keep(Callback):
    def __init__(self, pruner: ActivationPruner) -> None:
        self.pruner = pruner
        self.masks: list[dict[str, np.ndarray]] = []
        self.reports: list[PruningReport] = []
        self.metrics: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.masks.append({name: mask.numpy() for name, mask in self.pruner.masks.items()})
        self.reports.append(self.pruner.report)
        self.metrics.append({tag: float(v) for tag, v in trainer.callback_metrics.items() if tag.startswith("pruning/")})


def assert_same_masks(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(found) == list(expected)
    for name, mask in expected.items():
        np.testing.assert_array_equal(found[name], mask, err_msg=name)


CNN_AXES = {"net.stem": 1, "net.bn": 1, "net.act2": 1}


@pytest.mark.parametrize("every", [1, 3])
def test_masks_are_those_of_the_whole_epoch_on_the_schedule(every: int) -> None:
    seed_everything(3, verbose=False)
    pruner = ActivationPruner(modules=list(CNN_AXES), amount=0.7, start_epoch=1, end_epoch=3, every_n_steps=every, summary=False)
    reference, keep = Reference(CNN_AXES, 0.7, 1, 3, every), Keep(pruner)
    trainer([reference, pruner, keep], max_epochs=5).fit(Classifier(ResidualCNN()), loader((1, 6, 6)))
    for found, expected in zip(keep.masks, reference.history, strict=True):
        assert_same_masks(found, expected)
    targets = [0.0, *(0.7 * (1 - (1 - part) ** 3) for part in (1 / 3, 2 / 3, 1)), 0.7]
    assert [report.target for report in keep.reports] == pytest.approx(targets)
    masked = [report.sites["net.stem"].masked for report in keep.reports]
    assert masked == [round(target * 4) for target in targets]
    assert keep.reports[-1].sparsity == pytest.approx(3 * masked[-1] / 12)
    assert [metrics["pruning/net.stem/sparsity"] for metrics in keep.metrics] == [count / 4 for count in masked]
    assert {tuple(metrics) for metrics in keep.metrics} == {tuple(keep.metrics[0])}
    assert keep.metrics[-1]["pruning/sparsity"] == pytest.approx(keep.reports[-1].sparsity)
    assert keep.metrics[-1]["pruning/target"] == pytest.approx(0.7)


class Masked(Classifier):
    """The same training with the mask written into it: what the hook must be equal to."""

    kept: Tensor | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        hidden = self.net[0](x)
        if self.kept is not None:
            hidden = torch.where(self.kept, hidden, torch.zeros(()))
        loss = nn.functional.cross_entropy(self.net[1:](hidden), y)
        self.losses.append(loss.item())
        return loss


def test_training_goes_on_with_the_mask_bit_for_bit() -> None:
    def fit(model: Classifier, callbacks: list[Any]) -> Classifier:
        torch.manual_seed(0)
        model.__init__(mlp())  # type: ignore[misc]
        trainer(callbacks, max_epochs=3).fit(model, loader())
        return model

    pruner = ActivationPruner(modules="net.0", amount=0.5, start_epoch=1, summary=False)

    class Mask(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 2:
                pl_module.kept = pruner.masks["net.0"]

    plain, pruned = fit(Classifier(mlp()), []), fit(Classifier(mlp()), [pruner])
    assert pruned.losses[:14] == plain.losses[:14]  # two epochs: nothing is masked, nothing changed
    assert pruned.losses[14:] != plain.losses[14:]
    byhand = fit(Masked(mlp()), [Mask()])
    assert byhand.losses == pruned.losses
    assert same_state(byhand, pruned)


class Evaluated(Classifier):
    """Keeps what its first layer's successor is given, in every stage."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.zeros: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        hidden = self.net[0](batch[0])
        self.zeros.append(float((hidden == 0).all(0).float().mean()))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> int:
        self.validation_step(batch, batch_idx)
        return 0

    def seen(self) -> set[float]:
        found, self.zeros = set(self.zeros), []
        return found


def test_evaluation_is_masked_in_the_fit_and_outside_it() -> None:
    pruner = ActivationPruner(modules="net.0", amount=0.25, summary=False)
    model = Evaluated(mlp())
    before = hook_counts(model)
    run = trainer([pruner], max_epochs=2, num_sanity_val_steps=2)
    run.fit(model, loader(), loader())
    assert model.seen() == {0.0, 0.25}
    assert hook_counts(model) == before
    model.validation_step((torch.randn(9, 8), None), 0)
    assert model.seen() == {0.0}  # without the hooks it is whole
    for stage in (run.validate, run.test, run.predict):
        stage(model, loader())
        assert model.seen() == {0.25}, stage
        assert hook_counts(model) == before
    again = trainer([pruner], num_sanity_val_steps=2)
    again.fit(model, loader(), loader())
    assert model.seen() == {0.0}  # a new fit starts afresh, its sanity check too


class Recomputed(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.block(x) if self.mode == "none" else checkpoint(self.block, x, use_reentrant=self.mode == "reentrant")
        return self.last(x)


def test_checkpointed_layers_are_masked_alike_and_measured_once() -> None:
    found = []
    for mode in ("none", "reentrant", "non-reentrant"):
        torch.manual_seed(0)
        model, pruner = Classifier(Recomputed(mode)), ActivationPruner(modules="net.block.*", amount=0.5, summary=False)
        trainer([pruner], max_epochs=3).fit(model, loader())
        found.append((model, pruner.report))
    for model, report in found[1:]:
        assert report == found[0][1]
        assert model.losses == found[0][0].losses


def test_masks_survive_a_resume(tmp_path: Path) -> None:
    def fit(epochs: int, path: Path | None = None) -> tuple[Classifier, ActivationPruner, Keep]:
        torch.manual_seed(0)
        pruner = ActivationPruner(modules=["net.0", "net.1"], amount=0.8, end_epoch=3, summary=False)
        model, keep = Classifier(mlp()), Keep(pruner)
        run = trainer([pruner, keep], max_epochs=epochs)
        run.fit(model, Batches((8,)), ckpt_path=path, weights_only=True if path else None)
        run.save_checkpoint(tmp_path / "end.ckpt")
        return model, pruner, keep

    whole, _, expected = fit(4)
    fit(2)
    resumed, pruner, keep = fit(4, tmp_path / "end.ckpt")
    assert same_state(whole, resumed)
    assert len(keep.masks) == 2
    for found, masks in zip(keep.masks, expected.masks[2:], strict=True):
        assert_same_masks(found, masks)
    assert pruner.report.sites["net.0"].threshold == pytest.approx(expected.reports[-1].sites["net.0"].threshold)


def test_a_checkpoint_of_other_modules_is_rejected(tmp_path: Path) -> None:
    run = trainer([ActivationPruner(modules="net.0", summary=False)])
    run.fit(Classifier(mlp()), loader())
    run.save_checkpoint(tmp_path / "end.ckpt")
    state = torch.load(tmp_path / "end.ckpt", weights_only=True)
    for callback in state["callbacks"].values():
        callback["masks"] = {"net.9": callback["masks"]["net.0"]}
    torch.save(state, tmp_path / "other.ckpt")
    model = Classifier(mlp())
    with pytest.raises(ValueError, match=r"There is a mask for 'net\.9', which modules='net\.0' does not select in Classifier"):
        trainer([ActivationPruner(modules="net.0")], max_epochs=2).fit(model, loader(), ckpt_path=tmp_path / "other.ckpt")
    for callback in state["callbacks"].values():
        callback["masks"] = {"net.0": torch.ones(5, dtype=torch.bool)}
    torch.save(state, tmp_path / "other.ckpt")
    with pytest.raises(RuntimeError, match=r"'net\.0' returned 16 units, and 5 before \(or in the checkpoint\)"):
        trainer([ActivationPruner(modules="net.0")], max_epochs=2).fit(model, loader(), ckpt_path=tmp_path / "other.ckpt")
    assert not any(hook_counts(model).values())


def test_remove_makes_the_model_whole_at_once_and_for_good() -> None:
    pruner = ActivationPruner(modules="net.0", amount=0.5, summary=False)

    class Remove(Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                assert pruner.masks
                pruner.remove()
                assert not any(hook_counts(pl_module).values())

    model = Evaluated(mlp())
    run = trainer([pruner, Remove()], max_epochs=3)
    run.fit(model, loader(), loader())
    assert model.seen() == {0.0}
    assert pruner.masks == {}
    assert pruner.report.epoch == 0
    run.validate(model, loader(), verbose=False)
    assert model.seen() == {0.0}


def test_without_lightning_masks_come_and_go_with_the_block() -> None:
    torch.manual_seed(0)
    model, pruner = mlp(), ActivationPruner(modules="0", amount=0.5, end_epoch=1)
    kept: list[Tensor] = []
    handle = model[0].register_forward_hook(lambda m, a, out: kept.append(out.detach().abs()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pruner.masking(model):
        for epoch in range(2):
            model.train()
            for x, _ in loader():
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            expected = torch.cat(kept).double().mean(0)
            model.eval()
            model(torch.full((5, 8), 1e6))  # in evaluation nothing is measured
            kept.clear()
            report = pruner.prune(epoch)
            assert report.target == (0.5 * (1 - 0.5**3), 0.5)[epoch]
            assert report.sites["0"].masked == (7, 8)[epoch]
            if epoch == 0:
                assert not pruner.masks["0"][expected.argsort()[:7]].any()
    handle.remove()
    assert not any(hook_counts(model).values())
    state, again = pruner.state_dict(), ActivationPruner(modules="0")
    again.load_state_dict(state)
    assert torch.equal(again.masks["0"], pruner.masks["0"])
    with again.masking(model):
        assert (model[0](torch.randn(3, 8)) == 0).all(0).sum() == 8
    assert torch.equal(again.masks["0"], pruner.masks["0"])
    plain = json.loads(json.dumps(report.to_dict()))
    assert PruningReport.from_dict(plain) == report


def test_what_cannot_be_asked_for_is_said() -> None:
    model, pruner = mlp(), ActivationPruner(modules="0")
    with pytest.raises(RuntimeError, match=r"prune\(\) has no measurements: call it in the block of masking"):
        pruner.prune(0)
    assert pruner.masks == {}
    with pruner.masking(model), pytest.raises(RuntimeError, match="already masks a model"), pruner.masking(model):
        pass
    assert not any(hook_counts(model).values())


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"modules": None}, TypeError, r"modules must name the modules to prune, for instance 'encoder\.\*'; got None"),
        ({"amount": 0}, ValueError, "amount must be above 0 and below 1, the share of units to mask; got 0"),
        ({"amount": 1.0}, ValueError, r"amount must be above 0 and below 1, the share of units to mask; got 1\.0"),
        ({"amount": "half"}, TypeError, "amount must be a number above 0 and below 1; got 'half'"),
        ({"start_epoch": -1}, ValueError, "start_epoch must be at least 0; got -1"),
        ({"start_epoch": 3, "end_epoch": 2}, ValueError, "end_epoch must be at least 3; got 2"),
        ({"end_epoch": 2.5}, TypeError, r"end_epoch must be an integer of at least 0; got 2\.5"),
        ({"summary": None}, TypeError, "summary must be True or False; got None"),
        ({"unit_dim": "last"}, TypeError, "unit_dim must be an integer or None; got 'last'"),
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
    ],
)
def test_bad_input_says_what_came(kwargs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ActivationPruner(**{"modules": "net.0", **kwargs})


def test_modules_that_cannot_be_masked_stop_training_with_the_reason() -> None:
    model = Classifier(TinyLSTM())
    with pytest.raises(TypeError, match=r"'net\.lstm' returned tuple\. Choose other modules"):
        trainer([ActivationPruner(modules="net.lstm")]).fit(model, loader((5, 6)))
    assert not any(hook_counts(model).values())


def test_compiled_modules_are_rejected() -> None:
    model = Classifier(nn.Sequential(torch.compile(mlp(), backend="eager"), nn.Linear(3, 3)))
    with pytest.raises(RuntimeError, match=r"'net\.0\.0' runs under torch\.compile, and a compiled graph does not run later masks"):
        trainer([ActivationPruner(modules="net.0.0")]).fit(model, loader())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none")
def test_masks_on_a_cuda_device_are_those_of_the_cpu() -> None:
    masks = []
    for accelerator in ("cpu", "gpu"):
        torch.manual_seed(0)
        pruner = ActivationPruner(modules=list(CNN_AXES), amount=0.5, summary=False)
        trainer([pruner], accelerator=accelerator).fit(Classifier(ResidualCNN(), lr=0.0), loader((1, 6, 6)))
        masks.append({name: mask.numpy() for name, mask in pruner.masks.items()})
    assert_same_masks(masks[1], masks[0])
