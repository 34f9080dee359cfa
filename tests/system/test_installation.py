"""The package as pip installs it: a wheel with the C library, and one without where there is no compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, torch, lightning_hooks
from lightning_hooks.statistics import empty_table
from lightning_hooks.statistics.kernels import kernels_for

table = empty_table(1)
torch.manual_seed(0)
kernels_for("cpu").record(table, 0, torch.randn(300_000).relu())
finite = [number for number in table[0].tolist() if abs(number) < 1e30]
print(json.dumps([lightning_hooks.__file__, lightning_hooks.kernels(), finite]))
"""


def wheel_of(source: Path, folder: Path, **environment: str) -> tuple[Path, str]:
    """Build the wheel; its path, and what was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


def run_from(wheel: Path, folder: Path) -> list[object]:
    """What the program prints in a clean environment that has this wheel, and the packages of this one for the rest."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    ZipFile(wheel).extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    home = folder / "home"
    home.mkdir()
    environment = {"PATH": "", "HOME": str(home), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [folder / "bin" / "python", "-c", PROGRAM], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == [], "something was written outside the log directory"
    found: list[object] = json.loads(done.stdout)
    assert str(found[0]).startswith(str(packages))
    return found[1:]


@pytest.mark.example
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wheel_holds_the_library_and_without_a_compiler_torch_does_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "lightning_hooks", source / "lightning_hooks", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    kept = [path.name for path in source.rglob("*.so")]

    built, _ = wheel_of(source, tmp_path / "built")
    pure, notice = wheel_of(source, tmp_path / "pure", CC="/nonexistent")

    assert built.name.startswith("lightning_hooks-")
    assert "-py3-none-" in built.name
    assert not built.name.endswith("-any.whl")
    assert pure.name.endswith("-py3-none-any.whl")
    assert "without its C library, and uses torch's kernels: no C compiler (/nonexistent) was found" in notice
    library, code = "lightning_hooks/statistics/kernels/libnative.so", "lightning_hooks/statistics/kernels/native.c"
    names = ZipFile(built).namelist()
    assert (names.count(library), code in names, library in ZipFile(pure).namelist()) == (1, True, False)
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("lightning_hooks/run_report/templates/**/*.*")} <= set(names)
    assert [path.name for path in source.rglob("*.so")] == kept, "a wheel leaves the checkout as it is"

    (compiled, fast), (fallback, slow) = run_from(built, tmp_path / "one"), run_from(pure, tmp_path / "other")
    assert (compiled, fallback) == ({"cpu": "c"}, {"cpu": "torch"})
    assert fast == pytest.approx(slow, rel=1e-6)
