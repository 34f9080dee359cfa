"""The slow reference, and both paths for CPU memory, as for the statistics."""

from tests.statistics.conftest import assert_moments, assert_row, path

__all__ = ["assert_moments", "assert_row", "path"]
