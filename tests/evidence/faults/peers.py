"""The rules of the peers, re-stated from their documentation and sources, over a common record of the training.

Each is a function of a :class:`~tests.evidence.faults.recorder.Recording` that yields a :class:`Trace`: for every batch and place
a score that is above 1 where the rule, with its published default, fires. So a threshold can be tightened: see
:mod:`tests.evidence.faults.score`.
Where a source leaves room, what finds more and alarms less was chosen: every batch is looked at, not every 500th; parameters that
are frozen are not called unchanged; gradients are those at the optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tests.evidence.faults.peers_loss import kill_loss_spike, lightning_spikes, stabilityguard, training_doctor, trainscope
from tests.evidence.faults.recorder import Array, Recording
from tests.evidence.faults.traces import ONCE, Trace, of, where


def _below(values: Array, threshold: float) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return threshold / values


def _m_of_n(scores: Array, m: int, n: int) -> Array:
    """At each batch the m-th largest of the last n scores that were seen, per column."""
    result = np.zeros_like(scores)
    for column in range(scores.shape[1]):
        seen = [t for t in range(len(scores)) if not np.isnan(scores[t, column])]
        for i in range(n - 1, len(seen)):
            window = [scores[t, column] for t in seen[i - n + 1 : i + 1]]
            result[seen[i], column] = sorted(window)[-m]
    return result


def sagemaker(r: Recording) -> Iterator[Trace]:
    """The built-in rules of SageMaker Debugger (smdebug), with their defaults."""
    yield of("VanishingGradient", ("vanishing",), _below(r.parameter("mean_abs"), 1e-7), r.parameters)
    broken = where((r.output("nonfinite") > 0) | (r.gradient("nonfinite") > 0))
    yield of("ExplodingTensor (outputs)", ("nonfinite", "exploding"), broken, r.sites)
    broken = where((r.parameter("nonfinite") > 0) | (r.parameter("nonfinite_weight") > 0))
    yield of("ExplodingTensor (parameters)", ("nonfinite", "exploding"), broken, r.parameters)
    relu = np.array([kind == "ReLU" for kind in r.types])
    yield of("DeadRelu", ("dead",), np.where(relu, r.output("dead") / 0.5, 0), r.sites)
    yield of("SaturatedActivation", ("saturated",), r.output("beyond_range") / 0.5, r.sites)
    yield of("WeightUpdateRatio (large)", ("update_too_large",), r.parameter("update_ratio") / 10.0, r.parameters)
    yield of("WeightUpdateRatio (small)", ("update_too_small",), _below(r.parameter("update_ratio"), 1e-8), r.parameters)
    still = np.where(np.isnan(r.parameter("moved")), np.nan, where(r.parameter("moved") == 0))
    yield of("UnchangedTensor", ("update_too_small", "not_optimized"), _m_of_n(still, 3, 3), r.parameters)
    yield of("AllZero (gradients)", ("zero",), where(r.parameter("zeros") >= 1.0), r.parameters)
    # The variances of the rectifiers' inputs, over the first ten steps.
    variance = r.output("variance_in")[:10][:, relu]
    ratio = np.zeros((len(r.losses), len(r.sites)))
    if variance.shape[1] > 1:
        low, high = np.nan_to_num(variance, nan=np.inf).min(1), np.nan_to_num(variance).max(1)
        worst = np.divide(high, low, out=np.zeros_like(high), where=np.isfinite(low) & (low > 0))
        at = np.flatnonzero(relu)[np.argmax(np.nan_to_num(variance), 1)]
        ratio[np.arange(len(worst)), at] = worst / 10.0
    yield of("PoorWeightInitialization", ("poor_init",), ratio, r.sites)


def lightning_pr(r: Recording) -> Iterator[Trace]:
    """GradientStatsMonitor of Lightning's pull request 21720: a warning where the norm before clipping is above 1e4."""
    yield of("explosion_threshold", ("exploding",), r.total_norm / 1e4)


