"""Whoever wants to be told of alerts."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hooks.reports.alert import Alert

Observer = Callable[[Alert], object]


class AlertObservers:
    """Functions that are told of each alert, in the order in which they subscribed.

    One that raises harms neither the others nor training: its error goes to ``on_fault``.

    Example:
        >>> from lightning_hooks.alerts import Alert, AlertObservers
        >>> observers, seen = AlertObservers(), []
        >>> observers.subscribe(lambda alert: seen.append(alert.name))
        >>> observers.notify(Alert("dead", "relu", 1.0, 0.5, 0, 9, "critical", "…"), on_fault=print)
        >>> seen
        ['dead at relu']
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> None:
        """Tell ``observer`` of every alert from now on; subscribing twice is subscribing once.

        Raises:
            TypeError: If it cannot be called.
        """
        if not callable(observer):
            raise TypeError(f"An observer is a function of an Alert; got {observer!r}.")
        if observer not in self._observers:
            self._observers.append(observer)

    def unsubscribe(self, observer: Observer) -> None:
        """Tell ``observer`` no more.

        Raises:
            ValueError: If it is not subscribed.
        """
        if observer not in self._observers:
            raise ValueError(f"{observer!r} is not subscribed; the subscribers are {self._observers!r}.")
        self._observers.remove(observer)

    def notify(self, alert: Alert, on_fault: Callable[[Observer, Exception], None]) -> None:
        """Tell everybody, in order."""
        for observer in list(self._observers):
            try:
                observer(alert)
            except Exception as error:  # noqa: BLE001  a subscriber's trouble is not the training's
                on_fault(observer, error)

    def __len__(self) -> int:
        return len(self._observers)
