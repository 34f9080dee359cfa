"""How alerts on attention follow from others, and others from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightning_hooks.alerts.loss_causes import LinkedAlert


def _same_layer(effect: LinkedAlert, cause: LinkedAlert) -> bool:
    """Whether two sites belong to one layer: a call to its module, modules to the module around them."""
    one, other = (node.alert.site.partition("/")[0] for node in (effect, cause))
    above, around = (site.rpartition(".")[0] for site in (one, other))
    return one in (other, around) or above == around != ""


def _lost(_: LinkedAlert, cause: LinkedAlert) -> bool:
    return cause.alert.severity == "critical"  # rows without a key gave NaN


ATTENTION_LINKS: Mapping[tuple[str, str], Callable[[LinkedAlert, LinkedAlert], bool]] = {
    # (cause, effect): whether this effect follows from this cause
    ("poor_init", "attention_logits"): _same_layer,
    ("poor_init", "attention_collapse"): _same_layer,
    ("attention_logits", "attention_collapse"): _same_layer,
    ("attention_logits", "saturated"): _same_layer,
    ("attention_collapse", "saturated"): _same_layer,
    ("masked_rows", "nonfinite"): _lost,
}
"""A part of the table of :mod:`lightning_hooks.alerts.causes`."""
