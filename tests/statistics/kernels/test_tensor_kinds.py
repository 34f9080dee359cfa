"""Whatever tensor a model returns: its values are read, or it is skipped, and the process lives on."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from tests.support.tensor_kinds import FREED, KINDS, TRANSFORMS, UNREADABLE


@pytest.fixture
def path() -> None:
    """One path only: the process asks each kernel."""


@pytest.fixture(scope="module")
def program():
    """What a process of its own reads: a wrong address would end the tests with it."""
    done = subprocess.run([sys.executable, "-m", "tests.support.tensor_kinds"], capture_output=True, text=True, timeout=240)
    found = dict(map(json.loads, done.stdout.splitlines()))
    return done.returncode, done.stderr[-500:], found


@pytest.mark.slow
def test_the_program_ends_as_it_should(program):
    returncode, errors, found = program
    assert (returncode, list(found)[-1:]) == (0, list(TRANSFORMS)[-1:]), errors


@pytest.mark.parametrize("kind", KINDS)
def test_each_kernel_reads_the_values_of_a_tensor_or_skips_it(program, kind):
    expected, found = KINDS[kind][1], program[2][kind]
    if expected is UNREADABLE:
        assert found == dict.fromkeys(found, "UnreadableError")
        return
    flat = np.array([] if expected is FREED else np.ravel(expected), dtype=np.float64)
    one_dimension = np.ndim(expected) == 1
    for entry, numbers in found.items():
        if entry.startswith("updates") and (one_dimension or not flat.size):
            continue  # of parameters, which are dense
        counts = flat.size if not (entry == "residual" and one_dimension) else 0  # it has no channels
        assert numbers.get("count", counts) == numbers.get("counted", counts) == counts, (entry, numbers)
        if counts and numbers:
            reference = {"mean": flat.mean(), "min": flat.min(), "max": flat.max(), "norm": math.sqrt((flat**2).sum()), "moved": 0}
            for name in set(reference) & set(numbers):
                assert numbers[name] == pytest.approx(reference[name], rel=2e-4, abs=1e-6), (entry, name)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_tensor_under_torch_func_is_not_read(program, transform):
    assert program[2][transform] == {"in memory": False, "plain": UNREADABLE}
