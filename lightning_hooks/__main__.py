"""``python -m lightning_hooks report RUN_DIR`` and ``python -m lightning_hooks compare RUN_A RUN_B``."""

import sys

from lightning_hooks.run_report.cli import main

if __name__ == "__main__":
    sys.exit(main())
