"""Interrupted and resumed equals uninterrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import GradientClipper, monitors
from tests.support.interruptions import Batches, Keep, SaveAt
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer
from tests.support.reference import assert_same, same_state

NETS = {"mlp": (mlp, (8,)), "cnn": (ResidualCNN, (1, 6, 6))}


def fit(net: str, every: int, callbacks: Any = (), path: Path | None = None) -> tuple[Classifier, list[Any], list[Any]]:
    build, shape = NETS[net]
    torch.manual_seed(0)
    model = Classifier(build())
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    ours = [*monitors(every_n_steps=every, summary=False), GradientClipper(policy="zclip", threshold=1.5, summary=False)]
    keep = Keep(ours)
    run = trainer([*ours, keep, *callbacks], max_epochs=3, use_distributed_sampler=False)
    run.fit(model, Batches(shape), ckpt_path=path, weights_only=True if path else None)
    return model, keep.reports, ours


@pytest.mark.parametrize(("net", "every", "at"), [("mlp", 1, (0, 2)), ("mlp", 3, (2, 4)), ("cnn", 1, (2, 4)), ("cnn", 3, (1, 0))])
def test_a_mid_epoch_resume_equals_the_uninterrupted_run(net: str, every: int, at: tuple[int, int], tmp_path: Path) -> None:
    whole, expected, _ = fit(net, every)
    with pytest.raises(SystemExit):
        fit(net, every, [SaveAt(tmp_path / "mid.ckpt", *at)])
    resumed, found, _ = fit(net, every, path=tmp_path / "mid.ckpt")
    assert same_state(whole, resumed)
    assert len(found) == 3 - at[0]
    for epoch, other in zip(found, expected[at[0] :], strict=True):
        # Sums come in another order, and how far weights are from where a run began is another number.
        assert_same(tuple(epoch), tuple(other), rel=1e-12, skip=("weights_away",))


def interrupted(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A checkpoint from the middle of an epoch, and the window under way that each monitor has in it."""
    with pytest.raises(SystemExit):
        ours = monitors(every_n_steps=1, summary=False)
        trainer([*ours, SaveAt(folder / "mid.ckpt", 0, 2)]).fit(Classifier(mlp()), Batches((8,)))
    checkpoint = torch.load(folder / "mid.ckpt", weights_only=True)
    states = [part for callback in checkpoint["callbacks"].values() for part in callback.values()]
    return checkpoint, [state["epoch"] for state in states if "epoch" in state]


def test_a_checkpoint_of_another_selection_is_met_with_a_message(tmp_path: Path) -> None:
    checkpoint, windows = interrupted(tmp_path)
    for window in windows:
        window["places"] = window["places"][:-2]
    torch.save(checkpoint, tmp_path / "older.ckpt")
    ours = monitors(every_n_steps=1, summary=False)
    with pytest.warns(UserWarning, match="the checkpoint was written in the middle of an epoch") as reported:
        trainer(ours).fit(Classifier(mlp()), Batches((8,)), ckpt_path=tmp_path / "older.ckpt")
    texts = [str(w.message) for w in reported if "the checkpoint was written" in str(w.message)]
    assert len(texts) == 3
    assert "with other sites. Statistics of this epoch start from here" in texts[0]
    assert ours[0].report.sites["net.0"].calls == 4  # the rest of the epoch
    for monitor in ours[:2]:
        assert (monitor.report.batches, monitor.report.sampled_batches) == (7, 4)


def test_a_checkpoint_of_another_layout_counts_the_batches_of_its_own_table(tmp_path: Path) -> None:
    checkpoint, windows = interrupted(tmp_path)
    for window in windows:
        window["layout"] = 0
    torch.save(checkpoint, tmp_path / "older.ckpt")
    ours = monitors(every_n_steps=2, summary=False)
    with pytest.warns(UserWarning, match="the checkpoint was written in the middle of an epoch, by another version"):
        trainer(ours).fit(Classifier(mlp()), Batches((8,)), ckpt_path=tmp_path / "older.ckpt")
    for monitor in ours[:2]:  # batches 4 and 6 of 0 to 6: the clock goes on
        assert (monitor.report.batches, monitor.report.sampled_batches) == (7, 2)
    assert ours[0].report.sites["net.0"].calls == 2


def test_a_table_of_another_length_does_not_end_training(tmp_path: Path) -> None:
    checkpoint, windows = interrupted(tmp_path)
    (tables,) = (window["tables"] for window in windows if "loss" in window["tables"])
    tables["loss"] = tables["loss"][:-1]
    torch.save(checkpoint, tmp_path / "shorter.ckpt")
    ours = monitors(every_n_steps=1, summary=False)
    with pytest.warns(UserWarning, match="starts afresh"):
        trainer(ours, max_epochs=2).fit(Classifier(mlp()), Batches((8,)), ckpt_path=tmp_path / "shorter.ckpt")
    assert ours[1].report.loss.count == 7


def test_a_checkpoint_without_our_state_is_fine(tmp_path: Path) -> None:
    run = trainer()
    run.fit(Classifier(mlp()), loader())
    run.save_checkpoint(tmp_path / "plain.ckpt")
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours, max_epochs=2).fit(Classifier(mlp()), loader(), ckpt_path=tmp_path / "plain.ckpt")
    assert ours[0].report.sites["net.0"].calls == 7


@pytest.mark.parametrize(
    "strange", [{"of": "another version"}, {"alerts": {}, "epoch": 3, "past": 4, "setups": 5, "initial_gains": 6}]
)
def test_a_state_that_cannot_be_read_is_left_out_with_a_warning(strange: dict[str, Any], tmp_path: Any) -> None:
    run = trainer(monitors(every_n_steps=1, summary=False))
    run.fit(Classifier(mlp()), loader())
    run.save_checkpoint(tmp_path / "whole.ckpt")
    checkpoint = torch.load(tmp_path / "whole.ckpt", weights_only=False)
    checkpoint["callbacks"] = dict.fromkeys(checkpoint["callbacks"], strange)
    torch.save(checkpoint, tmp_path / "strange.ckpt")
    ours = monitors(every_n_steps=1, summary=False)
    with pytest.warns(UserWarning, match="its state in the checkpoint cannot be read") as warned:
        trainer(ours, max_epochs=2).fit(Classifier(mlp()), loader(), ckpt_path=tmp_path / "strange.ckpt")
    texts = [str(warning.message) for warning in warned]
    for monitor in ours:
        assert any(text.startswith(f"{type(monitor).__name__}: its state") and "starts afresh" in text for text in texts)
        assert monitor.report.epoch == 1
    assert ours[0].report.sites["net.0"].calls == 7
