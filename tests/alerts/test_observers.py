"""Observers are called in order, may come and go, and affect nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hooks.alerts import Alert, AlertObservers

ALERT = Alert("dead", "a", 0.9, 0.5, 0, 10, "warning", "seen; cause; remedy")


def test_in_order_of_subscription_and_never_twice() -> None:
    seen: list[str] = []
    observers = AlertObservers()
    first, second = (lambda alert: seen.append("first")), (lambda alert: seen.append("second"))
    for observer in (first, second, first):
        observers.subscribe(observer)
    observers.notify(ALERT, on_fault=pytest.fail)
    observers.unsubscribe(first)
    observers.notify(ALERT, on_fault=pytest.fail)
    assert seen == ["first", "second", "second"]


def test_one_that_raises_or_leaves_while_called_affects_nobody() -> None:
    seen: list[Any] = []
    observers = AlertObservers()

    def broken(alert: Alert) -> None:
        observers.unsubscribe(broken)
        raise KeyError("oops")

    observers.subscribe(broken)
    observers.subscribe(seen.append)
    faults: list[Any] = []
    observers.notify(ALERT, on_fault=lambda observer, error: faults.append((observer, type(error))))
    observers.notify(ALERT, on_fault=pytest.fail)
    assert seen == [ALERT, ALERT]
    assert faults == [(broken, KeyError)]


def test_what_is_no_observer_raises() -> None:
    with pytest.raises(TypeError, match="An observer is a function of an Alert; got 3"):
        AlertObservers().subscribe(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"print.* is not subscribed"):
        AlertObservers().unsubscribe(print)
