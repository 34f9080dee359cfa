"""More rules of peers: those that judge the loss, the gradient norm or a step's activations by their own past.

Re-stated from the descriptions and defaults that their authors publish, as in :mod:`tests.evidence.faults.peers`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.evidence.faults.recorder import Array, Recording
from tests.evidence.faults.traces import Trace, of, where

LOSS = ("loss_spike", "loss_diverging", "loss_nonfinite", "spike", "nonfinite", "exploding")
"""What a rule on the loss stands for: it cannot tell one from the other."""


def _robust(values: Array, t: int, window: int = 200) -> float:
    """How many robust standard deviations (1.4826 times the median absolute deviation) a value is above the median before it."""
    past = values[max(0, t - window) : t]
    past = past[np.isfinite(past)]
    if len(past) < 30 or not np.isfinite(values[t]):
        return 0.0
    middle = np.median(past)
    return float((values[t] - middle) / max(1.4826 * np.median(np.abs(past - middle)), 1e-12))


def trainscope(r: Recording) -> Iterator[Trace]:
    """trainscope 1.8: CUSUM of the loss (slack 1, limit 6), its z-score (3.5), and the kurtosis of activations; from step 30 on.

    Its CUSUM counts losses that fall, too; only those that rise are counted here. Of the kurtosis it publishes the lead time, and
    of the margin only that it is robust: the CUSUM's limit is taken. Its rule on experts (a share of 0.85) needs routers.
    """
    cusum, score = 0.0, np.zeros(len(r.losses))
    for t in range(30, len(r.losses)):
        cusum = max(0.0, cusum + _robust(r.losses, t) - 1.0)
        score[t] = cusum / 6.0
        cusum = cusum if score[t] < 1 else 0.0
    yield of("CUSUM of the loss", LOSS, score)
    score = np.zeros(len(r.losses))
    for t in range(30, len(r.losses)):
        past = r.losses[max(0, t - 200) : t]
        past = past[np.isfinite(past)]
        if len(past) > 1 and past.std() > 0 and np.isfinite(r.losses[t]):
            score[t] = (r.losses[t] - past.mean()) / past.std(ddof=1) / 3.5
    yield of("z-score of the loss", LOSS, score)
    kurtosis = r.output("kurtosis")
    scores = np.array([[_robust(kurtosis[:, i], t) / 6.0 for i in range(len(r.sites))] for t in range(len(r.losses))])
    yield of("activation kurtosis", ("activation_outliers", "residual_growth", *LOSS), scores, r.sites)


def lightning_spikes(r: Recording) -> Iterator[Trace]:
    """Lightning's SpikeDetection: a loss that rises, and is beyond the mean of the last 10 by twice that mean; or not finite."""
    score, before = np.zeros(len(r.losses)), list(r.losses[:1])
    for t in range(1, len(r.losses)):
        loss = r.losses[t]
        if not np.isfinite(loss):
            score[t] = np.inf
            continue
        mean = np.mean(before[-10:])
        if loss > before[-1] and mean != 0:
            score[t] = abs(loss - mean) / abs(2.0 * mean)
        if score[t] <= 1:  # a spike is not part of the mean
            before.append(loss)
    yield of("loss spike", LOSS, score)


def kill_loss_spike(r: Recording) -> Iterator[Trace]:
    """llm-foundry's KillLossSpike: five losses in a row of twice the mean of the last 100; half of the last 100 above 10."""
    spiking, high, outliers = np.zeros(len(r.losses)), np.zeros(len(r.losses)), 0
    for t in range(100, len(r.losses)):
        window = r.losses[t - 100 : t]
        outliers = outliers + 1 if r.losses[t] >= 2 * window.mean() else 0
        spiking[t] = outliers / 4.0
        if t >= 200:
            high[t] = 1.01 * ((window > 10).mean() / 0.5)
    yield of("loss spike", LOSS, spiking)
    yield of("high loss", ("loss_diverging", "loss_plateau"), high)


def stabilityguard(r: Recording) -> Iterator[Trace]:
    """stabilityguard 0.3: a gradient norm above ten times its moving mean (alpha 0.01) after 10 steps, or not finite."""
    norm = r.parameter("norm")
    scores, mean = np.zeros_like(norm), np.full(norm.shape[1], np.nan)
    for t, row in enumerate(norm):
        seen = np.isfinite(row)
        mean = np.where(seen, np.where(np.isnan(mean), row, 0.99 * mean + 0.01 * row), mean)
        if t >= 10:
            judged = seen & (row > 1e-8) & (mean > 1e-8)
            scores[t] = np.divide(row, 10.0 * mean, out=np.zeros_like(row), where=judged)
    yield of("gradient spike", ("spike", "exploding", "update_spike"), scores, r.parameters)
    yield of("nonfinite gradient", ("nonfinite",), where(r.parameter("nonfinite") > 0), r.parameters)


def training_doctor(r: Recording) -> Iterator[Trace]:
    """training-doctor 0.1: rules on loss, gradient norm and their last 20 to 200 values."""
    loss, norm, steps = r.losses, r.total_norm, len(r.losses)
    names = ("diverging", "unstable", "vanishing", "exploding", "nonfinite", "flat", "plateau")
    score = {name: np.zeros(steps) for name in names}
    for t in range(19, steps):
        last = slice(max(0, t - 99), t + 1)
        recent, norms = loss[last], norm[last]
        score["nonfinite"][t] = np.inf if not (np.isfinite(recent[-50:]).all() and np.isfinite(norms[-50:]).all()) else 0.0
        recent, norms = recent[np.isfinite(recent)], norms[np.isfinite(norms)]
        if len(recent) >= 5 and recent.std() > 0:
            spikes = (np.abs(recent - recent.mean()) > 3.5 * recent.std()).sum()
            score["unstable"][t] = spikes / 2.0  # three are needed
        if len(recent) >= 20 and recent[-20] != 0:
            score["diverging"][t] = (recent[-1] / recent[-20] - 1) / 0.3
        if len(norms):
            score["exploding"][t] = norms.max() / 10.0
            score["vanishing"][t] = (norms < 0.01).sum() / 33.0
        if t >= 99 and len(recent) and recent[0] != 0:
            score["flat"][t] = 1.01 if 1 - recent[-1] / recent[0] < 0.01 else 0.0
        if t >= 199 and loss[t] >= 1.5 and abs(loss[t] / loss[t - 199] - 1) < 0.01 and loss[t] > 0.7 * loss[0]:
            score["plateau"][t] = 1.01
    yield of("rate too high (loss rises)", ("loss_diverging", "update_too_large", *LOSS), score["diverging"])
    yield of("rate too high (spikes)", LOSS, score["unstable"])
    yield of("rate too low", ("loss_plateau", "update_too_small", "lr_zero", "not_updated"), score["flat"])
    yield of("plateau", ("loss_plateau", "update_too_small", "lr_zero", "not_updated"), score["plateau"])
    yield of("exploding gradients", ("exploding", "spike"), score["exploding"])
    yield of("vanishing gradients", ("vanishing", "zero"), score["vanishing"])
    yield of("not finite", ("nonfinite", "loss_nonfinite"), score["nonfinite"])
