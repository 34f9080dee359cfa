"""The slow reference, and both paths for CPU memory, as for the statistics; limits as in the tests of alerts."""

from tests.alerts.conftest import made
from tests.statistics.conftest import assert_moments, assert_row, each_path

__all__ = ["assert_moments", "assert_row", "each_path", "made"]
