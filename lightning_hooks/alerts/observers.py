"""The subscribers of alerts."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hooks.declare.alert import Alert

Observer = Callable[[Alert], object]


class AlertObservers:
    """Functions that are called with each alert, in the order in which they subscribed.

    An error of one affects neither the others nor training: it goes to ``on_fault``.

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
        """Call ``observer`` with every alert from now on; a second subscription changes nothing.

        Raises:
            TypeError: If it cannot be called.
        """
        if not callable(observer):
            raise TypeError(f"An observer is a function of an Alert; got {observer!r}.")
        if observer not in self._observers:
            self._observers.append(observer)

    def unsubscribe(self, observer: Observer) -> None:
        """Call ``observer`` no more.

        Raises:
            ValueError: If it is not subscribed.
        """
        if observer not in self._observers:
            raise ValueError(f"{observer!r} is not subscribed; the subscribers are {self._observers!r}.")
        self._observers.remove(observer)

    def notify(self, alert: Alert, on_fault: Callable[[Observer, Exception], None]) -> None:
        """Call all of them, in order."""
        for observer in list(self._observers):
            try:
                observer(alert)
            except Exception as error:  # noqa: BLE001  an error of a subscriber must not end training
                on_fault(observer, error)

    def __len__(self) -> int:
        return len(self._observers)
