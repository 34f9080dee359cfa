"""``lightning-hooks``, or ``python -m lightning_hooks``: its commands are listed by ``lightning-hooks --help``."""

import argparse
import sys
from collections.abc import Sequence

from lightning_hooks.run_report import cli
from lightning_hooks.sinks.tab.answers import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code, 2 if what it is given cannot be read."""
    return cli.main(arguments, demo=_demo, replay=_replay, serve=lambda options: (serve(options.logdir, options.port), 0))


def _replay(options: argparse.Namespace) -> cli.Done:
    from lightning_hooks.replay.command import replay

    return replay(options.capsule, options.model, options.data)


def _demo(options: argparse.Namespace) -> cli.Done:
    from lightning_hooks import demo  # it imports Lightning, which the other commands do not need

    return demo.lines(options.output, options.healthy), 0


if __name__ == "__main__":
    sys.exit(main())
