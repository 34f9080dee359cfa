"""``lightning-hooks``, or ``python -m lightning_hooks``: ``demo``, ``report RUN``, ``compare RUN_A RUN_B``, ``explain KIND``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_hooks.run_report import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or 2 if a run cannot be read or a kind is not known."""
    return cli.main(arguments, _demo)


def _demo(folder: Path, healthy: bool) -> list[str]:
    from lightning_hooks import demo  # it imports Lightning, which the other commands do not need

    return demo.lines(folder, healthy)


if __name__ == "__main__":
    sys.exit(main())
