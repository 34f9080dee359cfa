"""Runs test_fused.py through Triton's interpreter, which must be chosen before anything imports Triton."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def path():
    """One path only."""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the device itself")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed (pip install triton)")
def test_the_kernels_through_the_interpreter():
    command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name("test_fused.py"))]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout
