"""The record is right, and the peers' rules fire where their sources say that they do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.evidence.faults.peers import PEERS
from tests.evidence.faults.recorder import OUTPUT, PARAMETER, Recorder, Recording
from tests.evidence.faults.score import judge_peers, peer_summary
from tests.evidence.faults.tasks import Supervised, sgd
from tests.evidence.faults.training import History, train
from tests.evidence.faults.zoo import Built, Expected
from tests.support.models import loader


def quiet(batches: int = 60) -> Recording:
    """A healthy record of two rectifiers and two parameters."""
    outputs = (1.0, 1.0, 0.0, 0.1, np.nan, 0.0, 0.0, 1.0)  # in the order of OUTPUT; likewise the others
    parameters = (0.1, 0.01, 0.0, 0.0, 0.0, 1e-3, 1.0, 0.0)
    norms = 0.1 + 0.01 * np.sin(np.arange(batches))
    return Recording(
        ["a", "b"], ["ReLU", "ReLU"], ["a.weight", "b.weight"],
        np.tile(outputs, (batches, 2, 1)), np.tile((0.1, 0.0), (batches, 2, 1)), np.tile(parameters, (batches, 2, 1)),
        np.linspace(2, 1, batches), norms, np.ones(batches), [t // 20 for t in range(batches)], [0.5, 0.6, 0.65],
    )  # fmt: skip


def fired(recording: Recording) -> set[tuple[str, str, str]]:
    return {
        (peer, trace.rule, trace.sites[column])
        for peer, rules in PEERS.items()
        for trace in rules(recording)
        for _, column in np.argwhere(trace.scores > 1)
    }


def test_a_healthy_record_is_silent() -> None:
    assert fired(quiet()) == set()


def set_output(r: Recording, column: str, value: float) -> None:
    r.outputs[10:, 1, OUTPUT.index(column)] = value


def set_parameter(r: Recording, column: str, value: float) -> None:
    r.of_parameters[10:, 1, PARAMETER.index(column)] = value


@pytest.mark.parametrize(
    ("set_", "column", "below", "above", "rules"),
    [
        (set_output, "dead", 0.4, 0.6, {("SageMaker", "DeadRelu", "b")}),
        (set_output, "dead", 0.85, 0.95, {("SageMaker", "DeadRelu", "b"), ("NeuralDBG", "activation dead", "b")}),
        (set_output, "beyond_range", 0.4, 0.6, {("SageMaker", "SaturatedActivation", "b")}),
        (set_output, "saturated", 0.6, 0.8, {("NeuralDBG", "activation saturated", "b")}),
        (set_output, "std", 2e-4, 5e-5, {("NeuralDBG", "activation anomalous", "b")}),
        (set_output, "nonfinite_in", 0.0, 1.0, {("NeuralDBG", "data nan or inf", "b")}),
        (set_parameter, "mean_abs", 2e-7, 5e-8, {("SageMaker", "VanishingGradient", "b.weight")}),
        (set_parameter, "update_ratio", 9.0, 11.0, {("SageMaker", "WeightUpdateRatio (large)", "b.weight")}),
        (set_parameter, "update_ratio", 2e-8, 5e-9, {("SageMaker", "WeightUpdateRatio (small)", "b.weight")}),
        (set_parameter, "moved", 1.0, 0.0, {("SageMaker", "UnchangedTensor", "b.weight")}),
        (set_parameter, "zeros", 0.6, 1.0, {("SageMaker", "AllZero (gradients)", "b.weight")}),
        (set_parameter, "missing", 0.0, 1.0, {("torchlens", "no gradient (None)", "b.weight")}),
        (set_parameter, "nonfinite_weight", 0.0, 1.0,
         {("torchlens", "nonfinite parameter", "b.weight"), ("SageMaker", "ExplodingTensor (parameters)", "b.weight")}),
    ],
)  # fmt: skip
def test_thresholds(set_, column, below, above, rules) -> None:
    for value, expected in ((below, False), (above, True)):
        recording = quiet()
        set_(recording, column, value)
        found = fired(recording)
        if expected:
            assert found >= rules
        else:
            assert not rules - {("SageMaker", "DeadRelu", "b")} & found


def test_norms() -> None:
    recording = quiet()
    recording.total_norm[30] = 1.1e4
    recording.of_parameters[30:34, 0, 0] = 1.1e4
    assert fired(recording) == {
        ("Lightning PR 21720", "explosion_threshold", ""),
        ("OLMo-core", "norm above mean + 6 sigma", ""),
        ("stabilityguard", "gradient spike", "a.weight"),
        ("training-doctor", "exploding gradients", ""),
    }
    recording.of_parameters[30:35, 0, 0] = 1.1e4  # five of eight
    assert ("torchlens", "magnitude (exploding)", "a.weight") in fired(recording)


def of_losses(values: list[float]) -> set[tuple[str, str]]:
    """What fires of a record with these losses, of the rules that read nothing else."""
    recording = quiet(len(values))
    recording.losses[:] = values
    readers = {"trainscope", "Lightning SpikeDetection", "KillLossSpike", "training-doctor"}
    return {(peer, rule) for peer, rule, _ in fired(recording) if peer in readers}


def test_a_loss_that_leaps_once() -> None:
    flat = [1.0 + 0.01 * (t % 2) for t in range(40)]
    leap = ("Lightning SpikeDetection", "loss spike")
    assert leap not in of_losses([*flat, 2.9, *flat])
    assert of_losses([*flat, 3.2, *flat]) >= {leap, ("trainscope", "CUSUM of the loss"), ("trainscope", "z-score of the loss")}
    assert ("training-doctor", "not finite") in of_losses([*flat, float("nan")])


def test_a_loss_that_drifts_adds_up() -> None:
    """Two robust deviations above the median, each less than the limit: one a step beyond the slack, six in six steps."""
    past = [1.0 + 0.01 * math.sin(t) for t in range(100)]
    middle = float(np.median(past))
    deviation = 1.4826 * float(np.median(np.abs(np.array(past) - middle)))
    steps = [middle + 2.1 * deviation] * 6
    assert ("trainscope", "CUSUM of the loss") not in of_losses([*past, *steps[:4]])
    assert ("trainscope", "CUSUM of the loss") in of_losses([*past, *steps])


def test_a_training_that_is_lost_from_the_start_can_be_judged() -> None:
    recording = quiet(220)
    for values in (recording.losses, recording.total_norm, recording.outputs, recording.gradients, recording.of_parameters):
        values[1:] = np.nan
    assert {peer for peer, *_ in fired(recording)} >= {"Lightning SpikeDetection", "training-doctor", "NeuralDBG"}


def test_kill_loss_spike_waits_for_five_of_them() -> None:
    past = [1.0] * 100
    assert ("KillLossSpike", "loss spike") not in of_losses([*past, *[3.0] * 4, 1.0, 3.0])
    assert ("KillLossSpike", "loss spike") in of_losses([*past, *[3.0] * 5])
    assert ("KillLossSpike", "high loss") in of_losses([11.0] * 201)


def test_autotrainer_looks_only_while_not_learning() -> None:
    recording = quiet()
    recording.of_parameters[:, 0, PARAMETER.index("norm")] = 7.1
    assert fired(recording) == {("AUTOTRAINER", "gradient explode", "")}
    recording.scores = [0.71, 0.8, 0.9]
    assert fired(recording) == set()
    recording.of_parameters[59, 0, PARAMETER.index("nonfinite")] = 1.0
    assert ("AUTOTRAINER", "nan", "") in fired(recording)


def test_skipped_steps_trip_the_watchdog() -> None:
    recording = quiet()
    recording.accepted[20:24] = 0
    assert ("torchlens", "watchdog", "") not in fired(recording)
    recording.accepted[20:25] = 0
    assert ("torchlens", "watchdog", "") in fired(recording)


def test_initial_variances() -> None:
    recording = quiet()
    set_output(recording, "variance_in", 20.0)  # from batch 10 on: no longer the beginning
    assert fired(recording) == set()
    recording.outputs[2, 1, OUTPUT.index("variance_in")] = 11.0
    assert fired(recording) == {("SageMaker", "PoorWeightInitialization", "b")}


def test_the_record_holds_what_happened() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    net[0].bias.data[:2].fill_(-100.0)
    task, recorder = Supervised(net, sgd(0.1)), Recorder()
    data = loader(n=16, batch_size=8)
    batches = list(data)
    before = [p.detach().clone() for p in task.parameters()]
    train(Built(task, {"train_dataloaders": data, "val_dataloaders": loader(n=8)}, {"max_epochs": 1}, Expected()), [recorder])
    r = recorder.recording
    assert r is not None
    assert r.sites == ["net.0", "net.1", "net.2"]
    assert r.outputs.shape == (2, 3, len(OUTPUT))

    x, y = batches[0]
    twin = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    for parameter, value in zip(twin.parameters(), before, strict=True):
        parameter.data.copy_(value)
    hidden = twin[0](x)
    hidden.retain_grad()
    loss = nn.functional.cross_entropy(twin[2](twin[1](hidden)), y)
    loss.backward()
    assert r.losses[0] == pytest.approx(loss.item())
    assert r.output("dead")[0, 1] >= 2 / 6
    assert r.output("variance_in")[0, 1] == pytest.approx(hidden.var().item())
    assert r.output("std")[0, 0] == pytest.approx(hidden.std().item())
    assert r.gradient("norm")[0, 0] == pytest.approx(hidden.grad.norm().item())
    for i, parameter in enumerate(twin.parameters()):
        assert r.parameter("norm")[0, i] == pytest.approx(parameter.grad.norm().item(), rel=1e-5)
        ratio = 0.1 * parameter.grad.norm() / parameter.detach().norm()
        assert r.parameter("update_ratio")[0, i] == pytest.approx(ratio.item(), rel=1e-3)
    total = torch.stack([p.grad.norm() for p in twin.parameters()]).norm().item()
    assert r.total_norm[0] == pytest.approx(total, rel=1e-5)
    assert r.accepted.tolist() == [1, 1]


def test_tightening_silences_healthy_runs() -> None:
    """A rule that fires higher in a fault than in any healthy training still finds it; one that does not is lost."""
    expected = Expected(("exploding",))
    runs = []
    for norm in (1e6, 1e5, 2e4):
        recording = quiet()
        recording.total_norm[5] = norm
        runs.append(
            {
                "kinds": expected.kinds,
                "site": None,
                "peers": judge_peers(False, expected, History(recording.epochs, list(recording.losses), frozenset()), recording),
            }
        )
    well = {"peers": runs[1]["peers"]}  # a healthy training with a norm of 1e5
    result = peer_summary([runs[0], runs[2]], [well], "Lightning PR 21720")
    assert result["recall"] == 1.0
    assert result["false_alarms"] == 1
    assert result["recall_without_false_alarms"] == 0.5
