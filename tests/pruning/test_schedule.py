"""How much is masked when."""

from __future__ import annotations

import pytest

from lightning_hooks.pruning import target_at


def test_linear_and_cubic_by_hand() -> None:
    linear = [target_at(epoch, 0.8, 2, 5, "linear") for epoch in range(8)]
    assert linear == pytest.approx([0, 0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    cubic = [target_at(epoch, 0.8, 2, 5, "cubic") for epoch in range(8)]
    parts = [0.25, 0.5, 0.75, 1.0]
    zhu_gupta = [0.8 + (0 - 0.8) * (1 - part) ** 3 for part in parts]  # equation 1, with s_i = 0
    assert cubic == pytest.approx([0, 0, *zhu_gupta, 0.8, 0.8])


@pytest.mark.parametrize("schedule", ["linear", "cubic"])
def test_one_epoch_is_at_once(schedule: str) -> None:
    assert [target_at(epoch, 0.5, 3, 3, schedule) for epoch in range(5)] == [0, 0, 0, 0.5, 0.5]
