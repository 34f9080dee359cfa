"""What drawn trainings set for the process is as before after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning_hooks")]
    levels, threads = [logger.level for logger in loggers], torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
