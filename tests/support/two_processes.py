"""Running a module in two processes that Lightning's strategies join over gloo."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def run_twice(module: str, folder: Path, timeout: float = 300.0) -> dict[str, list[Any]]:
    """Run ``python -m module folder`` as ranks 0 and 1, each of which pickles a dictionary into ``<folder>/<rank>.pickle``.

    Returns:
        Its key to what rank 0 found and what rank 1 found.
    """
    joined = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NODE_RANK": "0",
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(folder)],
            env={**os.environ, **joined, "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]
    first, second = (pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(2))
    return {key: [first[key], second[key]] for key in first}
