"""Builds the C library when the package is installed: a wheel for the platform, or a pure one where there is no C compiler.

``python hatch_build.py`` builds it in a checkout.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

SOURCE = Path("lightning_hooks", "statistics", "kernels", "native.c")
LIBRARY = SOURCE.with_name("libnative.so")
OLDEST = 17  # the version of glibc, 2.17, of manylinux2014: torch needs a newer one
SECONDS = 120  # the longest that a compiler may take

FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared"]
# Not -ffast-math: linked in, that would change how the whole process treats the smallest numbers.
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-ffinite-math-only"]
if platform.machine() in ("x86_64", "AMD64"):
    FLAGS += ["-mprefer-vector-width=512"]
if sys.platform == "darwin":
    FLAGS += ["-undefined", "dynamic_lookup"]
# From the best to what any compiler takes: half precision, and a function for each vector width of the processor.
VARIANTS = (["-DHAS_F16"], [], ["-DHAS_F16", "-DONE_WIDTH"], ["-DONE_WIDTH"])


class CustomBuildHook(BuildHookInterface[Any]):
    """hatchling's hook for the wheel, editable or not."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library: in place for an editable installation, else into the wheel alone."""
        root = Path(self.root)
        self._scratch = tempfile.TemporaryDirectory()
        library = root / LIBRARY if version == "editable" else Path(self._scratch.name, LIBRARY.name)
        problem = build(root / SOURCE, library)
        if problem:
            self.app.display_warning(f"lightning_hooks is installed without its C library, and uses torch's kernels: {problem}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(library)}"  # it has neither Python's binary interface nor torch's
        if version != "editable":
            build_data["force_include"][str(library)] = LIBRARY.as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written."""
        self._scratch.cleanup()


def platform_tag(library: Path) -> str:
    """The oldest platform that runs the library: of Linux by the newest version of glibc that it names, as PyPI asks for."""
    tags = [*platform_tags()]
    plain = next(tag for tag in tags if not tag.startswith(("manylinux", "musllinux")))
    named = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())]
    tag = f"manylinux_2_{max([OLDEST, *named])}_{plain.removeprefix('linux_')}"
    return tag if tag in tags else plain


def build(source: Path, library: Path) -> str:
    """Build the library.

    Args:
        source: The C file.
        library: Where to put the library; an older one there is replaced, or removed where none can be built.

    Returns:
        What went wrong; empty if nothing did.
    """
    library.unlink(missing_ok=True)
    if sys.platform == "win32":
        return "it is not built on Windows"
    named = shlex.split(os.environ.get("CC", ""))
    found = [named] if named else [[name] for name in ("cc", "gcc", "clang")]
    compiler = next((command for command in found if shutil.which(command[0])), None)
    if compiler is None:
        return f"no C compiler ({' or '.join(command[0] for command in found)}) was found"
    origin = f"-DSOURCE={zlib.crc32(source.read_bytes())}u"
    problem = ""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        built = Path(scratch, library.name)
        for variant in VARIANTS:
            try:
                command = [*compiler, *FLAGS, *variant, origin, str(source), "-o", str(built), "-lm"]
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
                ctypes.CDLL(str(built))
            except subprocess.CalledProcessError as error:
                problem = problem or (error.stderr.strip() or str(error)).splitlines()[0]
            except (OSError, subprocess.SubprocessError) as error:
                problem = problem or str(error)
            else:
                built.replace(library)  # at once: a process that has the older one loaded keeps it
                return ""
    return problem


if __name__ == "__main__":
    checkout = Path(__file__).parent
    sys.exit(build(checkout / SOURCE, checkout / LIBRARY) or 0)
