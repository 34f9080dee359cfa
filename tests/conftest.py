"""Tests run beside each other: one thread each, or they wait for one another."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
