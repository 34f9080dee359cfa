"""The *Health* tab of TensorBoard. TensorBoard imports this module when it starts: nothing heavy, and nothing that may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorboard.plugins import base_plugin

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
FIRST_PATIENCE = 0.05  # seconds that TensorBoard waits for the answer whether there are runs; it asks again at each reload


class HealthPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    """The runs of the log directory that TensorBoard knows: status, alerts, heat maps, curves, comparisons."""

    plugin_name = "health"

    def __init__(self, context: Any) -> None:
        self._logdir = getattr(context, "logdir", None) or ""

    @cached_property
    def runs(self) -> Any:
        """All runs, of which none is read before they are asked for."""
        from lightning_hooks.sinks.tab.runs import Runs

        here = self._logdir and "://" not in self._logdir  # of gs://… the run files are where training ran
        return Runs(Path(self._logdir).expanduser() if here else None)

    def get_plugin_apps(self) -> dict[str, Application]:
        """The addresses of the tab: its module, its style and its data."""
        from lightning_hooks.sinks.tab.answers import PATHS

        self.runs.ask(patience=0)
        return {path: self._application(path) for path in PATHS}

    def is_active(self) -> bool:
        """Whether there is a run file; the search goes on in a thread of its own."""
        return bool(self.runs.ask(patience=FIRST_PATIENCE))

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The tab's name and module."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Health", disable_reload=True)

    def _application(self, path: str) -> Application:
        def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            from tensorboard.backend import http_util
            from werkzeug.wrappers import Request

            from lightning_hooks.sinks.tab.answers import answer

            request = Request(environ)
            if request.method not in ("GET", "HEAD"):
                return http_util.Respond(request, "GET only", "text/plain", 405)(environ, start_response)  # type: ignore[no-any-return]
            found = answer(self.runs, path, request.args.to_dict())
            return http_util.Respond(request, found.content, found.kind, found.status)(environ, start_response)  # type: ignore[no-any-return]

        return serve
