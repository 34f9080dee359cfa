"""TrainingMonitor: all monitors in one callback, and the one that gives a fit the monitors it lacks."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks.monitor import SessionCallback, names_of_callbacks
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.hosts.fabric import FabricLoop
from lightning_hooks.hosts.lightning_adapter import Adapter
from lightning_hooks.hosts.lightning_api import callbacks_of
from lightning_hooks.hosts.observers import TrainingMembers, TrainingReports, joining
from lightning_hooks.hosts.plain import PlainHost
from lightning_hooks.session.settings import (
    CapsulePlace,
    Histograms,
    Learning,
    Logged,
    OnAlert,
    ReportDir,
    ReportEvery,
    Rules,
    Summary,
    arguments_in,
)
from lightning_hooks.sinks.webhook import Address


class TrainingMonitor(TrainingReports, SessionCallback):
    """Observes a training: feature statistics, gradient flow and clipping events, with alerts and one health report.

    It is :class:`~lightning_hooks.FeatureStatsMonitor`, :class:`~lightning_hooks.GradientFlowMonitor` and
    :class:`~lightning_hooks.GradientClipMonitor` in one callback, and logs what they log. Training is not altered.

    Args:
        modules: Which modules are observed: a glob pattern on the names of ``named_modules()``, a module type (in YAML its full
            name, such as ``torch.nn.ReLU``), several of these, or a predicate of (name, module). None for every leaf that computes
            something.
        every_n_steps: Training batches 0, n, 2n, … of each window are sampled. Clip events are counted at every step.
        report_every_n_steps: The window that a report, logged values and alerts cover: this many training batches, None for an
            epoch, or ``auto``: epochs of up to 2000 batches, and windows of 500 where they are longer or have no known length.
            Windows shorter than an epoch are merged at its end to a report of the epoch, which is logged as ``<tag>_epoch``.
        on_alert: What is done with a new alert: ``log`` it, ``warn`` (a Python warning), ``stop`` the fit after this window,
            ``raise`` an :class:`~lightning_hooks.alerts.AlertError`; a function that is called with each; or a list of these. An
            ``info`` is only counted, or handed to the function. An alert that lasts is passed on once.
        rules: Rules to change, mute or add: ``Dead(threshold=0.8, sites="encoder.*")``, ``"-silent"``, a function from a report to
            alerts (the annotation of its first parameter says which report), and so on; see
            :class:`~lightning_hooks.alerts.RuleBook`.
        min_probability: How probable a problem must be to be a warning. Below it, it is an ``info``, and below 0.5 it is shown in
            the report only. A fact is near 1; a symptom depends on its size, on whether its cause is known, and on the loss.
        summary: What is printed at the end of training: True for three lines (the verdict, the open alerts, where the report is),
            ``full`` for tables before them, False for nothing.
        logged: Which statistics are logged: ``auto`` for those of every site in models of up to 8 modules, and in larger ones the
            median and the worst of the model and the sites that had an alert, at most 100 tags in all; ``all``, or names of
            statistics, for these of every site. Reports and ``callback_metrics`` always have all.
        max_overhead: The share of the training step's time that all monitors together may cost, such as 0.01: fewer batches are
            sampled than ``every_n_steps`` says where that costs more. None for no limit.
        report_dir: Where the run's reports and its health report are written: ``auto`` for the log directory, if a logger has
            one, another directory, or None for nowhere.
        histograms: Whether loggers get histograms of outputs and of their gradients: True for up to 128 modules, spread evenly, or
            glob patterns on names.
        figures: Whether loggers get figures, drawn next to training: True after windows 0, 1, 2, 4, 8, …, n after every nth window;
            and at the end. Heat maps of the statistics that ``logged`` names, or of the RMS; at the end of all. Needs matplotlib.
        check_every_n_steps: Look for values that are not finite every n steps within the window, so that ``stop`` and ``raise`` can
            act before it ends. None for at its end only.
        progress_bar: Whether the progress bar shows the number of alerts and the share of clipped steps.
        functional: Whether calls of functions (attention, activations, normalisations, embeddings, ``cross_entropy``) are sites
            as modules are, named after the module that makes them, such as ``blocks.3.attn/sdpa``. Patterns in ``modules`` select
            them by these names, or with their module. They are not seen under ``torch.compile``.
        capsule: Where the first bad step of a run is kept, to be run again with ``lightning-hooks replay``: ``auto`` for the log
            directory, ``rows`` for the same without the samples themselves, a folder, or None. A capsule holds training samples.
            Alerts about single steps name their samples, and on the CPU a step that is not finite is run again at once, with hooks
            at every module, to name the operation and the samples; the training is the same, bit for bit. Only what the model
            holds is put back: a global of a module that ``training_step`` changes, such as a script's counter, is changed twice in
            that step. None turns all of it off.
        max_capsule_mb: The most that a capsule may take, in millions of bytes; what does not fit is left out.
        keep_batches: How many batches are kept, so that a capsule has the batch also where a bad step is known late, as on CUDA.
        learning: Whether it is measured what of the training learns (:attr:`learning`): ``auto`` for all that sampled steps show,
            which only reads; True to run some steps again besides, with a warning where that cannot be: what ``training_step``
            counts in class attributes or globals, or does outside of the process, happens twice then; False for nothing.
        notify: Where new root alerts above info and the end of the run are sent: ``env:NAME`` for the address in an environment
            variable, or an http(s) address: of Slack, Discord, ntfy, or any that takes JSON. None for what the variable
            ``LIGHTNING_HOOKS_NOTIFY`` says. The address is a secret: pickles, checkpoints and saved configurations have a mask in
            its place.
        live: Whether a notebook shows the run's page below the cell, again after each window; elsewhere a line of text is printed.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or, at train start, if ``modules`` matches nothing.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import TrainingMonitor
        >>> trainer = Trainer(callbacks=[TrainingMonitor()], logger=False)
    """

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        min_probability: float = 0.8,
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        histograms: Histograms = False,
        figures: bool | int = False,
        check_every_n_steps: int | None = None,
        progress_bar: bool = False,
        functional: bool = True,
        capsule: CapsulePlace = "auto",
        max_capsule_mb: float = 200,
        keep_batches: int = 0,
        learning: Learning = "auto",
        notify: Address | str | None = None,
        live: bool = False,
    ) -> None:
        super().__init__()
        self.observers = TrainingMembers(**arguments_in(locals()))
        self.outlets = self.observers.outlets

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        session = Adapter.of(trainer).session_of(trainer, pl_module)
        self.outlets.add_to(session.sinks, session.host, session.members)

    @override
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        FabricLoop.set_up(self, fabric, module)

    @override
    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        session = self.members[0].session
        if session is not None and isinstance(session.host, PlainHost):  # Fabric's, which stores no progress of its own
            state["loop"] = session.host.progress
        return state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.observers.resumed = state_dict.get("loop")
        super().load_state_dict(state_dict)


class MonitorsFromEnvironment(TrainingMonitor):
    """Gives every fit the parts of :class:`~lightning_hooks.TrainingMonitor` that its trainer lacks; none is doubled.

    It is what ``LIGHTNING_HOOKS=1`` adds to a trainer. Unlike monitors that a script asks for, these never end a fit: a part that
    cannot observe this model (it has no modules, a pattern matches none of them, each rank holds a shard of the gradients) is left
    out, with a warning. The arguments are those of TrainingMonitor. Lightning prints the name of this class at the start.
    """

    # Lightning extends the list that it is given in place, so that the second trainer with a list has two of these, and raises for
    # callbacks with a state_dict of their own and one key. on_save_checkpoint puts the state into checkpoints instead.
    state_dict = Callback.state_dict

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["callbacks"][self.state_key] = super().state_dict()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        callbacks = callbacks_of(trainer)
        *of_others, own = (each for each in callbacks if isinstance(each, MonitorsFromEnvironment))  # of earlier trainers first
        if self is own:
            trainer.callbacks = [each for each in callbacks if each not in of_others]  # type: ignore[attr-defined]
            super().setup(trainer, pl_module, stage)

    @override
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        FabricLoop.set_up(self, fabric, module, quiet=True)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not before training starts: models may be built after setup.
        present = {
            member.kind.prefix
            for other in callbacks_of(trainer)
            if isinstance(other, SessionCallback) and other is not self
            for member in other.members
        }
        session = Adapter.of(trainer).session_of(trainer, pl_module)
        for members in self.observers.groups:
            if members[0].kind.prefix in present:
                continue
            try:
                for member in joining(members, pl_module, names_of_callbacks(trainer)):
                    session.join(member)
            except Exception as error:  # noqa: BLE001  any error: the script must run as it does without us
                warn(
                    f"LIGHTNING_HOOKS: this fit runs without {members[0].name}, because of {type(error).__name__}: {error} "
                    "Training goes on."
                )
        self.outlets.add_to(session.sinks, session.host, session.members)
