"""README and docs are true: their code runs, their files exist, and their tables are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_hooks
from lightning_hooks.clipping.policies import POLICIES
from lightning_hooks.diagnostics.clipping_events import collector as clipping
from lightning_hooks.diagnostics.features import collector as features
from lightning_hooks.diagnostics.gradients import view as gradient_view
from lightning_hooks.hooks import HOOK_KINDS

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
PAGES = {page: page.read_text(encoding="utf-8") for page in [README, *sorted((README.parent / "docs").rglob("*.md"))]}
BLOCKS = {page: list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)) for page, text in PAGES.items()}


def test_there_are_blocks_to_run() -> None:
    assert sum(map(len, BLOCKS.values())) == sum(text.count("```python") for text in PAGES.values()) >= 5


@pytest.mark.example
@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.filterwarnings("ignore:.*max_overhead")  # on a busy machine a budget may be too small
@pytest.mark.parametrize(
    "page", [page for page, blocks in BLOCKS.items() if blocks], ids=lambda page: f"{page.parent.name}-{page.stem}"
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, as a reader would type them."""
    if page.stem in ("accelerate", "huggingface_trainer"):
        state = pytest.importorskip("accelerate").state  # one for the process, which other tests may have set
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for block in BLOCKS[page]:
        line = PAGES[page][: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(page), "exec"), names)


@pytest.mark.parametrize(
    "target",
    re.findall(r"\]\((?!https?://|#)([^)#]+)[^)]*\)", TEXT),
)
def test_linked_file_exists(target: str) -> None:
    assert (README.parent / target).is_file()


def test_pictures_are_small() -> None:
    pictures = [README.parent / target for target in re.findall(r'<img src="([^"]+)"', TEXT)]
    assert pictures
    assert all(picture.stat().st_size < 150_000 for picture in pictures)


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) <= 160


def test_what_the_readme_quotes_is_what_its_code_prints(tmp_path: Path) -> None:
    (code,) = (block[1] for block in BLOCKS[README])
    (quoted,) = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    printed = " ".join(f"{done.stderr} {done.stdout}".replace(str(tmp_path), "…").split())
    for part in quoted.split("\n\n"):  # the alert, and the lines at the end
        assert " ".join(part.split()) in printed


@pytest.mark.parametrize(
    ("prefix", "stats"),
    [
        ("features", (*features.LOGGED, "dead_fraction", "saturated_fraction")),
        ("gradient_flow", (*gradient_view.MODULE_STATS, *gradient_view.PARAMETER_STATS)),
        ("gradient_clip", clipping.LOGGED),
    ],
)
def test_every_logged_statistic_is_in_its_table(prefix: str, stats: tuple[str, ...]) -> None:
    section = page("about/logged").split(f"## `{prefix}/", 1)[1].split("\n#", 1)[0]
    for stat in stats:
        assert re.search(rf"^\|.*`{stat}`.*\|", section, re.MULTILINE), f"{stat} is missing below {prefix}/"


def test_tags_outside_the_tables_are_named() -> None:
    for tag in ("features/alerts/<kind>", "gradient_flow/total_norm", "gradient_flow/alerts/<kind>", "gradient_clip/alerts/<kind>"):
        assert f"`{tag}`" in page("about/logged")


def test_policies_hook_kinds_and_public_names_are_named() -> None:
    for policy in POLICIES:
        assert re.search(rf'^\| `"{policy}"` \|', page("guides/clipping"), re.MULTILINE), policy
    for kind in HOOK_KINDS:
        assert f"`{kind}`" in page("guides/plain_pytorch"), kind
    for name in lightning_hooks.__all__:
        assert name in page("index"), name


def page(name: str) -> str:
    """A page of the docs."""
    return PAGES[README.parent / "docs" / f"{name}.md"]


@pytest.mark.example
def test_the_terminal_shows_what_the_tutorial_promises(tmp_path: Path) -> None:
    """In a process of its own: its first step silences Lightning's logger, and the alert of the second is shown all the same."""
    page = README.parent / "docs/tutorial.md"
    script = "\n".join(block[1] for block in BLOCKS[page][:2])
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    alert, closing = re.findall(r"^```text\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    assert " ".join(alert.split()) in " ".join(done.stderr.split())
    assert done.stdout.splitlines()[1:] == ["", *closing.splitlines()]
