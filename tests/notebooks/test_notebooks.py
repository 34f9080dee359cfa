"""The notebooks are committed executed and small, and run in a fresh kernel as a reader would run them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 1_000_000

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def texts(cells: list[Any]) -> str:
    """What the cells printed, as text."""
    parts = [output.get("text", "") for cell in cells for output in cell.outputs]
    parts += [output.data.get("text/plain", "") for cell in cells for output in cell.outputs if "data" in output]
    return "\n".join(parts)


def test_there_are_notebooks_and_each_has_its_number() -> None:
    assert NOTEBOOKS
    numbers = [path.name[:2] for path in NOTEBOOKS]
    assert all(number.isdigit() for number in numbers)
    assert len(set(numbers)) == len(numbers)


@each_notebook
def test_it_is_committed_executed_and_small(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=4))
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from top to bottom in a fresh kernel"
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert not [output.text for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
    assert path.stat().st_size < MOST_BYTES
    assert any("assert" in cell.source for cell in cells[-2:]), "a notebook ends in assertions"


@pytest.mark.example
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@each_notebook
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=env)
    assert not list((ROOT / "notebooks").glob("lightning_logs")), "a notebook writes where it runs"


@pytest.mark.example
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_fit_in_a_notebook_ends_with_the_progress_bar_that_lightning_picks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich's, where rich is installed: what is printed goes through its stand-in for standard output."""
    pytest.importorskip("rich")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    source = """
import warnings
warnings.simplefilter("ignore")
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning_hooks import HookDebugger, monitors
callbacks = [*monitors(), HookDebugger()]
trainer = Trainer(max_epochs=1, accelerator="cpu", limit_train_batches=3, limit_val_batches=0, callbacks=callbacks)
trainer.fit(BoringModel())
type(trainer.progress_bar_callback).__name__
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    shown = texts(notebook.cells)
    assert "RichProgressBar" in shown
    for line in ("Monitors: ", "Open alerts: ", "Health report: "):
        assert shown.count(line) == 1
