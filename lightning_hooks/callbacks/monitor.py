"""Callbacks with members in the session of a fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, R
from lightning_hooks.hooks import Faults
from lightning_hooks.hosts.lightning_adapter import Adapter, EitherPackage
from lightning_hooks.hosts.lightning_api import callbacks_of, record_rows
from lightning_hooks.hosts.observers import ModelReports, WithMembers, joining
from lightning_hooks.session.member import Member, NewCollector
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.terminal import run_report
from lightning_hooks.statistics.histograms import Histogram

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


def names_of_callbacks(trainer: Trainer) -> set[str]:
    """The classes of a trainer's callbacks by name."""
    return {type(callback).__name__ for callback in callbacks_of(trainer)}


class SessionCallback(WithMembers, EitherPackage):
    """A callback with members in the session of a fit."""

    joins_session: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._recorded_loaders = ExitStack()
        self._state_key: tuple[str, str] | None = None  # selection, key

    @override
    def in_another_fit(self, trainer: Trainer) -> bool:
        session = next((member.session for member in self.members if member.session is not None), None)
        other: Any = None if session is None else getattr(session.host, "trainer", None)
        return other is not None and other is not trainer and not other.interrupted

    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Fabric has set up a model.

        Raises:
            TypeError: If it is not a :class:`~lightning_hooks.TrainingMonitor`.
        """
        raise TypeError(f"Fabric takes lightning_hooks.TrainingMonitor, which has all monitors; got {type(self).__name__}.")

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and any(member.settings.capsule is not None for member in self.members):
            self._recorded_loaders.close()
            self._recorded_loaders.callback(record_rows(trainer))

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.forget_model()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not self.in_another_fit(trainer):
            self.forget_model()

    @override
    def forget_model(self) -> None:
        super().forget_model()
        self._recorded_loaders.close()

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recorded_loaders": ExitStack()}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        session = Adapter.of(trainer).session_of(trainer, pl_module)
        self.skip_unused_events()
        of_model = isinstance(self, ModelReports)  # else its member joins whatever the model has
        for member in joining(self.members, pl_module, names_of_callbacks(trainer)) if of_model else self.members:
            session.join(member)

    @property
    @override
    def state_key(self) -> str:
        known, selection = self._state_key, self.members[0].selection  # Lightning asks for it at every event of every batch
        if known is None or known[0] != selection:
            known = self._state_key = selection, self._generate_state_key(modules=selection)
        return known[1]

    def _repr_html_(self) -> str:
        """The head of the run's health report, for a notebook."""
        return run_report(self.members).head()


class Monitor(SessionCallback, Generic[R]):
    """A callback with one collector. Its arguments are those of :class:`~lightning_hooks.TrainingMonitor`.

    Attributes:
        member: The collector with its settings.
    """

    collector: ClassVar[type[Collector[Any]]]  # what it measures

    def __init__(self, settings: Settings, new: NewCollector | None = None) -> None:
        super().__init__()
        self.member = Member(type(self).__name__, self.collector, settings, new)

    @property
    @override
    def members(self) -> Sequence[Member]:
        return (self.member,)

    @property
    def report(self) -> R | None:
        """The report of the last finished window, at an epoch's end that of the epoch; None before the first."""
        report: R | None = self.member.latest_report
        return report

    @property
    def histograms(self) -> dict[str, Histogram]:
        """Site to (edges, counts) of the last finished window, where ``histograms=`` asks for them."""
        return self.member.histograms

    @property
    def history(self) -> deque[R]:
        """The reports of this fit's windows, oldest first: the last 1000, of large models fewer."""
        return self.member.history.reports

    @property
    def selection(self) -> str:
        """What distinguishes two monitors of a kind in a checkpoint: the chosen modules in words, unless set otherwise."""
        return self.member.selection

    @selection.setter
    def selection(self, selection: str) -> None:
        self.member.selection = selection

    @property
    def faults(self) -> Faults:
        """The sites whose hook raised, and is disabled since."""
        return self.member.faults

    def plot(self, stat: str | None = None) -> Figure:
        """Draw what was reported in this fit: a matplotlib figure.

        Args:
            stat: A statistic, such as ``rms``, for a heat map of all layers over the epochs; None for what suits the reports best.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there is no report yet, or no such statistic.
        """
        return self.member.history.plot(stat)

    def to_frame(self) -> pandas.DataFrame:
        """Return what was reported in this fit as a pandas table: a row for each epoch and each module, parameter or optimizer.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet.
        """
        return self.member.history.to_frame()
