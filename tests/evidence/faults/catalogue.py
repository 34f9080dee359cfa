"""All families of the zoo: importing this fills the lists."""

from __future__ import annotations

from tests.evidence.faults import (  # noqa: F401  each enters its cases
    healthy,
    healthy_libraries,
    healthy_modern,
    healthy_tricky,
    planted_attention,
    planted_loss,
    planted_modern,
    planted_numbers,
    planted_outputs,
    planted_residual,
    planted_routers,
    planted_scale,
    planted_setup,
    planted_updates,
    planted_wiring,
)
from tests.evidence.faults.zoo import FAULTS, HEALTHY, Case

CASES: dict[str, Case] = {**FAULTS, **HEALTHY}
