"""What a right diagnosis of common faults says, by the kinds of alerts."""

from __future__ import annotations

from tests.evidence.exam.cases import Built, Expected

WELL = Expected()
RATE = ("update_too_large", "exploding", "loss_diverging", "loss_nonfinite", "nonfinite", "weights_growing", "update_spike")
TOO_LOW = ("update_too_small", "not_updated", "lr_zero", "loss_plateau")
BROKEN = ("nonfinite", "loss_nonfinite")
FLAT = ("representation_collapse", "constant", "vanishing", "zero", "loss_plateau")
UNMOVED = ("missing", "zero", "not_updated", "update_too_small", "vanishing")
JUMPS = ("update_spike", "spike", "loss_spike", "loss_diverging")
SPIKES = ("loss_spike", "update_spike", "spike")
RATE_OR_JUMP = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "step_too_long", *SPIKES)
STILL = ("not_updated", "update_too_small", "no_progress", "step_too_short", "updates_lost", "loss_plateau", "part_not_learning")
UNHELD = ("unregistered", "not_optimized", "missing", "not_updated", "part_not_learning")
ALIKE = ("constant", "representation_collapse", "vanishing", "zero", "poor_init", "dead", "saturated")
UNLIKE = ("validation_shift", "overfitting")
TOO_SLOW = ("loss_plateau", "no_progress", "part_not_learning", "step_too_short", "step_too_long", "update_too_small")
NOTHING_LEARNED = ("no_progress", "loss_plateau", "part_not_learning", "silent", "step_too_short", "step_too_long")
FORGOTTEN = ("vanishing", "saturated", "zero", "constant", "representation_collapse", "poor_init", *NOTHING_LEARNED)
TOO_MUCH = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "loss_spike", "spike", "update_spike", "dead")
TOO_LITTLE = ("update_too_small", "not_updated", "lr_zero", "updates_lost", "optimizer_settings", "step_too_short")
NO_GRADIENT = ("missing", "zero", "not_updated", "vanishing", "not_optimized", "part_not_learning", "dead", "update_too_small")
SETTING = ("settings", "optimizer_settings")
SLOW = ("loss_plateau", "no_progress", "part_not_learning", "step_too_short", "step_too_long")


def expecting(built: Built, *kinds: str, sites: tuple[str, ...] | None = None, batch: int = 0) -> Built:
    """The same training, with what is wrong with it."""
    return built._replace(expected=Expected(kinds, sites, batch))
