"""All bugs and healthy programs: importing this fills the list."""

from __future__ import annotations

from tests.evidence.bugs import bugs_of_forums, bugs_of_traincheck, programs
from tests.evidence.bugs.cases import CASES

__all__ = ["CASES", "bugs_of_forums", "bugs_of_traincheck", "programs"]
