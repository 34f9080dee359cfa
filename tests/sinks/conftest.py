"""Runs on disk."""

from tests.support.runs import make_run  # noqa: F401  a fixture
