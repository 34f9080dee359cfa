"""What is uploaded: a source distribution, a wheel with the C library and a pure one, each installed in an empty environment.

They are built here, or were by ``make dist``, which names their folder in ``DIST``.
"""

from __future__ import annotations

import email
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY, CODE = "lightning_hooks/statistics/kernels/libnative.so", "lightning_hooks/statistics/kernels/native.c"

pytestmark = [
    pytest.mark.example,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
]

KERNELS = """
import json, torch, lightning_hooks
from lightning_hooks.statistics.rows import empty_table
from lightning_hooks.statistics.kernels import kernels_for

table = empty_table(1)
torch.manual_seed(0)
kernels_for("cpu").record(table, 0, torch.randn(300_000).relu())
finite = [number for number in table[0].tolist() if abs(number) < 1e30]
print(json.dumps([lightning_hooks.__file__, lightning_hooks.kernels(), finite]))
"""

ENTRY_POINTS = """
import sys
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import TensorBoardLogger

options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
Trainer(max_epochs=1, accelerator="cpu", logger=TensorBoardLogger(sys.argv[1]), **options).fit(BoringModel())
"""

TAB = """
import json, sys, urllib.request
from tensorboard import default, program

server = program.TensorBoard(default.get_plugins())
server.configure(logdir=sys.argv[1], port=0, load_fast="false")
address = server.launch()
listing = json.load(urllib.request.urlopen(f"{address}data/plugins_listing", timeout=60))
module = urllib.request.urlopen(f"{address}data/plugin/health/index.js", timeout=60).read()
print(listing["health"]["tab_name"], listing["health"]["enabled"], b"export" in module)
"""


def run(*command: str | Path, code: int = 0, **options: object) -> str:
    """What a command prints."""
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, **options,  # type: ignore[call-overload]
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    return str(done.stdout)


def built(folder: Path) -> Path:
    """Build what is uploaded: the wheels from the source distribution, once with a C compiler and once without."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", folder, "-t"]
    run(*build, "sdist", cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    run(*build, "wheel", cwd=source)
    notice = run(*build, "wheel", cwd=source, env={**os.environ, "CC": "/nonexistent"})
    assert "without its C library, and uses torch's kernels: no C compiler (/nonexistent) was found" in notice
    assert not [*source.rglob("*.so")], "a wheel leaves its source as it is"
    return folder


def installed(wheel: Path, folder: Path) -> Path:
    """The programs of an environment that has the packages of this one but for ours, and then this wheel."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if each.suffix != ".pth" and not each.name.lstrip("_").startswith("lightning_hooks"):
            (packages / each.name).symlink_to(each)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir"]
    run(*pip, wheel, cwd=folder)  # without an index: all that it needs is there
    return folder / "bin"


def check_contents(dist: Path, pure: Path, compiled: Path, folder: Path) -> None:
    """The source distribution has all that a wheel is built of and no other README, and one wheel has the library."""
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    files = {"hatch_build.py", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO"}
    assert {name.partition("/")[0] for name in names} - {".gitignore"} == {"lightning_hooks", *files}
    assert [name for name in names if name.endswith("README.md")] == ["README.md"]
    page = (f"lightning_hooks/run_report/page.{kind}" for kind in ("js", "css"))
    wanted = {"lightning_hooks/py.typed", CODE, *page}
    inside = ZipFile(pure).namelist()
    assert wanted <= set(inside) & set(names)
    assert sorted([*inside, LIBRARY]) == sorted(ZipFile(compiled).namelist())
    if platform.libc_ver()[0] == "glibc":  # PyPI takes no other wheel of Linux
        symbols = run("objdump", "-T", ZipFile(compiled).extract(LIBRARY, folder))
        newest = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", symbols))
        assert compiled.name.endswith(f"-py3-none-manylinux_2_{max(newest, 17)}_{platform.machine()}.whl")
    (path,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(ZipFile(pure).read(path))
    assert (metadata["Name"], metadata["Description-Content-Type"]) == ("lightning-hooks", "text/markdown")
    assert metadata.get_payload().startswith("# lightning_hooks")
    pythons = [name.rpartition(" :: ")[2] for name in metadata.get_all("Classifier", []) if ":: 3." in name]
    assert (metadata["Requires-Python"], pythons) == (">=3.10", ["3.10", "3.11", "3.12", "3.13", "3.14"])


def check_kernels(programs: Mapping[str, Path], folder: Path) -> None:
    """Both wheels compute the same, one in C and one in torch."""
    home, found = folder / "home", {}
    home.mkdir()
    for kind, program in programs.items():
        environment = {"PATH": "", "HOME": str(home), "OMP_NUM_THREADS": "2"}
        path, *found[kind] = json.loads(run(program / "python", "-c", KERNELS, cwd=folder, env=environment))
        assert path.startswith(str(folder / kind))
    assert list(home.iterdir()) == [], "something was written outside the log directory"
    assert (found["compiled"][0], found["pure"][0]) == ({"cpu": "c"}, {"cpu": "torch"})
    assert found["compiled"][1] == pytest.approx(found["pure"][1], rel=1e-6)


def check_programs(programs: Path, folder: Path) -> None:
    """The demo, the commands, the monitors by Lightning's entry point, and the tab in TensorBoard."""
    here: dict[str, object] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "HOME": str(folder), "LIGHTNING_HOOKS": "1"}}
    python, command = [programs / "python", "-W", "ignore", "-c"], programs / "lightning-hooks"
    assert "[critical]" in run(command, "demo", "--output", "demo", **here)
    (page,) = folder.glob("demo/**/report.html")
    assert run(command, "report", page.parents[1], "--fail-on", "critical", code=1, **here).startswith("[critical] ")
    assert "layer" in run(command, "explain", "dead", **here)
    run(*python, ENTRY_POINTS, "logs", **here)
    assert [*folder.glob("logs/**/lightning_hooks/report.html")]
    assert run(*python, TAB, "logs", **here).splitlines()[-1] == "Health True True"


def test_what_is_uploaded_can_be_installed_and_runs(tmp_path: Path) -> None:
    dist = Path(os.environ["DIST"]).resolve() if "DIST" in os.environ else built(tmp_path)
    (pure,) = dist.glob("lightning_hooks-*-py3-none-any.whl")
    (compiled,) = {*dist.glob("lightning_hooks-*-py3-none-*.whl")} - {pure}
    check_contents(dist, pure, compiled, tmp_path)
    programs = {kind: installed(wheel, tmp_path / kind) for kind, wheel in (("pure", pure), ("compiled", compiled))}
    check_kernels(programs, tmp_path)
    check_programs(programs["compiled"], tmp_path)
