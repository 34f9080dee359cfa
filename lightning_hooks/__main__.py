"""``python -m lightning_hooks report RUN_DIR`` and ``python -m lightning_hooks compare RUN_A RUN_B``."""

import sys

from lightning_hooks.health.cli import main

if __name__ == "__main__":
    sys.exit(main())
