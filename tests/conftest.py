"""Tests run beside each other: one thread each, or they wait for one another."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

torch.set_num_threads(1)

# A busy machine may be slow at any example; how long one takes is no property that is tested.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _no_mode_stays() -> Iterator[None]:
    """A dispatch mode that is left behind would change whatever runs later: under one, nothing is compiled."""
    yield
    mode = _get_current_dispatch_mode()
    if mode is not None:
        mode.__exit__(None, None, None)
    assert mode is None
