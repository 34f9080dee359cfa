"""Trainings in several processes, a line kept of each: what was broken off goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision, in each of the processes

# isort: split
import torch

import lightning_hooks

Job = tuple[Any, ...]


def fingerprint(*folders: Path) -> str:
    """Of the package and of folders: results of other code are not used again."""
    digest = hashlib.sha256(torch.__version__.encode())
    for folder in (Path(lightning_hooks.__file__).parent, *folders):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run_all(
    run_one: Callable[[Any], dict[str, Any]], jobs: Sequence[Job], kept: Path, processes: int, fresh: bool
) -> list[dict[str, Any]]:
    """Run what has not run yet, and return the results of all jobs, in their order. One that fails does not stop the others.

    Args:
        run_one: Runs a job and returns its result, as JSON can hold it.
        jobs: Each a tuple of strings and numbers.
        kept: The file of results.
        processes: How many jobs run at a time.
        fresh: Whether results that are kept are discarded.

    Raises:
        RuntimeError: If jobs have failed, when all others are done.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        kept.unlink(missing_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    done = {tuple(job): result for job, result in map(json.loads, lines)}
    wanted = [job for job in jobs if job not in done]
    start, failed = time.perf_counter(), list[str]()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes: small nets only wait for a second thread
    with kept.open("a") as file, multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=40) as pool:
        for number, (job, result) in enumerate(pool.imap_unordered(_Keyed(run_one), wanted), start=1):
            if isinstance(result, str):
                failed.append(f"{job}: {result}")
            else:
                done[job] = result
                file.write(json.dumps([job, result]) + "\n")
                file.flush()
            if sys.stdout.isatty() or number == len(wanted) or number % 25 == 0:
                print(f"\r{number} of {len(wanted)} trainings, {time.perf_counter() - start:.0f} s", end="", flush=True)
    print()
    if failed:
        raise RuntimeError(f"{len(failed)} trainings have failed:\n" + "\n".join(failed))
    return [done[job] for job in jobs]


def publish(text: str, path: Path) -> None:
    """Print a table, and write it to a file."""
    print(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


class _Keyed:
    """Returns the job with its result, or with what it raised as text."""

    def __init__(self, run_one: Callable[[Any], dict[str, Any]]) -> None:
        self.run_one = run_one

    def __call__(self, job: Job) -> tuple[Job, dict[str, Any] | str]:
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        try:
            return job, self.run_one(job)
        except Exception as error:  # noqa: BLE001 - a library's, the monitors', the exam's own
            return job, repr(error)
