"""The slow reference, and both paths for CPU memory, as for the statistics; limits as in the tests of alerts."""

from tests.alerts.conftest import made
from tests.statistics.conftest import assert_moments, assert_row, path

__all__ = ["assert_moments", "assert_row", "made", "path"]
