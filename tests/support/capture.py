"""A CUDA graph's capture, without a device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch


def captured() -> AbstractContextManager[Any]:
    """A block in which torch says that a CUDA graph captures what runs: nothing of ours may be in it."""
    return patch.multiple(torch.cuda, is_initialized=lambda: True, is_current_stream_capturing=lambda: True)
