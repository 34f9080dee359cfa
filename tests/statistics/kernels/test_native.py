"""The C library itself: its columns, its threads, and when it is not used."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.kernels import native as module
from lightning_hooks.statistics.kernels.native import SOURCE
from lightning_hooks.statistics.rows import Column, ParameterColumn, empty_table


@pytest.fixture(autouse=True)
def fast(path):
    """The compiled path; nothing here is about torch's."""
    if path == "torch":
        pytest.skip("about the C library")
    return kernels_for("cpu")


def test_the_columns_are_those_of_the_rows():
    """The C file is built where the package cannot be imported, and has its own list of them."""
    lists = [re.findall(r"\w+", names) for names in re.findall(r"enum \{([^}=]*)\}", SOURCE.read_text())]
    parameters = [f"PARAMETER_{name}" for name in ParameterColumn.__members__]
    assert sorted(lists) == sorted([[*Column.__members__, "COLUMNS"], [*parameters, "PARAMETER_COLUMNS"]])


@pytest.mark.slow
def test_large_tensors_of_one_site_from_several_threads_all_count(fast):
    """The interpreter is let go while such a tensor is read, and not while its row is changed."""
    values = torch.randn(1 << 16, dtype=torch.bfloat16)
    for _ in range(8):
        table = empty_table(1)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _, table=table: [fast.record(table, 0, values) for _ in range(6000)], range(3)))
        assert (table[0, Column.CALLS], table[0, Column.COUNT] / values.numel()) == (18_000, 18_000)


def test_a_library_from_another_source_is_not_used(tmp_path, monkeypatch):
    changed = tmp_path / "native.c"
    changed.write_text(SOURCE.read_text() + "\n")
    monkeypatch.setattr(module, "SOURCE", changed)
    kernels_for.cache_clear()
    with pytest.warns(UserWarning, match=r"libnative.so is not used: it was built from another native.c.*python hatch_build.py"):
        assert kernels_for("cpu").name == "torch"


def test_without_a_library_torch_does_the_work_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LIBRARY", tmp_path / "libnative.so")
    kernels_for.cache_clear()
    assert kernels_for("cpu").name == "torch"
