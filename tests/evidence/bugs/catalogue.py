"""All bugs and healthy programs: importing this fills the list."""

from __future__ import annotations

from tests.evidence.bugs import (
    bugs_of_forums,
    bugs_of_ranks,
    bugs_of_states,
    bugs_of_traincheck,
    programs,
    programs_of_other_kinds,
)
from tests.evidence.bugs.cases import CASES

__all__ = [
    "CASES",
    "bugs_of_forums",
    "bugs_of_ranks",
    "bugs_of_states",
    "bugs_of_traincheck",
    "programs",
    "programs_of_other_kinds",
]
