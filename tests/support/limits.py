"""On which side of its limit the value of each rule's alerts lies."""

from collections.abc import Callable

from lightning_hooks.alerts import Alert, Rule

Beyond = Callable[[float, float], bool]


def _above(value: float, limit: float) -> bool:
    return value >= limit


def _below(value: float, limit: float) -> bool:
    return value <= limit


def _away_from_one(value: float, limit: float) -> bool:
    """Of a factor: larger than one above 1, smaller than one below it."""
    return value >= limit > 1 or value <= limit < 1


def _below_or_zero(value: float, limit: float) -> bool:
    return value < 0 == limit or value >= limit > 0


SIDES: dict[str, Beyond] = {
    **dict.fromkeys(
        (
            "AttentionCollapse", "Constant", "CopyFollows", "LossPlateau", "LossWithoutBound", "LrZero", "OffsetInput",
            "PartNotLearning", "RepresentationCollapse", "RouterCollapse", "Silent", "TinyInput", "UpdateTooSmall", "Vanishing",
        ),
        _below,
    ),
    "PoorInit": _away_from_one,
    "ValidationShift": _away_from_one,
    "IdOutOfRange": _below_or_zero,
}  # fmt: skip
"""The rules whose values are not above their limits."""
_OF_TWO = {"ModuleSettings": "values", "NoProgress": "threshold", "StepTooLong": "threshold"}
"""Rules that measure several things, and the limit of those below which a value counts."""


def assert_beyond(rule: Rule, alert: Alert) -> None:
    """The limit that an alert states is one that its value is beyond; of rules of the package."""
    name = type(rule).__name__
    if not type(rule).__module__.startswith("lightning_hooks."):
        return
    beyond = SIDES.get(name, _above)
    if name in _OF_TWO:
        beyond = _below if alert.threshold == getattr(rule, _OF_TWO[name]) else _above
    assert beyond(alert.value, alert.threshold), f"{name}: {alert.value} is within {alert.threshold}: {alert.message}"
