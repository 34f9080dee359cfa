"""Tests run beside each other: one thread each, or they wait for one another."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)

# A busy machine may be slow at any example; how long one takes is no property that is tested.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")
