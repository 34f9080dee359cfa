"""The checks of gradients within a window."""

from __future__ import annotations

import math

from torch.nn.parameter import is_lazy

from lightning_hooks.alerts import Exploding
from lightning_hooks.collectors.checks import StepChecks
from lightning_hooks.collectors.collector import Context
from lightning_hooks.hooks.selection import clean_name


def new_step_checks(context: Context) -> StepChecks | None:
    """Return the checks that ``check_every_n_steps`` asks for; None for none."""
    if context.early is None:
        return None
    rules = [rule for rule in context.book.rules if isinstance(rule, Exploding)]
    absolute = min((rule.absolute for rule in rules), default=math.inf)  # a rule may be for some sites only:
    relative = min((rule.relative for rule in rules), default=math.inf)  # what is found is compared with it again
    host = context.host
    return StepChecks(
        context.early,
        context.steps.names,
        (absolute, relative),
        host.world_size,
        context.judge_urgent,
        {clean_name(name): p.numel() for name, p in host.model.named_parameters() if not is_lazy(p)},
        host.device,
        context.faults,
    )