def torchlens(r: Recording) -> Iterator[Trace]:
    """The checks of torchlens 2.36 with all that have a default registered; warnings where 5 of the last 8 steps are bad."""
    missing = np.where(np.isnan(r.parameter("missing")), np.nan, where(r.parameter("missing") > 0))
    yield of("no gradient (None)", ("missing",), _m_of_n(missing, 5, 8), r.parameters)
    norm = r.parameter("norm")
    zero = np.where(np.isnan(norm), np.nan, where(norm == 0))
    yield of("no gradient (zero)", ("zero",), _m_of_n(zero, 5, 8), r.parameters)
    small = np.where(norm == 0, 0.0, _below(norm, 1e-7))
    yield of("magnitude (vanishing)", ("vanishing",), _m_of_n(small, 5, 8), r.parameters)
    yield of("magnitude (exploding)", ("exploding",), _m_of_n(norm / 1e4, 5, 8), r.parameters)
    yield of("nonfinite gradient", ("nonfinite",), where(r.parameter("nonfinite") > 0), r.parameters)
    yield of("nonfinite parameter", ("nonfinite",), where(r.parameter("nonfinite_weight") > 0), r.parameters)
    since, waiting = 0, []
    for accepted in r.accepted:
        since = 0 if accepted else since + 1
        waiting.append(float(since))
    window = 4 * max(1, round(len(r.accepted) / max(1.0, r.accepted.sum()))) if r.accepted.sum() else 4
    yield of("watchdog", ("steps_skipped",), np.array(waiting) / window)


def neuraldbg(r: Recording) -> Iterator[Trace]:
    """NeuralDBG's states that are not healthy, with its thresholds."""
    norm = r.gradient("norm")
    yield of("gradient vanishing", ("vanishing",), _below(norm, 1e-6), r.sites)
    yield of("gradient exploding", ("exploding",), norm / 1e3, r.sites)
    yield of("activation dead", ("dead",), r.output("dead") / 0.9, r.sites)
    yield of("activation saturated", ("saturated",), r.output("saturated") / 0.7, r.sites)
    yield of("activation anomalous", ("constant",), _below(r.output("std"), 1e-4), r.sites)
    yield of("data nan or inf", ("nonfinite",), where(r.output("nonfinite_in") > 0), r.sites)
    yield of("loss diverging", ("nonfinite", "exploding"), where(~np.isfinite(r.losses)))
    spike = np.zeros(len(r.losses))
    for t in range(5, len(r.losses)):
        before = r.losses[t - 5 : t].mean()
        spike[t] = r.losses[t] / (10 * before) if before > 0 else 0.0
    yield of("loss spike", ("spike",), spike)


def autotrainer(r: Recording) -> Iterator[Trace]:
    """AUTOTRAINER (Zhang et al., ICSE 2021): at each epoch, of the epoch's last batch, and only while the score is below 0.7."""
    kernels = [i for i, name in enumerate(r.parameters) if name.endswith("weight") or "weight_" in name]
    ends = [max(t for t, epoch in enumerate(r.epochs) if epoch == e) for e in sorted({*r.epochs})[: len(r.scores)]]
    scores = {kind: np.zeros(len(r.losses)) for kind in ("nan", "relu", "explode", "vanish")}
    for epoch, end in enumerate(ends):
        norm, zeros, broken = (r.parameter(column)[end] for column in ("norm", "zeros", "nonfinite"))
        if (broken > 0).any() or not np.isfinite(r.losses[end]):
            scores["nan"][end] = ONCE
            continue
        seen = [i for i in kernels if not np.isnan(norm[i])]
        if not seen or r.scores[epoch] >= 0.7:
            continue
        first, last = norm[seen[0]], norm[seen[-1]]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.float64(first) / np.float64(last)
            scores["relu"][end] = np.nanmean(zeros) / 0.7
            scores["explode"][end] = rate / 70
            scores["vanish"][end] = min(1e-3 / rate, 1e-4 / np.float64(first))
    yield of("nan", ("nonfinite", "exploding"), scores["nan"])
    yield of("dying relu", ("dead",), scores["relu"])
    yield of("gradient explode", ("exploding",), scores["explode"])
    yield of("gradient vanish", ("vanishing",), scores["vanish"])


def spikes(r: Recording) -> Iterator[Trace]:
    """The spikes of OLMo-core: a norm above the mean of the last 128 by 6 standard deviations (after 16 at least)."""
    score = np.zeros(len(r.losses))
    for t in range(16, len(r.losses)):
        past = r.total_norm[max(0, t - 128) : t]
        past = past[np.isfinite(past)]
        if len(past) > 1 and past.std() > 0:
            score[t] = (r.total_norm[t] - past.mean()) / (6 * past.std())
    yield of("norm above mean + 6 sigma", ("spike",), score)


PEERS: dict[str, Callable[[Recording], Iterator[Trace]]] = {
    "SageMaker": sagemaker,
    "Lightning PR 21720": lightning_pr,
    "torchlens": torchlens,
    "NeuralDBG": neuraldbg,
    "AUTOTRAINER": autotrainer,
    "OLMo-core": spikes,
    "trainscope": trainscope,
    "Lightning SpikeDetection": lightning_spikes,
    "KillLossSpike": kill_loss_spike,
    "stabilityguard": stabilityguard,
    "training-doctor": training_doctor,
}
