"""A real TensorBoard server, and what a browser shows of it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

T = TypeVar("T")
PATIENCE = 90.0
"""Seconds to wait for a page on a machine that does other things too."""

# TensorBoard's pages are web components: what they show is in shadow trees, which a plain query does not enter.
DEEP = """
const all = [];
const walk = (node) => {
    for (const child of node.querySelectorAll('*')) { all.push(child); if (child.shadowRoot) walk(child.shadowRoot); }
};
walk(document);
const seen = (element) => element.getClientRects().length > 0;
const own = (element) => [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join(' ').trim();
"""


@contextlib.contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """Serve a log directory; gives the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder.name, "--host", "127.0.0.1", "--port", str(port)]
    options = ["--load_fast", "false", "--samples_per_plugin", "images=100,text=100"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen([*command, *options], cwd=folder.parent, **quiet)  # so that the page names no machine's folders
    address = f"http://127.0.0.1:{port}/"
    try:
        wait_for(lambda: _answers(address) or server.poll() is not None, "the server")
        assert server.poll() is None, "TensorBoard ended"
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(check: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Ask again and again until the answer is true."""
    end = time.monotonic() + patience
    while not (found := check()):
        assert time.monotonic() < end, f"waited {patience:.0f} s in vain for {what}"
        time.sleep(0.25)
    return found


class Browser:
    """A page of web components, and what a person sees of it.

    Args:
        driver: Of selenium.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Open an address afresh: a change behind the # alone would not load a page."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def run(self, script: str, *args: Any) -> Any:
        """Run a script that sees ``all`` elements, those in shadow trees too."""
        return self.driver.execute_script(DEEP + script, *args)

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.run("return all.filter(seen).map(own).filter(Boolean).join('\\n')"))

    def shows(self, *texts: str) -> None:
        """Wait until the page shows all of the texts."""
        wait_for(lambda: all(text in self.text() for text in texts), f"{texts}")

    def lines(self) -> int:
        """How many curves are drawn in charts."""
        return int(
            self.run(
                """return all.filter(e => e.tagName === 'path' && seen(e) && (e.getAttribute('d') || '').includes('L')
                && getComputedStyle(e).stroke !== 'none' && e.getBoundingClientRect().width > 20).length"""
            )
        )

    def pictures(self) -> int:
        """How many images are loaded and not empty."""
        return int(self.run("return all.filter(e => e.tagName === 'IMG' && seen(e) && e.complete && e.naturalWidth > 50).length"))

    def click(self, text: str) -> bool:
        """Click the first thing whose own text is this; whether there was one."""
        script = """const hit = all.filter(seen).find(e => own(e) === arguments[0]);
        if (hit) { hit.scrollIntoView({block: 'center'}); hit.click(); }
        return Boolean(hit);"""
        return bool(self.run(script, text))

    def screenshot(self, path: Path, colours: int = 64) -> None:
        """Save what is seen as a small PNG."""
        from PIL import Image

        with Image.open(BytesIO(self.driver.get_screenshot_as_png())) as shot:
            shot.convert("RGB").quantize(colours).save(path, optimize=True)
