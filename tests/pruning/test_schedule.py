"""How much is masked when."""

from __future__ import annotations

import pytest

from lightning_hooks.pruning import target_at


def test_the_schedule_by_hand() -> None:
    cubic = [target_at(epoch, 0.8, 2, 5) for epoch in range(8)]
    parts = [0.25, 0.5, 0.75, 1.0]
    zhu_gupta = [0.8 + (0 - 0.8) * (1 - part) ** 3 for part in parts]  # equation 1, with s_i = 0
    assert cubic == pytest.approx([0, 0, *zhu_gupta, 0.8, 0.8])


def test_one_epoch_is_at_once() -> None:
    assert [target_at(epoch, 0.5, 3, 3) for epoch in range(5)] == [0, 0, 0, 0.5, 0.5]
