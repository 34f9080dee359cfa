"""A TensorBoard in this process with the Health tab, whatever is installed, and the tab in a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_hooks.sinks.tab.plugin import HealthPlugin
from tests.support.tensorboard_server import wait_for


@contextmanager
def tensorboard_with_tab(folder: Path) -> Iterator[str]:
    """Serve a log directory; gives the address."""
    from tensorboard import default, program  # not above: what it imports warns

    plugins = [plugin for plugin in default.get_plugins() if plugin is not HealthPlugin]  # where it is installed
    board = program.TensorBoard(plugins=[*plugins, HealthPlugin])
    board.configure(argv=[None, "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0", "--load_fast", "false"])
    server = board._make_server()  # launch() gives no way to end it
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.get_url()
    finally:
        server.shutdown()
        server.server_close()


class Tab:
    """The frame of the tab in a browser.

    Args:
        driver: Of selenium.
        address: TensorBoard's.
    """

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, place: str = "") -> None:
        """Open the tab at a run, an alert or a comparison, as a link that was shared does."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#health{'&' if place else ''}{place}")
        wait_for(self._entered, "the tab")

    def _entered(self) -> bool:
        self.driver.switch_to.default_content()
        frames = self.driver.find_elements("css selector", "iframe")
        if not frames:
            return False
        self.driver.switch_to.frame(frames[0])
        return bool(self.driver.find_elements("css selector", "main h1"))

    def text(self) -> str:
        """What can be read."""
        return str(self.driver.execute_script("return document.body.innerText"))

    def shows(self, *texts: str) -> None:
        """Wait until it shows all of the texts."""
        wait_for(lambda: all(text in self.text() for text in texts), f"{texts}")

    def settled(self) -> None:
        """Wait until all parts have their numbers."""
        wait_for(lambda: not self.driver.find_elements("css selector", "[aria-busy]"), "all parts")

    def outer(self) -> str:
        """What stands behind the # in the browser's line of addresses."""
        return str(self.driver.execute_script("return window.parent.location.hash"))
