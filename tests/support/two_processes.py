"""Running a module in two processes that Lightning's strategies join over gloo."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def run_twice(module: str, folder: Path, *arguments: str, timeout: float = 300.0) -> dict[str, list[Any]]:
    """Run ``python -m module folder arguments`` as ranks 0 and 1; each pickles a dictionary into ``<folder>/<rank>.pickle``.

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
            [sys.executable, "-m", module, str(folder), *arguments],
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


def hand_over(folder: Path, found: Any) -> None:
    """Write what a rank has found, and leave its process group, whose threads may abort a process that ends with them."""
    (folder / f"{os.environ.get('LOCAL_RANK', 0)}.pickle").write_bytes(pickle.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def main(folder: Path, modules: list[str]) -> None:
    """Run ``found`` of several modules of this folder, one after the other: what takes long is to import torch."""
    rank, by_module = int(os.environ["LOCAL_RANK"]), {}
    for name in modules:
        (folder / name).mkdir(exist_ok=True)
        by_module[name] = importlib.import_module(f"tests.support.{name}").found(rank, folder / name)
    hand_over(folder, by_module)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
